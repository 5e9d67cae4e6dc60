"""A client of a simulated run that completes items: their acks and the items that follow from them.

Holds `Completer`. It completes deliveries, repeats completions with the same items and with others, completes one
delivery twice at once, and uses tokens whose leases have ended. No other client uses its topics. Always true: each
payload is unique, and a repeat has the items of the first call. Does not judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

from foqs_client import Completion, Delivery, FoqsError, Item
from tests.simulation.simulated_client import SimulatedClient
from tests.support.recording_client import RecordingClient

STEPS: Final = "steps"
"""The topic of items that are completed; some of the items that follow are in it, too."""
ENDS: Final = "ends"
"""The topic of items from which nothing follows."""
COMPLETED_TOPICS: Final = (STEPS, ENDS)
_KEPT_MAX: Final = 12
"""The number of recent completions that are repeated, some of them after the key window."""
_SLOTS: Final = (1, 2)


class Completer(SimulatedClient):
    """Completes items in one namespace."""

    def __init__(self, client: RecordingClient, rng: Random, call: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        super().__init__(client, rng, call)
        self._made: list[Completion] = []
        self._in_flight: set[asyncio.Task[None]] = set()

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Enqueue, deliver, complete and repeat until the work is over."""
        rng = self._rng
        while not is_over():
            kind = rng.random()
            if kind < 0.3:
                await self._enqueue()
            elif kind < 0.7 or not self._made:
                await self._deliver_and_complete()
            elif kind < 0.9:
                self._start([rng.choice(self._made)])
            else:
                old = rng.choice(self._made)
                self._start([Completion(old.delivery, self._followers())])
            await asyncio.sleep(rng.expovariate(30))
        await asyncio.gather(*self._in_flight)
        await self._client.client.close()

    async def _enqueue(self) -> None:
        try:
            items = [self._new_item(STEPS) for _ in range(self._rng.randint(1, 4))]
            await self._call(self._client.enqueue(items, timeout_ms=3_000))
        except FoqsError:
            pass

    async def _deliver_and_complete(self) -> None:
        rng = self._rng
        try:
            deliveries = await self._call(self._client.dequeue({STEPS: rng.randint(1, 6)}, timeout_ms=1_000))
        except FoqsError:
            return
        if rng.random() < 0.2:
            await asyncio.sleep(rng.uniform(0.1, 0.6))  # some leases end
        completions = [self._completion(delivery) for delivery in deliveries]
        if not completions:
            return
        self._made = [*self._made, *completions][-_KEPT_MAX:]
        self._start(completions)
        if rng.random() < 0.2:
            self._start([self._completion(rng.choice(deliveries))])  # at once, with other items

    def _completion(self, delivery: Delivery) -> Completion:
        return Completion(delivery, self._followers())

    def _followers(self) -> list[Item]:
        """Return new items: on average less than one of them is completed again."""
        rng = self._rng
        items = [self._new_item(ENDS) for _ in range(rng.randint(0, 4))]
        if rng.random() < 0.4 or not items:
            items.insert(rng.randint(0, len(items)), self._new_item(STEPS))
        return items

    def _new_item(self, topic: str) -> Item:
        self._number += 1
        name = f"{topic}/{self._number}"
        slot = self._rng.choice(_SLOTS) if self._rng.random() < 0.15 else None
        return Item(
            topic,
            name.encode(),
            self._rng.randint(0, 2),
            delay_ms=self._rng.choice((None, None, 40)),
            lease_ms=self._rng.choice((60, 300, 900)),
            attempts_max=0,
            # In a completion it is refused if the slot belongs to another shard.
            idempotency_key=None if slot is None else f"~{slot:03x}{name}",
        )

    def _start(self, completions: list[Completion]) -> None:
        task = asyncio.ensure_future(self._complete(completions))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _complete(self, completions: list[Completion]) -> None:
        with suppress(FoqsError):
            await self._call(self._client.complete(completions, timeout_ms=self._rng.choice((50, 500, 3_000))))
