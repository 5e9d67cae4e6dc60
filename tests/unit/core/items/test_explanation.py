"""The explanations of why an item is not delivered."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.items.explanation import ItemSnapshot, Reasons, explain, format_duration, format_time
from foqs.core.items.item import PRIORITY_MIN, TIME_MS_MAX, DeliveryPolicy, Row, State
from foqs.core.items.life import Effect, Event, EventKind, FlushContext, RetryPolicy, apply_event
from tests.support.builders import row

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def item(state: State, **changes: Any) -> Row:
    values = {"state": state, "deliver_after_ms": NOW_MS - 1_000, "enqueued_at_ms": NOW_MS - 1_000}
    return row(5, **(values | changes))


def explained(row: Row | None, **changes: Any) -> Reasons:
    values: dict[str, Any] = {"id": "2-5", "namespace": "default", "now_ms": NOW_MS, "payload_bytes_max": 10_240}
    return explain(ItemSnapshot(row=row, **(values | changes)))


DEFERRED = item(State.DEFERRED, deliver_after_ms=NOW_MS + HOUR_MS, due_ms=NOW_MS + HOUR_MS)
READY = item(State.READY)
GROUPED = item(State.READY, item_group=b"Ada")
LEASED = item(State.LEASED, due_ms=NOW_MS + 20_000, attempt=2, token=9)
DEAD = item(State.DEAD, due_ms=NOW_MS + HOUR_MS, attempt=3, attempts_max=3)


@pytest.mark.parametrize(
    ("row", "facts", "reason", "remedy"),
    [
        (DEFERRED, {}, "It is deferred until 2023-11-14 23:13:20 UTC, for another 1.0 h.", "item update 2-5 --delay 0"),
        (
            item(State.DEFERRED, deliver_after_ms=NOW_MS + 1_500, attempt=2, attempts_max=5),
            {},
            "It is deferred after attempt 2 of 5 ended without an ack until 2023-11-14 22:13:21 UTC, for another 1.5 s.",
            "item update",
        ),
        (item(State.DEFERRED, deliver_after_ms=NOW_MS - 40), {}, "It came due at", "database is slow"),
        (
            item(State.DEFERRED, deliver_after_ms=NOW_MS + HOUR_MS, expires_at_ms=NOW_MS + 60_000),
            {},
            "but its TTL ends before that, at 2023-11-14 22:14:20 UTC, in 1.0 min: it will be deleted",
            "item update",
        ),
        (item(State.READY, expires_at_ms=NOW_MS - 2_000), {}, "Its TTL ended at 2023-11-14 22:13:18 UTC, 2.0 s", "longer"),
        (item(State.DEFERRED, expires_at_ms=NOW_MS), {}, "Its TTL ended at", "longer TTL"),
        (READY, {"store_error": "no route"}, "database does not answer, so the shard delivers nothing: no", "continues"),
        (READY, {"is_stopping": True}, "The host is stopping", "Start the host again"),
        (READY, {"is_paused": True}, "Its topic is paused: no item of it is delivered until", "foqs topic resume t"),
        (READY, {"is_reserved": True}, "It is being delivered at this moment.", "Ask again"),
        (READY, {"group_limit": 3, "group_holders": ["2-1", "2-2"]}, "3 delivered items of a group at once, and 2-1, 2-2 come first", "foqs explain 2-1"),
        (GROUPED, {"group_limit": 1, "group_holders": ["2-1"], "group_items_before": 1}, "Of its group, 1 known ready item comes before it.", "foqs topic groups t --group Ada"),
        (GROUPED, {"group_limit": 1, "group_holders": ["2-1"], "group_items_before": 63}, "Of its group, 63 known ready items come before it.", "foqs explain 2-1"),
        (READY, {"group_limit": 1, "group_holders": ["2-1"] * 12}, "2-1 and 2 more come first", "foqs explain 2-1"),
        (READY, {"group_limit": 1}, "it has no room: as many groups of such topics are under delivery as fit", "foqs_group_limit_units"),
        (READY, {"group_limit": 1, "waiter_count": 0}, "No consumer waits for its topic", "Have a consumer"),
        (READY, {"group_limit": 1, "group_holders": ["2-1"], "waiter_count": 0}, "No consumer waits for its topic", "Have a"),
        (READY, {"is_fair": True, "groups_before": 0}, "groups of its topic take turns: its turn is next.", ""),
        (GROUPED, {"is_fair": True, "groups_before": 1}, "the turn of its group 'Ada' comes after that of 1 other group on this host.", "weight"),
        (GROUPED, {"is_fair": True, "groups_before": 1_234, "items_before": 1}, "1,234 other groups on this host, and 1 item of the group comes before it.", "Add consumers"),
        (GROUPED, {"is_fair": True, "groups_before": 0, "items_before": 2}, "is next, and 2 items of the group come before it.", ""),
        (READY, {"is_fair": True, "better_count": None}, "its group has no turn yet", "shard.ready_index_items_max"),
        (READY, {"is_fair": True, "groups_before": 0, "waiter_count": 2}, "2 consumers wait for its topic", "Ask again"),
        (READY, {"is_fair": True, "groups_before": 0}, "No consumer waits for its topic", "Have a consumer"),
        (READY, {"is_fair": True, "group_limit": 3, "group_holders": ["2-1"]}, "3 delivered items of a group at once", "foqs explain 2-1"),
        (READY, {"better_count": 1}, "1 better item of its topic, by priority, then by time, comes before it", "--priority -1"),
        (READY, {"better_count": 1, "best_priority": -9}, "1 better item", "--priority -10"),
        (item(State.READY, priority=7), {"better_count": 1, "best_priority": 8}, "1 better item", "--priority 6"),
        (READY, {"better_count": 1, "best_priority": PRIORITY_MIN}, "1 better item", f"--priority {PRIORITY_MIN}"),
        (READY, {"better_count": 1_234}, "and 1,234 better items of its topic, by priority, then by time, come", "consumers"),
        (READY, {"better_count": 10, "is_better_count_exact": False}, "more than 10 better items", "Add consumers"),
        (READY, {"better_count": None}, "could not be counted", "Ask again"),
        (READY, {"waiter_count": 0, "last_dequeue_ms_ago": 90_000}, "the last dequeue of a ready item of it was 1.5 min ago", "dequeue"),
        (READY, {"waiter_count": 0}, "this host remembers no dequeue of a ready item of it", "Have a consumer"),
        (READY, {"waiter_count": 1}, "1 consumer waits for its topic", "Ask again"),
        (READY, {"waiter_count": 3}, "3 consumers wait for its topic", "Ask again"),
        (READY, {"is_in_memory": False}, "It is not in memory", "dequeue"),
        (
            item(State.READY, payload_bytes=20_000),
            {},
            "Its payload of 20,000 bytes is larger than its namespace allows now, 10,240",
            "foqs namespace update default --payload-bytes-max 20000",
        ),
        (item(State.READY, expires_at_ms=NOW_MS + 5_000), {}, "not delivered by 2023-11-14 22:13:25 UTC, within 5.0 s", ""),
        (LEASED, {}, "A consumer has it, attempt 2 (of no maximum), with a lease until 2023-11-14 22:13:40 UTC, for another 20.0 s.", "ack"),
        (item(State.LEASED, due_ms=NOW_MS - 10, attempt=1), {}, "Its lease of attempt 1 (of no maximum) ended at", "database is slow"),
        (item(State.LEASED, due_ms=NOW_MS, attempt=1), {}, "Its lease of attempt 1 (of no maximum) ended at", "database is slow"),
        (DEAD, {}, "It is dead, attempts exhausted: delivered 3 of at most 3 times", "foqs dead redrive 2-5"),
        (DEAD, {}, "It is kept until 2023-11-14 23:13:20 UTC, for another 1.0 h, then deleted.", ""),
        (None, {}, "these cannot be distinguished", "enqueue it again"),
        (None, {"is_written": False}, "No item has this id yet", "Use an id that enqueue returned"),
        (None, {"read_error": "shard 2 is recovering"}, "cannot be read now: shard 2 is recovering.", "Wait"),
        (READY, {"breaker": "open"}, "The breaker of its shard is open", ""),
        (READY, {"rate_wait_ms": 30_000}, "used up its enqueues of this minute, for another 30.0 s", ""),
    ],
)  # fmt: skip
def test_each_reason_is_given_with_its_remedy(row: Row | None, facts: dict[str, Any], reason: str, remedy: str) -> None:
    explanation = explained(row, **facts)
    assert [sentence for sentence in explanation.reasons if reason in sentence], explanation.reasons
    assert [sentence for sentence in explanation.remedies if remedy in sentence] or not remedy, explanation.remedies
    assert all(sentence.endswith(".") for sentence in explanation.reasons)


@pytest.mark.parametrize(
    ("row", "facts", "order"),
    [
        (READY, {"store_error": "x", "is_paused": True, "better_count": 2, "rate_wait_ms": 5}, ["database", "paused", "2 better", "No consumer", "minute"]),
        (DEFERRED, {"is_paused": True, "breaker": "half-open"}, ["deferred", "paused too", "breaker"]),
        (LEASED, {"is_paused": True}, ["A consumer has it", "Without an ack", "paused too"]),
        (DEAD, {"is_paused": True}, ["It is dead", "It is kept", "paused too"]),
    ],
)  # fmt: skip
def test_the_most_important_reason_comes_first(row: Row, facts: dict[str, Any], order: list[str]) -> None:
    reasons = explained(row, **facts).reasons
    assert len(reasons) == len(order)
    assert all(word in reason for word, reason in zip(order, reasons, strict=True)), reasons


@pytest.mark.parametrize(
    "cause", [{"is_paused": True}, {"store_error": "x"}, {"is_stopping": True}, {"suspension": ("x", "y")}]
)
def test_waiting_consumers_need_no_remedy_of_their_own_while_nothing_is_delivered(cause: dict[str, Any]) -> None:
    explanation = explained(READY, **cause, waiter_count=2)
    assert explanation.reasons[-1] == "2 consumers wait for its topic, until items are delivered again."
    assert len(explanation.remedies) == 1


def test_limits_on_new_items_are_not_mentioned_for_an_item_that_cannot_be_read() -> None:
    assert len(explained(None, read_error="x", breaker="open", rate_wait_ms=5).reasons) == 1


def test_only_reasons_that_apply_are_given() -> None:
    assert explained(READY, last_dequeue_ms_ago=10).reasons == [
        "It is ready, and the next of its topic.",
        "No consumer waits for its topic, and the last dequeue of a ready item of it was 10 ms ago.",
    ]


@pytest.mark.parametrize(
    ("changes", "next_state", "words"),
    [
        ({}, State.READY, "ready again"),
        ({"attempts_max": 2}, State.DEAD, "dead, because that was the last of 2 attempts"),
        ({"attempts_max": 3}, State.READY, "ready again"),
        ({"policy": DeliveryPolicy.AT_MOST_ONCE, "attempts_max": 2}, None, "delivered at most once"),
        ({"expires_at_ms": NOW_MS + 20_000, "attempts_max": 2}, None, "its TTL has ended by then"),
        ({"expires_at_ms": NOW_MS + 20_001}, State.READY, "ready again"),
    ],
)
def test_the_end_of_a_lease_is_predicted_as_the_transition_table_has_it(
    changes: dict[str, Any], next_state: State | None, words: str
) -> None:
    leased = item(State.LEASED, due_ms=NOW_MS + 20_000, attempt=2, token=9, **changes)
    assert words in explained(leased).reasons[1]
    end_ms = NOW_MS + 20_000
    transition = apply_event(
        Event(EventKind.DUE, 5), leased, FlushContext(end_ms, end_ms, 10, {"default": RetryPolicy(1, 1, 1, 1)})
    )
    assert (transition.row.state if transition.row else None) == next_state
    assert (transition.effect is Effect.DELETED) is (next_state is None)


def test_commands_name_the_namespace_and_can_be_pasted() -> None:
    ready = item(State.READY, topic="my mail; rm -rf")
    assert explained(ready, is_paused=True, namespace="a b").remedies[0] == (
        "Resume it: foqs topic resume 'my mail; rm -rf' -n 'a b'"
    )


def test_the_latest_time_and_every_unit_are_formatted() -> None:
    assert format_time(TIME_MS_MAX) == "9999-12-31 23:59:59 UTC"
    assert [format_duration(ms) for ms in (0, 999, 1_000, 90_000, 5 * HOUR_MS, 36 * HOUR_MS, 86_400_000_000)] == [
        "0 ms",
        "999 ms",
        "1.0 s",
        "1.5 min",
        "5.0 h",
        "1.5 days",
        "1,000.0 days",
    ]
