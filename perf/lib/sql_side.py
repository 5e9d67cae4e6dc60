"""A second user of a system's database: holds a snapshot, runs a report, writes and counts a backlog.

Always true: it has its own connection and is not part of the queue. It works on the
system's tables of items by their names. Knows nothing of load.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pymysql

from perf.lib.by_hand import connect_postgres
from perf.lib.payload import NUMBER_BYTES, filler
from perf.lib.servers import DATABASE

_FILL_ROWS: Final = 100_000


class SqlSide(ABC):
    """One connection to the database of a system.

    Args:
        tables: the tables of items.
    """

    def __init__(self, tables: Sequence[str]) -> None:
        self.tables = tables

    @abstractmethod
    def run(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""

    @abstractmethod
    def all_tables(self) -> list[str]:
        """Return the names of all tables of the database, as SQL."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction that reads one snapshot."""

    def hold(self) -> float:
        """Begin a transaction and read every table, as a backup does; it stays open. Return the seconds that it read."""
        begun = time.monotonic()
        self.begin()
        for table in self.all_tables():
            self.run(f"SELECT COUNT(*) FROM {table}")
        return time.monotonic() - begun

    def let_go(self) -> None:
        """End the transaction."""
        self.run("ROLLBACK")

    def report(self) -> float:
        """Read all items with their payloads, by topic, in one statement for each table. Return the seconds."""
        begun = time.monotonic()
        for table in self.tables:
            self.run(f"SELECT {self.topic}, COUNT(*), SUM(LENGTH(payload)) FROM {table} GROUP BY {self.topic}")
        return time.monotonic() - begun

    topic = "topic"
    """The column of the topic."""

    def count(self) -> int:
        """Return the number of items that are not done."""
        return sum(int(self.run(f"SELECT COUNT(*) FROM {table}")[0][0]) for table in self.tables)

    @abstractmethod
    def close(self) -> None: ...


class MysqlSide(SqlSide):
    """A connection to MariaDB or MySQL over its socket."""

    def __init__(self, socket: Path, tables: Sequence[str]) -> None:
        super().__init__(tables)
        self._connection = pymysql.connect(unix_socket=str(socket), user="root", database=DATABASE, autocommit=True)

    def run(self, text: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall())

    def all_tables(self) -> list[str]:
        return [f"`{row[0]}`" for row in self.run("SHOW TABLES")]

    def begin(self) -> None:
        self.run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")

    def fill(self, count: int, payload_bytes: int) -> None:
        """Write a backlog into the hand-written queue's table."""
        rest = filler(payload_bytes).decode()
        for start in range(0, count, _FILL_ROWS):
            numbers = f"seq_{start}_to_{min(count, start + _FILL_ROWS) - 1}"
            self.run(
                "INSERT INTO item (topic, payload) "
                f"SELECT 't0', CONCAT(LPAD(seq, {NUMBER_BYTES}, '0'), '{rest}') FROM {numbers}"
            )
        self.run("ANALYZE TABLE item")

    def close(self) -> None:
        self._connection.close()


class PostgresSide(SqlSide):
    """A connection to Postgres."""

    def __init__(self, place: str, table: str) -> None:
        super().__init__([table])
        self.topic = "entrypoint" if table == "pgqueuer" else "topic"
        self._runner = asyncio.Runner()
        self._connection = self._runner.run(connect_postgres(place))

    def run(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._runner.run(self._connection.fetch(text, timeout=600))]

    def all_tables(self) -> list[str]:
        return [f'"{name}"' for (name,) in self.run("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]

    def begin(self) -> None:
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ")

    def fill(self, count: int, payload_bytes: int) -> None:
        """Write a backlog into the hand-written queue's table."""
        rest = filler(payload_bytes).decode()
        self.run(
            f"INSERT INTO item (topic, payload) SELECT 't0', "
            f"convert_to(lpad(number::text, {NUMBER_BYTES}, '0') || '{rest}', 'UTF8') "
            f"FROM generate_series(0, {count - 1}) AS number"
        )
        self.run("ANALYZE item")
        self.run("CHECKPOINT")

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


class SqliteSide(SqlSide):
    """Connections to the files of a host's shards, each of which is a database."""

    def __init__(self, files: Sequence[Path]) -> None:
        super().__init__(["item"])
        # The report and the snapshot are run by another thread than the one that connects.
        self._connections = [
            sqlite3.connect(file, isolation_level=None, timeout=30, check_same_thread=False) for file in files
        ]

    def run(self, text: str) -> list[tuple[Any, ...]]:
        return [row for connection in self._connections for row in connection.execute(text).fetchall()]

    def all_tables(self) -> list[str]:
        return sorted({f'"{row[0]}"' for row in self.run("SELECT name FROM sqlite_master WHERE type = 'table'")})

    def begin(self) -> None:
        self.run("BEGIN")

    def let_go(self) -> None:
        for connection in self._connections:
            connection.rollback()

    def count(self) -> int:
        return sum(int(row[0]) for row in self.run("SELECT COUNT(*) FROM item"))

    def close(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
