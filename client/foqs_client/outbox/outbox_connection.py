"""A connection to the tables of an outbox, which is opened when it is needed. Calls block.

Holds `OutboxConnection`. Always true: after a statement that failed the connection is closed, which ends its
transaction, and the next statement opens another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foqs_client.outbox import relay_sql
from foqs_client.outbox.outbox_sql import DEFAULT_PREFIX, Dialect


class TablesUnavailable(Exception):
    """The database did not carry out a statement. The connection is closed; the next call opens another one."""


class DatabaseUnreachable(TablesUnavailable):
    """No connection could be opened to the server of a database."""


class OutboxConnection:
    """Runs statements of `relay_sql`.

    Args:
        connect: opens a connection of the plain driver that commits each statement.
        idle_s: a server ends a session that says nothing for so long, and the transaction that it has left open.
    """

    def __init__(
        self, connect: Callable[[], Any], dialect: Dialect, prefix: str = DEFAULT_PREFIX, idle_s: int = 10
    ) -> None:
        self.dialect = dialect
        self.prefix = prefix
        self._connect = connect
        self._idle_s = idle_s
        self._marker = "?" if dialect is Dialect.SQLITE else "%s"
        self._connection: Any = None

    def query(self, statement: str, values: Sequence[Any] = (), **parts: str) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds. Raises TablesUnavailable."""
        return [tuple(row) for row in self._run(statement, values, parts, lambda cursor: cursor.fetchall())]

    def execute(self, statement: str, values: Sequence[Any] = (), **parts: str) -> int:
        """Return the number of rows that a statement has changed. Raises TablesUnavailable."""
        return int(self._run(statement, values, parts, lambda cursor: cursor.rowcount))

    def close(self) -> None:
        """Close the connection, which ends its transaction. The next statement opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def _run(
        self, statement: str, values: Sequence[Any], parts: Mapping[str, str], result: Callable[[Any], Any]
    ) -> Any:
        text = relay_sql.for_driver(statement, self.prefix, self._marker, self.dialect, **parts)
        try:
            if self._connection is None:
                self._open()
            with contextlib.closing(self._connection.cursor()) as cursor:
                cursor.execute(text, tuple(values))
                return result(cursor)
        except TablesUnavailable:  # while it was opened
            raise
        except Exception as error:
            self.close()
            raise TablesUnavailable(f"{type(error).__name__}: {error}") from error

    def _open(self) -> None:
        try:
            self._connection = self._connect()
        except Exception as error:
            # A file of SQLite has no server that may come back.
            kind = TablesUnavailable if self.dialect is Dialect.SQLITE else DatabaseUnreachable
            raise kind(f"{type(error).__name__}: {error}") from error
        for each in relay_sql.SESSION[self.dialect]:
            self.execute(each, idle_s=str(self._idle_s))
