"""The pure parts of the SQL stores: columns, migrations, statements cut to size."""

from __future__ import annotations

import dataclasses

import pytest

from foqs.core.fence import Owner
from foqs.core.item import Row
from foqs.store import sql_mysql, sql_sqlite
from foqs.store.port import StoreUnusable, Writes
from foqs.store.sql_migrations import Migration, pending
from foqs.store.sql_rows import COLUMNS, MUTABLE, OWNER_COLUMNS, all_values, mutable_values, row_of
from tests.support.stores import make_row


def test_columns_are_the_fields_of_the_row_in_their_order() -> None:
    assert tuple(field.name for field in dataclasses.fields(Row)) == COLUMNS
    assert tuple(field.name for field in dataclasses.fields(Owner)) == OWNER_COLUMNS
    row = make_row(7, metadata=b"m", due_ms=5, attempt=3, ttl_ms=9, expires_at_ms=11, token=13)
    assert all_values(row) == tuple(getattr(row, name) for name in COLUMNS)
    assert mutable_values(row) == tuple(getattr(row, name) for name in MUTABLE)
    assert row_of(all_values(row)) == row


@pytest.mark.parametrize("known", [sql_sqlite.MIGRATIONS, sql_mysql.MIGRATIONS])
def test_migrations_are_numbered_without_gaps(known: tuple[Migration, ...]) -> None:
    assert [step.number for step in known] == list(range(1, len(known) + 1))


def test_pending_migrations_are_those_above_the_version_found() -> None:
    known = [Migration(n, "", ()) for n in (1, 2, 3)]
    assert [step.number for step in pending(0, known, "here")] == [1, 2, 3]
    assert [step.number for step in pending(2, known, "here")] == [3]
    assert pending(3, known, "here") == []
    with pytest.raises(StoreUnusable, match=r"here has schema version 4, .* up to 3"):
        pending(4, known, "here")


def test_statements_stay_below_the_packet_and_lose_no_row() -> None:
    rows = [make_row(n, payload=b"x" * 500, metadata=b"y" * 200) for n in range(1, 301)]
    statements = sql_mysql.Statements(3)
    for writes in (Writes(inserts=rows), Writes(updates=rows)):
        texts = list(statements.write(writes, 10_000))
        assert len(texts) > 10
        assert max(map(len, texts)) <= 10_000
        marks = [f"({n},x'" if writes.inserts else f" {n},0,1000," for n in range(1, 301)]
        assert all(sum(mark in text for text in texts) == 1 for mark in marks)
    deletes = list(statements.write(Writes(deletes=list(range(1_000, 0, -1))), 10_000))
    assert len(deletes) == 1_000 / sql_mysql.IDS_PER_STATEMENT
    assert "IN (1,2,3," in deletes[0]


def test_no_value_can_end_a_literal() -> None:
    row = make_row(1, topic="'; DROP TABLE x; --", metadata=b"'\\", payload=b"'\x00")
    texts = [*sql_mysql.Statements(3).write(Writes(inserts=[row]), 1 << 20)]
    texts.append(sql_mysql.Statements(3).ready("n'", "t'", None, 1))
    assert all("DROP" not in text and "''" not in text and ";" not in text for text in texts)
