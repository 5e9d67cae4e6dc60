"""A client of a simulated run that settles the deliveries of one namespace in the name of another.

Holds `Trespasser`. Always true: each delivery that it names was leased by itself a moment
ago, with its true token, and is acked in its own namespace at last. Does not judge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from foqs_client import Delivery, FoqsError, Nack
from tests.support.recording_client import RecordingClient


class Trespasser:
    """Knows ids and tokens of its own namespace, and names them in another one.

    Args:
        owner: its client in the namespace of the items.
        stranger: its client in the other namespace.
        call: counts a call.
    """

    def __init__(
        self,
        owner: RecordingClient,
        stranger: RecordingClient,
        rng: Random,
        topics: Sequence[str],
        call: Callable[[Awaitable[Any]], Awaitable[Any]],
    ) -> None:
        self._owner = owner
        self._stranger = stranger
        self._rng = rng
        self._topics = topics
        self._call = call

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Lease an item, name it in the other namespace, and ack it, round after round."""
        while not is_over():
            with contextlib.suppress(FoqsError):
                topic = self._rng.choice(self._topics)
                for delivery in await self._call(self._owner.dequeue({topic: 1}, wait_ms=50, lease_ms=1_000)):
                    with contextlib.suppress(FoqsError):
                        await self._call(self._trespass(delivery))
                    await self._call(self._owner.ack([delivery]))
            await asyncio.sleep(self._rng.expovariate(2))
        await asyncio.gather(self._owner.client.close(), self._stranger.client.close())

    def _trespass(self, delivery: Delivery) -> Awaitable[Any]:
        deeds: Sequence[Callable[[], Awaitable[Any]]] = (
            lambda: self._stranger.ack([delivery]),
            lambda: self._stranger.ack([delivery]),
            lambda: self._stranger.nack([Nack(delivery.id, delivery.token, delay_ms=0)]),
            lambda: self._stranger.extend([delivery], lease_ms=900),
            lambda: self._stranger.release([delivery]),
        )
        return self._rng.choice(deeds)()
