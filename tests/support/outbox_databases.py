"""Databases with the tables of an outbox and a table of orders, and all ways in which a program writes to them.

A *way* is a pair of a database and a kind of connection. `open_way` gives the functions with which one test suite runs over
all of them.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from foqs_client import Item
from foqs_client.outbox import enqueue, enqueue_async
from foqs_client.outbox.outbox_sql import Dialect, create_tables
from perf.lib.servers import Postgres
from tests.support.mariadb import MariaDb

T = TypeVar("T")

ORDER: Final = "INSERT INTO orders VALUES (17)"
MARKS: Final = {"mariadb": pytest.mark.mysql, "mysql9": pytest.mark.mysql, "postgres": pytest.mark.postgres}
MARKERS: Final = {Dialect.MYSQL: "%s", Dialect.POSTGRES: "%s", Dialect.SQLITE: "?"}
"""What stands for a value in a statement of the plain driver."""
DATABASES: Final = tuple(pytest.param(name, marks=MARKS.get(name, ())) for name in ("sqlite", *MARKS))
"""The parameters of a test that runs on each database."""
CONNECTIONS: Final = ("plain", "core", "orm", "async core", "async orm")
WAYS: Final = (
    *(
        pytest.param(name, connection, marks=MARKS.get(name, ()), id=f"{name}, {connection}")
        for name in ("sqlite", "mariadb", "postgres")
        for connection in CONNECTIONS
    ),
    pytest.param("mysql9", "plain", marks=pytest.mark.mysql, id="mysql9, plain"),
)
"""The parameters of a test that runs over each kind of connection."""


@dataclass(frozen=True)
class Place:
    """An empty database with the tables.

    Attributes:
        connect: opens a connection of its plain driver; True: one that commits each statement.
    """

    dialect: Dialect
    connect: Callable[[bool], Any]
    url: str
    async_url: str

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Return what a connection of its own reads."""
        with closing(self.connect(True)) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def prepare(self) -> Place:
        for statement in ("CREATE TABLE orders (id INT PRIMARY KEY)", *create_tables(self.dialect)):
            self.query(statement)
        return self


MakePlace = Callable[[str], Place]
"""Makes a new database of a kind, without tables."""


def sqlite_place(folder: Path) -> Place:
    path = folder / "user.db"

    def connect(commits: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(path)
        connection.isolation_level = None if commits else "DEFERRED"
        return connection

    return Place(Dialect.SQLITE, connect, f"sqlite:///{path}", f"sqlite+aiosqlite:///{path}")


def mysql_place(server: MariaDb) -> Place:
    database, socket = server.database(), str(server.socket)

    def connect(commits: bool) -> Any:
        return pymysql.connect(unix_socket=socket, user="root", database=database, autocommit=commits)

    url = f"root@localhost/{database}?unix_socket={socket}"
    return Place(Dialect.MYSQL, connect, f"mysql+pymysql://{url}", f"mysql+aiomysql://{url}")


def postgres_place(server: Postgres, name: str) -> Place:
    where = {"host": str(server.folder), "port": server.port, "user": "postgres"}

    def connect(commits: bool) -> Any:
        return psycopg.connect(**where, dbname=name, autocommit=commits)

    with psycopg.connect(**where, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = f"postgres@/{name}?host={server.folder}&port={server.port}"
    return Place(Dialect.POSTGRES, connect, f"postgresql+psycopg://{url}", f"postgresql+asyncpg://{url}")


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A started server that writes no more than a test needs, removed at the end."""
    server = Postgres({"fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB", "min_wal_size": "32MB"})
    try:
        server.set_up()
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        server.close()


class RolledBack(Exception):
    """Ends a transaction without a commit."""


def insert_order(connection: Any) -> None:
    """Insert an order over a connection that blocks."""
    if isinstance(connection, sa.Connection | Session):
        connection.execute(sa.text(ORDER))
    else:
        connection.cursor().execute(ORDER)


@dataclass(frozen=True)
class Way:
    """One kind of connection to one place."""

    place: Place
    connection: str

    def write(
        self, items: Sequence[Item], row_groups: Sequence[str | None] | None = None, *, ends: bool = True
    ) -> None:
        """Insert an order and the items in one transaction. Unless it `ends`, raise RolledBack in it."""

        def write(connection: Any) -> None:
            insert_order(connection)
            enqueue(connection, items, row_groups=row_groups)

        async def write_async(connection: Any) -> None:
            await connection.execute(sa.text(ORDER))
            await enqueue_async(connection, items, row_groups=row_groups)

        self.transact(write, write_async, ends=ends)

    def write_without_transaction(self, items: Sequence[Item]) -> None:
        """Write over a connection that commits each statement."""
        self.transact(
            lambda connection: enqueue(connection, items),
            lambda connection: enqueue_async(connection, items),
            commits=True,
        )

    def transact(
        self,
        act: Callable[[Any], T],
        act_async: Callable[[Any], Awaitable[T]],
        *,
        ends: bool = True,
        commits: bool = False,
    ) -> T:
        """Return what a function returns of a connection, in one transaction. Unless it `ends`, raise RolledBack in it.

        Args:
            act_async: the function of an asynchronous connection.
            commits: over a connection that commits each statement.
        """
        if self.connection.startswith("async"):
            return asyncio.run(self._transact_async(act_async, ends, commits))
        with self._plain(commits) if self.connection == "plain" else self._blocking(commits) as connection:
            result = act(connection)
            if not ends:
                raise RolledBack
            return result

    @contextmanager
    def _plain(self, commits: bool) -> Iterator[Any]:
        with closing(self.place.connect(commits)) as connection:
            try:
                yield connection
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

    @contextmanager
    def _blocking(self, commits: bool) -> Iterator[Any]:
        engine = sa.create_engine(self.place.url, poolclass=NullPool, **_isolation(commits))
        if self.connection == "core":
            with engine.begin() as connection:
                yield connection
        else:
            with Session(engine) as session, session.begin():
                yield session

    async def _transact_async(self, act: Callable[[Any], Awaitable[T]], ends: bool, commits: bool) -> T:
        engine = create_async_engine(self.place.async_url, poolclass=NullPool, **_isolation(commits))
        opened = engine.begin() if self.connection == "async core" else AsyncSession(engine)
        async with opened as connection:
            result = await act(connection)
            if not ends:
                raise RolledBack
            if self.connection == "async orm":
                await connection.commit()
            return result


def _isolation(commits: bool) -> dict[str, Any]:
    return {"isolation_level": "AUTOCOMMIT"} if commits else {}
