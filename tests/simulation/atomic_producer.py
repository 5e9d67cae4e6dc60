"""A client of a simulated run that makes atomic calls.

Holds `AtomicProducer`. It enqueues new items together, repeats calls, and makes calls of which the keys are
remembered from several calls, or only some of them. No other client uses its topic. Always true: a repeat has the
items of the first call, in their order. Does not judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from foqs_client import FoqsError, Item
from tests.simulation.simulated_client import SimulatedClient
from tests.support.recording_client import RecordingClient

ATOMIC_TOPIC: Final = "atomic"
_SLOTS: Final = (1, 2, 3)
"""The slots of its keys. Neighbouring slots belong to different shards."""
_ITEMS_MAX: Final = 14
"""More than the inserts of a flush of the simulation."""
_KEPT_S: Final = 3.5
"""How long a call is repeated: less than the key window."""


@dataclass(slots=True)
class _Group:
    """The items of one call: the slot of their keys, and when it began. `is_known`: their ids are known."""

    items: list[Item]
    slot: int | None
    begun_s: float
    is_known: bool = False


class AtomicProducer(SimulatedClient):
    """Makes atomic calls in one namespace."""

    def __init__(self, client: RecordingClient, rng: Random, call: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        super().__init__(client, rng, call)
        self._groups: list[_Group] = []
        self._in_flight: set[asyncio.Task[None]] = set()

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Enqueue, repeat, mix and consume until the work is over."""
        rng = self._rng
        while not is_over():
            now_s = asyncio.get_running_loop().time()
            self._groups = [group for group in self._groups if now_s < group.begun_s + _KEPT_S]
            kind = rng.random()
            if kind < 0.5 or not self._groups:
                self._start(self._new_group(now_s))
            elif kind < 0.75:
                self._start(rng.choice(self._groups))
            elif kind < 0.9:
                self._mix(now_s)
            else:
                await self._consume()
            await asyncio.sleep(rng.expovariate(12))
        await asyncio.gather(*self._in_flight)
        await self._client.client.close()

    def _new_group(self, now_s: float) -> _Group:
        slot = self._rng.choice((*_SLOTS, None))
        group = _Group([self._new_item(slot) for _ in range(self._rng.randint(1, _ITEMS_MAX))], slot, now_s)
        if slot is not None:
            self._groups.append(group)
        return group

    def _new_item(self, slot: int | None) -> Item:
        self._number += 1
        name = f"atomic/{self._number}"
        return Item(
            ATOMIC_TOPIC,
            name.encode(),
            self._rng.randint(0, 2),
            delay_ms=self._rng.choice((None, None, 40)),
            lease_ms=300,
            idempotency_key=None if slot is None else f"~{slot:03x}{name}",
        )

    def _mix(self, now_s: float) -> None:
        """Make a call of items of known calls, some with a new item; sometimes with keys of several shards."""
        known = [group for group in self._groups if group.is_known]
        if not known:
            return
        first = self._rng.choice(known)
        others = [group for group in known if group.slot == first.slot or self._rng.random() < 0.1]
        second = self._rng.choice(others or known)
        items = [self._rng.choice(first.items), self._rng.choice(second.items)]
        if items[0] is items[1]:
            items.pop()
        if self._rng.random() < 0.6 or len(items) == 1:
            items.insert(self._rng.randint(0, len(items)), self._new_item(first.slot))
        self._start(_Group(items, first.slot, now_s))

    def _start(self, group: _Group) -> None:
        task = asyncio.ensure_future(self._enqueue(group))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _enqueue(self, group: _Group) -> None:
        try:
            timeout_ms = self._rng.choice((50, 500, 3_000))
            await self._call(self._client.enqueue(group.items, atomic=True, timeout_ms=timeout_ms))
            group.is_known = True
        except FoqsError:
            pass

    async def _consume(self) -> None:
        try:
            deliveries = await self._call(self._client.dequeue({ATOMIC_TOPIC: 20}, timeout_ms=1_000))
            if deliveries:
                await self._call(self._client.ack(deliveries))
        except FoqsError:
            pass
