"""A consumer that knows only one host, such as a thin client or one behind a load balancer.

Holds `SingleEndpointConsumer`. Always true: it sometimes changes to another host
with a new client, and keeps its leases. So hosts forward its dequeues and its calls
by id to each other. Does not judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

from foqs_client import Delivery, FoqsError
from tests.support.recording_client import RecordingClient

_CALLS: Final = 8
"""The number of calls with one client."""


class SingleEndpointConsumer:
    """Args:
    open_client: opens a client of the host at an address.
    settle: settles deliveries.
    sent: called before each dequeue.
    """

    def __init__(
        self,
        open_client: Callable[[str], RecordingClient],
        settle: Callable[[RecordingClient, Sequence[Delivery]], Awaitable[None]],
        rng: Random,
        addresses: Sequence[str],
        topics: Sequence[str],
        sent: Callable[[], None],
    ) -> None:
        self._open_client = open_client
        self._settle = settle
        self._rng = rng
        self._addresses = addresses
        self._topics = topics
        self._sent = sent

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Dequeue and settle, sometimes with several dequeues at once, until the work is over."""
        rng = self._rng
        while not is_over():
            client = self._open_client(rng.choice(self._addresses))
            for _ in range(_CALLS):
                dequeues = [asyncio.ensure_future(self._dequeue(client)) for _ in range(rng.choice((1, 2, 3)))]
                if rng.random() < 0.2:
                    await asyncio.sleep(rng.uniform(0, 0.03))
                    break  # close the connection while calls are in flight
                await asyncio.gather(*dequeues)
                await asyncio.sleep(rng.expovariate(20))
            await client.client.close()
            await asyncio.gather(*dequeues)

    async def _dequeue(self, client: RecordingClient) -> None:
        rng = self._rng
        wants = {topic: rng.choice((1, 2)) for topic in rng.sample(self._topics, rng.randint(1, 2))}
        wait_ms, timeout_ms = rng.choice((0, 400, 400)), rng.choice((300, 1_500))
        self._sent()
        try:
            await self._settle(client, await client.dequeue(wants, wait_ms=wait_ms, timeout_ms=timeout_ms))
        except FoqsError:
            return
