"""The registry in ZooKeeper.

Always true: `alive_until_ms` is reckoned from requests of which ZooKeeper's leader
knows (see `lifetime`), so a server that is cut off from it and still answers reads
prolongs nothing; a session that was called LOST is never called anything else again: where
it turns out to live it is closed, and another begins; what was read is watched
until it has changed once. Knows nothing of what the documents say.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from shardmgr.checks import check_data, check_member, check_name
from shardmgr.lifetime import Lifetime
from shardmgr.registry import Entry, Link, RegistryConflict, RegistryFailed, RegistryUnknown, RegistryUnreached
from shardmgr.zookeeper_session import NodeChanged, NodeExists, NodeMissing, ZooKeeperSession
from shardmgr.zookeeper_words import Words

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
"""How often a call looks again when others change what it is about to change."""
_EARLIER_MAX: Final = 100
"""How many of its earlier sessions a registry remembers."""
_AT_ONCE: Final = 64
"""Entries that are asked for at a time: kazoo's thread is woken for each by a byte in a pipe that holds some 270."""
_PINGS: Final = 12
"""In each session timeout. The leader knows for certain of the last but one that is a tick old."""
_SILENCE: Final = 3
"""This part of a session timeout without an answer, and the session is suspended."""


class ZooKeeperRegistry:
    """See `registry.Registry`.

    Args:
        hosts: `host:port,host:port`.
        root: the path under which everything is kept, `/foqs/v1` for example; created.
        session_timeout_ms: as it is asked for; the server has bounds of its own, and what it grants counts.
        boot_ms: the boot-time clock, integer milliseconds; called by other threads too.
        credentials: user and password; what is created is then theirs alone. None leaves it open to everybody.
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
        self._asked_ms = session_timeout_ms
        self._boot_ms = boot_ms
        self._credentials = credentials
        self._connect_timeout_ms = connect_timeout_ms
        self._call_timeout_ms = call_timeout_ms

        self._words = Words()
        self._zk: ZooKeeperSession | None = None
        self._earlier: deque[int] = deque(maxlen=_EARLIER_MAX)
        self._connected = False
        """As kazoo sees it."""
        self._link = Link.LOST
        self._session = 0
        self._lifetime = Lifetime(tick_ms, session_timeout_ms)
        self._heard_ms = 0
        """When the last request was sent that was answered."""
        self._begun_ms = 0
        """When this session was asked for."""
        self._ping: asyncio.Future[object] | None = None
        self._pinged_ms = 0
        self._keeper: asyncio.Task[None] | None = None
        self._began = asyncio.Event()
        self._over = asyncio.Event()
        """The session is to be ended, and another to begin."""
        self._closed = False
        self._listeners: list[Callable[[], None]] = []
        self._told_soon = False

    @property
    def link(self) -> Link:
        return self._link

    @property
    def session(self) -> int:
        return self._session

    @property
    def alive_until_ms(self) -> int:
        return self._lifetime.until_ms

    @property
    def _timeout_ms(self) -> int:
        return self._lifetime.timeout_ms

    def on_change(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    # ------------------------------------------------------------------- calls

    async def open(self) -> None:
        if self._closed or self._keeper is not None:
            raise RegistryFailed("the registry was opened before; make another one")
        self._words.last = ""
        self._begin()
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="zookeeper")
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                await self._began.wait()
        except TimeoutError:
            said = f" ({self._words.last})" if self._words.last else ""
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

    async def read(self, name: str) -> Entry | None:
        check_name(name)
        path = f"{self._root}/{name}"
        async with self._call(False, f"read {name}") as zk:
            if not _keeps(zk, path):
                # Both leave in this turn, and requests of a session are answered in order: a server that is behind its
                # leader catches up before it reads.
                _, found = await asyncio.gather(self._catch_up(zk), self._get(zk, path))
            else:
                await self._catch_up(zk)
                found = await self._seen(zk, path)
            return None if found is None else Entry(*found)

    async def replace(self, name: str, data: bytes, version: int | None) -> int:
        check_name(name)
        check_data(name, data)
        path = f"{self._root}/{name}"
        async with self._call(True, f"replace {name}") as zk:
            try:
                if version is None:
                    await zk.create(path, data)
                    return 0
                if version >= 0:  # -1 would mean any
                    return int((await zk.ask(True, "set", path, data, version)).version)
            except NodeMissing:
                raise RegistryConflict(f"{name} is not there, and so has no version {version}: read it again") from None
            except (NodeExists, NodeChanged):
                pass
            raise RegistryConflict(f"{name} is not what it was at version {version}: read it again")

    async def members(self, folder: str) -> Mapping[str, bytes]:
        check_name(folder)
        path = f"{self._root}/{folder}"
        async with self._call(False, f"read the members of {folder}") as zk:
            await self._catch_up(zk)
            for _ in range(_ATTEMPTS):
                if zk.is_missing(path):
                    return {}
                try:
                    names = zk.kept("get_children", path)
                    if names is None:
                        names = await zk.look("get_children", path)
                except NodeMissing:
                    if await zk.look("exists", path) is None:
                        return {}
                    continue
                found: list[tuple[bytes, int] | None] = []
                for start in range(0, len(names), _AT_ONCE):
                    part = names[start : start + _AT_ONCE]
                    found += await asyncio.gather(*(self._seen(zk, f"{path}/{name}", ephemeral=True) for name in part))
                return {name: entry[0] for name, entry in zip(names, found, strict=True) if entry is not None}
            raise _restless(path)

    async def announce(self, folder: str, name: str, data: bytes) -> None:
        check_member(folder, name)
        check_data(name, data)
        path = f"{self._root}/{folder}/{name}"
        async with self._call(True, f"announce {folder}/{name}") as zk:
            for _ in range(_ATTEMPTS):
                stat = await zk.ask(False, "exists", path)
                try:
                    if stat is None:
                        await zk.create(path, data, ephemeral=True)
                        return
                    if stat.ephemeralOwner == zk.number:
                        await zk.ask(True, "set", path, data, stat.version)
                        return
                    if stat.ephemeralOwner not in self._earlier:
                        raise RegistryConflict(f"{folder}/{name} is announced by another session")
                    await zk.ask(True, "delete", path, stat.version)
                except (NodeMissing, NodeExists, NodeChanged):
                    continue
            raise _restless(path)

    async def withdraw(self, folder: str, name: str) -> None:
        check_member(folder, name)
        path = f"{self._root}/{folder}/{name}"
        async with self._call(True, f"withdraw {folder}/{name}") as zk:
            for _ in range(_ATTEMPTS):
                stat = await zk.ask(False, "exists", path)
                if stat is None or stat.ephemeralOwner != zk.number:
                    return
                try:
                    await zk.ask(True, "delete", path, stat.version)
                    return
                except (NodeMissing, NodeChanged):
                    continue
            raise _restless(path)

    @asynccontextmanager
    async def _call(self, writes: bool, what: str) -> AsyncIterator[ZooKeeperSession]:
        """Bounds a call, which needs a session that is reached."""
        if self._zk is None or self._link is not Link.CONNECTED:
            reason = "the registry is not open" if self._keeper is None else f"the session is {self._link.value}"
            raise RegistryUnreached(f"cannot {what}: {reason}; nothing was asked")
        try:
            async with asyncio.timeout(self._call_timeout_ms / 1000):
                yield self._zk
        except TimeoutError:
            text = f"ZooKeeper has not answered to {what} within {self._call_timeout_ms} ms"
            raise (RegistryUnknown if writes else RegistryUnreached)(text) from None

    async def _catch_up(self, zk: ZooKeeperSession) -> None:
        """What is read from now on, or kept then, is no older than this call."""
        await zk.ask(False, "sync", self._root)

    async def _seen(self, zk: ZooKeeperSession, path: str, *, ephemeral: bool = False) -> tuple[bytes, int] | None:
        """As `_get`, from what is kept where it is."""
        if zk.is_missing(path):
            return None
        found = zk.kept("get", path)
        return await self._get(zk, path, ephemeral=ephemeral) if found is None else _of_kind(found, ephemeral)

    async def _get(self, zk: ZooKeeperSession, path: str, *, ephemeral: bool = False) -> tuple[bytes, int] | None:
        """A node's content and version, of the kind that is asked for; watched."""
        for _ in range(_ATTEMPTS):
            try:
                found = await zk.look("get", path)
            except NodeMissing:
                if ephemeral or await zk.look("exists", path) is None:
                    return None
                continue
            return _of_kind(found, ephemeral)
        raise _restless(path)

    # ----------------------------------------------------------------- session

    def connected(self, session: ZooKeeperSession, timeout_ms: int, sent_ms: int) -> None:
        if session is not self._zk or self._over.is_set():
            return
        self._words.reached()
        first = session.number not in self._earlier
        if first:
            self._earlier.append(session.number)
            self._session += 1
        elif self._link is Link.LOST:
            self._over.set()
            return
        self._lifetime.connected(sent_ms, timeout_ms)
        self._heard_ms = max(self._heard_ms, sent_ms)
        self._connected = True
        self._link = Link.CONNECTED
        self._judge()
        if self._link is not Link.LOST:
            self._began.set()
        self.touched()

    def suspended(self, session: ZooKeeperSession) -> None:
        if session is self._zk:
            self._connected = False
            self._judge()

    def over(self, session: ZooKeeperSession) -> None:
        if session is self._zk:
            self._connected = False
            self._lose()
            self._over.set()

    def touched(self) -> None:
        """Tells the listeners, once for whatever happens in the same turn of the loop."""
        if not self._told_soon:
            self._told_soon = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._told_soon = False
        for changed in list(self._listeners):
            changed()

    def _begin(self) -> None:
        self._begun_ms = self._boot_ms()
        self._zk = ZooKeeperSession(
            self._hosts, self._asked_ms, self._credentials, self._boot_ms, self, self._words.logger
        )
        self._connected = False
        self._ping = None
        self._over.clear()

    async def _keep(self) -> None:
        """Pings, judges by the clock, and begins another session where one is over."""
        while True:
            self._judge()
            if self._link is Link.LOST:
                assert self._zk is not None
                self._zk.forget_what_was_seen()
            self._send_ping()
            pause_s = self._timeout_ms / (2 * _PINGS) / 1000
            try:
                async with asyncio.timeout(pause_s):
                    await self._over.wait()
            except TimeoutError:
                continue
            assert self._zk is not None
            await self._zk.end(self._call_timeout_ms / 1000)
            if self._boot_ms() - self._begun_ms < self._timeout_ms:
                # One that ends as soon as it has begun would be begun again at full speed, by every host.
                await asyncio.sleep(pause_s)
            try:
                self._begin()
            except (OSError, RuntimeError) as error:  # no descriptors or threads left
                log.warning("cannot begin a session with ZooKeeper, trying again: %s", error)
                await asyncio.sleep(pause_s)

    def _send_ping(self) -> None:
        assert self._zk is not None
        now_ms = self._boot_ms()
        if self._connected and self._ping is None and now_ms - self._pinged_ms >= self._timeout_ms // _PINGS:
            self._pinged_ms = now_ms
            # Unlike a read, a sync goes to the leader, after what this server had passed on before.
            self._ping = self._zk.submit("sync", self._root)
            self._ping.add_done_callback(lambda ping: self._ponged(ping, now_ms))

    def _ponged(self, ping: asyncio.Future[object], sent_ms: int) -> None:
        if ping is not self._ping:
            return
        self._ping = None
        if ping.cancelled() or ping.exception() is not None:
            return
        if self._link is Link.LOST:
            self._over.set()
        else:
            self._heard_ms = max(self._heard_ms, sent_ms)
            self._lifetime.answered(sent_ms, self._boot_ms())
            self._judge()

    def _judge(self) -> None:
        """What the clock says of the session."""
        if self._link is Link.LOST:
            return
        now_ms = self._boot_ms()
        if now_ms >= self.alive_until_ms:
            self._lose()
            return
        silent = now_ms - self._heard_ms > self._timeout_ms // _SILENCE
        link = Link.CONNECTED if self._connected and not silent else Link.SUSPENDED
        if link is not self._link:
            self._link = link
            self.touched()

    def _lose(self) -> None:
        if self._link is not Link.LOST:
            self._link = Link.LOST
            self.touched()

    async def _stop(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        zk, self._zk = self._zk, None
        self._connected = False
        self._link = Link.LOST
        if zk is not None:
            await zk.end(self._call_timeout_ms / 1000)


def _keeps(zk: ZooKeeperSession, path: str) -> bool:
    return zk.is_missing(path) or zk.kept("get", path) is not None


def _of_kind(found: tuple[bytes, Any], ephemeral: bool) -> tuple[bytes, int] | None:
    """Content and version, where the node is of the kind that is asked for."""
    data, stat = found
    return (data, stat.version) if bool(stat.ephemeralOwner) is ephemeral else None


def _restless(path: str) -> RegistryFailed:
    return RegistryFailed(f"{path} changes too quickly to be read; try again")
