"""Tests the keys of the Spark sink: a repeated task makes the same ones in any row order."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.idempotency_keys import KEY_BYTES_MAX
from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.row_keys import RowKeys
from foqs_contract.key_slots import key_slot_of

Row: TypeAlias = tuple[Any, ...]
"""namespace, topic, payload, priority, metadata, deliver_after_ms, ttl_ms, lease_ms, group"""
ROW: Row = ("n", "t", b"payload", 0, b"meta", None, None, None, None)

short = st.sampled_from(["", "a", "b", "ab"])
rows = st.lists(
    st.tuples(
        short,
        short,
        short.map(str.encode),
        st.sampled_from([0, 1, -1]),
        short.map(str.encode),
        *[st.sampled_from([None, 0, 1, 11])] * 3,
        st.none() | short,
    ),
    max_size=30,
)


def keyed(rows: list[Row], run: str = "run", partition: int = 0, key_slot_count: int = 4) -> dict[Row, list[str]]:
    """Return the sorted keys of each content."""
    keys = RowKeys(run, partition, key_slot_count, 1_000)
    found: dict[Row, list[str]] = {}
    for row in rows:
        found.setdefault(row, []).append(keys.key(*row))
    return {row: sorted(of_row) for row, of_row in found.items()}


@given(rows.flatmap(lambda rows: st.tuples(st.just(rows), st.permutations(rows))))
def test_rows_in_another_order_have_the_same_keys(orders: tuple[list[Row], list[Row]]) -> None:
    assert keyed(orders[0]) == keyed(orders[1])


@given(rows)
def test_every_row_has_its_own_key(rows: list[Row]) -> None:
    keys = [key for of_row in keyed(rows).values() for key in of_row]
    assert len(set(keys)) == len(rows)
    assert all(len(key) <= KEY_BYTES_MAX for key in keys)


@pytest.mark.parametrize(
    "other",
    [
        ("n2", "t", b"payload", 0, b"meta", None, None, None, None),
        ("n", "t2", b"payload", 0, b"meta", None, None, None, None),
        ("n", "t", b"payloaf", 0, b"meta", None, None, None, None),
        ("n", "t", b"payload", 1, b"meta", None, None, None, None),
        ("n", "t", b"payload", 0, b"beta", None, None, None, None),
        ("n", "t", b"payload", 0, b"meta", 0, None, None, None),
        ("n", "t", b"payload", 0, b"meta", None, 0, None, None),
        ("n", "t", b"payload", 0, b"meta", None, None, 0, None),
        ("nt", "", b"payload", 0, b"meta", None, None, None, None),
        ("n", "", b"tpayload", 0, b"meta", None, None, None, None),
        ("n", "t", b"payloadm", 0, b"eta", None, None, None, None),
        ("n", "t", b"payload", 0, b"meta", None, None, None, ""),
        ("n", "t", b"payload", 0, b"meta", None, None, None, "g"),
    ],
)
def test_rows_that_differ_in_any_column_have_different_keys(other: Row) -> None:
    keys = keyed([ROW, other])
    assert keys == {row: keyed([row])[row] for row in (ROW, other)}
    assert keys[ROW] != keys[other]


def test_row_without_a_group_keeps_the_key_of_earlier_versions() -> None:
    assert keyed([ROW]) == {ROW: ["~240zgm4x98lBWnwAwWXqA3x"]}


def test_other_runs_and_partitions_have_other_keys() -> None:
    same = [ROW, ROW]
    seen = [*keyed(same)[ROW], *keyed(same, run="other")[ROW], *keyed(same, partition=1)[ROW]]
    assert len(set(seen)) == 6
    assert keyed(same, run="a", partition=11) != keyed(same, run="a1", partition=1)


@given(rows, st.integers(1, 16))
def test_keys_are_in_the_given_number_of_neighbouring_slots(rows: list[Row], key_slot_count: int) -> None:
    keys = [key for of_row in keyed(rows, key_slot_count=key_slot_count).values() for key in of_row]
    assert all(int(key[1:4], 16) == key_slot_of(key.encode()) for key in keys)
    assert (
        len({key_slot_of(key.encode()) % key_slot_count for key in keys})
        == len({key_slot_of(key.encode()) for key in keys})
        <= key_slot_count
    )


def test_all_slots_are_used() -> None:
    keys = RowKeys("run", 0, 8, 1_000)
    slots = {
        key_slot_of(keys.key("n", "t", b"%d" % number, 0, b"", None, None, None, None).encode())
        for number in range(200)
    }
    assert len(slots) == 8


def test_too_many_different_rows_are_refused_but_equal_rows_are_not() -> None:
    keys = RowKeys("run", 0, 1, 2)
    for payload in (b"a", b"b", b"a", b"a"):
        keys.key("n", "t", payload, 0, b"", None, None, None, None)
    with pytest.raises(SinkError, match=r"more than 2 different rows.*repartition.*partition_rows_max"):
        keys.key("n", "t", b"c", 0, b"", None, None, None, None)
