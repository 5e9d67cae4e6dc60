"""A producer that knows only one host, such as a thin client or one behind a load balancer.

Holds `SingleEndpointProducer`. Always true: every payload is unique. It sometimes
changes to another host with a new client. Does not judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

from foqs_client import Enqueued, FoqsError, Item
from tests.support.recording_client import RecordingClient

_CALLS: Final = 6
"""The number of calls with one client."""
_BURST: Final = 14
"""The number of calls in a burst: more than a host has room for while its database is slow."""


class SingleEndpointProducer:
    """Args:
    open_client: opens a client of the host at an address.
    sent: called before each call with the number of its items.
    """

    def __init__(
        self,
        name: str,
        open_client: Callable[[str], RecordingClient],
        rng: Random,
        addresses: Sequence[str],
        topics: Sequence[str],
        sent: Callable[[int], None],
    ) -> None:
        self._name = name
        self._open_client = open_client
        self._rng = rng
        self._addresses = addresses
        self._topics = topics
        self._sent = sent
        self._number = 0

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Enqueue in single calls and in bursts, until the work is over."""
        while not is_over():
            client = self._open_client(self._rng.choice(self._addresses))
            for _ in range(_CALLS):
                calls = _BURST if self._rng.random() < 0.08 else 1
                await asyncio.gather(*[self._enqueue(client) for _ in range(calls)])
                await asyncio.sleep(self._rng.expovariate(6))
            await client.client.close()

    def _enqueue(self, client: RecordingClient) -> Awaitable[None]:
        rng = self._rng
        items = [self._item() for _ in range(rng.choice((1, 1, 4)))]
        self._sent(len(items))
        return self._try(client.enqueue(items, timeout_ms=rng.choice((50, 400, 1_500))))

    async def _try(self, asked: Awaitable[list[Enqueued]]) -> None:
        try:
            await asked
        except FoqsError:
            return

    def _item(self) -> Item:
        self._number += 1
        payload = f"{self._name}/{self._number}"
        key = payload if self._rng.random() < 0.4 else None
        return Item(self._rng.choice(self._topics), payload.encode(), lease_ms=400, idempotency_key=key)
