"""New databases of users, one for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from perf.lib.servers import Postgres
from tests.support.mariadb import MariaDb
from tests.support.outbox_databases import MakePlace, Place, mysql_place, postgres_place, running_postgres, sqlite_place

_names = count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], Postgres]]:
    """A function that returns the test session's Postgres, which is started when first used."""
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(running_postgres()))


@pytest.fixture
def make_place(servers: Callable[[str], MariaDb], postgres: Callable[[], Postgres], tmp_path: Path) -> MakePlace:
    """A function that returns a new database of a kind, without tables."""

    def make(kind: str) -> Place:
        if kind == "sqlite":
            return sqlite_place(tmp_path)
        return postgres_place(postgres(), f"user_{next(_names)}") if kind == "postgres" else mysql_place(servers(kind))

    return make
