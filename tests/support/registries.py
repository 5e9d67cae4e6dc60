"""Both kinds of registry behind one interface, with users that can be cut off, reconnected, or lose their session.

Always true: a bench starts empty, and closes every registry in the loop that used it.
Knows nothing of the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from kazoo.client import KazooClient

from foqs.runtime.clock import SystemClock
from shardmgr.registry.port import Registry, RegistryFailed
from shardmgr.registry.zookeeper_registry import ZooKeeperRegistry
from shardmgr.registry.zookeeper_session import ZooKeeperSession
from tests.support.aio import run
from tests.support.dropping_proxy import DroppingProxy
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry
from tests.support.zookeeper import TICK_MS, ZooKeeper

T = TypeVar("T")
LONG_MS: Final = 15_000
"""A session that does not end during a test, however busy the machine."""
SHORT_MS: Final = 1_500

boot_ms: Final = SystemClock().monotonic_ms


def session_of(registry: Registry) -> ZooKeeperSession:
    """Return the connection of an open registry, for tests that delay or break single requests."""
    assert isinstance(registry, ZooKeeperRegistry)
    session = registry._zk
    assert session is not None
    return session


def kazoo_of(session: ZooKeeperSession) -> KazooClient:
    """Return the ZooKeeper client of a connection."""
    return session._client


class RegistryBench(ABC):
    """One kind of coordination service."""

    def __init__(self) -> None:
        self._given: list[Registry] = []

    async def open_registry(self, session_timeout_ms: int = LONG_MS) -> Registry:
        """Return one more user, in its first session."""
        registry = self.registry(session_timeout_ms)
        await registry.open()
        return registry

    def registry(self, session_timeout_ms: int = LONG_MS) -> Registry:
        """Return one more user, not opened yet."""
        registry = self._make(session_timeout_ms)
        self._given.append(registry)
        return registry

    def run(self, story: Coroutine[Any, Any, T], timeout: float = 120.0) -> T:
        """Runs a test's story and closes its registries."""

        async def run_and_close() -> T:
            try:
                return await story
            finally:
                given, self._given = self._given, []
                await asyncio.gather(*(registry.close() for registry in given))

        return run(run_and_close(), timeout)

    @abstractmethod
    def _make(self, session_timeout_ms: int) -> Registry: ...

    @abstractmethod
    def disconnect(self, registry: Registry) -> None:
        """Nothing gets through between a user and the service."""

    @abstractmethod
    def reconnect(self, registry: Registry) -> None:
        """It does again."""

    @abstractmethod
    async def expire(self, registry: Registry) -> None:
        """Ends a user's session at the service."""


class LocalBench(RegistryBench):
    def __init__(self) -> None:
        super().__init__()
        self._ensemble = LocalEnsemble(None, boot_ms)

    def _make(self, session_timeout_ms: int) -> Registry:
        return self._ensemble.registry(session_timeout_ms)

    def disconnect(self, registry: Registry) -> None:
        assert isinstance(registry, LocalRegistry)
        self._ensemble.disconnect(registry)

    def reconnect(self, registry: Registry) -> None:
        assert isinstance(registry, LocalRegistry)
        self._ensemble.reconnect(registry)

    async def expire(self, registry: Registry) -> None:
        assert isinstance(registry, LocalRegistry)
        self._ensemble.expire(registry)


class ZooKeeperBench(RegistryBench):
    """Each user has a proxy of its own before the server.

    Args:
        root: a path that nobody else uses.
    """

    def __init__(self, server: ZooKeeper, root: str) -> None:
        super().__init__()
        self.server = server
        self.root = root
        self._stack = contextlib.ExitStack()
        self._proxies: dict[int, DroppingProxy] = {}

    def _make(self, session_timeout_ms: int) -> Registry:
        proxy = self._stack.enter_context(DroppingProxy(self.server.port))
        registry = ZooKeeperRegistry(
            proxy.hosts,
            self.root,
            session_timeout_ms,
            boot_ms,
            connect_timeout_ms=60_000,
            call_timeout_ms=60_000,
            tick_ms=TICK_MS,
        )
        self._proxies[id(registry)] = proxy
        return registry

    def disconnect(self, registry: Registry) -> None:
        self._proxies[id(registry)].drop()

    def reconnect(self, registry: Registry) -> None:
        self._proxies[id(registry)].heal()

    def leave_hanging(self, registry: Registry, connections: int) -> None:
        """Reset the user's connection. This many further ones get no reply."""
        self._proxies[id(registry)].leave_hanging(connections)

    def hanging(self, registry: Registry) -> int:
        """The number of further connections that get no reply."""
        return self._proxies[id(registry)].hanging

    async def expire(self, registry: Registry) -> None:
        """End the session as ZooKeeper's own tests do: another client resumes and closes it."""
        await asyncio.to_thread(self._close_session, kazoo_of(session_of(registry)).client_id)

    def _close_session(self, client_id: tuple[int, bytes]) -> None:
        thief = KazooClient(self.server.hosts, client_id=client_id)
        thief.start(timeout=60.0)
        thief.stop()
        thief.close()

    def remove(self) -> None:
        self._stack.close()


async def wait_for_condition(registry: Registry, condition: Callable[[], Awaitable[bool] | bool]) -> None:
    """Returns once `condition` holds, evaluated again after each change of the registry; a failed call counts as False."""
    changed = asyncio.Event()
    registry.subscribe(changed.set)
    while True:
        with contextlib.suppress(RegistryFailed):
            held = condition()
            if held if isinstance(held, bool) else await held:
                return
        await changed.wait()
        changed.clear()
