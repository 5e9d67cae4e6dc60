"""The store in memory: the plain specification of the other two, and the simulation's database.

`MemoryDatabase` survives a crash: tables of shards, a clock, open transactions
and their locks. `MemoryStore` is a connection for writing, `MemoryReads` one for
reading. As in InnoDB, a flush holds the owner row's lock from its fence to its
end. A COMMIT that was sent takes effect even when its sender dies before the
reply. A COMMIT that is being made durable takes effect even when its connection
is killed, and holds its lock until then. A read happens at one moment during the
call, so it sees all or nothing of a flush that commits meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import TypeVar

from foqs.core.flush.fence import Fence, Owner, Position
from foqs.core.flush.journal_rows import PayloadPlace, PositionedEvents
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import KeyName
from foqs.core.items.item import OrderKey, Row, State, TopicName
from foqs.core.items.row_filter import RowFilter
from foqs.store.in_memory.memory_table import ShardTables
from foqs.store.port import (
    ANY_LENGTH,
    Decide,
    DueRow,
    FaultHook,
    FencedOut,
    IdempotencyKeyExists,
    IdPage,
    IdRange,
    LeaseEnd,
    StoreLost,
    StoreUnusable,
    Superseded,
    TopicCount,
    WriteRefused,
    check_not_behind,
    check_same_cluster,
    no_faults,
)

_T = TypeVar("_T")


async def _no_latency() -> None:
    """Let other tasks run, and take no time."""
    await asyncio.sleep(0)


class MemoryDatabase:
    """A database of any number of shards that lives as long as this object.

    Args:
        now_ms: its clock.
        latency: a function that is awaited where a real connection would wait.
    """

    def __init__(self, now_ms: Callable[[], int], latency: Callable[[], Awaitable[None]] = _no_latency) -> None:
        self.context = copy_context()
        """The database's own context, so that its work outlives the process that requested it."""
        self.now_ms = now_ms
        self.latency = latency
        self.tables: dict[int, ShardTables] = {}
        self.refuse: Callable[[Writes], str | WriteRefused | None] = lambda writes: None
        """A hook: returns a reason to refuse a flush's writes, as a full disk, a deadlock or a bad row would."""
        self.unsafe_settings: Callable[[], str | None] = lambda: None
        """A hook: returns why the database may lose acknowledged writes; called for every connection that may write."""
        self.on_committed: Callable[[int, Fence], None] = lambda shard, fence: None
        """A hook: called for every flush that took effect."""
        self._connections = 0
        self._alive: set[int] = set()
        self._committing: set[int] = set()
        """Connections whose COMMIT cannot be stopped any more."""

    def store(self, shard: int, faults: FaultHook = no_faults) -> MemoryStore:
        """Return a connection to one shard, which is created if it is new."""
        self.tables.setdefault(shard, ShardTables())
        return MemoryStore(self, shard, faults)

    def connect(self) -> int:
        self._connections += 1
        self._alive.add(self._connections)
        return self._connections

    def kill(self, connection: int) -> None:
        """End a connection: roll its transaction back and free its locks.

        A COMMIT that is being made durable continues and keeps its lock until it has taken effect.
        """
        self._alive.discard(connection)
        for table in self.tables.values():
            if table.locked_by == connection and connection not in self._committing:
                self.unlock(table)

    async def commit(self, connection: int, take_effect: Callable[[], None]) -> None:
        """Handle a COMMIT that has arrived: it takes effect when it is durable."""
        self._committing.add(connection)
        try:
            await self.sync(connection)
            take_effect()
        finally:
            self._committing.discard(connection)

    async def sync(self, connection: int) -> None:
        """Make a COMMIT durable; nothing to do here."""

    def is_alive(self, connection: int) -> bool:
        return connection in self._alive

    async def lock(self, tables: ShardTables, connection: int, timeout_s: float | None = None) -> bool:
        """Take the owner row's lock. Returns False when `timeout_s` ended first."""
        if tables.locked_by is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    while tables.locked_by is not None:
                        tables.unlocked.clear()
                        await tables.unlocked.wait()
            except TimeoutError:
                return False
        tables.locked_by = connection
        return True

    def unlock(self, tables: ShardTables) -> None:
        tables.locked_by = None
        tables.unlocked.set()


