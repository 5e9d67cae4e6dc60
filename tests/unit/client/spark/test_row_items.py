"""Tests how the Spark sink makes items of rows, and calls of items."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs_client.spark.item_columns import COLUMNS, VALUE_BYTES_MAX, SinkError, UncheckedText
from foqs_client.spark.options import OnError, OptionValue, SinkOptions
from foqs_client.spark.row_errors import CUT_PAYLOAD_BYTES, METADATA_BYTES_MAX, RowErrors
from foqs_client.spark.row_items import RowConverter, batches
from foqs_client.spark.row_keys import KEY_SLOTS, RowKeys
from foqs_client.types import Item
from foqs_contract.key_slots import group_slot_of, key_slot_of


def made(
    columns: Mapping[str, Sequence[Any]],
    group_count: int = 1,
    defaults: Mapping[str, OptionValue] = MappingProxyType({}),
    errors: RowErrors | None = None,
) -> dict[tuple[str, int], list[Item]]:
    [count] = {len(column) for column in columns.values()}
    errors = errors or RowErrors(OnError.FAIL, "")
    return RowConverter(defaults, RowKeys("run", 0, KEY_SLOTS, 100), group_count, errors).items(columns, count)


def test_rows_that_differ_only_in_the_group_have_the_same_keys_in_any_order() -> None:
    """A key is unique within its group. A repeated task that reads the rows in another order must add no item."""

    def group_keys(groups: Sequence[str | None]) -> set[tuple[str | None, str | None]]:
        columns: dict[str, Sequence[Any]] = {
            "topic": ["t"] * len(groups),
            "payload": [b"p"] * len(groups),
            "item_group": groups,
        }
        [items] = made(columns).values()
        return {(item.group, item.idempotency_key) for item in items}

    groups = ["a", "b", None, "a"]
    found = group_keys(groups)
    assert len(found) == 4
    assert group_keys(groups[::-1]) == found


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
        "item_group": ["customer 7"],
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
                group="customer 7",
            )
        ]
    }


def test_rows_of_a_group_are_in_the_calls_of_its_slot() -> None:
    groups = [f"g{place}" for place in range(40)]
    found = made({"topic": ["a"] * 80, "item_group": groups * 2}, group_count=4)
    assert {name for name, _ in found} == {"default"}
    for (_, place), items in found.items():
        assert {group_slot_of(b"default", str(item.group).encode()) % 4 for item in items} == {place}
    assert sorted(str(item.group) for items in found.values() for item in items) == sorted(groups * 2)


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
        {"topic": ["a"] * 90, "payload": [b"%d" % n for n in range(90)], "idempotency_key": keys}, group_count=8
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


SOUND: Mapping[str, Sequence[Any]] = {
    "topic": ["a", None, "b", "c"],
    "priority": [1, 2, 2**31, 4],
    "payload": [b"1", b"2", b"3", b"4"],
}


def test_malformed_rows_are_skipped_and_counted() -> None:
    errors = RowErrors(OnError.SKIP, "")
    [items] = made(SOUND, errors=errors).values()
    assert [(item.topic, item.priority) for item in items] == [("a", 1), ("c", 4)]
    assert (errors.skipped_count, errors.dead_letter_count) == (2, 0)
    assert [reason.split(";")[0] for reason in errors.reasons] == [
        "the column topic of a row is null",
        "the column priority of a row is 2147483648",
    ]


def test_malformed_rows_become_dead_letters_with_reason_and_fields() -> None:
    errors = RowErrors(OnError.DEADLETTER, "bad")
    [items] = made(SOUND, errors=errors).values()
    letters = {item.payload: json.loads(item.metadata) for item in items if item.topic == "bad"}
    assert letters.keys() == {b"2", b"3"}
    assert letters[b"3"]["reason"].startswith("the column priority of a row is 2147483648; it must be from")
    assert (letters[b"3"]["topic"], letters[b"3"]["priority"]) == ("b", 2**31)
    assert errors.dead_letter_count == 2


def test_dead_letters_of_equal_rows_have_different_keys_and_the_same_in_each_attempt() -> None:
    columns: dict[str, Sequence[Any]] = {"topic": [None, None], "payload": [b"x", b"x"]}
    first, second = (made(columns, errors=RowErrors(OnError.DEADLETTER, "bad")) for _ in range(2))
    keys = [item.idempotency_key for items in first.values() for item in items]
    assert len(set(keys)) == 2
    assert keys == [item.idempotency_key for items in second.values() for item in items]


def test_payload_that_is_too_large_is_cut_in_its_dead_letter() -> None:
    columns: dict[str, Sequence[Any]] = {
        "topic": ["a", "\u00e4" * 300],
        "payload": [b"x" * (VALUE_BYTES_MAX + 1), b"y" * (VALUE_BYTES_MAX + 1)],
    }
    [items] = made(columns, errors=RowErrors(OnError.DEADLETTER, "bad")).values()
    for item in items:
        assert len(item.payload) == CUT_PAYLOAD_BYTES
        assert len(item.metadata) <= METADATA_BYTES_MAX
        assert json.loads(item.metadata)["payload_bytes"] == VALUE_BYTES_MAX + 1


def test_text_that_is_not_utf_8_is_malformed() -> None:
    columns: dict[str, Sequence[Any]] = {"topic": UncheckedText(["a", b"\xff"]), "payload": [b"1", b"2"]}
    with pytest.raises(SinkError, match="the column topic of a row is not UTF-8; decode or repair it first"):
        made(columns)
    [items] = made(columns, errors=RowErrors(OnError.DEADLETTER, "bad")).values()
    assert sorted((item.topic, item.payload) for item in items) == [("a", b"1"), ("bad", b"2")]


def letters_of(columns: Mapping[str, Sequence[Any]], dead_letter_topic: str = "bad", partition: int = 0) -> list[Item]:
    errors = RowErrors(OnError.DEADLETTER, dead_letter_topic)
    [count] = {len(column) for column in columns.values()}
    found = RowConverter({}, RowKeys("run", partition, KEY_SLOTS, 100), 1, errors).items(columns, count)
    return [item for items in found.values() for item in items]


def test_key_of_a_dead_letter_depends_neither_on_the_trace_nor_on_its_topic() -> None:
    row: dict[str, Sequence[Any]] = {"topic": [None], "payload": [b"p"]}
    [first] = letters_of({**row, "trace_context": [b"t1"]})
    [second] = letters_of({**row, "trace_context": [b"t2"]}, "other")
    assert first.idempotency_key == second.idempotency_key


def test_dead_letter_of_a_row_with_its_own_key_has_the_same_key_in_each_partition() -> None:
    row: dict[str, Sequence[Any]] = {"topic": [None], "payload": [b"p"], "idempotency_key": ["own"]}
    [first], [second] = letters_of(row), letters_of(row, partition=1)
    assert first.idempotency_key == second.idempotency_key
    assert key_slot_of((first.idempotency_key or "").encode()) == key_slot_of(b"own")
    [other] = letters_of({**row, "payload": [b"q"]})
    assert other.idempotency_key != first.idempotency_key
