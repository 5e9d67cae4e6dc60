"""The store on SQLite: one file, one connection for writing, and one thread that uses it.

Always true: each method is one hop into the thread, and a flush runs there from
BEGIN to COMMIT. So a cancelled call leaves nothing half done: it finishes, and
the next one waits for it. Two processes on one file fence each other by the
owner row, as on a server. Knows nothing of SQL text or of opening files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from foqs.core.flush.fence import Fence, Owner, Position
from foqs.core.flush.journal_rows import PayloadPlace, PositionedEvents, pack_position, unpack_position
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import Row, TopicName
from foqs.store.port import (
    Decide,
    DueRow,
    FaultHook,
    FencedOut,
    IdempotencyKeyExists,
    StoreError,
    StoreLost,
    StoreUnusable,
    Superseded,
    WriteRefused,
    check_same_cluster,
    no_faults,
)
from foqs.store.sql_rows import all_values, fence_values, lease_columns, mutable_values, owner_of
from foqs.store.sqlite import sqlite_sql as sql
from foqs.store.sqlite.sqlite_file import SqliteFile, is_damage
from foqs.store.sqlite.sqlite_reads import (
    SqliteReads,
    read_due_rows,
    read_journal_events,
    read_journal_payloads,
    read_rows,
    read_rows_with_payload,
)

_T = TypeVar("_T")
_STATEMENT_ERRORS = (sqlite3.Error, OverflowError, UnicodeEncodeError)
"""Errors of binding and running a statement."""


class SqliteStore:
    """One shard in one file; see `port.Store`.

    Args:
        path: the file; `open` creates it and its folders.
        shard: the shard's number, written into a new file and checked in an old one.
        faults: the hook for `port.FAULT_POINTS`; it runs in the store's thread.
        synchronous: FULL or EXTRA; `open` refuses weaker levels without
            `unsafe_durability`.
        busy_timeout_s: how long a call waits for another process's lock.
    """

    def __init__(
        self,
        path: Path,
        shard: int,
        faults: FaultHook = no_faults,
        *,
        synchronous: str = "FULL",
        unsafe_durability: bool = False,
        busy_timeout_s: float = 5.0,
    ) -> None:
        self._file = SqliteFile(Path(path), shard, synchronous, unsafe_durability, busy_timeout_s)
        self._faults = faults
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"foqs-shard-{shard}")
        self._is_cancelled = False
        self._is_closed = False
        # Only the thread uses the fields below.
        self._db: sqlite3.Connection | None = None
        self._ownership: tuple[int, str] | None = None
        self._damage: str | None = None

    async def open(self) -> None:
        await self._run_in_thread(lambda: self._reopen(create=True), reconnects=True)

    async def now_ms(self) -> int:
        return await self._read(lambda db: int(db.execute(sql.NOW_MS).fetchone()[0]))

    async def take_over(self, epoch: int, nonce: str) -> Owner:
        return await self._run_in_thread(lambda: self._run_locked(lambda db: self._take_over(db, epoch, nonce)))

    async def read_owner(self) -> Owner:
        return await self._run_in_thread(self._reconnect, reconnects=True)

    async def flush(
        self,
        fence: Fence,
        row_ids: Sequence[int],
        payload_limits: Mapping[int, int],
        key_names: Sequence[KeyName],
        decide: Decide,
    ) -> None:
        await self._run_in_thread(lambda: self._flush(fence, row_ids, payload_limits, key_names, decide))

    async def topics(self) -> list[TopicName]:
        return await self._read(lambda db: db.execute(sql.TOPICS).fetchall())

    async def key_slots(self) -> list[int]:
        return await self._read(lambda db: [slot for (slot,) in db.execute(sql.KEY_SLOTS)])

    async def purge_markers(self) -> list[PurgeMarker]:
        return await self._read(lambda db: [PurgeMarker(*found) for found in db.execute(sql.PURGE_MARKERS)])

    async def journal_floor(self) -> Position | None:
        found = await self._read(lambda db: db.execute(sql.JOURNAL_FLOOR).fetchone())
        return None if found is None else unpack_position(found[0])

    async def journal_events(self, first: Position, bytes_max: int) -> list[PositionedEvents]:
        return await self._read(lambda db: read_journal_events(db, first, bytes_max))

    async def journal_payloads(self, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
        return await self._read(lambda db: read_journal_payloads(db, places))

    async def next_key_expiry_ms(self, from_ms: int = 0) -> int | None:
        (found,) = await self._read(lambda db: db.execute(sql.NEXT_KEY_EXPIRY, (from_ms,)).fetchone())
        return None if found is None else int(found)

    @property
    def may_journal(self) -> bool:
        return True

    @property
    def frees_room_late(self) -> bool:
        return False

    async def shrink_journal_reserve(self, fence: Fence, reserve_bytes: int) -> None:
        def work(db: sqlite3.Connection) -> None:
            owner = owner_of(db.execute(sql.READ_OWNER).fetchone())
            if (owner.epoch, owner.nonce) == (fence.epoch, fence.nonce):
                _set_reserve(db, reserve_bytes)

        await self._run_in_thread(lambda: self._run_locked(work))

    @property
    def full_refusals(self) -> tuple[int, str]:
        return 0, ""

    @property
    def journal(self) -> None:
        return None

    def begin_hand_over(self) -> None:
        """Do nothing: each flush writes rows."""

    def reads(self) -> SqliteReads:
        return SqliteReads(self._file)

    async def due_rows(self, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        return await self._read(lambda db: read_due_rows(db, low_ms, high_ms, after, limit))

    async def rows(self, ids: Sequence[int]) -> list[Row]:
        return await self._read(lambda db: read_rows(db, sql.READ_ROW, dict.fromkeys(ids)))

    async def next_due_ms(self, above_ms: int, below_ms: int) -> int | None:
        found = await self._read(lambda db: db.execute(sql.NEXT_DUE, (above_ms, below_ms)).fetchone())
        return None if found is None else int(found[0])

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            # Not awaited, as the loop may be ending: the thread finishes its calls, closes and ends.
            self._thread.submit(self._disconnect)
            closing = asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
            await asyncio.shield(closing)

    # ------------------------------------------------------- on the event loop

    async def _run_in_thread(self, work: Callable[[], _T], *, reconnects: bool = False) -> _T:
        """Run `work` in the thread. After a cancelled call, whose outcome is unknown, only work that `reconnects` may run."""
        if self._is_closed:
            raise StoreLost(f"{self._file.path}: this store was closed")
        if reconnects:
            self._is_cancelled = False
        elif self._is_cancelled:
            raise StoreLost(f"{self._file.path}: an earlier call was cancelled; read the owner row first")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except asyncio.CancelledError:
            self._is_cancelled = True
            raise

    async def _read(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        return await self._run_in_thread(lambda: self._query(query))

    # ------------------------------------------------------------ in the thread

    def _require_db(self) -> sqlite3.Connection:
        if self._db is None:
            raise StoreLost(f"{self._file.path}: the file is not open; read the owner row first")
        return self._db

    def _disconnect(self) -> None:
        """Close the connection. SQLite rolls back its transaction."""
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()

    def _reopen(self, *, create: bool) -> sqlite3.Connection:
        self._disconnect()
        if self._damage is not None:
            raise StoreUnusable(self._damage)
        self._db = self._file.open(create=create)
        return self._db

    def _disconnect_after(self, error: Exception) -> StoreLost:
        """Close the connection after an error that leaves its state unknown. Return the error to raise."""
        store_error = self._file.store_error(error)
        if is_damage(error):
            self._damage = str(store_error)
        self._disconnect()
        return StoreLost(str(store_error))

    def _query(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        db = self._require_db()
        try:
            return query(db)
        except _STATEMENT_ERRORS as error:
            raise self._disconnect_after(error) from error

    def _run_locked(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work` under the write lock, commit, and return its result."""
        db = self._require_db()
        try:
            db.execute(sql.BEGIN)
            result = work(db)
            db.execute(sql.COMMIT)
        except _STATEMENT_ERRORS as error:
            raise self._disconnect_after(error) from error
        except StoreError:
            self._roll_back()
            raise
        return result

    def _take_over(self, db: sqlite3.Connection, epoch: int, nonce: str) -> Owner:
        self._ownership = (epoch, nonce)
        old = owner_of(db.execute(sql.READ_OWNER).fetchone())
        if (old.epoch, old.nonce) == (epoch, nonce):
            return self._write_owner(db, old)
        check_same_cluster(old, nonce)
        if old.epoch >= epoch:
            raise Superseded(old.epoch)
        return self._write_owner(db, replace(old, epoch=epoch, nonce=nonce, flush=0))

    def _reconnect(self) -> Owner:
        self._reopen(create=False)
        return self._run_locked(self._confirm_owner)

    def _confirm_owner(self, db: sqlite3.Connection) -> Owner:
        """Return the owner row. If it names the ownership that this store took over, write it again first.

        The write makes the row durable: a COMMIT whose fsync failed may have left
        its frames in the log, and this COMMIT syncs them.
        """
        current = owner_of(db.execute(sql.READ_OWNER).fetchone())
        if (current.epoch, current.nonce) == self._ownership:
            return self._write_owner(db, current)
        return current

    def _write_owner(self, db: sqlite3.Connection, owner: Owner) -> Owner:
        """Write the owner row with this process as its connection, and return it."""
        db.execute(sql.SET_OWNER, (owner.epoch, owner.nonce, owner.flush, os.getpid()))
        return owner_of(db.execute(sql.READ_OWNER).fetchone())

    def _flush(
        self,
        fence: Fence,
        row_ids: Sequence[int],
        payload_limits: Mapping[int, int],
        key_names: Sequence[KeyName],
        decide: Decide,
    ) -> None:
        db = self._require_db()
        try:
            self._faults("begin")
            db.execute(sql.BEGIN)
            _write_fence(db, fence)
            self._faults("fenced")
            found = {row.id: row for row in read_rows(db, sql.READ_ROW, row_ids)}
            found |= {row.id: row for row in read_rows_with_payload(db, payload_limits)}
            found_keys = _read_idempotency_keys(db, key_names)
            self._faults("read")
            _write(db, fence, decide(found, found_keys))
            self._faults("written")
            db.execute(sql.COMMIT)
            self._faults("committed")
        except _STATEMENT_ERRORS as error:
            store_error = self._file.store_error(error)
            if not isinstance(store_error, WriteRefused):
                raise self._disconnect_after(error) from error
            self._roll_back()
            raise store_error from error
        except StoreLost:
            self._disconnect()
            raise
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """End the transaction. If SQLite refuses, close the connection, which ends it too."""
        try:
            if self._db is not None and self._db.in_transaction:
                self._db.execute(sql.ROLLBACK)
        except sqlite3.Error:
            self._disconnect()


