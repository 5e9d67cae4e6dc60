"""What a consumer does that knows one host and nothing of the others: a thin client, or one behind a balancer.

Holds `SingleEndpointConsumer`. Always true: it moves on to another host now and then, with
a client that has learned nothing, and takes leases along. So hosts fill its
dequeues from each other, and pass on what it says of its items. Judges nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

from foqs_client import Delivery, FoqsError
from tests.support.recording_client import RecordingClient

_CALLS: Final = 8
"""With one client."""


class SingleEndpointConsumer:
    """Args:
    open_client: of a host, by its address.
    treat: does to what came what consumers do.
    sent: told of each dequeue.
    """

    def __init__(
        self,
        open_client: Callable[[str], RecordingClient],
        treat: Callable[[RecordingClient, Sequence[Delivery]], Awaitable[None]],
        rng: Random,
        addresses: Sequence[str],
        topics: Sequence[str],
        sent: Callable[[], None],
    ) -> None:
        self._open_client = open_client
        self._treat = treat
        self._rng = rng
        self._addresses = addresses
        self._topics = topics
        self._sent = sent

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Dequeues and deals with what comes, now and then twice at once, until the work is over."""
        rng = self._rng
        while not is_over():
            client = self._open_client(rng.choice(self._addresses))
            for _ in range(_CALLS):
                takers = [asyncio.ensure_future(self._dequeue(client)) for _ in range(rng.choice((1, 2, 3)))]
                if rng.random() < 0.2:
                    await asyncio.sleep(rng.uniform(0, 0.03))
                    break  # it goes, and closes the connection on calls under way
                await asyncio.gather(*takers)
                await asyncio.sleep(rng.expovariate(20))
            await client.client.close()
            await asyncio.gather(*takers)

    async def _dequeue(self, client: RecordingClient) -> None:
        rng = self._rng
        wants = {topic: rng.choice((1, 2)) for topic in rng.sample(self._topics, rng.randint(1, 2))}
        wait_ms, timeout_ms = rng.choice((0, 400, 400)), rng.choice((300, 1_500))
        self._sent()
        try:
            await self._treat(client, await client.dequeue(wants, wait_ms=wait_ms, timeout_ms=timeout_ms))
        except FoqsError:
            return
