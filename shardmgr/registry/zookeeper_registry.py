"""The registry in ZooKeeper.

Always true: `alive_until_ms` counts from requests that ZooKeeper's leader knows (see
`session_lifetime`), so a server that is cut off from the leader and still answers
reads does not prolong it; a session that was LOST stays LOST: if it still lives, it
is closed and another is started; what was read is watched until it changes. Knows
nothing of the content of documents.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from shardmgr.registry.port import (
    ConnectionState,
    RegistryConflict,
    RegistryFailed,
    RegistryOutcomeUnknown,
    RegistryUnreachable,
    VersionedDocument,
    check_document_size,
    check_member_name,
    check_name,
)
from shardmgr.registry.session_lifetime import SessionLifetime
from shardmgr.registry.zookeeper_log import KazooLog
from shardmgr.registry.zookeeper_session import NodeChanged, NodeExists, NodeMissing, ZooKeeperSession

log = logging.getLogger(__name__)

_ATTEMPTS_MAX: Final = 5
"""The maximum number of attempts of a call while others change the same node."""
_OWN_SESSIONS_MAX: Final = 100
"""The maximum number of earlier sessions that a registry remembers."""
_CONCURRENT_READS_MAX: Final = 64
"""Concurrent reads of entries: each wakes kazoo's thread with a byte in a pipe that holds some 270."""
_PINGS_PER_TIMEOUT: Final = 12
"""Pings per session timeout. The leader certainly knows the last but one that is a tick old."""
_SUSPEND_AFTER_FRACTION: Final = 3
"""A session is suspended after this part of its timeout without an answer."""