def _write_fence(db: sqlite3.Connection, fence: Fence) -> None:
    values = (*fence_values(fence), fence.epoch, fence.nonce, fence.flush)
    if db.execute(sql.FENCE, values).rowcount != 1:
        seen = owner_of(db.execute(sql.READ_OWNER).fetchone())
        raise FencedOut(
            f"the owner row shows epoch {seen.epoch}, flush {seen.flush}, which is not what this host wrote last"
        )


def _read_idempotency_keys(db: sqlite3.Connection, key_names: Sequence[KeyName]) -> dict[KeyName, IdempotencyKey]:
    found = {name: db.execute(sql.READ_IDEMPOTENCY_KEY, name).fetchone() for name in key_names}
    return {name: IdempotencyKey(*values) for name, values in found.items() if values is not None}


def _set_reserve(db: sqlite3.Connection, reserve_bytes: int) -> None:
    db.execute(sql.DELETE_RESERVE)
    if reserve_bytes:
        db.execute(sql.ADD_RESERVE, (reserve_bytes,))


def _write(db: sqlite3.Connection, fence: Fence, writes: Writes) -> None:
    # First what frees room: SQLite uses it in the same transaction.
    if writes.journal_trimmed is not None:
        db.execute(sql.TRIM_JOURNAL, tuple(map(pack_position, writes.journal_trimmed)))
    if writes.journal_emptied:
        db.executemany(sql.EMPTY_JOURNAL_ROW, [(pack_position(position),) for position in writes.journal_emptied])
    if writes.journal_reserve_bytes is not None:
        _set_reserve(db, writes.journal_reserve_bytes)
    if writes.journal_row is not None:
        events, payloads, floor = writes.journal_row
        numbers = (pack_position(fence.position), pack_position(floor))
        db.execute(sql.ADD_JOURNAL_ROW, (*numbers, events, b"".join(payloads)))
    _write_idempotency_keys(db, writes)
    if writes.deletes:
        db.executemany(sql.DELETE, zip(writes.deletes))
    for lease in writes.leases:
        names = lease_columns(lease)
        found = [getattr(lease, name) for name in names]
        values = [None if value is None else int(value) for value in found]
        db.executemany(sql.LEASES[names], [(*values, number) for number in lease.ids])
    if writes.updates:
        db.executemany(sql.UPDATE, [(*mutable_values(row), row.id) for row in writes.updates])
    if writes.moves:
        db.executemany(sql.MOVE, [(row.id, row.topic, *mutable_values(row), old_id) for old_id, row in writes.moves])
    if writes.inserts:
        db.executemany(sql.INSERT, map(all_values, writes.inserts))
    if writes.timers_removed:
        db.executemany(sql.REMOVE_TIMER, writes.timers_removed)
    if writes.timers_added:
        db.executemany(sql.ADD_TIMER, writes.timers_added)
    if writes.topics_removed:
        db.executemany(sql.REMOVE_TOPIC, writes.topics_removed)
    if writes.topics_added:
        db.executemany(sql.ADD_TOPIC, writes.topics_added)
    if writes.key_slots_added:
        db.executemany(sql.ADD_KEY_SLOT, zip(writes.key_slots_added))
    if writes.purge_markers_removed:
        db.executemany(sql.REMOVE_PURGE_MARKER, writes.purge_markers_removed)
    if writes.purge_markers_added:
        db.executemany(sql.SET_PURGE_MARKER, writes.purge_markers_added)


def _write_idempotency_keys(db: sqlite3.Connection, writes: Writes) -> None:
    """Write the keys. They come first, because a key that exists ends the flush."""
    if writes.idempotency_keys_added:
        try:
            db.executemany(sql.ADD_IDEMPOTENCY_KEY, writes.idempotency_keys_added)
        except sqlite3.IntegrityError as error:
            raise IdempotencyKeyExists(str(error)) from error
    if writes.idempotency_keys_replaced:
        db.executemany(sql.REPLACE_IDEMPOTENCY_KEY, writes.idempotency_keys_replaced)
    if writes.idempotency_keys_expired_by_ms is not None:
        expired = (
            writes.idempotency_keys_expired_from_ms,
            writes.idempotency_keys_expired_by_ms,
            writes.idempotency_keys_expired_max,
        )
        db.execute(sql.EXPIRE_IDEMPOTENCY_KEYS, expired)