class MemoryStore:
    """One shard's connection to a `MemoryDatabase`; see `port.Store`."""

    def __init__(self, database: MemoryDatabase, shard: int, faults: FaultHook) -> None:
        self._database = database
        self._shard = shard
        self._tables = database.tables[shard]
        self._faults = faults
        self._connection = 0
        self._is_lost = False
        self._unsafe_settings: str | None = None
        """Why the database might lose acknowledged writes, as of the connect."""
        self._ownership: tuple[int, str] | None = None
        self._committing_connection: int | None = None
        """The connection whose COMMIT is on its way: the database frees its lock, not the sender."""
        self._commit_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._reconnect()
        if self._unsafe_settings is not None:
            raise StoreUnusable(self._unsafe_settings)

    async def now_ms(self) -> int:
        await self._round_trip()
        return self._database.now_ms()

    async def take_over(self, epoch: int, nonce: str) -> Owner:
        await self._round_trip()
        table = self._tables
        check_same_cluster(table.owner, nonce)
        self._ownership = (epoch, nonce)
        if not await self._database.lock(table, self._connection, timeout_s=1.0):
            self._database.kill(table.owner.connection)
            await self._lock_or_fail()
        try:
            await self._round_trip()
            old = table.owner
            check_same_cluster(old, nonce)
            if (old.epoch, old.nonce) != (epoch, nonce):
                if old.epoch >= epoch:
                    raise Superseded(old.epoch)
                old = replace(old, epoch=epoch, nonce=nonce, flush=0)
            await self._write_owner(old)
            return table.owner
        finally:
            self._unlock_own()

    async def read_owner(self) -> Owner:
        await self._reconnect()
        table = self._tables
        if not await self._database.lock(table, self._connection, timeout_s=1.0):
            if (table.owner.epoch, table.owner.nonce) != self._ownership:
                return table.owner
            self._database.kill(table.owner.connection)
            await self._lock_or_fail()
        try:
            await self._round_trip()
            if (table.owner.epoch, table.owner.nonce) == self._ownership:
                await self._write_owner(table.owner)
            return table.owner
        finally:
            self._unlock_own()

    async def flush(
        self,
        fence: Fence,
        row_ids: Sequence[int],
        payload_limits: Mapping[int, int],
        key_names: Sequence[KeyName],
        decide: Decide,
    ) -> None:
        try:
            await self._round_trip()
            self._faults("begin")
            await self._round_trip()
            await self._database.lock(self._tables, self._connection)
            await self._flush_locked(fence, row_ids, payload_limits, key_names, decide)
        except StoreLost:
            self._database.kill(self._connection)
            raise
        except asyncio.CancelledError:
            self._is_lost = True
            raise
        finally:
            self._unlock_own()
        await self._round_trip()

    async def _flush_locked(
        self,
        fence: Fence,
        row_ids: Sequence[int],
        payload_limits: Mapping[int, int],
        key_names: Sequence[KeyName],
        decide: Decide,
    ) -> None:
        table = self._tables
        await self._round_trip()
        old = table.owner
        if (old.epoch, old.nonce, old.flush) != (fence.epoch, fence.nonce, fence.flush - 1):
            raise FencedOut(
                f"the owner row shows epoch {old.epoch}, flush {old.flush}, which is not what this host wrote last"
            )
        self._faults("fenced")
        await self._round_trip()
        found = {row.id: row for row in table.copies(row_ids, with_payload=False)}
        found |= {row.id: row for row in table.rows_with_payload(payload_limits)}
        self._faults("read")
        await self._round_trip()
        writes = decide(
            found, {name: table.idempotency_keys[name] for name in key_names if name in table.idempotency_keys}
        )
        reason = self._database.refuse(writes)
        named = Counter((row.namespace, row.key) for row in writes.idempotency_keys_added)
        if reason is None and any(times > 1 or name in table.idempotency_keys for name, times in named.items()):
            raise IdempotencyKeyExists("a key's row exists already")
        inserted = Counter(row.id for row in writes.inserts)
        inserted.update(row.id for old_id, row in writes.moves if old_id in table.rows)
        if reason is None and any(times > 1 or number in table.rows for number, times in inserted.items()):
            reason = "an inserted id exists already"
        if reason is not None:
            raise WriteRefused(reason) if isinstance(reason, str) else reason
        await self._round_trip()
        self._faults("written")
        await self._round_trip()
        await self.commit(fence, writes)
        self._faults("committed")

    async def commit(self, fence: Fence, writes: Writes) -> None:
        """Send COMMIT. From here on the database acts by itself, even if the sender dies. Raises `StoreLost`."""
        loop = asyncio.get_running_loop()
        self._committing_connection = self._connection
        reply: asyncio.Future[bool] = loop.create_future()
        applying = self._apply(self._connection, fence, writes, reply)
        self._commit_task = loop.create_task(applying, context=self._database.context)
        if not await reply:
            raise StoreLost("the connection was killed before its COMMIT arrived")

    async def _apply(self, connection: int, fence: Fence, writes: Writes, reply: asyncio.Future[bool]) -> None:
        await self._database.latency()
        table = self._tables
        arrived = table.locked_by == connection
        if arrived:
            await self._database.commit(connection, lambda: table.write(fence, writes))
            self._database.on_committed(self._shard, fence)
            self._database.unlock(table)
        if self._committing_connection == connection:
            self._committing_connection = None
        if not reply.done():
            reply.set_result(arrived)

    async def topics(self) -> list[TopicName]:
        await self._round_trip()
        return sorted(self._tables.topics)

    async def key_slots(self) -> list[int]:
        await self._round_trip()
        return sorted(self._tables.key_slots)

    async def purge_markers(self) -> list[PurgeMarker]:
        await self._round_trip()
        return sorted(self._tables.purge_markers)

    async def journal_floor(self) -> Position | None:
        await self._round_trip()
        return self._tables.journal_floor()

    async def journal_events(self, first: Position, bytes_max: int) -> list[PositionedEvents]:
        await self._round_trip()
        return self._tables.journal_events(first, bytes_max)

    async def journal_payloads(self, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
        await self._round_trip()
        return self._tables.journal_payloads(places)

    async def next_key_expiry_ms(self, from_ms: int = 0) -> int | None:
        await self._round_trip()
        return self._tables.next_key_expiry_ms(from_ms)

    @property
    def may_journal(self) -> bool:
        return True

    @property
    def frees_room_late(self) -> bool:
        return False

    async def shrink_journal_reserve(self, fence: Fence, reserve_bytes: int) -> None:
        await self._round_trip()
        if (self._tables.owner.epoch, self._tables.owner.nonce) == (fence.epoch, fence.nonce):
            self._tables.journal_reserve_bytes = min(self._tables.journal_reserve_bytes, reserve_bytes)

    @property
    def full_refusals(self) -> tuple[int, str]:
        return 0, ""

    @property
    def journal(self) -> None:
        return None

    def begin_hand_over(self) -> None:
        """Do nothing: each flush writes rows."""

    def reads(self) -> MemoryReads:
        return MemoryReads(self._database, self._tables)

    async def due_rows(self, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        await self._round_trip()
        return self._tables.due_rows(low_ms, high_ms, after, limit)

    async def rows(self, ids: Sequence[int]) -> list[Row]:
        await self._round_trip()
        return self._tables.copies(ids, with_payload=False)

    async def next_due_ms(self, above_ms: int, below_ms: int) -> int | None:
        await self._round_trip()
        return self._tables.next_due_ms(above_ms, below_ms)

    async def close(self) -> None:
        self._database.kill(self._connection)

    async def _reconnect(self) -> None:
        self._database.kill(self._connection)
        await self._database.latency()
        self._connection = self._database.connect()
        self._unsafe_settings = self._database.unsafe_settings()
        self._is_lost = False

    async def _write_owner(self, owner: Owner) -> None:
        """Write the locked owner row with this connection. Raises `StoreLost` if acknowledged writes may be lost."""
        self._check_durability()
        self._tables.owner = replace(owner, connection=self._connection)

    def _check_durability(self) -> None:
        if self._unsafe_settings is not None:
            self._is_lost = True
            raise StoreLost(self._unsafe_settings)

    async def _round_trip(self) -> None:
        try:
            await self._database.latency()
        except asyncio.CancelledError:
            self._is_lost = True
            raise
        if self._is_lost or not self._database.is_alive(self._connection):
            raise StoreLost("the connection to the memory database is closed")

    async def _lock_or_fail(self) -> None:
        """Wait for the owner row's lock after its holder was killed. Raises `StoreLost`."""
        if not await self._database.lock(self._tables, self._connection, timeout_s=5.0):
            self._database.kill(self._connection)
            raise StoreLost("another connection holds the owner row's lock")

    def _unlock_own(self) -> None:
        if self._tables.locked_by == self._connection and self._committing_connection != self._connection:
            self._database.unlock(self._tables)


class MemoryReads:
    """A connection for reading; see `port.Reads`."""

    def __init__(self, database: MemoryDatabase, tables: ShardTables) -> None:
        self._database = database
        self._tables = tables
        self._connection: int | None = None
        self._counts: list[TopicCount] | None = None
        self._is_closed = False

    async def rows(self, committed: Fence, ids: Sequence[int], payload_bytes_max: int = ANY_LENGTH) -> list[Row]:
        return await self._read(
            committed, lambda: self._tables.rows_with_payload(dict.fromkeys(ids, payload_bytes_max))
        )

    async def ready_order_keys(
        self, committed: Fence, topic: TopicName, after: OrderKey | None, limit: int, purged_up_to: int = 0
    ) -> list[OrderKey]:
        return await self._read(committed, lambda: self._tables.ready_order_keys(topic, after, limit, purged_up_to))

    async def list_rows(
        self,
        committed: Fence,
        topic: TopicName,
        state: State,
        after: OrderKey | None,
        limit: int,
        purged_up_to: int = 0,
        *,
        with_payload: bool,
    ) -> list[Row]:
        return await self._read(
            committed,
            lambda: self._tables.list_rows(topic, state, after, limit, purged_up_to, with_payload=with_payload),
        )

    async def rows_by_id(self, committed: Fence, namespace: str, only: RowFilter, ids: IdRange) -> IdPage:
        return await self._read(committed, lambda: self._tables.rows_by_id(namespace, only, ids))

    async def due_rows(self, committed: Fence, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        return await self._read(committed, lambda: self._tables.due_rows(None, high_ms, after, limit))

    async def leases_in(self, committed: Fence, ranges: Sequence[tuple[int, int]], last_ms: int) -> list[DueRow]:
        return await self._read(committed, lambda: self._tables.leases_in(ranges, last_ms))

    async def leases_of(
        self, committed: Fence, topics: Sequence[tuple[TopicName, OrderKey | None]], limit: int
    ) -> list[list[LeaseEnd]]:
        return await self._read(committed, lambda: self._tables.leases_of(topics, limit))

    async def idempotency_keys_of(self, committed: Fence, untils: Mapping[int, int]) -> dict[int, bytes]:
        return await self._read(committed, lambda: self._tables.idempotency_keys_of(untils))

    async def journal_payloads(self, committed: Fence, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
        return await self._read(committed, lambda: self._tables.journal_payloads(places))

    async def begin_snapshot(self, committed: Fence) -> None:
        self._counts = await self._read(committed, self._tables.counts)

    async def counts(self) -> list[TopicCount]:
        await self._one_way()
        if self._counts is None:
            raise self._store_lost("the snapshot was lost with its connection before it was counted")
        return list(self._counts)

    async def close(self) -> None:
        self._is_closed = True
        self._disconnect()

    async def _read(self, committed: Fence, read: Callable[[], _T]) -> _T:
        """Read at one moment, between the two ways of a round trip."""
        if self._counts is not None:
            raise RuntimeError("only counts may be read in a snapshot")
        await self._one_way()
        try:
            check_not_behind(committed, self._tables.owner)
        except StoreLost:
            self._disconnect()
            raise
        found = read()
        await self._one_way()
        return found

    async def _one_way(self) -> None:
        """Wait until a message has travelled one way to the database or back. Connects first if necessary."""
        if self._is_closed:
            raise StoreLost("the connection of these reads was closed")
        try:
            if self._connection is None:
                await self._database.latency()
                self._connection = self._database.connect()
            await self._database.latency()
        except asyncio.CancelledError:
            self._disconnect()
            raise
        if self._connection is None or not self._database.is_alive(self._connection):
            raise self._store_lost("the connection to the memory database is closed")

    def _store_lost(self, reason: str) -> StoreLost:
        self._disconnect()
        return StoreLost(reason)

    def _disconnect(self) -> None:
        self._counts = None
        if self._connection is not None:
            self._database.kill(self._connection)
            self._connection = None