class ZooKeeperRegistry:
    """Implements `port.Registry`.

    Args:
        hosts: `host:port,host:port`.
        root: the path of all nodes, for example `/foqs/v1`; it is created.
        session_timeout_ms: the requested timeout; the server has its own bounds and grants one.
        boot_ms: the boot-time clock, integer milliseconds; called by other threads too.
        credentials: (user, password); only this user may use the created nodes. None: everybody may.
        connect_timeout_ms: how long `open` waits.
        call_timeout_ms: how long any other call waits.
        tick_ms: tickTime of the servers, or more.
    """

    def __init__(
        self,
        hosts: str,
        root: str,
        session_timeout_ms: int,
        boot_ms: Callable[[], int],
        credentials: tuple[str, str] | None = None,
        connect_timeout_ms: int = 10_000,
        call_timeout_ms: int = 5_000,
        tick_ms: int = 2_000,
    ) -> None:
        check_name(root.removeprefix("/"))
        self._hosts = hosts
        self._root = root
        self._requested_timeout_ms = session_timeout_ms
        self._boot_ms = boot_ms
        self._credentials = credentials
        self._connect_timeout_ms = connect_timeout_ms
        self._call_timeout_ms = call_timeout_ms

        self._kazoo_log = KazooLog()
        self._zk: ZooKeeperSession | None = None
        self._own_session_ids: deque[int] = deque(maxlen=_OWN_SESSIONS_MAX)
        self._is_connected = False
        """Whether kazoo is connected."""
        self._connection_state = ConnectionState.LOST
        self._session_number = 0
        self._lifetime = SessionLifetime(tick_ms, session_timeout_ms)
        self._last_answered_ms = 0
        """When the last answered request was sent."""
        self._session_started_ms = 0
        """When this session was requested."""
        self._ping: asyncio.Future[object] | None = None
        self._last_ping_ms = 0
        self._session_task: asyncio.Task[None] | None = None
        self._session_started = asyncio.Event()
        self._session_over = asyncio.Event()
        """Set if the session must be ended and another started."""
        self._closed = False
        self._listeners: list[Callable[[], None]] = []
        self._is_notify_scheduled = False

    @property
    def connection_state(self) -> ConnectionState:
        return self._connection_state

    @property
    def session_number(self) -> int:
        return self._session_number

    @property
    def alive_until_ms(self) -> int:
        return self._lifetime.alive_until_ms

    @property
    def _timeout_ms(self) -> int:
        return self._lifetime.timeout_ms

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._listeners.append(on_change)

    # ------------------------------------------------------------------- calls

    async def open(self) -> None:
        if self._closed or self._session_task is not None:
            raise RegistryFailed("the registry was opened before; make another one")
        self._kazoo_log.last_message = ""
        self._start_session()
        self._session_task = asyncio.get_running_loop().create_task(self._keep_session(), name="zookeeper")
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                await self._session_started.wait()
        except TimeoutError:
            said = f" ({self._kazoo_log.last_message})" if self._kazoo_log.last_message else ""
            await self._stop()
            raise RegistryFailed(
                f"ZooKeeper at {self._hosts} gave no session within {self._connect_timeout_ms} ms{said}: is it running, "
                "and is that its address?"
            ) from None
        except BaseException:
            await self._stop()
            raise

    async def close(self) -> None:
        self._closed = True
        self._listeners.clear()
        await self._stop()

    async def read(self, name: str) -> VersionedDocument | None:
        check_name(name)
        path = f"{self._root}/{name}"
        async with self._bounded_call(False, f"read {name}") as zk:
            if not _is_cached(zk, path):
                # Both are sent in this turn, and requests of a session are answered in order: a server that is behind its
                # leader catches up before it reads.
                _, found = await asyncio.gather(self._sync(zk), self._get(zk, path))
            else:
                await self._sync(zk)
                found = await self._get_cached(zk, path)
            return None if found is None else VersionedDocument(*found)

    async def replace(self, name: str, data: bytes, version: int | None) -> int:
        check_name(name)
        check_document_size(name, data)
        path = f"{self._root}/{name}"
        async with self._bounded_call(True, f"replace {name}") as zk:
            try:
                if version is None:
                    await zk.create(path, data)
                    return 0
                if version >= 0:  # -1 would mean any
                    return int((await zk.call(True, "set", path, data, version)).version)
            except NodeMissing:
                raise RegistryConflict(f"{name} does not exist and has no version {version}: read it again") from None
            except (NodeExists, NodeChanged):
                pass
            raise RegistryConflict(f"{name} does not have version {version}: read it again")

    async def remove(self, name: str, version: int) -> None:
        check_name(name)
        async with self._bounded_call(True, f"remove {name}") as zk:
            if version >= 0:  # -1 would mean any
                with suppress(NodeMissing, NodeChanged):
                    await zk.call(True, "delete", f"{self._root}/{name}", version)
                    return
            raise RegistryConflict(f"{name} does not have version {version}: read it again")

    async def names(self, folder: str) -> Sequence[str]:
        check_name(folder)
        async with self._bounded_call(False, f"read the names in {folder}") as zk:
            await self._sync(zk)
            try:
                return tuple(await zk.call(False, "get_children", f"{self._root}/{folder}"))
            except NodeMissing:
                return ()

    async def members(self, folder: str) -> Mapping[str, bytes]:
        check_name(folder)
        path = f"{self._root}/{folder}"
        async with self._bounded_call(False, f"read the members of {folder}") as zk:
            await self._sync(zk)
            for _ in range(_ATTEMPTS_MAX):
                if zk.is_missing(path):
                    return {}
                try:
                    names = zk.cached("get_children", path)
                    if names is None:
                        names = await zk.call_watched("get_children", path)
                except NodeMissing:
                    if await zk.call_watched("exists", path) is None:
                        return {}
                    continue
                found: list[tuple[bytes, int] | None] = []
                for start in range(0, len(names), _CONCURRENT_READS_MAX):
                    part = names[start : start + _CONCURRENT_READS_MAX]
                    found += await asyncio.gather(
                        *(self._get_cached(zk, f"{path}/{name}", ephemeral=True) for name in part)
                    )
                return {name: entry[0] for name, entry in zip(names, found, strict=True) if entry is not None}
            raise _changes_too_quickly(path)

    async def announce(self, folder: str, name: str, data: bytes) -> None:
        check_member_name(folder, name)
        check_document_size(name, data)
        path = f"{self._root}/{folder}/{name}"
        async with self._bounded_call(True, f"announce {folder}/{name}") as zk:
            for _ in range(_ATTEMPTS_MAX):
                stat = await zk.call(False, "exists", path)
                try:
                    if stat is None:
                        await zk.create(path, data, ephemeral=True)
                        return
                    if stat.ephemeralOwner == zk.session_id:
                        await zk.call(True, "set", path, data, stat.version)
                        return
                    if stat.ephemeralOwner not in self._own_session_ids:
                        raise RegistryConflict(f"{folder}/{name} is announced by another session")
                    await zk.call(True, "delete", path, stat.version)
                except (NodeMissing, NodeExists, NodeChanged):
                    continue
            raise _changes_too_quickly(path)

    async def withdraw(self, folder: str, name: str) -> None:
        check_member_name(folder, name)
        path = f"{self._root}/{folder}/{name}"
        async with self._bounded_call(True, f"withdraw {folder}/{name}") as zk:
            for _ in range(_ATTEMPTS_MAX):
                stat = await zk.call(False, "exists", path)
                if stat is None or stat.ephemeralOwner != zk.session_id:
                    return
                try:
                    await zk.call(True, "delete", path, stat.version)
                    return
                except (NodeMissing, NodeChanged):
                    continue
            raise _changes_too_quickly(path)

    @asynccontextmanager
    async def _bounded_call(self, is_write: bool, action: str) -> AsyncIterator[ZooKeeperSession]:
        """Bound the time of a call. Raises `RegistryUnreachable` without a connected session."""
        if self._zk is None or self._connection_state is not ConnectionState.CONNECTED:
            reason = (
                "the registry is not open"
                if self._session_task is None
                else f"the session is {self._connection_state.value}"
            )
            raise RegistryUnreachable(
                f"ZooKeeper was not asked to {action}: {reason}; check that it runs, then try again"
            )
        try:
            async with asyncio.timeout(self._call_timeout_ms / 1000):
                yield self._zk
        except TimeoutError:
            text = f"ZooKeeper has not answered to {action} within {self._call_timeout_ms} ms"
            raise (RegistryOutcomeUnknown if is_write else RegistryUnreachable)(text) from None

    async def _sync(self, zk: ZooKeeperSession) -> None:
        """Make later reads, and cached values after it, no older than this call."""
        await zk.call(False, "sync", self._root)

    async def _get_cached(
        self, zk: ZooKeeperSession, path: str, *, ephemeral: bool = False
    ) -> tuple[bytes, int] | None:
        """As `_get`, from the cache if it is there."""
        if zk.is_missing(path):
            return None
        found = zk.cached("get", path)
        return await self._get(zk, path, ephemeral=ephemeral) if found is None else _content_of_kind(found, ephemeral)

    async def _get(self, zk: ZooKeeperSession, path: str, *, ephemeral: bool = False) -> tuple[bytes, int] | None:
        """Return the content and version of a node of this kind, None if there is none, and watch it.

        Raises RegistryFailed if the node changes too quickly.
        """
        for _ in range(_ATTEMPTS_MAX):
            try:
                found = await zk.call_watched("get", path)
            except NodeMissing:
                if ephemeral or await zk.call_watched("exists", path) is None:
                    return None
                continue
            return _content_of_kind(found, ephemeral)
        raise _changes_too_quickly(path)

    # ----------------------------------------------------------------- session

    def on_connected(self, session: ZooKeeperSession, timeout_ms: int, sent_ms: int) -> None:
        if session is not self._zk or self._session_over.is_set():
            return
        self._kazoo_log.on_connected()
        first = session.session_id not in self._own_session_ids
        if first:
            self._own_session_ids.append(session.session_id)
            self._session_number += 1
        elif self._connection_state is ConnectionState.LOST:
            self._session_over.set()
            return
        self._lifetime.on_connected(sent_ms, timeout_ms)
        self._last_answered_ms = max(self._last_answered_ms, sent_ms)
        self._is_connected = True
        self._connection_state = ConnectionState.CONNECTED
        self._update_connection_state()
        if self._connection_state is not ConnectionState.LOST:
            self._session_started.set()
        self.on_watch_fired()

    def on_suspended(self, session: ZooKeeperSession) -> None:
        if session is self._zk:
            self._is_connected = False
            self._update_connection_state()

    def on_session_over(self, session: ZooKeeperSession) -> None:
        if session is self._zk:
            self._is_connected = False
            self._mark_lost()
            self._session_over.set()

    def on_watch_fired(self) -> None:
        """Notify the listeners, once for all changes in the same turn of the loop."""
        if not self._is_notify_scheduled:
            self._is_notify_scheduled = True
            asyncio.get_running_loop().call_soon(self._notify_listeners)

    def _notify_listeners(self) -> None:
        self._is_notify_scheduled = False
        for changed in list(self._listeners):
            changed()

    def _start_session(self) -> None:
        self._session_started_ms = self._boot_ms()
        self._zk = ZooKeeperSession(
            self._hosts, self._requested_timeout_ms, self._credentials, self._boot_ms, self, self._kazoo_log.logger
        )
        self._is_connected = False
        self._ping = None
        self._session_over.clear()

    async def _keep_session(self) -> None:
        """Ping, check the clock, and start another session when one is over."""
        while True:
            self._update_connection_state()
            if self._connection_state is ConnectionState.LOST:
                assert self._zk is not None
                self._zk.reset_last_zxid()
            self._send_ping()
            pause_s = self._timeout_ms / (2 * _PINGS_PER_TIMEOUT) / 1000
            try:
                async with asyncio.timeout(pause_s):
                    await self._session_over.wait()
            except TimeoutError:
                continue
            assert self._zk is not None
            await self._zk.close(self._call_timeout_ms / 1000)
            if self._boot_ms() - self._session_started_ms < self._timeout_ms:
                # Sessions that end at once would otherwise be started again at full speed, by every host.
                await asyncio.sleep(pause_s)
            try:
                self._start_session()
            except (OSError, RuntimeError) as error:  # no descriptors or threads left
                log.warning("no session with ZooKeeper can be started; trying again: %s", error)
                await asyncio.sleep(pause_s)

    def _send_ping(self) -> None:
        assert self._zk is not None
        now_ms = self._boot_ms()
        if (
            self._is_connected
            and self._ping is None
            and now_ms - self._last_ping_ms >= self._timeout_ms // _PINGS_PER_TIMEOUT
        ):
            self._last_ping_ms = now_ms
            # Unlike a read, a sync goes to the leader, after the earlier reports of this server.
            self._ping = self._zk.submit("sync", self._root)
            self._ping.add_done_callback(lambda ping: self._on_ping_answered(ping, now_ms))

    def _on_ping_answered(self, ping: asyncio.Future[object], sent_ms: int) -> None:
        if ping is not self._ping:
            return
        self._ping = None
        if ping.cancelled() or ping.exception() is not None:
            return
        if self._connection_state is ConnectionState.LOST:
            self._session_over.set()
        else:
            self._last_answered_ms = max(self._last_answered_ms, sent_ms)
            self._lifetime.on_sync_answered(sent_ms, self._boot_ms())
            self._update_connection_state()

    def _update_connection_state(self) -> None:
        """Update the state from the clock."""
        if self._connection_state is ConnectionState.LOST:
            return
        now_ms = self._boot_ms()
        if now_ms >= self.alive_until_ms:
            self._mark_lost()
            return
        is_silent = now_ms - self._last_answered_ms > self._timeout_ms // _SUSPEND_AFTER_FRACTION
        state = ConnectionState.CONNECTED if self._is_connected and not is_silent else ConnectionState.SUSPENDED
        if state is not self._connection_state:
            self._connection_state = state
            self.on_watch_fired()

    def _mark_lost(self) -> None:
        if self._connection_state is not ConnectionState.LOST:
            self._connection_state = ConnectionState.LOST
            self.on_watch_fired()

    async def _stop(self) -> None:
        task, self._session_task = self._session_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        zk, self._zk = self._zk, None
        self._is_connected = False
        self._connection_state = ConnectionState.LOST
        if zk is not None:
            await zk.close(self._call_timeout_ms / 1000)


def _is_cached(zk: ZooKeeperSession, path: str) -> bool:
    return zk.is_missing(path) or zk.cached("get", path) is not None


def _content_of_kind(found: tuple[bytes, Any], ephemeral: bool) -> tuple[bytes, int] | None:
    """Return content and version if the node is of this kind."""
    data, stat = found
    return (data, stat.version) if bool(stat.ephemeralOwner) is ephemeral else None


def _changes_too_quickly(path: str) -> RegistryFailed:
    return RegistryFailed(f"{path} changes too quickly to be read; try again")
