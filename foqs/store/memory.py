"""The store in memory: the plain specification of the other two, and the simulation's database.

`MemoryDatabase` is what survives a crash: tables of shards, a clock, open
transactions and their locks. `MemoryStore` is one connection to it for writing,
`MemoryReads` one for reading. The owner row's lock is held from a flush's fence
to its end, as InnoDB holds it; a COMMIT once sent takes effect even when its
sender dies before the reply, and one that is being made durable even when its
connection is killed, its lock held until then; a read is taken at one moment while it is under
way, so that a flush that commits meanwhile is in it or not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import TypeVar

from foqs.core.cuts import Cut
from foqs.core.fence import Fence, Owner
from foqs.core.item import Key, Row, State, TopicName
from foqs.core.keys import KeyName
from foqs.store.memory_table import Table
from foqs.store.port import (
    ANY_LENGTH,
    Decide,
    Due,
    FaultHook,
    FencedOut,
    KeyTaken,
    StoreLost,
    StoreUnusable,
    Superseded,
    TopicCount,
    WriteRefused,
    Writes,
    check_past,
    no_faults,
)

_T = TypeVar("_T")


async def _at_once() -> None:
    """The latency of everyday tests: none, but still a place to be interrupted."""
    await asyncio.sleep(0)


class MemoryDatabase:
    """A database of any number of shards that lives as long as this object.

    Args:
        now_ms: its clock.
        latency: awaited wherever a real connection would wait.
    """

    def __init__(self, now_ms: Callable[[], int], latency: Callable[[], Awaitable[None]] = _at_once) -> None:
        self.context = copy_context()
        """The database's own, so that what it has begun outlives the process that asked for it."""
        self.now_ms = now_ms
        self.latency = latency
        self.tables: dict[int, Table] = {}
        self.refuse: Callable[[Writes], str | WriteRefused | None] = lambda writes: None
        """A hook: a reason to refuse a flush's writes, as a full disk, a deadlock or a bad row would."""
        self.weakness: Callable[[], str | None] = lambda: None
        """A hook: why the database may lose acknowledged writes; asked at every connection that may write."""
        self.committed: Callable[[int, Fence], None] = lambda shard, fence: None
        """A hook: told of every flush that took effect."""
        self._connections = 0
        self._alive: set[int] = set()
        self._syncing: set[int] = set()
        """Connections whose COMMIT nothing stops any more."""

    def store(self, shard: int, faults: FaultHook = no_faults) -> MemoryStore:
        """A connection to one shard, created when new."""
        self.tables.setdefault(shard, Table())
        return MemoryStore(self, shard, faults)

    def connect(self) -> int:
        self._connections += 1
        self._alive.add(self._connections)
        return self._connections

    def kill(self, connection: int) -> None:
        """Ends a connection: its open transaction is rolled back and its locks are freed.

        A COMMIT that is being made durable goes on, and keeps its lock until it has taken effect.
        """
        self._alive.discard(connection)
        for table in self.tables.values():
            if table.locked_by == connection and connection not in self._syncing:
                self.unlock(table)

    async def commit(self, connection: int, take_effect: Callable[[], None]) -> None:
        """A COMMIT has come: it takes effect when it is durable."""
        self._syncing.add(connection)
        try:
            await self.sync(connection)
            take_effect()
        finally:
            self._syncing.discard(connection)

    async def sync(self, connection: int) -> None:
        """What making a COMMIT durable takes: nothing here."""

    def is_alive(self, connection: int) -> bool:
        return connection in self._alive

    async def lock(self, table: Table, connection: int, timeout_s: float | None = None) -> bool:
        """Takes the owner row's lock; False when `timeout_s` ran out first."""
        if table.locked_by is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    while table.locked_by is not None:
                        table.unlocked.clear()
                        await table.unlocked.wait()
            except TimeoutError:
                return False
        table.locked_by = connection
        return True

    def unlock(self, table: Table) -> None:
        table.locked_by = None
        table.unlocked.set()


