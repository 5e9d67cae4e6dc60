"""Fills the timer table of a shard from its rows, page by page, beside the flushes.

Always true: each page is one transaction that first locks the owner row, as a flush
does. So a page and a flush never wait for each other's other locks, a page is filled
once, and the position says what is filled. Needs owners that write timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from foqs.store.mysql import mysql_migrations as sql
from foqs.store.mysql.mysql_driver import MysqlLink, ServerError
from foqs.store.mysql.mysql_sql import BEGIN, COMMIT, FILLED, NOT_FILLED, ROLLBACK

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with the number of rows that are done, and about how many there are."""

PAGE_MS_TARGET: Final = 25
"""A page holds the owner row for about this time, and flushes wait for it."""
PAGE_ROWS_FIRST: Final = 200
PAGE_ROWS_MAX: Final = 10_000
NO_SUCH_INDEX_CODE: Final = 1176
"""A statement names an index that was dropped: the timer table is filled."""
_RETRYABLE_CODES: Final = frozenset({1205, 1213})


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


async def fill_timers(link: MysqlLink, shard: int, on_progress: OnProgress = no_progress) -> None:
    """Fill the table, from the position at which an earlier call was interrupted. Raises ServerError, MysqlLinkLost."""
    done, total = await read_filling(link, shard)
    rows = PAGE_ROWS_FIRST
    loop = asyncio.get_running_loop()
    while True:
        begun_s = loop.time()
        try:
            page = await _fill_page(link, shard, rows)
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


async def _fill_page(link: MysqlLink, shard: int, limit: int) -> int | None:
    """Do the next page. Return how many rows it has; None if the table is filled."""
    _, found = await link.run(BEGIN, sql.filling_position(shard, lock=True))
    position = int(found.rows[0][0])
    if position == FILLED:
        await link.run(COMMIT)
        return None
    if position == NOT_FILLED:
        removed, _ = await link.run(sql.remove_timers(shard, limit), COMMIT)
        if removed.matched_row_count < limit:
            await _end_emptying(link, shard)
        return 0
    (end,) = await link.run(sql.end_of_page(shard, position, limit))
    last, rows = int(end.rows[0][0]), int(end.rows[0][1])
    await link.run(
        sql.fill_timers(shard, position, last),
        sql.set_filling_position(shard, last),
        sql.add_filled_rows(shard, rows),
        COMMIT,
    )
    return rows


async def _end_emptying(link: MysqlLink, shard: int) -> None:
    """Begin with the rows, unless another filler has begun."""
    _, found = await link.run(BEGIN, sql.filling_position(shard, lock=True))
    if found.rows[0][0] == NOT_FILLED:
        await link.run(sql.set_filling_position(shard, 0))
    await link.run(COMMIT)
