"""A client of a simulated run that moves its own items from topic to topic.

Holds `Mover`. Always true: nobody else uses its topics, and its items have no delay and
no TTL, so that a history can show a move as a cancel of the old id and an enqueue of the
new one. Some moves are repeated, some meet a lease, an ack or a dead item. Does not judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from foqs_client import Delivery, FoqsError, Item, Nack
from tests.simulation.simulated_client import SimulatedClient
from tests.support.recording_client import RecordingClient

FROM: Final = "moved from"
TO: Final = "moved to"
MOVED_TOPICS: Final = (FROM, TO)
_KNOWN_MAX: Final = 40


class Mover(SimulatedClient):
    """Moves the items of one namespace."""

    def __init__(self, client: RecordingClient, rng: Random, call: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        super().__init__(client, rng, call)
        self._known: dict[str, Item] = {}
        """Items in `FROM` by id, also some that are gone."""

    async def work(self, name: str, is_stopping: Callable[[], bool]) -> None:
        """Enqueue, deliver, move and ack, round after round."""
        rng = self._rng
        while not is_stopping():
            for step in (self._enqueue, self._deliver, self._move, self._consume):
                try:
                    await step(name)
                except FoqsError:
                    continue
            await asyncio.sleep(rng.expovariate(8))
        await self._client.client.close()

    async def _enqueue(self, name: str) -> None:
        items = []
        for _ in range(self._rng.choice((1, 2, 5))):
            self._number += 1
            items.append(Item(FROM, f"{name}/{self._number}".encode(), self._rng.randint(0, 3), lease_ms=200))
        results = await self._call(self._client.enqueue(items, timeout_ms=1_000))
        self._known |= {result.id: item for result, item in zip(results, items, strict=True) if result.id}
        self._known = dict(list(self._known.items())[-_KNOWN_MAX:])

    async def _deliver(self, name: str) -> None:
        """Lease a few items, and let some die, come back or stay leased."""
        if self._rng.random() < 0.5:
            return
        for delivery in await self._call(self._client.dequeue({FROM: self._rng.choice((1, 3))}, timeout_ms=1_000)):
            await self._settle(delivery)

    async def _settle(self, delivery: Delivery) -> None:
        kind = self._rng.random()
        if kind < 0.5:
            await self._call(self._client.nack([Nack(delivery.id, delivery.token, dead=True)]))
        elif kind < 0.65:
            await self._call(self._client.release([delivery]))
        elif kind < 0.8:
            await self._call(self._client.ack([delivery]))

    async def _move(self, name: str) -> None:
        """Move some items, some of them again, and sometimes twice at once."""
        if not self._known:
            return
        rng = self._rng
        ids = sorted(set(rng.choices(list(self._known), k=rng.choice((1, 2, 6)))))
        items = [self._known[id] for id in ids]
        moves = [self._client.move(ids, items, TO, timeout_ms=rng.choice((50, 500, 3_000)))]
        if rng.random() < 0.2:
            moves.append(self._client.move(ids, items, TO, timeout_ms=500))
        await asyncio.gather(*map(self._call, moves))

    async def _consume(self, name: str) -> None:
        if self._rng.random() < 0.5:
            deliveries = await self._call(self._client.dequeue({TO: 5}, wait_ms=20, timeout_ms=1_000))
            if deliveries:
                await self._call(self._client.ack(deliveries))
