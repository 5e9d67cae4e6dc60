"""A complete host in the test's process.

async with FakeHost() as fake:
    client = fake.client()
    await client.enqueue([Item("mail", b"hello", delay_ms=60_000)])
    await fake.advance(60_000)
    assert await client.dequeue({"mail": 1})

Holds `FakeHost` and `SyncFakeHost`. Always true: it is the host of `foqs host` with
the store in memory, so it behaves like one; nothing waits in real time, and nothing
outlives it. It needs the packages of a host: `foqs[server]`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

from foqs.host import ComposedHost
from foqs.host_constants import HostConstants
from foqs.options.config import load
from foqs.options.options import DAY_MS, HOUR_MS
from foqs.shard.shard_constants import ShardConstants
from foqs.surroundings import Surroundings
from foqs.testing.host_loop import HostLoop
from foqs.testing.memory_network import MemoryNetwork
from foqs.testing.virtual_loop import VirtualClock
from foqs_client import Client, ItemView, SyncClient
from foqs_client.background_loop import BackgroundLoop
from foqs_client.client import TIMEOUT_MS_DEFAULT

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

P = ParamSpec("P")
T = TypeVar("T")

ADDRESS: Final = "127.0.0.1"
PORT: Final = 7411
"""The port in the host's own network. It has no connection to the machine's network."""

_OPTIONS: Final = {
    "server.host": ADDRESS,
    "server.port": PORT,
    "store.url": "memory:",
    "store.shards": 1,
}
"""The options of the host. It has one shard, so that the order is exact."""
_CONSTANTS: Final = HostConstants(
    ShardConstants(sweep_interval_ms=DAY_MS, clock_sample_interval_ms=HOUR_MS, timer_tick_ms_min=1)
)
"""The constants of the host: few sweeps, so that years pass quickly, and due items are processed at once."""
_TIMER_LATE_MS: Final = 2
"""A host's timer can fire this late: it counts whole milliseconds, and waits at least `timer_tick_ms_min`."""
_PAGE_ITEMS: Final = 1_000
_STATES: Final = ("ready", "deferred", "leased", "dead")
_START_S_MAX: Final = 60.0


class FakeHost:
    """A host in memory, in the running event loop: `async with FakeHost() as fake`.

    Its time is the loop's time plus what `advance` adds. The jitter of backoffs is
    random, as on a host.

    Args:
        options: options of the configuration by dotted name, as in `configs/foqs.toml`:
            `{"namespace.lease_ms_default": 5_000}`. The namespace `default` exists;
            create others with `Client.create_namespace`.

    Raises:
        ConfigError: there is no such option, or its value cannot be used.
    """

    def __init__(self, options: Mapping[str, object] = MappingProxyType({})) -> None:
        self._config = load(overrides={**_OPTIONS, **options})
        self._clients: list[Client] = []
        self._network = MemoryNetwork()
        self._loop: HostLoop
        self._host: ComposedHost

    async def __aenter__(self) -> Self:
        self._loop = HostLoop(asyncio.get_running_loop(), self._network)
        try:
            await self._loop.run_to_completion(self._start())
        except BaseException:
            await self._loop.finish()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            await client.close()
        await self._loop.run_to_completion(self._host.stop())
        await self._loop.finish()

    def client(
        self,
        *,
        namespace: str = "default",
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        automatic_keys: bool = True,
        tracing: bool | TracerProvider = True,
    ) -> Client:
        """Return a client of this host, which is closed with it. The client's own timeouts are real time."""
        client = Client(
            f"foqs://{ADDRESS}:{PORT}",
            namespace=namespace,
            timeout_ms=timeout_ms,
            automatic_keys=automatic_keys,
            tracing=tracing,
            connect=self._network.connect,
        )
        self._clients.append(client)
        return client

    async def advance(self, ms: int) -> None:
        """Advance the host's time: leases and delays end, long polls time out, in their order.

        It is advanced by 2 ms more, because a timer of a host can be late by this.
        Returns when all that follows from it has happened, and the tasks that wait
        for this host have had their turn.
        """
        await self._loop.advance((ms + _TIMER_LATE_MS) / 1_000)

    async def items(self, topic: str, *, namespace: str = "default") -> list[ItemView]:
        """Return all items of a topic with payloads: ready, then deferred, leased and dead ones; best first."""
        found: list[ItemView] = []
        async with self.client(namespace=namespace) as client:
            for state in _STATES:
                cursor: str | None = None
                while True:
                    page = await client.peek(topic, state, _PAGE_ITEMS, cursor, with_payload=True)
                    found += page.items
                    cursor = page.next_cursor
                    if cursor is None:
                        break
        return found

    async def _start(self) -> None:
        wall_origin_ms = time.time_ns() // 1_000_000 - int(self._loop.time() * 1_000)
        clock = VirtualClock(self._loop, wall_origin_ms=wall_origin_ms)
        self._host = ComposedHost(self._config, Surroundings.of(self._config, clock), _CONSTANTS)
        await self._host.start()
        async with asyncio.timeout(_START_S_MAX):
            while not self._host.is_ready:  # noqa: ASYNC110 - its own time, which does not wait
                await asyncio.sleep(0.001)


def _synchronous(
    method: Callable[Concatenate[FakeHost, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncFakeHost, P], T]:
    """Return a synchronous version of a method of `FakeHost`."""

    @wraps(method)
    def call(self: SyncFakeHost, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._background.run(lambda: method(self._fake, *args, **kwargs))

    return call


async def _nothing_to_clean_up() -> None:
    """Do nothing: the host has not started."""


class SyncFakeHost:
    """A `FakeHost` for code without an event loop: `with SyncFakeHost() as fake`. It has its own thread."""

    def __init__(self, options: Mapping[str, object] = MappingProxyType({})) -> None:
        self._fake = FakeHost(options)
        self._background = BackgroundLoop("foqs-fake-host")

    def __enter__(self) -> Self:
        try:
            self._background.run(self._fake.__aenter__)
        except BaseException:
            self._background.close(_nothing_to_clean_up)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._background.close(lambda: self._fake.__aexit__(None, None, None))

    def client(
        self, *, namespace: str = "default", timeout_ms: int = TIMEOUT_MS_DEFAULT, automatic_keys: bool = True
    ) -> SyncClient:
        """Return a client of this host; see `FakeHost.client`."""
        client = self._fake.client(namespace=namespace, timeout_ms=timeout_ms, automatic_keys=automatic_keys)
        return SyncClient.wrap(client, self._background)

    advance = _synchronous(FakeHost.advance)
    items = _synchronous(FakeHost.items)
