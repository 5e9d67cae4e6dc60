"""An enqueue into an outbox is one transaction with the user's data, over each kind of connection to each database."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.dialects.sqlite import pysqlite
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from foqs_client import Item
from foqs_client.errors import InvalidArgument
from foqs_client.outbox import NotInTransaction, alembic_tables, enqueue, enqueue_async
from foqs_client.outbox.new_rows import COLUMNS
from foqs_client.outbox.outbox_sql import Dialect, table_names
from tests.support.outbox_databases import DATABASES, ORDER, WAYS, MakePlace, Place, RolledBack, Way

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

    def migrate(step: Callable[..., None], **options: int) -> None:
        with engine.begin() as connection:
            step(Operations(MigrationContext.configure(connection)), **options, prefix="shop_")

    with pytest.raises(InvalidArgument, match="give version=1"):
        migrate(alembic_tables.create, version=2)
    migrate(alembic_tables.create, version=1)
    migrate(alembic_tables.create, version=1)
    with engine.begin() as connection:
        enqueue(connection, [Item("t")], prefix="shop_")
    created_ms = place.query("SELECT created_ms FROM shop_outbox")[0][0]

    assert tables() >= set(table_names("shop_"))
    assert created_ms > 1_700_000_000_000
    assert not any(alembic_tables.include_name(name, "table", {}, "shop_") for name in table_names("shop_"))
    migrate(alembic_tables.drop)
    assert not {name for name in tables() if name.startswith("shop_")}


@pytest.mark.parametrize("kind", DATABASES)
def test_a_transaction_that_a_program_begins_by_itself_is_one(make_place: MakePlace, kind: str) -> None:
    place = make_place(kind).prepare()
    with closing(place.connect(True)) as connection:
        for ends in (False, True):
            with suppress(RolledBack), begun(place, connection):
                enqueue(connection, [Item("t")])
                assert place.query("SELECT id FROM foqs_outbox") == []
                if not ends:
                    raise RolledBack
    assert place.query("SELECT COUNT(*) FROM foqs_outbox") == [(1,)]


@contextmanager
def begun(place: Place, connection: Any) -> Iterator[None]:
    """A transaction, begun as the error of a connection that commits each statement says."""
    if place.dialect is Dialect.POSTGRES:
        with connection.transaction():
            yield
        return
    connection.execute("BEGIN") if place.dialect is Dialect.SQLITE else connection.begin()
    try:
        yield
    except RolledBack:
        connection.rollback()
        raise
    connection.commit()


def test_a_scoped_asynchronous_session_writes_in_its_transaction(make_place: MakePlace) -> None:
    place = make_place("sqlite").prepare()

    async def write() -> None:
        engine = create_async_engine(place.async_url, poolclass=NullPool)
        session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        await session.execute(sa.text(ORDER))
        await enqueue_async(session, [Item("rolled back")])
        await session.rollback()
        await enqueue_async(session, [Item("t")])
        await session.commit()
        await session.remove()

    asyncio.run(write())
    assert place.query("SELECT topic FROM foqs_outbox") == [("t",)]
    assert place.query("SELECT id FROM orders") == []


class AutocommittingConnection(sqlite3.Connection):
    """A connection of Python 3.12 that was opened with `autocommit=True`."""

    autocommit = True


def test_a_connection_of_sqlalchemy_whose_driver_commits_each_statement_is_refused() -> None:
    engine = sa.create_engine("sqlite://", poolclass=NullPool, connect_args={"factory": AutocommittingConnection})

    with engine.connect() as connection, pytest.raises(NotInTransaction, match="driver does not autocommit"):
        enqueue(connection, [Item("t")])


@pytest.mark.parametrize(
    ("error", "remedy"), [(AttributeError, "install 2.0.43"), (NotImplementedError, "another driver")]
)
def test_a_dialect_that_does_not_detect_autocommit_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], remedy: str
) -> None:
    def detect(dialect: Any, connection: Any) -> bool:
        raise error

    monkeypatch.setattr(pysqlite.dialect, "detect_autocommit_setting", detect)

    with (
        sa.create_engine("sqlite://", poolclass=NullPool).connect() as connection,
        pytest.raises(InvalidArgument, match=remedy),
    ):
        enqueue(connection, [Item("t")])


def test_an_asynchronous_connection_of_psycopg_is_refused_with_the_remedy() -> None:
    connection = psycopg.AsyncConnection.__new__(psycopg.AsyncConnection)  # without a server

    with pytest.raises(InvalidArgument, match="AsyncConnection of SQLAlchemy to the function"):
        enqueue(connection, [Item("t")])


def test_a_connection_that_blocks_is_refused_by_the_asynchronous_enqueue() -> None:
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(InvalidArgument, match="goes to the function without _async"),
    ):
        asyncio.run(enqueue_async(connection, [Item("t")]))
