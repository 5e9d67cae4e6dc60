"""Tests how the Spark sink makes items of rows, and calls of items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs_client.spark.item_columns import COLUMNS, SinkError
from foqs_client.spark.options import OptionValue, SinkOptions
from foqs_client.spark.row_items import VALUE_BYTES_MAX, RowConverter, batches
from foqs_client.spark.row_keys import RowKeys
from foqs_client.types import Item
from foqs_contract.key_slots import key_slot_of


def made(
    columns: Mapping[str, Sequence[Any]],
    key_slot_count: int = 1,
    defaults: Mapping[str, OptionValue] = MappingProxyType({}),
) -> dict[tuple[str, int], list[Item]]:
    [count] = {len(column) for column in columns.values()}
    return RowConverter(defaults, RowKeys("run", 0, key_slot_count, 100), key_slot_count).items(columns, count)


def test_each_column_becomes_its_field() -> None:
    columns: dict[str, list[Any]] = {
        "topic": ["mail"],
        "payload": [b"hello"],
        "priority": [-5],
        "metadata": [b"m"],
        "deliver_after": [7],
        "ttl": [8],
        "lease": [9],
        "idempotency_key": ["k"],
        "namespace": ["orders"],
        "trace_context": [b"00-ab"],
    }
    assert columns.keys() == COLUMNS.keys()
    assert made(columns) == {
        ("orders", 0): [
            Item(
                "mail",
                b"hello",
                -5,
                b"m",
                deliver_after_ms=7,
                ttl_ms=8,
                lease_ms=9,
                idempotency_key="k",
                trace_context=b"00-ab",
            )
        ]
    }


def test_key_of_a_row_does_not_depend_on_its_trace() -> None:
    [[first]] = made({"topic": ["a"], "trace_context": [b"first"]}).values()
    [[second]] = made({"topic": ["a"], "trace_context": [b"second"]}).values()
    assert first.idempotency_key == second.idempotency_key
    assert (first.trace_context, second.trace_context) == (b"first", b"second")


def test_option_is_the_value_of_rows_that_have_none() -> None:
    options = SinkOptions.parse({"url": "foqs://one", "topic": "other", "priority": "3", "namespace": "orders"})
    [items] = made({"topic": ["mail", None], "payload": [None, b"x"]}, defaults=options.defaults).values()
    assert [(item.topic, item.payload, item.priority) for item in items] == [("mail", b"", 3), ("other", b"x", 3)]


def test_only_rows_without_a_key_get_one() -> None:
    [items] = made({"topic": ["a", "a"], "idempotency_key": [None, "mine"]}).values()
    assert [item.idempotency_key for item in items][1] == "mine"
    assert items[0].idempotency_key is not None
    assert items[0].idempotency_key.startswith("~")


def test_items_of_a_group_have_slots_that_are_equal_modulo_the_slot_count() -> None:
    keys = [None if number % 2 else f"key-{number}" for number in range(90)]
    found = made(
        {"topic": ["a"] * 90, "payload": [b"%d" % n for n in range(90)], "idempotency_key": keys}, key_slot_count=8
    )
    assert len(found) == 8
    for (_, slot), items in found.items():
        assert {key_slot_of((item.idempotency_key or "").encode()) % 8 for item in items} == {slot}


def test_namespaces_have_separate_groups() -> None:
    found = made({"topic": ["a", "a", "a"], "namespace": ["one", "two", None]})
    assert {namespace for namespace, _ in found} == {"one", "two", "default"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"topic": ["a", None]}, r'the column topic of a row is null; .*\.option\("topic"'),
        ({"topic": ["a"], "priority": [2**31]}, "priority of a row is 2147483648; it must be from -2147483648"),
        ({"topic": ["a", "b"], "ttl": [5, 0]}, "ttl of a row is 0; it must be from 1"),
        (
            {"topic": ["a"], "payload": [b"x" * (VALUE_BYTES_MAX + 1)]},
            "payload of a row is 1048577 long; no host accepts",
        ),
    ],
)
def test_value_that_cannot_be_sent_is_refused_with_its_column(columns: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(SinkError, match=message):
        made(columns)


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 20), st.integers(1, 100))
def test_calls_contain_all_items_in_order_within_their_limits(sizes: list[int], items_max: int, bytes_max: int) -> None:
    items = [Item(f"{place}", b"x" * size) for place, size in enumerate(sizes)]
    calls = batches(items, items_max, bytes_max)
    assert [item for call in calls for item in call] == items
    for call in calls:
        assert 1 <= len(call) <= items_max
        assert len(call) == 1 or sum(len(item.payload) for item in call) <= bytes_max


def test_calls_of_equally_large_items_have_about_the_same_length() -> None:
    assert [len(call) for call in batches([Item("t", b"x")] * 1_250, 500, 1 << 20)] == [417, 417, 416]
