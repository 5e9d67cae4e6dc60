"""Wakes a relay when a transaction with a NOTIFY commits. Postgres only.

Holds `listen_for_wakeups`. Always true: a lost connection, or one that was never had, costs latency and nothing else,
because the relay polls beside it; the loop never blocks. Knows nothing of rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

log: Final = logging.getLogger("foqs.relay")

_AGAIN_S: Final = 5.0


async def listen_for_wakeups(connect: Callable[[], Any], channel: str, wake: Callable[[], None]) -> None:
    """Call `wake` for each notification, until it is cancelled.

    Args:
        connect: opens a connection of psycopg that commits each statement.
        channel: the name of the outbox' table.
    """
    while True:
        try:
            connection = await asyncio.to_thread(_listening, connect, channel)
        except Exception as error:
            log.debug("notifications are not heard: %s", error)
        else:
            wake()  # one may have been missed
            with contextlib.closing(connection):
                await _forward(connection, wake)
        await asyncio.sleep(_AGAIN_S)


def _listening(connect: Callable[[], Any], channel: str) -> Any:
    connection = connect()
    try:
        connection.execute(f"LISTEN {channel}")
    except BaseException:
        connection.close()
        raise
    return connection


async def _forward(connection: Any, wake: Callable[[], None]) -> None:
    """Wait until the connection breaks."""
    loop = asyncio.get_running_loop()
    is_broken = asyncio.Event()
    socket = connection.fileno()

    def on_readable() -> None:
        try:
            connection.pgconn.consume_input()
            while connection.pgconn.notifies() is not None:
                wake()
        except Exception as error:
            log.debug("notifications are heard no more: %s", error)
            loop.remove_reader(socket)
            is_broken.set()

    loop.add_reader(socket, on_readable)
    try:
        await is_broken.wait()
    finally:
        loop.remove_reader(socket)
