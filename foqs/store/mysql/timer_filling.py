"""Fills the timer table of a shard from its rows, page by page, beside the flushes.

Always true: each page is written by one transaction that first locks the owner row, as a
flush does. So a page and a flush never wait for each other's other locks, a page is filled
once, and the position says what is filled. Needs owners that write timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from foqs.core.flush.writes import Writes
from foqs.store.mysql import mysql_migrations as sql
from foqs.store.mysql.mysql_driver import MysqlLink, ServerError
from foqs.store.mysql.mysql_session_sql import BEGIN, COMMIT, ROLLBACK
from foqs.store.mysql.mysql_sql import FILLED, NOT_FILLED, Statements
from foqs.store.port import DueRow
from foqs.store.row_columns import NEVER_MS

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with the number of rows that are done, and about how many there are."""

PAGE_MS_TARGET: Final = 25
"""A page takes about this time. It has the owner row locked, so that flushes wait, for a part of it."""
PAGE_ROWS_FIRST: Final = 200
PAGE_ROWS_MAX: Final = 10_000
NO_SUCH_INDEX_CODE: Final = 1176
"""The server's error for an index that was dropped: the timer table is filled."""
_RETRYABLE_CODES: Final = frozenset({1205, 1213})
_READ_TIMEOUT_S: Final = 3_600.0
_PACKET_BYTES: Final = 1 << 20
"""The limit of a statement, which those that remove entries never reach."""


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


async def fill_timers(link: MysqlLink, shard: int, on_progress: OnProgress = no_progress) -> None:
    """Fill the table, from the position at which an earlier call was interrupted. Raises ServerError, MysqlLinkLost."""
    done, total = await read_filling(link, shard)
    pages, rows = _Pages(link, shard), PAGE_ROWS_FIRST
    loop = asyncio.get_running_loop()
    while True:
        begun_s = loop.time()
        try:
            page = await pages.next(rows)
        except ServerError as error:
            await link.run(ROLLBACK)
            if error.code not in _RETRYABLE_CODES:
                raise
            page = 0
        if page is None:
            return
        done += page
        on_progress(done, max(total, done))
        took_s = loop.time() - begun_s
        rows = next_page_rows(rows, took_s * 1_000)
        await asyncio.sleep(took_s)


async def read_filling(link: MysqlLink, shard: int) -> tuple[int, int]:
    """Return how many rows are filled, and about how many there are."""
    filled, rows = await link.run(sql.filled_rows(shard), sql.table_rows(shard))
    done = int(filled.rows[0][0]) if filled.rows else 0
    return done, max(done, int(rows.rows[0][0]))


async def are_timers_filled(link: MysqlLink, shard: int) -> bool:
    """Return whether the timer table has the entries of all rows."""
    (found,) = await link.run(sql.filling_position(shard))
    return bool(found.rows[0][0] == FILLED)


def next_page_rows(rows: int, took_ms: float) -> int:
    """Return the size of the next page: it at most doubles, and never falls below the first size."""
    wanted = rows * PAGE_MS_TARGET / max(took_ms, 1.0)
    return int(min(2 * rows, max(PAGE_ROWS_FIRST, wanted), PAGE_ROWS_MAX))


@dataclass(slots=True)
class _Pages:
    """The pages of one run of the filling.

    Each is read without a lock: a read may pass many deleted rows that a snapshot needs. Under the lock only the
    rows and entries that it found are touched, by their keys. A flush that changes them meanwhile writes their entries.

    Attributes:
        removed_to: the last entry that was removed. Removed entries stay in the index while a snapshot needs them, so
            the next page begins after it. Entries before it are those of flushes, which are right.
    """

    link: MysqlLink
    shard: int
    removed_to: DueRow | None = None

    async def next(self, limit: int) -> int | None:
        """Remove or fill the next page. Return how many rows it filled; None if the table is filled."""
        (found,) = await self.link.run(sql.filling_position(self.shard))
        position = int(found.rows[0][0])
        if position == FILLED:
            return None
        return await (self._remove(limit) if position == NOT_FILLED else self._fill(position, limit))

    async def _remove(self, limit: int) -> int:
        """Remove the next entries; after the last ones begin with the rows. Return 0, as no row is filled."""
        statements = Statements(self.shard)
        page = statements.due_rows(None, NEVER_MS, self.removed_to, limit, is_filled=True)
        entries = [(int(due_ms), int(number)) for due_ms, number in await self._read(page)]
        begin_rows = [sql.set_filling_position(self.shard, 0)] if len(entries) < limit else []
        if await self._lock(NOT_FILLED):
            removal = statements.write(Writes(timers_removed=entries), _PACKET_BYTES)
            await self.link.run(*removal, *begin_rows, COMMIT)
        if entries:
            self.removed_to = DueRow(*entries[-1])
        return 0

    async def _fill(self, position: int, limit: int) -> int:
        """Add the entries of the next rows. Return how many rows these are."""
        rows = await self._read(sql.page_of_rows(self.shard, position, limit))
        last = rows[-1][0] if rows else FILLED
        if not await self._lock(position):
            return 0
        await self.link.run(
            *sql.fill_timers(self.shard, [number for number, needs_timer in rows if needs_timer]),
            sql.set_filling_position(self.shard, last),
            sql.add_filled_rows(self.shard, len(rows)),
            COMMIT,
        )
        return len(rows)

    async def _read(self, page: bytes) -> Sequence[Any]:
        """Return the rows of a page. The read may take long, and nothing waits for it."""
        usual_s, self.link.timeout_s = self.link.timeout_s, _READ_TIMEOUT_S
        try:
            (found,) = await self.link.run(page)
        finally:
            self.link.timeout_s = usual_s
        return found.rows

    async def _lock(self, position: int) -> bool:
        """Lock the owner row. Return False, without the lock, if another filler has moved the position."""
        _, found = await self.link.run(BEGIN, sql.filling_position(self.shard, lock=True))
        if found.rows[0][0] == position:
            return True
        await self.link.run(COMMIT)
        return False
