"""An enqueue into an outbox is one transaction with the user's data, over each kind of connection to each database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
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
from tests.support.outbox_databases import CONNECTIONS, DATABASES, MARKS, MakePlace, RolledBack, Way

WAYS: Final = (
    *(
        pytest.param(name, connection, marks=MARKS.get(name, ()), id=f"{name}, {connection}")
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
