"""The databases of a task's thread: opened before the task, judged after it, and waited for when its end is recorded.

Always true: a connection in a transaction is left alone, so in a test nothing is closed. Knows nothing of items.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from django.db import Error, InterfaceError, InternalError, OperationalError, close_old_connections, connections

from foqs_contract.backoff import Backoff

REFUSED_S_MAX: Final = 30.0
"""How long a write is tried in a database that answers, and refuses it: as in a failover, until the new primary is open."""
_PAUSES: Final = Backoff(0.1, 5.0)
_MAY_PASS: Final = (InterfaceError, InternalError, OperationalError)
"""The errors of a database that is away, busy, or read-only for a while."""

log: Final = logging.getLogger("foqs.worker")


def open_database(database: str) -> None:
    """Let this thread have a connection that answers. Raises Error of Django."""
    connection = connections[database]
    if connection.in_atomic_block:
        return
    connection.ensure_connection()
    if not connection.is_usable():  # kept from an earlier task, and broken meanwhile; or of a pool
        connection.close()
        connection.ensure_connection()


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Let a task find connections that answer, and leave no transaction open for the next one."""
    close_stale_connections()
    before = _in_transaction()
    try:
        yield
    finally:
        for alias in _in_transaction() - before:
            log.warning("a task has left a transaction open in the database %r; it is rolled back", alias)
            with suppress(Exception):  # of the driver, which closes what is left of it
                connections[alias].connection.close()
            del connections[alias]  # the next use makes another one
        close_stale_connections()


def close_stale_connections() -> None:
    """Close the connections of this thread that are too old, or that do not answer. Raises nothing of a database."""
    with suppress(Error):
        close_old_connections()
    for connection in connections.all(initialized_only=True):
        if _is_broken(connection):
            with suppress(Error):
                connection.close()


def lost_databases() -> list[str]:
    """Return the databases that could not be reached, or whose connection broke, in this thread."""
    return [
        connection.alias
        for connection in connections.all(initialized_only=True)
        if connection.errors_occurred and (connection.connection is None or _is_broken(connection))
    ]


def write_when_it_answers(
    database: str, write: Callable[[], None], is_lost: Callable[[], bool], pause: Callable[[float], object] = time.sleep
) -> None:
    """Write, and try it again while the database does not answer, or refuses it for a while.

    Args:
        is_lost: says whether the item's lease has ended. Then the write is not worth waiting for.
        pause: waits for a number of seconds.

    Raises:
        Error: of Django: the lease has ended, or a database that answers has refused it.
    """
    failures, refused_s = 0, 0.0
    while True:
        try:
            return write()
        except _MAY_PASS as error:
            if connections[database].in_atomic_block or is_lost() or refused_s > REFUSED_S_MAX:
                raise
            if not failures:
                log.warning("the end of a task is not recorded yet; the database %r failed: %s", database, error)
        pause_s = _PAUSES.pause_s(failures)
        failures += 1
        pause(pause_s)
        refused_s = refused_s + pause_s if _answers(database) else 0.0


def _answers(database: str) -> bool:
    try:
        open_database(database)
    except Error:
        return False
    return True


def _in_transaction() -> set[str]:
    return {each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block}


def _is_broken(connection: Any) -> bool:
    return connection.connection is not None and not connection.in_atomic_block and not connection.is_usable()