class MemoryStore:
    """One shard's connection to a `MemoryDatabase`; see `port.Store`."""

    def __init__(self, database: MemoryDatabase, shard: int, faults: FaultHook) -> None:
        self._database = database
        self._shard = shard
        self._table = database.tables[shard]
        self._faults = faults
        self._connection = 0
        self._lost = False
        self._weakness: str | None = None
        """Why the database, when we connected, might lose acknowledged writes."""
        self._claim: tuple[int, str] | None = None
        self._committing: int | None = None
        """The connection whose COMMIT is on its way: the database, not the sender, frees its lock."""
        self._arriving: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._reconnect()
        if self._weakness is not None:
            raise StoreUnusable(self._weakness)

    async def now_ms(self) -> int:
        await self._reach()
        return self._database.now_ms()

    async def take_over(self, epoch: int, nonce: str) -> Owner:
        await self._reach()
        table = self._table
        self._claim = (epoch, nonce)
        if not await self._database.lock(table, self._connection, timeout_s=1.0):
            self._database.kill(table.owner.connection)
            await self._lock_or_lose()
        try:
            await self._reach()
            old = table.owner
            if (old.epoch, old.nonce) != (epoch, nonce):
                if old.epoch >= epoch:
                    raise Superseded(old.epoch)
                old = replace(old, epoch=epoch, nonce=nonce, flush=0)
            self._record(old)
            return table.owner
        finally:
            self._unlock_own()

    async def owner(self) -> Owner:
        await self._reconnect()
        table = self._table
        if not await self._database.lock(table, self._connection, timeout_s=1.0):
            if (table.owner.epoch, table.owner.nonce) != self._claim:
                return table.owner
            self._database.kill(table.owner.connection)
            await self._lock_or_lose()
        try:
            await self._reach()
            if (table.owner.epoch, table.owner.nonce) == self._claim:
                self._record(table.owner)
            return table.owner
        finally:
            self._unlock_own()

    async def flush(
        self, fence: Fence, touched: Sequence[int], loaded: Mapping[int, int], keys: Sequence[KeyName], decide: Decide
    ) -> None:
        try:
            await self._reach()
            self._faults("begin")
            await self._reach()
            await self._database.lock(self._table, self._connection)
            await self._flush_locked(fence, touched, loaded, keys, decide)
        except StoreLost:
            self._database.kill(self._connection)
            raise
        except asyncio.CancelledError:
            self._lost = True
            raise
        finally:
            self._unlock_own()
        await self._reach()

    async def _flush_locked(
        self, fence: Fence, touched: Sequence[int], loaded: Mapping[int, int], keys: Sequence[KeyName], decide: Decide
    ) -> None:
        table = self._table
        await self._reach()
        old = table.owner
        if (old.epoch, old.nonce, old.flush) != (fence.epoch, fence.nonce, fence.flush - 1):
            raise FencedOut(f"the owner row shows epoch {old.epoch}, flush {old.flush}")
        self._faults("fenced")
        await self._reach()
        found = {row.id: row for row in table.copies(touched, payload=False)}
        found |= {row.id: row for row in table.loaded(loaded)}
        self._faults("read")
        await self._reach()
        writes = decide(found, {name: table.keys[name] for name in keys if name in table.keys})
        reason = self._database.refuse(writes)
        named = Counter((row.namespace, row.key) for row in writes.keys)
        if reason is None and any(times > 1 or name in table.keys for name, times in named.items()):
            raise KeyTaken("a key's row exists already")
        inserted = Counter(row.id for row in writes.inserts)
        if reason is None and any(times > 1 or number in table.rows for number, times in inserted.items()):
            reason = "an inserted id exists already"
        if reason is not None:
            raise WriteRefused(reason) if isinstance(reason, str) else reason
        await self._reach()
        self._faults("written")
        await self._reach()
        await self._commit(fence, writes)
        self._faults("committed")

    async def _commit(self, fence: Fence, writes: Writes) -> None:
        """Sends COMMIT: from here on the database acts by itself, whatever becomes of the sender."""
        loop = asyncio.get_running_loop()
        self._committing = self._connection
        answer: asyncio.Future[bool] = loop.create_future()
        arriving = self._apply(self._connection, fence, writes, answer)
        self._arriving = loop.create_task(arriving, context=self._database.context)
        if not await answer:
            raise StoreLost("the connection was killed before its COMMIT arrived")

    async def _apply(self, connection: int, fence: Fence, writes: Writes, answer: asyncio.Future[bool]) -> None:
        await self._database.latency()
        table = self._table
        arrived = table.locked_by == connection
        if arrived:
            await self._database.commit(connection, lambda: table.write(fence, writes))
            self._database.committed(self._shard, fence)
            self._database.unlock(table)
        if self._committing == connection:
            self._committing = None
        if not answer.done():
            answer.set_result(arrived)

    async def topics(self) -> list[TopicName]:
        await self._reach()
        return sorted(self._table.topics)

    async def slots(self) -> list[int]:
        await self._reach()
        return sorted(self._table.slots)

    async def cuts(self) -> list[Cut]:
        await self._reach()
        return sorted(self._table.cuts)

    async def next_key_over_ms(self) -> int | None:
        await self._reach()
        return self._table.over[0][0] if self._table.over else None

    def reads(self) -> MemoryReads:
        return MemoryReads(self._database, self._table)

    async def due(self, low_ms: int | None, high_ms: int, after: Due | None, limit: int) -> list[Due]:
        await self._reach()
        return self._table.due_page(low_ms, high_ms, after, limit)

    async def rows(self, ids: Sequence[int]) -> list[Row]:
        await self._reach()
        return self._table.copies(ids, payload=False)

    async def next_due_ms(self, above_ms: int) -> int | None:
        await self._reach()
        return self._table.next_due_ms(above_ms)

    async def close(self) -> None:
        self._database.kill(self._connection)

    async def _reconnect(self) -> None:
        self._database.kill(self._connection)
        await self._database.latency()
        self._connection = self._database.connect()
        self._weakness = self._database.weakness()
        self._lost = False

    def _record(self, owner: Owner) -> None:
        """Writes the locked owner row, with this connection; flushes may follow. Raises `StoreLost`: what they write may be lost."""
        self._check_fit()
        self._table.owner = replace(owner, connection=self._connection)

    def _check_fit(self) -> None:
        if self._weakness is not None:
            self._lost = True
            raise StoreLost(self._weakness)

    async def _reach(self) -> None:
        try:
            await self._database.latency()
        except asyncio.CancelledError:
            self._lost = True
            raise
        if self._lost or not self._database.is_alive(self._connection):
            raise StoreLost("the connection to the memory database is closed")

    async def _lock_or_lose(self) -> None:
        """Waits on for the owner row's lock, after its holder was killed."""
        if not await self._database.lock(self._table, self._connection, timeout_s=5.0):
            self._database.kill(self._connection)
            raise StoreLost("another connection holds the owner row's lock")

    def _unlock_own(self) -> None:
        if self._table.locked_by == self._connection and self._committing != self._connection:
            self._database.unlock(self._table)


