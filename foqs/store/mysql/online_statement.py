"""Runs one statement that changes a table, and gives way to writers.

Such a statement needs the lock of its table for a moment. If a transaction reads the
table for long, the statement waits, and all later transactions wait behind it. Always
true: a statement that waits for longer than `LOCK_WAIT_MS_MAX` is ended and tried again
later. Knows nothing of migrations.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from foqs.store.mysql import mysql_migrations as sql
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlLinkLost, MysqlSettings, Result, ServerError
from foqs.store.mysql.mysql_rows import decode_processes
from foqs.store.mysql.mysql_session_sql import NAMES_AS_BYTES, PROCESSES, kill
from foqs.store.port import StoreUnusable

log = logging.getLogger(__name__)

LOCK_WAIT_MS_MAX: Final = 40
"""The longest wait for the lock of a table. Writers wait for as long, and until the statement is ended."""
RETRIES_FOR_S: Final = 600.0
"""How long a statement is tried again."""
_CHECK_S: Final = 0.01
_PAUSE_S_FIRST: Final = 0.1
_PAUSE_S_MAX: Final = 2.0
_STATEMENT_TIMEOUT_S: Final = 24 * 3_600.0
_LOCK_WAIT_CODE: Final = 1205
_CONNECTION_ID: Final = b"SELECT CONNECTION_ID()"


async def run_online(settings: MysqlSettings, statement: bytes, retries_for_s: float = RETRIES_FOR_S) -> int:
    """Run the statement over a connection of its own. Return how often it was ended and tried again.

    Raises:
        ServerError, MysqlLinkLost: from the driver.
        StoreUnusable: the table was in use for `retries_for_s`.
    """
    loop = asyncio.get_running_loop()
    until_s, pause_s, retries = loop.time() + retries_for_s, _PAUSE_S_FIRST, 0
    watcher = await MysqlLink.connect(settings)
    try:
        await watcher.run(NAMES_AS_BYTES)
        while not await _run_once(settings, watcher, statement):
            if loop.time() > until_s:
                raise StoreUnusable(
                    f"{settings.location}: transactions use a table for so long that it cannot be changed "
                    f"({statement.decode()}): end them (information_schema.INNODB_TRX shows them), then try again"
                )
            if retries == 0:
                log.info(
                    "%s: a change of a table waits for a transaction that uses it: %s",
                    settings.location,
                    statement.decode(),
                )
            await asyncio.sleep(pause_s)
            pause_s, retries = min(2 * pause_s, _PAUSE_S_MAX), retries + 1
    finally:
        await watcher.close()
    return retries


async def _run_once(settings: MysqlSettings, watcher: MysqlLink, statement: bytes) -> bool:
    """Run the statement. Return False if it waited for too long and was ended."""
    link = await MysqlLink.connect(settings)
    try:
        _, found = await link.run(sql.LIMIT_LOCK_WAIT, _CONNECTION_ID)
        connection_id = int(found.rows[0][0])
        link.timeout_s = _STATEMENT_TIMEOUT_S
        running = asyncio.ensure_future(link.run(statement))
        was_ended = False
        try:
            was_ended = await _end_if_it_waits(running, watcher, connection_id)
            await running
        except ServerError as error:
            if error.code != _LOCK_WAIT_CODE:
                raise
            return False
        except MysqlLinkLost:
            if not was_ended:
                raise
            return False
        finally:
            running.cancel()
            await asyncio.wait((running,))
            if not running.cancelled():
                running.exception()
    finally:
        await link.close()
    return True


async def _end_if_it_waits(running: asyncio.Future[list[Result]], watcher: MysqlLink, connection_id: int) -> bool:
    """Wait for the statement. Return whether its connection was ended because it waited for a lock."""
    loop = asyncio.get_running_loop()
    waits_since_s: float | None = None
    while not (await asyncio.wait((running,), timeout=_CHECK_S))[0]:
        (found,) = await watcher.run(PROCESSES)
        process = decode_processes(found).get(connection_id)
        if process is None or not process.state.startswith(sql.WAITING_STATE):
            waits_since_s = None
        elif waits_since_s is None:
            waits_since_s = loop.time() - _CHECK_S
        elif loop.time() - waits_since_s > (LOCK_WAIT_MS_MAX / 1_000):
            with contextlib.suppress(ServerError):  # it has ended by itself
                await watcher.run(kill(connection_id))
            return True
    return False
