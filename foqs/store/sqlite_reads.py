"""Reading a shard's SQLite file beside its flushes: a connection and a thread of its own.

Always true: each call is one hop into the thread and one read transaction
there, which shows one commit of the writer and never waits for it (the file is
in WAL mode); nothing is ever written. Knows nothing of SQL's text or of how a
file is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from foqs.core.fence import Fence
from foqs.core.item import Key, Row, State, TopicName, unpack_key
from foqs.store import sql_sqlite as sql
from foqs.store.port import ANY_LENGTH, StoreLost, TopicCount, check_past
from foqs.store.sql_rows import keys_of, owner_of, row_of
from foqs.store.sqlite_file import SqliteFile

_T = TypeVar("_T")


class SqliteReads:
    """A connection for reading; see `port.Reads`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"foqs-reads-{file.shard}")
        self._closed = False
        # Only the thread changes what follows.
        self._db: sqlite3.Connection | None = None

    async def rows(self, past: Fence, ids: Sequence[int], payload_bytes_max: int = ANY_LENGTH) -> list[Row]:
        return await self._read(past, lambda db: loaded_rows(db, dict.fromkeys(ids, payload_bytes_max)))

    async def ready(self, past: Fence, topic: TopicName, after: Key | None, limit: int, last_cut: int = 0) -> list[Key]:
        text, values = _page(sql.FIRST_KEYS, sql.NEXT_KEYS, topic, State.READY, after, limit, last_cut)
        return await self._read(past, lambda db: keys_of(db.execute(text, values)))

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
        first, following = (sql.FIRST_ROWS, sql.NEXT_ROWS) if payload else (sql.FIRST_HEADS, sql.NEXT_HEADS)
        text, values = _page(first, following, topic, state, after, limit, last_cut)
        return await self._read(past, lambda db: [row_of(found) for found in db.execute(text, values)])

    async def key_of(self, past: Fence, number: int, until_ms: int) -> bytes | None:
        found = await self._read(past, lambda db: db.execute(sql.KEY_OF, (until_ms, number)).fetchone())
        return None if found is None else bytes(found[0])

    async def snapshot(self, past: Fence) -> None:
        await self._hop(lambda: self._guarded(lambda: self._begin(past)))

    async def counts(self) -> list[TopicCount]:
        return await self._hop(lambda: self._guarded(self._count))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._interrupt()
            # Not awaited on a loop that may be ending: the thread finishes what it has, closes and ends.
            self._thread.submit(self._drop)
            closing = asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
            await asyncio.shield(closing)

    # ------------------------------------------------------- on the event loop

    async def _hop(self, work: Callable[[], _T]) -> _T:
        if self._closed:
            raise StoreLost(f"{self._file.path}: these reads were closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except asyncio.CancelledError:
            self._interrupt()
            raise

    async def _read(self, past: Fence, query: Callable[[sqlite3.Connection], _T]) -> _T:
        return await self._hop(lambda: self._guarded(lambda: self._query(past, query)))

    def _interrupt(self) -> None:
        """Ends the statement that runs now, if any: nobody waits for its answer."""
        db = self._db
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.interrupt()

    # ------------------------------------------------------------ in the thread

    def _guarded(self, work: Callable[[], _T]) -> _T:
        """Whatever ends a read without an answer ends the connection too."""
        try:
            return work()
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            self._drop()
            raise StoreLost(str(self._file.refusal(error))) from error
        except BaseException:
            self._drop()
            raise

    def _query(self, past: Fence, query: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._db is not None and self._db.in_transaction:
            raise RuntimeError("only counts may be read in a snapshot")
        db = self._begin(past)
        found = query(db)
        db.execute(sql.COMMIT)
        return found

    def _begin(self, past: Fence) -> sqlite3.Connection:
        """Begins a read transaction, in which nothing changes, and checks whose tables it shows."""
        if self._db is None:
            self._db = self._file.open_for_reading()
        self._db.execute(sql.BEGIN_READ)
        check_past(past, owner_of(self._db.execute(sql.READ_OWNER).fetchone()))
        return self._db

    def _count(self) -> list[TopicCount]:
        if self._db is None or not self._db.in_transaction:
            raise StoreLost(f"{self._file.path}: there is no snapshot to count in")
        purged = {
            (cut[0], cut[1], state): rows
            for cut in self._db.execute(sql.CUTS).fetchall()
            for state, rows in self._db.execute(sql.COUNT_CUT, cut)
        }
        return [
            TopicCount(namespace, topic, State(state), rows, size, purged.get((namespace, topic, state), 0))
            for namespace, topic, state, rows, size in self._db.execute(sql.COUNTS)
        ]

    def _drop(self) -> None:
        """Closes the connection and with it its transaction."""
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()


def found_rows(db: sqlite3.Connection, text: str, ids: Iterable[int]) -> list[Row]:
    """The rows of `ids` that exist; one prepared lookup each costs less than a list spliced into SQL."""
    execute = db.execute
    found = [execute(text, (number,)).fetchone() for number in ids]
    return [row_of(values) for values in found if values is not None]


def loaded_rows(db: sqlite3.Connection, lengths: Mapping[int, int]) -> list[Row]:
    """The rows of these ids that exist, with their payload unless it is longer than is said of the id."""
    execute = db.execute
    found = [execute(sql.LOAD_ROW, (length, number)).fetchone() for number, length in lengths.items()]
    return [row_of(values) for values in found if values is not None]


def _page(
    first: str, following: str, topic: TopicName, state: State, after: Key | None, limit: int, last_cut: int
) -> tuple[str, tuple[str | int, ...]]:
    """The statement that reads a page of a topic, and its values."""
    if after is None:
        return first, (*topic, int(state), last_cut, limit)
    return following, (*topic, int(state), last_cut, *unpack_key(after), limit)
