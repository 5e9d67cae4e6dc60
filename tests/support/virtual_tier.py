"""Three whole hosts of one tier in one process under virtual time, and stories on them, one after the other.

Always true: the hosts are those of `foqs host`, with a registry and a database in
memory. A story connects to one of them only; the others take part if that host calls
them. Time stands still between stories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, Final, TypeVar

from foqs.host import ComposedHost
from foqs.options.config import Config, load
from foqs.store.in_memory.memory_store import MemoryDatabase
from foqs.surroundings import Surroundings
from foqs.testing.memory_network import Listener, MemoryNetwork, ProtocolFactory
from foqs.testing.virtual_loop import VirtualClock
from foqs_client import Client, Routing
from shardmgr import layout_changes
from shardmgr.model import ShardSpec
from tests.support.local_ensemble import LocalEnsemble
from tests.support.virtual_time import SimulatedLoop

T = TypeVar("T")

ADDRESSES: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
PORT: Final = 7411
SHARDS: Final = 3
URL: Final = f"foqs://{ADDRESSES[0]}:{PORT}"
_SESSION_MS: Final = 6_000
SPREAD_MS: Final = 3_000
"""Some periods of the hosts' gossip: after it, each host knows what the others have."""
_START_S_MAX: Final = 60.0
_STORY_S_MAX: Final = 3_600.0


class NetworkedLoop(SimulatedLoop):
    """Virtual time with a network in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.network = MemoryNetwork()

    async def create_server(  # type: ignore[override]
        self, protocol_factory: ProtocolFactory, host: str, port: int, **options: Any
    ) -> Listener:
        return await self.network.listen(host, port, protocol_factory)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self.network.connect(protocol_factory, host, port)


class VirtualTier:
    """The hosts. Args: options: of each host, by dotted name."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self._loop = NetworkedLoop()
        self._clock = VirtualClock(self._loop)
        self._ensemble = LocalEnsemble(None, self._clock.monotonic_ms)
        self._database = MemoryDatabase(self._clock.wall_ms)
        self._hosts: list[ComposedHost] = []
        self._clients = 0
        self.refused: list[str] = []
        """The other hosts that clients tried to reach."""
        self.run(self._start(options))

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return its result."""

        async def bounded() -> T:
            async with asyncio.timeout(_STORY_S_MAX):
                return await coro

        result = self._loop.run_until_complete(self._loop.create_task(bounded()))
        failures, self._loop.failures = self._loop.failures, []
        if failures:
            raise BaseExceptionGroup("callbacks failed under virtual time", failures)
        return result

    async def connect(
        self, protocol_factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect a client to the first host. The others cannot be reached."""
        if host != ADDRESSES[0]:
            self.refused.append(host)
            raise ConnectionRefusedError(f"this client knows only {ADDRESSES[0]}")
        return await self._loop.network.connect(protocol_factory, host, port)

    def client(self, namespace: str) -> Client:
        """Return a client that knows the first host."""
        self._clients += 1
        return Client(URL, namespace=namespace, connect=self.connect, rng=Random(f"client {self._clients}"))

    async def pass_ms(self, ms: int) -> None:
        """Let this time pass."""
        await asyncio.sleep(ms / 1_000)

    def close(self) -> None:
        """Stop the hosts."""
        self.run(self._stop())
        self._loop.finish()

    async def _start(self, options: Mapping[str, object]) -> None:
        administrator = self._ensemble.registry(_SESSION_MS)
        await administrator.open()
        await layout_changes.create_layout(administrator, [ShardSpec(number, "main") for number in range(SHARDS)])
        for number, address in enumerate(ADDRESSES):
            config = _config(address, options)
            host = ComposedHost(config, self._surroundings(number))
            self._hosts.append(host)
            await host.start()
        async with self.client("default") as client, asyncio.timeout(_START_S_MAX):
            while not _is_shared(await client.routing()):
                await self.pass_ms(100)
        await self.pass_ms(SPREAD_MS)

    async def _stop(self) -> None:
        for host in self._hosts:
            await host.stop()

    def _surroundings(self, number: int) -> Surroundings:
        return Surroundings(
            self._clock,
            Random(number),
            f"nonce-{number}",
            lambda shard, *_: self._database.store(shard),
            lambda: self._ensemble.registry(_SESSION_MS),
        )


def _is_shared(routing: Routing) -> bool:
    """Return whether each host serves shards."""
    owners = {shard.owner for shard in routing.shards if shard.state == "owned"}
    return len(owners) == len(ADDRESSES) and all(shard.key_slots for shard in routing.shards)


def _config(address: str, options: Mapping[str, object]) -> Config:
    own = {
        "server.host": address,
        "server.port": PORT,
        "server.http_host": address,
        "server.console": False,
        "cluster.zookeeper": "nowhere:1",
        "databases.main.url": "mysql://nobody@nowhere/nothing",
    }
    return load(overrides={**own, **options})


@contextmanager
def virtual_tier(options: Mapping[str, object]) -> Iterator[VirtualTier]:
    tier = VirtualTier(options)
    try:
        yield tier
    finally:
        tier.close()
