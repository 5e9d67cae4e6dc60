"""The three stores behind one bench, which makes several connections to one shard.

Always true: a bench starts empty, and every store that it made is closed in the
loop that used it. Knows nothing of the tests.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from foqs.store.in_memory.memory_store import MemoryDatabase
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.mysql import mysql_handshake
from foqs.store.mysql.mysql_driver import MysqlSettings
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import FaultHook, Store, no_faults
from foqs.store.sqlite.sqlite_store import SqliteStore
from tests.support.aio import TIMEOUT_S, run
from tests.support.mariadb import MariaDb
from tests.support.mysql9 import BOTH, MYSQL9_IF_LONG, running

T = TypeVar("T")
SHARD = 3
WITHOUT_BULK = "mariadb without bulk"
JOURNALED = "journaled "


class MakeStore(Protocol):
    """Make one more connection to a shard, not open yet."""

    def __call__(self, shard: int = SHARD, faults: FaultHook = no_faults) -> Store: ...


class Bench:
    """One kind of store with an empty database.

    Two calls of `store` make two connections to the same tables, as two hosts would
    have them.
    """

    def __init__(
        self,
        kind: str,
        make: Callable[[int, FaultHook], Store],
        memory: MemoryDatabase | None = None,
        make_hasty: Callable[[int, FaultHook], Store] | None = None,
    ) -> None:
        self.kind = kind
        self.make = make
        """Make a store that the caller must close."""
        self.memory = memory
        self.make_hasty = make_hasty or make
        self._made: list[Store] = []

    def store(self, shard: int = SHARD, faults: FaultHook = no_faults) -> Store:
        store = self.make(shard, faults)
        self._made.append(store)
        return store

    def impatient_store(self) -> Store:
        """Make a store that waits only a moment for a file that another connection has locked."""
        store = self.make_hasty(SHARD, no_faults)
        self._made.append(store)
        return store

    def run(self, story: Coroutine[Any, Any, T], timeout: float = TIMEOUT_S) -> T:
        """Run a test's story and close its stores."""

        async def run_and_close() -> T:
            try:
                return await story
            finally:
                stores, self._made = self._made, []
                await asyncio.gather(*(store.close() for store in stores))

        return run(run_and_close(), timeout)


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], MariaDb]]:
    """A function that returns the test session's server of a kind, which is started when first used."""
    with ExitStack() as stack:
        yield cache(lambda kind: stack.enter_context(running(kind)))


@pytest.fixture(params=BOTH)
def mariadb(request: pytest.FixtureRequest, servers: Callable[[str], MariaDb]) -> MariaDb:
    """The test session's server, MariaDB or MySQL 9. Each test creates its own database there."""
    return servers(request.param)


@pytest.fixture(params=MYSQL9_IF_LONG)
def own_mariadb(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    """A server that the test may kill; MySQL 9, which starts slowly, in `make test-long` only."""
    with running(request.param) as server:
        yield server


@pytest.fixture
def place(mariadb: MariaDb) -> MysqlSettings:
    """A new database on the test session's server."""
    return mariadb.settings(mariadb.database())


BENCHES = (
    "memory",
    "journaled memory",
    "sqlite",
    "journaled sqlite",
    *BOTH,
    pytest.param("journaled mariadb", marks=[pytest.mark.mysql, pytest.mark.long]),
)
"""Each of the three stores, MySQL's on both servers.

The store that journals is the same code over each: over a server it is played in `make test-long`.
"""


@pytest.fixture(params=[*BENCHES, pytest.param(WITHOUT_BULK, marks=[pytest.mark.mysql, pytest.mark.long])])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """Each of `BENCHES`; in `make test-long` also a MariaDB as old as to have no bulk execution.

    Only new rows are written otherwise there, by the statements that MySQL 9 gets. test_store.py always runs on it.
    """
    return make_bench(str(request.param), request, tmp_path)


@pytest.fixture
def store_factory(bench: Bench) -> MakeStore:
    """Opens connections to one shard of the bench's store."""
    return bench.store


_fresh = itertools.count(1)


def make_bench(kind: str, request: pytest.FixtureRequest, folder: Path) -> Bench:
    """Make a bench of one kind with a new database."""
    if kind.startswith(JOURNALED):
        if rows_only := request.node.get_closest_marker("rows_only"):
            (reason,) = rows_only.args
            pytest.skip(reason)
        return _with_journal(make_bench(kind.removeprefix(JOURNALED), request, folder))
    if kind == "memory":
        database = MemoryDatabase(lambda: time.time_ns() // 1_000_000)
        return Bench(kind, database.store, database)
    if kind == "sqlite":
        home = folder / f"{next(_fresh)}"

        def make(shard: int, faults: FaultHook, busy_timeout_s: float = 30.0) -> Store:
            return SqliteStore(home / f"{shard}.db", shard, faults, busy_timeout_s=busy_timeout_s)

        return Bench(kind, make, make_hasty=partial(make, busy_timeout_s=0.3))
    if kind == WITHOUT_BULK:
        kind = "mariadb"
        request.getfixturevalue("monkeypatch").setattr(mysql_handshake, "offers_bulk", lambda _: False)
    server: MariaDb = request.getfixturevalue("servers")(kind)
    return mysql_bench(server.settings(server.database()))


def _with_journal(bench: Bench) -> Bench:
    """Return a bench whose stores journal over those of this one, and write rows back after six clock readings."""

    def journaled(make: Callable[[int, FaultHook], Store], shard: int, faults: FaultHook) -> Store:
        return JournaledStore(make(shard, faults), JournalSettings(6, 100, partial(next, itertools.count())))

    return Bench(bench.kind, partial(journaled, bench.make), bench.memory, partial(journaled, bench.make_hasty))


def mysql_bench(place: MysqlSettings) -> Bench:
    """Make a bench on one MySQL database."""
    return Bench("mysql", lambda shard, faults: MysqlStore(place, shard, faults))
