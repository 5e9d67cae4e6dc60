"""A restored item gets the row that its history promises."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.items.item import TIME_MS_MAX, DeliveryPolicy, State
from foqs.core.items.item_with_history import ItemWithHistory, restored_row
from foqs.core.items.life import RetryPolicy

NOW = 1_000_000
POLICY = RetryPolicy(backoff_ms_min=100, backoff_ms_max=1_000, dead_retention_ms=5_000, key_window_ms=1)


def restored(**changes: Any) -> ItemWithHistory:
    values: dict[str, Any] = {
        "namespace": "n",
        "topic": "t",
        "priority": 3,
        "payload": b"payload",
        "metadata": b"meta",
        "deliver_after_ms": NOW - 70,
        "lease_ms": 30,
        "ttl_ms": None,
        "policy": DeliveryPolicy.AT_LEAST_ONCE,
        "attempts_max": 4,
        "idempotency_key": b"k",
        "digest": b"d",
        "trace_context": b"trace",
        "state": State.READY,
        "attempt": 2,
        "ttl_remaining_ms": None,
    }
    return ItemWithHistory(**(values | changes))


def test_restored_item_keeps_its_values_its_attempts_and_its_place_in_the_order() -> None:
    row = restored_row(restored(), 9, NOW, POLICY)
    assert (row.id, row.namespace, row.topic, row.priority) == (9, "n", "t", 3)
    assert (row.payload, row.payload_bytes, row.metadata, row.trace_context) == (b"payload", 7, b"meta", b"trace")
    assert (row.state, row.deliver_after_ms, row.due_ms) == (State.READY, NOW - 70, None)
    assert (row.attempt, row.attempts_max, row.token, row.enqueued_at_ms) == (2, 4, 0, NOW)


def test_remaining_ttl_counts_from_now_and_the_whole_one_is_kept() -> None:
    row = restored_row(restored(ttl_ms=900, ttl_remaining_ms=300), 9, NOW, POLICY)
    assert (row.ttl_ms, row.expires_at_ms, row.due_ms) == (900, NOW + 300, NOW + 300)


@pytest.mark.parametrize("ttl_ms", [None, 100, TIME_MS_MAX])
def test_item_that_is_due_later_is_deferred(ttl_ms: int | None) -> None:
    row = restored_row(restored(deliver_after_ms=NOW + 500, ttl_ms=ttl_ms, ttl_remaining_ms=ttl_ms), 9, NOW, POLICY)
    assert (row.state, row.deliver_after_ms) == (State.DEFERRED, NOW + 500)
    assert row.due_ms == (NOW + 100 if ttl_ms == 100 else NOW + 500)


def test_dead_item_is_dead_with_a_new_retention() -> None:
    row = restored_row(restored(state=State.DEAD, ttl_ms=900, ttl_remaining_ms=1), 9, NOW, POLICY)
    assert (row.state, row.due_ms, row.expires_at_ms) == (State.DEAD, NOW + 5_000, NOW + 1)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, State.READY),
        ({"attempts_max": 0}, State.READY),
        ({"attempts_max": 2}, State.DEAD),
        ({"policy": DeliveryPolicy.AT_MOST_ONCE}, State.DEAD),
    ],
)
def test_leased_item_is_ready_unless_another_delivery_would_break_a_promise(
    changes: dict[str, Any], state: State
) -> None:
    assert restored_row(restored(state=State.LEASED, **changes), 9, NOW, POLICY).state is state


@pytest.mark.parametrize("said", [State.READY, State.DEFERRED])
@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"attempts_max": 3}, State.READY),
        ({"attempts_max": 2}, State.DEAD),
        ({"policy": DeliveryPolicy.AT_MOST_ONCE}, State.DEAD),
        ({"policy": DeliveryPolicy.AT_MOST_ONCE, "attempt": 0}, State.READY),
        ({"policy": DeliveryPolicy.AT_MOST_ONCE, "attempt": 0, "attempts_max": 0}, State.READY),
    ],
)
def test_item_that_may_not_be_delivered_again_is_dead_whatever_its_state_is_said_to_be(
    said: State, changes: dict[str, Any], state: State
) -> None:
    assert restored_row(restored(state=said, **changes), 9, NOW, POLICY).state is state
