"""Reads a shard's SQLite file beside its flushes, with its own connection and thread.

Always true: each call is one hop into the thread and one read transaction there,
which shows one commit of the writer and never waits for it (the file is in WAL
mode). Nothing is ever written. Knows nothing of SQL text or of opening files.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TypeVar

from foqs.core.flush.fence import Fence, Position
from foqs.core.flush.journal_rows import PayloadPlace, PositionedEvents, pack_position, unpack_position
from foqs.core.items.item import OrderKey, Row, State, TopicName, unpack_order_key
from foqs.core.items.row_filter import RowFilter
from foqs.store.journal_payloads import payload_at
from foqs.store.port import ANY_LENGTH, DueRow, IdPage, IdRange, LeaseEnd, StoreLost, TopicCount, check_not_behind
from foqs.store.sql_rows import id_page, lease_ends_of, order_keys_of, owner_of, row_of
from foqs.store.sqlite import sqlite_sql as sql
from foqs.store.sqlite.sqlite_file import SqliteFile

_T = TypeVar("_T")

_INT64_MIN = -(1 << 63)


class SqliteReads:
    """A connection for reading; see `port.Reads`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"foqs-reads-{file.shard}")
        self._is_closed = False
        # Only the thread changes the field below.
        self._db: sqlite3.Connection | None = None

    async def rows(self, committed: Fence, ids: Sequence[int], payload_bytes_max: int = ANY_LENGTH) -> list[Row]:
        return await self._read(committed, lambda db: read_rows_with_payload(db, dict.fromkeys(ids, payload_bytes_max)))

    async def ready_order_keys(
        self, committed: Fence, topic: TopicName, after: OrderKey | None, limit: int, purged_up_to: int = 0
    ) -> list[OrderKey]:
        text, values = _page_statement(
            sql.FIRST_ORDER_KEYS, sql.NEXT_ORDER_KEYS, topic, State.READY, after, limit, purged_up_to
        )
        return await self._read(committed, lambda db: order_keys_of(db.execute(text, values)))

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
        first, following = (
            (sql.FIRST_ROWS, sql.NEXT_ROWS)
            if with_payload
            else (sql.FIRST_ROWS_WITHOUT_PAYLOAD, sql.NEXT_ROWS_WITHOUT_PAYLOAD)
        )
        text, values = _page_statement(first, following, topic, state, after, limit, purged_up_to)
        return await self._read(committed, lambda db: [row_of(found) for found in db.execute(text, values)])

    async def rows_by_id(self, committed: Fence, namespace: str, only: RowFilter, ids: IdRange) -> IdPage:
        return await self._read(committed, lambda db: _read_by_id(db, namespace, only, ids))

    async def due_rows(self, committed: Fence, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        return await self._read(committed, lambda db: read_due_rows(db, None, high_ms, after, limit))

    async def leases_in(self, committed: Fence, ranges: Sequence[tuple[int, int]], last_ms: int) -> list[DueRow]:
        def read(db: sqlite3.Connection) -> list[DueRow]:
            return [DueRow(*found) for bounds in ranges for found in db.execute(sql.LEASES_IN, (*bounds, last_ms))]

        return await self._read(committed, read)

    async def leases_of(
        self, committed: Fence, topics: Sequence[tuple[TopicName, OrderKey | None]], limit: int
    ) -> list[list[LeaseEnd]]:
        statements = [
            _page_statement(sql.FIRST_LEASES, sql.NEXT_LEASES, topic, State.LEASED, after, limit, 0)
            for topic, after in topics
        ]
        return await self._read(
            committed, lambda db: [lease_ends_of(db.execute(text, values)) for text, values in statements]
        )

    async def idempotency_keys_of(self, committed: Fence, untils: Mapping[int, int]) -> dict[int, bytes]:
        def read(db: sqlite3.Connection) -> dict[int, bytes]:
            return {
                number: bytes(key)
                for item, until_ms in untils.items()
                for number, key in db.execute(sql.IDEMPOTENCY_KEY_OF, (until_ms, item))
            }

        return await self._read(committed, read)

    async def journal_payloads(self, committed: Fence, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
        return await self._read(committed, lambda db: read_journal_payloads(db, places))

    async def begin_snapshot(self, committed: Fence) -> None:
        await self._run_in_thread(lambda: self._run_or_disconnect(lambda: self._begin_read(committed)))

    async def counts(self) -> list[TopicCount]:
        return await self._run_in_thread(lambda: self._run_or_disconnect(self._count))

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._interrupt()
            # Not awaited, as the loop may be ending: the thread finishes its calls, closes and ends.
            self._thread.submit(self._disconnect)
            closing = asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
            await asyncio.shield(closing)

    # ------------------------------------------------------- on the event loop

    async def _run_in_thread(self, work: Callable[[], _T]) -> _T:
        if self._is_closed:
            raise StoreLost(f"{self._file.path}: the connection of these reads was closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except asyncio.CancelledError:
            self._interrupt()
            raise

    async def _read(self, committed: Fence, query: Callable[[sqlite3.Connection], _T]) -> _T:
        return await self._run_in_thread(lambda: self._run_or_disconnect(lambda: self._query(committed, query)))

    def _interrupt(self) -> None:
        """End the statement that runs now, if any: its result is not wanted any more."""
        db = self._db
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.interrupt()

    # ------------------------------------------------------------ in the thread

    def _run_or_disconnect(self, work: Callable[[], _T]) -> _T:
        """Return the result of `work`. If it raises, close the connection. Errors of SQLite become `StoreLost`."""
        try:
            return work()
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            self._disconnect()
            raise StoreLost(str(self._file.store_error(error))) from error
        except BaseException:
            self._disconnect()
            raise

    def _query(self, committed: Fence, query: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._db is not None and self._db.in_transaction:
            raise RuntimeError("only counts may be read in a snapshot")
        db = self._begin_read(committed)
        found = query(db)
        db.execute(sql.COMMIT)
        return found

    def _begin_read(self, committed: Fence) -> sqlite3.Connection:
        """Begin a read transaction, and return its connection. Raises `StoreLost` if it lacks the flush `committed`."""
        if self._db is None:
            self._db = self._file.open_for_reading()
        self._db.execute(sql.BEGIN_READ)
        check_not_behind(committed, owner_of(self._db.execute(sql.READ_OWNER).fetchone()))
        return self._db

    def _count(self) -> list[TopicCount]:
        if self._db is None or not self._db.in_transaction:
            raise StoreLost(f"{self._file.path}: the snapshot was lost with its connection before it was counted")
        purged = {
            (marker[0], marker[1], state): rows
            for marker in self._db.execute(sql.PURGE_MARKERS).fetchall()
            for state, rows in self._db.execute(sql.COUNT_PURGED_ROWS, marker)
        }
        return [
            TopicCount(namespace, topic, State(state), rows, size, purged.get((namespace, topic, state), 0))
            for namespace, topic, state, rows, size in self._db.execute(sql.COUNTS)
        ]

    def _disconnect(self) -> None:
        """Close the connection, which ends its transaction."""
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()


def read_rows(db: sqlite3.Connection, statement: str, ids: Iterable[int]) -> list[Row]:
    """Return the rows of `ids` that exist. One prepared lookup for each costs less than a list in SQL text."""
    execute = db.execute
    found = [execute(statement, (number,)).fetchone() for number in ids]
    return [row_of(values) for values in found if values is not None]


def read_rows_with_payload(db: sqlite3.Connection, payload_limits: Mapping[int, int]) -> list[Row]:
    """Return the rows of these ids that exist. Payloads above the id's limit are left out."""
    execute = db.execute
    found = [
        execute(sql.READ_ROW_WITH_PAYLOAD, (length, number)).fetchone() for number, length in payload_limits.items()
    ]
    return [row_of(values) for values in found if values is not None]


def read_due_rows(
    db: sqlite3.Connection, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int
) -> list[DueRow]:
    """Return a page of timer entries; see `Store.due_rows`."""
    start = (_INT64_MIN if low_ms is None else low_ms, -1)
    if after is not None:
        start = max(start, (after.due_ms, after.id))
    return [DueRow(*found) for found in db.execute(sql.DUE_ROWS, (*start, high_ms, limit))]


def read_journal_events(db: sqlite3.Connection, first: Position, bytes_max: int) -> list[PositionedEvents]:
    """Return a page of events; see `Store.journal_events`."""
    page: list[PositionedEvents] = []
    for number, events in db.execute(sql.JOURNAL_EVENTS, (max(pack_position(first), 1),)):  # at 0 is the reserve
        bytes_max -= len(events)
        if page and bytes_max < 0:
            break
        page.append(PositionedEvents(unpack_position(number), events))
    return page


def read_journal_payloads(db: sqlite3.Connection, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
    """Return the payloads at these places; see `Store.journal_payloads`. One row is read after the other."""
    found: dict[PayloadPlace, bytes] = {}
    for position, of_row in groupby(sorted(places), lambda place: place.position):
        wanted = list(of_row)
        first, end = wanted[0].offset, max(place.offset + place.payload_bytes for place in wanted)
        values = db.execute(sql.JOURNAL_PAYLOADS, (first + 1, end - first, pack_position(position))).fetchone()
        for place in wanted if values is not None else ():
            payload = payload_at(place, [(first, values[0] or b"")])  # a part of an empty blob is NULL
            if payload is not None:
                found[place] = payload
    return found


def _read_by_id(db: sqlite3.Connection, namespace: str, only: RowFilter, ids: IdRange) -> IdPage:
    """Return a page of rows by id; see `port.Reads.rows_by_id`."""
    count, last = db.execute(sql.LAST_OF_PAGE, (ids.after, ids.last, ids.rows_max)).fetchone()
    topics, (earliest_ms, latest_ms) = only.topic_names or (), only.enqueued_between_ms
    group = () if only.group is None else (only.group,)
    values = (ids.after, last, namespace, *topics, *group, *map(int, only.states), only.priority_min, only.priority_max)
    text = sql.rows_by_id(len(topics), len(only.states), has_group=only.group is not None)
    rows = [row_of(found) for found in db.execute(text, (*values, earliest_ms, latest_ms, ids.limit))]
    return id_page(rows, ids, count, last)


def _page_statement(
    first: str, following: str, topic: TopicName, state: State, after: OrderKey | None, limit: int, purged_up_to: int
) -> tuple[str, tuple[str | int, ...]]:
    """Return the statement that reads a page of a topic, and its values."""
    if after is None:
        return first, (*topic, int(state), purged_up_to, limit)
    return following, (*topic, int(state), purged_up_to, *unpack_order_key(after), limit)
