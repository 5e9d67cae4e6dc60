"""An item that a host would refuse as it is, is refused in the user's transaction."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.core.items import item, validation
from foqs.core.items.idempotency_keys import KEY_BYTES_MAX
from foqs_client import Item
from foqs_client.errors import FoqsError, InvalidArgument, LimitExceeded
from foqs_client.outbox import enqueue
from foqs_client.outbox import new_rows as new_rows_module
from foqs_client.outbox.new_rows import COLUMNS, ENQUEUE_ROWS_MAX, new_rows


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"topic": ""}, "topic"),
        ({"topic": "ü" * 128}, "topic"),
        ({"topic": "a\0b"}, "topic"),
        ({"topic": "\udc80"}, "topic"),
        ({"payload": "text"}, "payload"),
        ({"payload": b"x" * 10_241}, "payload"),
        ({"metadata": b"x" * 1_025}, "metadata"),
        ({"trace_context": b"x" * 513}, "trace_context"),
        ({"priority": 2**31}, "priority"),
        ({"priority": None}, "priority"),
        ({"delay_ms": -1}, "delay_ms"),
        ({"delay_ms": 1, "deliver_after_ms": 1}, "delay_ms"),
        ({"delay_ms": 10, "ttl_ms": 10}, "ttl_ms"),
        ({"ttl_ms": 0}, "ttl_ms"),
        ({"lease_ms": 0}, "lease_ms"),
        ({"attempts_max": -1}, "attempts_max"),
        ({"idempotency_key": ""}, "idempotency_key"),
    ],
)
def test_a_wrong_item_is_refused_and_named(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(FoqsError) as caught:
        new_rows([Item("t"), Item(**{"topic": "t", **wrong})], None, 10_240)

    assert caught.value.field == f"items[1].{field}"


def test_row_groups_fit_their_items_and_have_no_keys_of_their_own() -> None:
    for items, groups, field in (
        ([Item("t")], ["a", "b"], "row_groups"),
        ([Item("t")], [""], "row_groups[0]"),
        ([Item("t", idempotency_key="k")], ["a"], "items[0].idempotency_key"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            new_rows(items, groups, 10_240)
        assert caught.value.field == field


def test_a_row_has_a_random_name_and_the_columns_that_the_outbox_has() -> None:
    first, second = new_rows([Item("t")] * 2, None, 10_240)

    assert len(first[0]) == 32
    assert first[0] != second[0]
    assert len(first) == len(COLUMNS)


def test_too_many_items_are_refused() -> None:
    with pytest.raises(LimitExceeded):
        new_rows([Item("t")] * (ENQUEUE_ROWS_MAX + 1), None, 10_240)


def test_the_limits_are_those_of_a_host() -> None:
    assert new_rows_module.NAME_BYTES_MAX == validation.NAME_BYTES_MAX == KEY_BYTES_MAX
    assert new_rows_module.TRACE_CONTEXT_BYTES_MAX == item.TRACE_CONTEXT_BYTES_MAX
    assert new_rows_module.TIME_MS_MAX == item.TIME_MS_MAX
    assert NamespaceSettings().payload_bytes_max == new_rows_module.PAYLOAD_BYTES_MAX


def test_a_connection_of_another_kind_is_refused_with_the_kinds_that_are_known() -> None:
    with pytest.raises(InvalidArgument, match="sqlite3, psycopg, pymysql, sqlalchemy"):
        enqueue(object(), [Item("t")])


def test_an_enqueue_of_nothing_needs_no_table() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        assert enqueue(connection, []) == []
