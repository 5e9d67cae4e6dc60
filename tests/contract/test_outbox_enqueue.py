"""An enqueue into an outbox is one transaction with the user's data, over each kind of connection to each database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.pool import NullPool

from foqs_client import Item
from foqs_client.outbox import NotInTransaction, alembic_tables, enqueue
from foqs_client.outbox.new_rows import COLUMNS
from foqs_client.outbox.outbox_sql import Dialect, create_tables, table_names
from perf.lib.servers import Postgres
from tests.support.mariadb import MariaDb
from tests.support.outbox_databases import (
    CONNECTIONS,
    Place,
    RolledBack,
    Way,
    mysql_place,
    postgres_place,
    running_postgres,
    sqlite_place,
)

_MARKS: Final = {"mariadb": pytest.mark.mysql, "mysql9": pytest.mark.mysql, "postgres": pytest.mark.postgres}
DATABASES: Final = tuple(pytest.param(name, marks=_MARKS.get(name, ())) for name in ("sqlite", *_MARKS))
WAYS: Final = (
    *(
        pytest.param(name, connection, marks=_MARKS.get(name, ()), id=f"{name}, {connection}")
        for name in ("sqlite", "mariadb", "postgres")
        for connection in CONNECTIONS
    ),
    pytest.param("mysql9", "plain", marks=pytest.mark.mysql, id="mysql9, plain"),
)

FULL: Final = Item(
    "käse %s :x ?",
    bytes(range(256)),
    priority=-(2**31),
    metadata=b"\0\xff",
    delay_ms=86_400_000 * 400,
    lease_ms=1,
    ttl_ms=253_402_300_799_999,
    at_most_once=True,
    attempts_max=2**31 - 1,
    idempotency_key="k ",
    trace_context=b"\x80",
)
LATER: Final = Item("t", deliver_after_ms=1_800_000_000_000)

MakePlace = Callable[[str], Place]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], Postgres]]:
    """A function that returns the test session's Postgres, which is started when first used."""
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(running_postgres()))


_names = count(1)


@pytest.fixture
def make_place(servers: Callable[[str], MariaDb], postgres: Callable[[], Postgres], tmp_path: Path) -> MakePlace:
    """A function that returns a new database of a kind, without tables."""

    def make(kind: str) -> Place:
        if kind == "sqlite":
            return sqlite_place(tmp_path)
        return postgres_place(postgres(), f"user_{next(_names)}") if kind == "postgres" else mysql_place(servers(kind))

    return make


@pytest.mark.parametrize(("kind", "connection"), WAYS)
def test_items_are_written_exactly_with_the_users_data_or_not_at_all(
    make_place: MakePlace, kind: str, connection: str
) -> None:
    place = make_place(kind).prepare()
    way = Way(place, connection)
    with pytest.raises(RolledBack):
        way.write([FULL], ends=False)
    assert place.query("SELECT id FROM foqs_outbox UNION SELECT id FROM orders") == []

    way.write([FULL, LATER, Item("t")], [None, "größe", None])

    full, later, least = place.query(f"SELECT {', '.join(COLUMNS)} FROM foqs_outbox ORDER BY id")
    assert full[1:] == (
        FULL.topic, None, FULL.payload, FULL.priority, FULL.metadata, FULL.delay_ms, None, 1, FULL.ttl_ms,
        FULL.attempts_max, 1, "k ", FULL.trace_context,
    )  # fmt: skip
    assert later[1:] == ("t", "größe", b"", 0, None, None, LATER.deliver_after_ms, None, None, None, 0, None, None)
    assert least[1:] == ("t", None, b"", 0, None, None, None, None, None, None, 0, None, None)
    assert len({full[0], later[0], least[0]}) == 3
    assert place.query("SELECT id FROM orders") == [(17,)]

    with pytest.raises(NotInTransaction):
        way.write_without_transaction([Item("t")])
    assert place.query("SELECT COUNT(*) FROM foqs_outbox") == [(3,)]


@pytest.mark.parametrize("kind", DATABASES)
def test_a_migration_of_alembic_creates_and_drops_the_tables(make_place: MakePlace, kind: str) -> None:
    place = make_place(kind)
    engine = sa.create_engine(place.url, poolclass=NullPool)

    def tables() -> set[str]:
        return set(sa.inspect(engine).get_table_names())

    def migrate(step: Callable[..., None]) -> None:
        with engine.begin() as connection:
            step(Operations(MigrationContext.configure(connection)), "shop_")

    migrate(alembic_tables.create)
    migrate(alembic_tables.create)
    with engine.begin() as connection:
        enqueue(connection, [Item("t")], prefix="shop_")
    created_ms = place.query("SELECT created_ms FROM shop_outbox")[0][0]

    assert tables() >= set(table_names("shop_"))
    assert created_ms > 1_700_000_000_000
    assert not any(alembic_tables.include_name(name, "table", {}, "shop_") for name in table_names("shop_"))
    migrate(alembic_tables.drop)
    assert not {name for name in tables() if name.startswith("shop_")}


def test_a_transaction_that_a_program_begins_by_itself_is_one() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in create_tables(Dialect.SQLITE):
            connection.execute(statement)
        connection.execute("BEGIN")
        enqueue(connection, [Item("t")])
        connection.execute("ROLLBACK")

        assert connection.execute("SELECT COUNT(*) FROM foqs_outbox").fetchall() == [(0,)]
