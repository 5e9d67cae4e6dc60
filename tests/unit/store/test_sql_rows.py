"""The pure parts of the SQL stores: columns, migrations, statements split to size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.core.flush.fence import Fence
from foqs.core.flush.writes import LeaseUpdate, Writes
from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs.core.items.item import Row
from foqs.store.migrations import Migration, pending_migrations
from foqs.store.mysql import mysql_migrations, mysql_sql, mysql_values
from foqs.store.mysql.mysql_protocol import BoundStatement, Statement, request_packets
from foqs.store.port import StoreUnusable
from foqs.store.row_columns import COLUMNS, FIRST_LEASE_COLUMNS, MUTABLE_COLUMNS, MYSQL_NONES, ROW_COLUMNS
from foqs.store.sql_rows import KEY_COLUMNS, all_values, mutable_values, row_of
from foqs.store.sqlite import sqlite_sql
from tests.support.column_values import column_values
from tests.support.example_counts import examples
from tests.support.stores import make_row


@given(st.builds(make_row, st.integers(0, (1 << 63) - 1), **column_values()))
def test_row_becomes_values_in_the_order_of_the_columns_and_comes_back(row: Row) -> None:
    assert all_values(row) == tuple(getattr(row, name) for name in COLUMNS)
    assert mutable_values(row) == tuple(getattr(row, name) for name in MUTABLE_COLUMNS)
    assert row_of(all_values(row)) == row == row.copy()
    assert row.copy() is not row


def test_every_column_that_a_lease_can_change_keeps_the_length_of_a_row() -> None:
    assert not [column.name for column in ROW_COLUMNS if column.name in FIRST_LEASE_COLUMNS and column.can_be_null]


def test_columns_of_an_idempotency_key_are_the_fields_of_its_record() -> None:
    assert len(KEY_COLUMNS) == len(IdempotencyKey._fields)


@pytest.mark.parametrize("known", [sqlite_sql.MIGRATIONS, mysql_migrations.MIGRATIONS])
def test_migrations_are_numbered_without_gaps(known: tuple[Migration, ...]) -> None:
    assert [step.number for step in known] == list(range(1, len(known) + 1))


def test_pending_migrations_are_those_above_the_version_found() -> None:
    known = [Migration(n, "", ()) for n in (1, 2, 3)]
    assert [step.number for step in pending_migrations(0, known, "here")] == [1, 2, 3]
    assert [step.number for step in pending_migrations(2, known, "here")] == [3]
    assert pending_migrations(3, known, "here") == []
    with pytest.raises(StoreUnusable, match=r"here has schema version 4, .* up to 3"):
        pending_migrations(4, known, "here")


def test_statements_stay_below_the_packet_and_lose_no_row() -> None:
    rows = [make_row(n, payload=b"x" * 500, metadata=b"y" * 200) for n in range(1, 301)]
    statements = mysql_sql.Statements(3)
    for writes in (Writes(inserts=rows), Writes(updates=rows)):
        found = list(statements.write(writes, 10_000))
        assert len(found) > 5
        assert max(map(len, found)) <= 10_000
        if writes.inserts:
            assert [row for each in found for row in _bound_rows(each)] == rows
        else:
            assert all(
                sum(b" %d,0,1000," % n in text for text in found if isinstance(text, bytes)) == 1 for n in range(1, 301)
            )


_NEW_ROWS = st.lists(
    st.builds(
        make_row,
        st.integers(0, (1 << 63) - 1),
        **column_values(payload=st.binary(max_size=300) | st.sampled_from([250, 251, 65_535, 65_536]).map(bytes)),
    ),
    max_size=400,
)


@given(_NEW_ROWS)
@settings(deadline=None, max_examples=examples(50))
def test_new_rows_are_bound_exactly_and_in_few_statements(rows: list[Row]) -> None:
    found = list(mysql_sql.Statements(3).write(Writes(inserts=rows), 32 << 20))
    assert [row for each in found for row in _bound_rows(each)] == rows
    assert len(found) <= 3 + len(rows) // max(mysql_sql.INSERT_ROW_COUNTS)
    assert len(found) <= 1 or len(rows) > 32


@given(_NEW_ROWS)
@settings(deadline=None, max_examples=examples(50))
def test_new_rows_in_bulk_are_bound_exactly_to_one_statement(rows: list[Row]) -> None:
    found = list(mysql_sql.Statements(3).write(Writes(inserts=rows), 32 << 20, can_bulk=True))
    assert [row for each in found for row in _bulk_rows(each)] == rows
    assert len(found) <= 1


@pytest.mark.parametrize("can_bulk", [False, True])
@pytest.mark.parametrize("count", [2, 17, 50, 100])
def test_new_rows_that_nearly_fit_a_packet_are_split_below_it(count: int, can_bulk: bool) -> None:
    statements = mysql_sql.Statements(3)
    rows = [make_row(number, ttl_ms=1, expires_at_ms=1, due_ms=1) for number in range(1, count + 1)]
    (statement,) = statements.write(Writes(inserts=rows), 1 << 20, can_bulk=can_bulk)
    for room in range(len(statement) - 20, len(statement)):
        assert max(map(len, statements.write(Writes(inserts=rows), room, can_bulk=can_bulk))) <= room
    # No packet is longer than its statement says.
    ids = {statement.sql: 1} if isinstance(statement, BoundStatement) else {}
    assert sum(map(len, request_packets([statement], ids))) <= 4 + len(statement)


def _bound_rows(statement: Statement) -> list[Row]:
    """Decode the rows of a prepared INSERT as the protocol's documentation describes it."""
    assert isinstance(statement, BoundStatement)
    insert, marks = statement.sql.decode().split(" VALUES ")
    columns = insert[insert.index("(") + 1 : -1].split(", ")
    count = marks.count("?")
    assert marks == ", ".join([f"({', '.join('?' * len(columns))})"] * (count // len(columns)))
    nulls = int.from_bytes(statement.values[: (count + 7) // 8], "little")
    at = (count + 7) // 8
    assert statement.values[at] == 1
    types = statement.values[at + 1 : at + 1 + 2 * count]
    at += 1 + 2 * count
    values: list[int | bytes | None] = []
    for index in range(count):
        if nulls >> index & 1:
            values.append(None)
        else:
            value, at = _value(statement.values, at, types[2 * index])
            values.append(value)
    assert at == len(statement.values)
    return _rows(columns, values)


def _bulk_rows(statement: Statement) -> list[Row]:
    """Decode the rows of an INSERT in bulk as MariaDB's documentation describes it."""
    assert isinstance(statement, BoundStatement)
    assert statement.rows is not None
    data = b"".join(statement.rows)
    insert, marks = statement.sql.decode().split(" VALUES ")
    columns = insert[insert.index("(") + 1 : -1].split(", ")
    assert marks == f"({', '.join('?' * len(columns))})"
    assert len(statement.values) == 2 * len(columns)
    values: list[int | bytes | None] = []
    at = 0
    while at < len(data):
        for kind in statement.values[::2]:
            indicator, at = data[at], at + 1
            assert indicator in (0, 1)
            value, at = (None, at) if indicator else _value(data, at, kind)
            values.append(value)
    assert at == len(data)
    return _rows(columns, values)


def _value(data: bytes, at: int, kind: int) -> tuple[int | bytes, int]:
    """Return a value that is not NULL and the position after it."""
    if kind == 8:
        return int.from_bytes(data[at : at + 8], "little", signed=True), at + 8
    assert kind == 252
    size, wide = data[at], {0xFC: 2, 0xFD: 3}.get(data[at], 0)
    if wide:
        size = int.from_bytes(data[at + 1 : at + 1 + wide], "little")
    at += 1 + wide
    return data[at : at + size], at + size


def _rows(columns: list[str], values: list[int | bytes | None]) -> list[Row]:
    rows = []
    for start in range(0, len(values), len(columns)):
        row: dict[str, Any] = dict(zip(columns, values[start : start + len(columns)], strict=True))
        row |= {name: row[name].decode() for name in ("namespace", "topic")}
        assert None not in [row[name] for name in FIRST_LEASE_COLUMNS], "a lease would change the row's length"
        row |= {name: None for name, none in MYSQL_NONES.items() if row[name] == none}
        rows.append(row_of([row[name] for name in COLUMNS]))
    return rows


def test_lists_of_ids_are_split_and_in_order() -> None:
    statements = mysql_sql.Statements(3)
    ids = list(range(1_001, 0, -1))
    for writes in (Writes(deletes=ids), Writes(leases=[LeaseUpdate(5, 6, 7, ids)])):
        texts = [each for each in statements.write(writes, 100_000) if isinstance(each, bytes)]
        assert len(texts) == -(-len(ids) // mysql_sql.IDS_PER_STATEMENT)
        assert b"IN (1,2,3," in texts[0]
        assert texts[-1].endswith(b",1000,1001)") or texts[-1].endswith(b"(1001)")


def test_lists_of_topics_are_split_below_the_packet_and_lose_no_name() -> None:
    names = [("n", f"{n:03}" + "'" * 100) for n in range(500)]
    for writes in (Writes(topics_added=names), Writes(topics_removed=names)):
        texts = [each for each in mysql_sql.Statements(3).write(writes, 10_000) if isinstance(each, bytes)]
        assert max(map(len, texts)) <= 10_000
        assert all(sum(b"'%03d" % n in text for text in texts) == 1 for n in range(500))


def _outside_literals(statement: bytes) -> bytes:
    """Return the statement without the text in quotes, by the rules of `mysql_values`."""
    outside = bytearray()
    quoted = escaped = False
    for byte in statement:
        if escaped:
            escaped = False
        elif quoted and byte == 0x5C:
            escaped = True
        elif byte == 0x27:
            quoted = not quoted
        elif not quoted:
            outside.append(byte)
    assert not quoted
    return bytes(outside)


@given(
    st.text(st.characters(exclude_categories=["Cs"])), st.binary(), st.sampled_from([b"'", b"\\", b"\\'", b"''", b""])
)
def test_no_value_can_end_a_literal(name: str, data: bytes, trick: bytes) -> None:
    wild = make_row(1, topic=name + "'; DROP\\", metadata=data + trick, payload=trick + data + trick)
    tame = make_row(1, topic="t", metadata=b"", payload=wild.payload)
    statements = mysql_sql.Statements(3)

    def texts(row: Row) -> list[bytes]:
        writes = Writes(
            inserts=[row], updates=[row], topics_added=[(row.topic, "t")], topics_removed=[("n", row.topic)]
        )
        reads = statements.ready_order_keys(("n", row.topic), None, 1), statements.fence(Fence(1, row.topic, 1, 1))
        return [_outside_literals(mysql_values.as_text(each)) for each in (*statements.write(writes, 1 << 20), *reads)]

    assert texts(wild) == texts(tame)
