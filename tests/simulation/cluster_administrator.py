"""The administrator of a simulated cluster: it moves and drains shards and hosts, and lists them.

Always true: after the work no shard is pinned or draining, and no host is drained.
Does not judge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from foqs_client import Client, FoqsError


class ClusterAdministrator:
    """Makes random calls for shards and hosts.

    Args:
        hosts: their names.
        called: called before every call.
    """

    def __init__(
        self, client: Client, rng: Random, shards: Sequence[int], hosts: Sequence[str], called: Callable[[], None]
    ) -> None:
        self._client = client
        self._rng = rng
        self._shards = shards
        self._hosts = hosts
        self._called = called

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Make random calls until the work is over."""
        rng, client = self._rng, self._client
        while not is_over():
            shard, host = rng.choice(self._shards), rng.choice(self._hosts)
            deeds: Sequence[Callable[[], Awaitable[object]]] = (
                lambda shard=shard, host=host: client.move_shard(shard, host),  # type: ignore[misc]
                lambda shard=shard, host=host: client.move_shard(shard, host),  # type: ignore[misc]
                lambda shard=shard: client.move_shard(shard, None),  # type: ignore[misc]
                lambda shard=shard: client.drain_shard(shard),  # type: ignore[misc]
                lambda shard=shard: client.undrain_shard(shard),  # type: ignore[misc]
                lambda host=host: self._drain(host),  # type: ignore[misc]
                client.list_shards,
                client.list_hosts,
                client.routing,
            )
            with contextlib.suppress(FoqsError):
                self._called()
                await rng.choice(deeds)()
            await asyncio.sleep(rng.expovariate(3))

    async def restore(self) -> None:
        """Let every host own every shard again, with retries."""
        for shard in self._shards:
            await self._until_done(lambda shard=shard: self._client.move_shard(shard, None))  # type: ignore[misc]
            await self._until_done(lambda shard=shard: self._client.undrain_shard(shard))  # type: ignore[misc]
        for host in self._hosts:
            await self._until_done(lambda host=host: self._client.undrain_host(host))  # type: ignore[misc]
        await self._client.close()

    async def _drain(self, host: str) -> None:
        """Drain a host for a while. Sometimes it stays drained until the next time."""
        await self._client.drain_host(host)
        await asyncio.sleep(self._rng.choice((0.0, 0.3, 1.5)))
        if self._rng.random() < 0.8:
            self._called()
            await self._client.undrain_host(host)

    async def _until_done(self, call: Callable[[], Awaitable[object]]) -> None:
        while True:
            self._called()
            try:
                await call()
            except FoqsError:
                await asyncio.sleep(0.1)
            else:
                return
