"""A user's connection to a database, as an outbox writes through it.

Holds `insert_rows`. Always true: rows are written in the transaction that is open, or that the
connection begins by itself and the user commits; a connection that would commit each statement
is refused; only the package of the connection is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from foqs_client.errors import InvalidArgument
from foqs_client.outbox.new_rows import COLUMNS
from foqs_client.outbox.outbox_errors import NotInTransaction
from foqs_client.outbox.outbox_sql import outbox_table

Rows = Sequence[tuple[Any, ...]]
T = TypeVar("T")

_MYSQL_IN_TRANSACTION: Final = 1
"""SERVER_STATUS_IN_TRANS of MySQL's protocol."""


def insert_rows(connection: Any, rows: Rows, prefix: str, *, notify: bool) -> None:
    """Write rows through a connection of any kind that is known.

    Args:
        notify: on Postgres, wake the relay when the transaction commits.

    Raises:
        InvalidArgument: it is of another kind, or the prefix is no name of a table.
        NotInTransaction: the connection commits each statement, and no transaction is open.
    """
    for package in _packages(connection):
        insert = _INSERT_BY_PACKAGE.get(package)
        if insert is not None:
            insert(connection, rows, outbox_table(prefix), notify)
            return
    raise InvalidArgument(
        f"{type(connection).__module__}.{type(connection).__qualname__} is no connection that is known; "
        f"give one of {', '.join(_INSERT_BY_PACKAGE)}",
        field="connection",
    )


async def run_blocking(connection: Any, function: Callable[[Any], T]) -> T:
    """Return what a function returns of the blocking side of an asynchronous connection of SQLAlchemy.

    Raises:
        InvalidArgument: it is of another kind.
    """
    if "sqlalchemy" in _packages(connection):
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

        if isinstance(connection, AsyncSession | async_scoped_session):
            connection = await connection.connection()
        if isinstance(connection, AsyncConnection):
            result: T = await connection.run_sync(function)
            return result
    raise InvalidArgument(
        f"{type(connection).__qualname__} is none of AsyncConnection, AsyncSession and async_scoped_session of "
        "SQLAlchemy; a connection that blocks goes to enqueue",
        field="connection",
    )


def _packages(connection: Any) -> list[str]:
    return [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]


def _insert_sqlite(connection: Any, rows: Rows, table: str, _notify: bool) -> None:
    autocommit: int = getattr(connection, "autocommit", -1)  # of Python 3.12; -1 stands for `isolation_level`
    commits = connection.isolation_level is None if autocommit == -1 else bool(autocommit)
    _require_transaction(
        commits and not connection.in_transaction, "begin a transaction first: connection.execute('BEGIN')"
    )
    connection.executemany(_statement(table, "?"), rows)


def _insert_psycopg(connection: Any, rows: Rows, table: str, notify: bool) -> None:
    import psycopg

    if not isinstance(connection, psycopg.Connection):
        raise InvalidArgument(
            f"{type(connection).__qualname__} of psycopg does not block; give a Connection, "
            "or an AsyncConnection of SQLAlchemy to enqueue_async",
            field="connection",
        )
    is_idle = connection.info.transaction_status == 0
    _require_transaction(connection.autocommit and is_idle, "begin a transaction first: with connection.transaction()")
    with connection.cursor() as cursor:
        cursor.executemany(_statement(table, "%s"), rows)
        if notify:
            cursor.execute(f"NOTIFY {table}")


def _insert_pymysql(connection: Any, rows: Rows, table: str, _notify: bool) -> None:
    is_idle = not connection.server_status & _MYSQL_IN_TRANSACTION
    _require_transaction(connection.get_autocommit() and is_idle, "begin a transaction first: connection.begin()")
    with connection.cursor() as cursor:
        cursor.executemany(_statement(table, "%s"), rows)


def _insert_sqlalchemy(connection: Any, rows: Rows, table: str, notify: bool) -> None:
    """Write through a Connection, a Session or a scoped session."""
    import sqlalchemy as sa
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(connection, Session | scoped_session):
        connection = connection.connection()
    if not isinstance(connection, sa.Connection):
        raise InvalidArgument(
            f"{type(connection).__qualname__} is none of Connection, Session and scoped_session; "
            "an AsyncConnection or an AsyncSession goes to enqueue_async",
            field="connection",
        )
    raw = connection.connection
    # pysqlite's dialect looks at `isolation_level` alone, and Python 3.12 has `autocommit` beside it.
    commits = _detects_autocommit(connection) or getattr(raw.driver_connection, "autocommit", False) is True
    _require_transaction(
        commits and not _is_in_transaction(raw.driver_connection),
        "give a connection whose isolation level is not AUTOCOMMIT, and whose driver does not autocommit",
    )
    target = sa.table(table, *(sa.column(name, _sqlalchemy_type(sa, name)) for name in COLUMNS))
    connection.execute(sa.insert(target), [dict(zip(COLUMNS, row, strict=True)) for row in rows])
    if notify and connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"NOTIFY {table}")


def _detects_autocommit(connection: Any) -> bool:
    """Return whether SQLAlchemy finds that its driver commits each statement. Raises InvalidArgument: it cannot say it."""
    import sqlalchemy as sa

    try:
        return bool(connection.dialect.detect_autocommit_setting(connection.connection.dbapi_connection))
    except AttributeError:
        raise InvalidArgument(
            f"SQLAlchemy {sa.__version__} cannot say whether a connection commits each statement; install 2.0.43 or later",
            field="connection",
        ) from None
    except NotImplementedError:
        raise InvalidArgument(
            f"SQLAlchemy's dialect {connection.dialect.name}+{connection.dialect.driver} cannot say whether a connection "
            "commits each statement; use another driver",
            field="connection",
        ) from None


def _is_in_transaction(driver_connection: Any) -> bool:
    """Return whether the driver says that a transaction is open, as after a BEGIN of a user's own."""
    return bool(getattr(driver_connection, "in_transaction", False))


def _sqlalchemy_type(sa: Any, column: str) -> Any:
    if column in ("payload", "metadata", "trace_context"):
        return sa.LargeBinary
    return sa.String if column in ("event_id", "topic", "row_group", "idempotency_key") else sa.BigInteger


def _statement(table: str, marker: str) -> str:
    return f"INSERT INTO {table} ({', '.join(COLUMNS)}) VALUES ({', '.join([marker] * len(COLUMNS))})"  # noqa: S608 (the name was checked)


def _require_transaction(would_commit: bool, remedy: str) -> None:
    if would_commit:
        raise NotInTransaction(f"this connection commits each statement; {remedy}")


_INSERT_BY_PACKAGE: Final[Mapping[str, Callable[[Any, Rows, str, bool], None]]] = {
    "sqlite3": _insert_sqlite,
    "psycopg": _insert_psycopg,
    "pymysql": _insert_pymysql,
    "sqlalchemy": _insert_sqlalchemy,
}
