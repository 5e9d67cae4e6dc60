"""A user's connection to a database, as an outbox and an inbox use it.

Holds `UserConnection` and its adapters. Always true: statements run in the transaction that is open, or that
the connection begins by itself and the user commits; nothing is committed here; only the package of the connection
is imported. A marker in a statement is `?`; an adapter gives those of its driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, Protocol, TypeVar

from foqs_client.errors import InvalidArgument
from foqs_client.outbox.outbox_errors import NotInTransaction
from foqs_client.outbox.outbox_sql import Dialect, dialect_named

Values = Sequence[Any]
T = TypeVar("T")

_KINDS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("payload", "metadata", "trace_context"), bytes),
    **dict.fromkeys(("event_id", "topic", "row_group", "idempotency_key"), str),
}
"""The columns of an outbox that hold no numbers: a column may have no value that says it."""
_MYSQL_IN_TRANSACTION: Final = 1
"""SERVER_STATUS_IN_TRANS of MySQL's protocol."""


class UserConnection(Protocol):
    """A connection of any kind that is known. Each method raises what the driver raises."""

    @property
    def dialect(self) -> Dialect:
        """The database."""
        ...

    def require_transaction(self) -> None:
        """Raise NotInTransaction if the connection commits each statement, and no transaction is open."""
        ...

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Values]) -> None:
        """Insert rows, at least one, in one call of the driver."""
        ...

    def execute(self, statement: str, values: Values = ()) -> int:
        """Return the number of rows that a statement has changed."""
        ...

    def query(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds."""
        ...


def user_connection(connection: Any) -> UserConnection:
    """Return a user's connection as it is used here. Raises InvalidArgument: it is of no kind that is known."""
    if isinstance(connection, str):
        connection = _connection_of_django(connection)
    for package in _packages(connection):
        adapter = _ADAPTERS.get(package)
        if adapter is not None:
            return adapter(connection)
    raise InvalidArgument(
        f"{type(connection).__module__}.{type(connection).__qualname__} is no connection that is known; "
        f"give one of {', '.join(_ADAPTERS)}",
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
        "SQLAlchemy; a connection that blocks goes to the function without _async",
        field="connection",
    )


def _packages(connection: Any) -> list[str]:
    return [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]


class _PlainConnection:
    """A connection of a plain driver."""

    dialect: Dialect
    marker = "%s"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Values]) -> None:
        """See `UserConnection`."""
        markers = ", ".join([self.marker] * len(columns))
        with closing(self._cursor()) as cursor:
            cursor.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({markers})", rows)  # noqa: S608 (names of ours)

    def execute(self, statement: str, values: Values = ()) -> int:
        """See `UserConnection`."""
        with closing(self._cursor()) as cursor:
            cursor.execute(statement.replace("?", self.marker), tuple(values))
            return int(cursor.rowcount)

    def query(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """See `UserConnection`."""
        with closing(self._cursor()) as cursor:
            cursor.execute(statement.replace("?", self.marker), tuple(values))
            return [tuple(row) for row in cursor.fetchall()]

    def _cursor(self) -> Any:
        """Return a cursor whose rows are tuples, whatever the user has set."""
        return self._connection.cursor()


class _SqliteConnection(_PlainConnection):
    dialect = Dialect.SQLITE
    marker = "?"

    def require_transaction(self) -> None:
        """See `UserConnection`."""
        connection = self._connection
        autocommit: int = getattr(connection, "autocommit", -1)  # of Python 3.12; -1 stands for `isolation_level`
        commits = connection.isolation_level is None if autocommit == -1 else bool(autocommit)
        _refuse(commits and not connection.in_transaction, "begin a transaction first: connection.execute('BEGIN')")

    def _cursor(self) -> Any:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor


class _PsycopgConnection(_PlainConnection):
    dialect = Dialect.POSTGRES

    def __init__(self, connection: Any) -> None:
        import psycopg

        if not isinstance(connection, psycopg.Connection):
            raise InvalidArgument(
                f"{type(connection).__qualname__} of psycopg does not block; give a Connection, "
                "or an AsyncConnection of SQLAlchemy to the function with _async",
                field="connection",
            )
        super().__init__(connection)

    def require_transaction(self) -> None:
        """See `UserConnection`."""
        is_idle = self._connection.info.transaction_status == 0
        _refuse(self._connection.autocommit and is_idle, "begin a transaction first: with connection.transaction()")

    def _cursor(self) -> Any:
        from psycopg.rows import tuple_row

        return self._connection.cursor(row_factory=tuple_row)


class _PymysqlConnection(_PlainConnection):
    dialect = Dialect.MYSQL

    def require_transaction(self) -> None:
        """See `UserConnection`."""
        is_idle = not self._connection.server_status & _MYSQL_IN_TRANSACTION
        _refuse(self._connection.get_autocommit() and is_idle, "begin a transaction first: connection.begin()")

    def _cursor(self) -> Any:
        from pymysql.cursors import Cursor

        return self._connection.cursor(Cursor)


class _SqlalchemyConnection:
    """A Connection, a Session or a scoped session."""

    def __init__(self, connection: Any) -> None:
        import sqlalchemy as sa
        from sqlalchemy.orm import Session, scoped_session

        if isinstance(connection, Session | scoped_session):
            connection = connection.connection()
        if not isinstance(connection, sa.Connection):
            raise InvalidArgument(
                f"{type(connection).__qualname__} is none of Connection, Session and scoped_session; "
                "an AsyncConnection or an AsyncSession goes to the function with _async",
                field="connection",
            )
        self.dialect = dialect_named(connection.dialect.name)
        self._connection = connection

    def require_transaction(self) -> None:
        """See `UserConnection`."""
        driver = self._connection.connection.driver_connection
        # pysqlite's dialect looks at `isolation_level` alone, and Python 3.12 has `autocommit` beside it.
        commits = _detects_autocommit(self._connection) or getattr(driver, "autocommit", False) is True
        _refuse(
            commits and not _is_in_transaction(driver),
            "give a connection whose isolation level is not AUTOCOMMIT, and whose driver does not autocommit",
        )

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Values]) -> None:
        """See `UserConnection`."""
        import sqlalchemy as sa

        typed = [sa.column(name, _sqlalchemy_type(_KINDS.get(name, int))) for name in columns]
        named = [dict(zip(columns, row, strict=True)) for row in rows]
        self._connection.execute(sa.insert(sa.table(table, *typed)), named)

    def execute(self, statement: str, values: Values = ()) -> int:
        """See `UserConnection`."""
        return int(self._run(statement, values).rowcount)

    def query(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """See `UserConnection`."""
        return [tuple(row) for row in self._run(statement, values)]

    def _run(self, statement: str, values: Values) -> Any:
        import sqlalchemy as sa

        first, *others = statement.split("?")
        text = first + "".join([f":v{place}{part}" for place, part in enumerate(others)])
        binds = [
            sa.bindparam(f"v{place}", value, type_=_sqlalchemy_type(type(value))) for place, value in enumerate(values)
        ]
        return self._connection.execute(sa.text(text).bindparams(*binds), execution_options={"preserve_rowcount": True})


class _DjangoConnection(_PlainConnection):
    """A connection of Django, with whatever driver it has."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.dialect = dialect_named(connection.vendor)

    def require_transaction(self) -> None:
        """See `UserConnection`."""
        _refuse(self._connection.get_autocommit(), "write within transaction.atomic()")


def _connection_of_django(alias: str) -> Any:
    from django.db import connections
    from django.utils.connection import ConnectionDoesNotExist

    try:
        return connections[alias]
    except ConnectionDoesNotExist as error:
        raise InvalidArgument(f"{error}; a text names a database of Django", field="connection") from None


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


def _sqlalchemy_type(kind: type) -> Any:
    """Return SQLAlchemy's type. asyncpg would take a number of milliseconds for one of 32 bits."""
    import sqlalchemy as sa

    if kind is bytes:
        return sa.LargeBinary
    return sa.String if kind is str else sa.BigInteger


def _refuse(would_commit: bool, remedy: str) -> None:
    if would_commit:
        raise NotInTransaction(f"this connection commits each statement; {remedy}")


_ADAPTERS: Final[Mapping[str, Callable[[Any], UserConnection]]] = {
    "sqlite3": _SqliteConnection,
    "psycopg": _PsycopgConnection,
    "pymysql": _PymysqlConnection,
    "sqlalchemy": _SqlalchemyConnection,
    "django": _DjangoConnection,
}
