"""Rows of an export become items to restore, the same ones each time."""

from __future__ import annotations

from typing import Any

from foqs_client import RestoredItem
from foqs_client.spark.pipelines.restored_rows import restored_items

ROW: dict[str, Any] = {
    "id": "3-8796093022209",
    "topic": "t",
    "state": "ready",
    "priority": 4,
    "attempt": 2,
    "enqueued_at": 1_700_000_000_123_456,
    "due_at": None,
    "metadata": b"m",
    "payload": b"p",
    "idempotency_key": None,
    "ttl_remaining": None,
    "lease": 30_000,
    "attempts_max": 5,
    "at_most_once": False,
    "trace_context": b"trace",
}


def test_ready_item_keeps_the_time_of_its_enqueue_as_its_place_in_the_order() -> None:
    assert restored_items([ROW], "export-1") == (
        [
            RestoredItem(
                "t", b"p", 4, b"m", "export-1/3-8796093022209", None, 1_700_000_000_123, 30_000, None, None, False, 5, 2,
                "ready", b"trace",
            )
        ],
        0,
    )  # fmt: skip


def test_item_with_a_key_of_its_own_has_no_other_and_a_deferred_one_keeps_its_moment() -> None:
    row = {**ROW, "idempotency_key": "k", "state": "deferred", "due_at": 1_800_000_000_999_999, "ttl_remaining": 70}
    [item], expired = restored_items([row], "export-1")
    assert (item.idempotency_key, item.restore_key, item.deliver_after_ms) == ("k", None, 1_800_000_000_999)
    assert (item.ttl_ms, item.ttl_remaining_ms, item.state, expired) == (70, 70, "deferred", 0)


def test_expired_items_are_left_out_and_counted() -> None:
    items, expired = restored_items([ROW, {**ROW, "ttl_remaining": 0}], "export-1")
    assert (len(items), expired) == (1, 1)


def test_the_group_is_restored_and_an_export_without_that_column_has_none() -> None:
    items, _ = restored_items([{**ROW, "item_group": "g"}, {**ROW, "item_group": None}, ROW], "export-1")
    assert [item.group for item in items] == ["g", None, None]