class MemoryReads:
    """A connection for reading; see `port.Reads`."""

    def __init__(self, database: MemoryDatabase, table: Table) -> None:
        self._database = database
        self._table = table
        self._connection: int | None = None
        self._counts: list[TopicCount] | None = None
        self._closed = False

    async def rows(self, past: Fence, ids: Sequence[int], payload_bytes_max: int = ANY_LENGTH) -> list[Row]:
        return await self._take(past, lambda: self._table.loaded(dict.fromkeys(ids, payload_bytes_max)))

    async def ready(self, past: Fence, topic: TopicName, after: Key | None, limit: int, last_cut: int = 0) -> list[Key]:
        return await self._take(past, lambda: self._table.ready_keys(topic, after, limit, last_cut))

    async def listed(
        self,
        past: Fence,
        topic: TopicName,
        state: State,
        after: Key | None,
        limit: int,
        last_cut: int = 0,
        *,
        payload: bool,
    ) -> list[Row]:
        return await self._take(past, lambda: self._table.listed(topic, state, after, limit, last_cut, payload=payload))

    async def key_of(self, past: Fence, number: int, until_ms: int) -> bytes | None:
        return await self._take(past, lambda: self._table.key_of(number, until_ms))

    async def snapshot(self, past: Fence) -> None:
        self._counts = await self._take(past, self._table.counts)

    async def counts(self) -> list[TopicCount]:
        await self._travel()
        if self._counts is None:
            raise self._lost("there is no snapshot to count in")
        return list(self._counts)

    async def close(self) -> None:
        self._closed = True
        self._drop()

    async def _take(self, past: Fence, read: Callable[[], _T]) -> _T:
        """Asks, takes the answer at one moment, and brings it home."""
        if self._counts is not None:
            raise RuntimeError("only counts may be read in a snapshot")
        await self._travel()
        try:
            check_past(past, self._table.owner)
        except StoreLost:
            self._drop()
            raise
        found = read()
        await self._travel()
        return found

    async def _travel(self) -> None:
        """One way between us and the database; connects before the first."""
        if self._closed:
            raise StoreLost("these reads were closed")
        try:
            if self._connection is None:
                await self._database.latency()
                self._connection = self._database.connect()
            await self._database.latency()
        except asyncio.CancelledError:
            self._drop()
            raise
        if self._connection is None or not self._database.is_alive(self._connection):
            raise self._lost("the connection to the memory database is closed")

    def _lost(self, why: str) -> StoreLost:
        self._drop()
        return StoreLost(why)

    def _drop(self) -> None:
        self._counts = None
        if self._connection is not None:
            self._database.kill(self._connection)
            self._connection = None
