"""The tables are the same in all databases. SQLite creates them."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import pytest

from foqs_client.errors import InvalidArgument
from foqs_client.outbox.outbox_sql import Dialect, create_tables


def columns(statement: str) -> list[str]:
    return [name for name in re.findall(r"^ +(\w+) ", statement, re.MULTILINE) if name != "KEY"]


def test_tables_have_the_same_columns_in_all_databases() -> None:
    found = [[columns(statement) for statement in create_tables(dialect)[:4]] for dialect in Dialect]

    assert found[0] == found[1] == found[2]
    assert found[0][0][:4] == ["id", "event_id", "topic", "row_group"]
    assert found[0][1][:-3] == found[0][0]


def test_sqlite_creates_the_tables_twice_and_gives_no_id_again() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in create_tables(Dialect.SQLITE) * 2:
            connection.execute(statement)
        insert = "INSERT INTO foqs_outbox (event_id, topic, payload) VALUES ('e', 't', x'00') RETURNING id, created_ms"
        [(first, created_ms)] = connection.execute(insert).fetchall()
        connection.execute("DELETE FROM foqs_outbox")
        [(second, _)] = connection.execute(insert).fetchall()

    assert second == first + 1
    assert created_ms > 1_700_000_000_000


@pytest.mark.parametrize("prefix", ["", "Foqs_", "a-b", "a" * 32, "shop.foqs_", "x; DROP TABLE y"])
def test_a_prefix_that_begins_no_name_or_names_a_schema_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot begin a table's name"):
        create_tables(Dialect.SQLITE, prefix)
