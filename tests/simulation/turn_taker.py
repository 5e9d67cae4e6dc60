"""A client of a simulated run whose groups take turns, and a look at the turns that they get.

Holds `TurnTaker`, which checks invariant 26: nobody else uses its topic, and at the end, when nothing fails any more, one
consumer takes the items one by one, while small groups begin to wait again and again. Judged are its own records: an item has
waited since the reply to its enqueue, or from the beginning, if it was delivered later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from foqs_client import Delivery, FoqsError, Item
from tests.simulation.simulated_client import SimulatedClient
from tests.support.plain_turns import TurnAccount
from tests.support.recording_client import RecordingClient

TURNS_TOPIC: Final = "in turns"
WEIGHTS: Final = {"heavy": 3, "double": 2}
_LARGE: Final = ("anna", "bert", "carla", "heavy")
_SMALL: Final = ("dora", "emil", "fritz", "gerda", "double")
_BEGINNINGS: Final = 60
"""How often a small group begins to wait while turns are judged."""
_LEASE_MS: Final = 500
_REST_S: Final = 2.0
"""Leases have ended, and the rows of the topic were read."""


@dataclass(slots=True, frozen=True)
class _Known:
    """An item that was added, or with `is_delivery` delivered."""

    id: str
    group: str
    priority: int
    is_delivery: bool


class TurnTaker(SimulatedClient):
    """Works with the groups of one fair topic."""

    def __init__(self, client: RecordingClient, rng: Random, call: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        super().__init__(client, rng, call)
        self.judged = 0
        """How many deliveries were judged."""

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Enqueue, and deliver a part of it, whatever fails."""
        rng = self._rng
        while not is_over():
            with suppress(FoqsError):
                group = rng.choice((*_LARGE, *_SMALL))
                items = [self._new_item(group) for _ in range(rng.choice((1, 1, 4)))]
                await self._call(self._client.enqueue(items, timeout_ms=1_000))
                if rng.random() < 0.5:
                    wants = {TURNS_TOPIC: rng.choice((1, 2, 5))}
                    deliveries = await self._call(self._client.dequeue(wants, wait_ms=30, timeout_ms=1_000))
                    await self._call(self._client.ack(deliveries[: rng.randint(0, len(deliveries))]))
            await asyncio.sleep(rng.expovariate(4))

    async def violations(self) -> list[str]:
        """Take all items, and return the deliveries that break the order of turns."""
        rng, known = self._rng, list[_Known]()
        await asyncio.sleep(_REST_S)
        first = await self._client.dequeue({TURNS_TOPIC: 1}, wait_ms=300)
        await self._client.ack(first)
        await self._add(known, [self._new_item(group) for group in _LARGE for _ in range(rng.randint(2, 20))])
        await asyncio.sleep(_REST_S)
        beginnings = 0
        while True:
            if beginnings < _BEGINNINGS and rng.random() < 0.6:
                beginnings += 1
                await self._add(known, [self._new_item(rng.choice(_SMALL))])
            deliveries = await self._client.dequeue({TURNS_TOPIC: 1}, wait_ms=300)
            await self._client.ack(deliveries)
            known += [_delivered(each) for each in deliveries]
            if not deliveries:
                break
            await asyncio.sleep(rng.uniform(0.05, 0.15))  # the next items of its group are read, if it is long
        await self._client.client.close()
        return self._judge(known)

    async def _add(self, known: list[_Known], items: list[Item]) -> None:
        results = await self._client.enqueue(items)
        for item, result in zip(items, results, strict=True):
            assert item.group is not None
            known.append(_Known(result.require(), item.group, item.priority, is_delivery=False))

    def _new_item(self, group: str) -> Item:
        self._number += 1
        priority = self._rng.choice((0, 0, 0, 0, -1))
        return Item(TURNS_TOPIC, f"in turns/{self._number}".encode(), priority, lease_ms=_LEASE_MS, group=group)

    def _judge(self, known: list[_Known]) -> list[str]:
        added = {each.id for each in known if not each.is_delivery}
        # What was not added while turns were judged has waited from the beginning.
        waiting = {each.id: each for each in known if each.is_delivery and each.id not in added}
        account, found = TurnAccount(WEIGHTS), list[str]()
        account.follow(_first_priorities(waiting))
        for each in known:
            if not each.is_delivery:
                waiting[each.id] = each
                account.follow(_first_priorities(waiting))
                continue
            first = _first_priorities(waiting)
            if each.priority > min(first.values()):
                found.append(
                    f"invariant 26: item {each.id} of priority {each.priority} came before better ones: {first}"
                )
            before = account.most
            account.deliver(each.group, each.priority, first)
            if account.most > 1 and account.most > before:
                excess = f"{account.most} times more than its weight allows while another group waited"
                found.append(f"invariant 26: item {each.id}: group {each.group} was delivered from {excess}")
            del waiting[each.id]
            account.follow(_first_priorities(waiting))
            self.judged += 1
        lost = Counter(each.group for each in waiting.values())
        if lost:
            found.append(f"invariant 26: {dict(lost)} wait, and a consumer gets nothing")
        return found


def _delivered(delivery: Delivery) -> _Known:
    return _Known(delivery.id, delivery.group or "", delivery.priority, is_delivery=True)


def _first_priorities(waiting: dict[str, _Known]) -> dict[str, int]:
    """Return the best priority of the items of each group that waits."""
    first: dict[str, int] = {}
    for each in waiting.values():
        first[each.group] = min(each.priority, first.get(each.group, each.priority))
    return first
