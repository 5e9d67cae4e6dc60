"""What is said of an item that is not delivered, from what is known of it."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.items.explanation import Explanation, ItemSnapshot, explain, format_duration, format_time
from foqs.core.items.item import TIME_MS_MAX, DeliveryPolicy, Row, State
from foqs.core.items.life import Effect, Event, EventKind, FlushContext, RetryPolicy, apply_event
from tests.support.builders import row

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def item(state: State, **changes: Any) -> Row:
    values = {"state": state, "deliver_after_ms": NOW_MS - 1_000, "enqueued_at_ms": NOW_MS - 1_000}
    return row(5, **(values | changes))


def told(of: Row | None, **changes: Any) -> Explanation:
    values: dict[str, Any] = {"id": "2-5", "namespace": "default", "now_ms": NOW_MS, "payload_bytes_max": 10_240}
    return explain(ItemSnapshot(row=of, **(values | changes)))


DEFERRED = item(State.DEFERRED, deliver_after_ms=NOW_MS + HOUR_MS, due_ms=NOW_MS + HOUR_MS)
READY = item(State.READY)
LEASED = item(State.LEASED, due_ms=NOW_MS + 20_000, attempt=2, token=9)
DEAD = item(State.DEAD, due_ms=NOW_MS + HOUR_MS, attempt=3, attempts_max=3)


@pytest.mark.parametrize(
    ("of", "around", "reason", "remedy"),
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
        (READY, {"store_error": "no route"}, "database does not answer, so nothing of the shard is handed out: no", "again"),
        (READY, {"is_draining": True}, "The host is stopping", "Start the host again"),
        (READY, {"is_paused": True}, "Its topic is paused: nothing of it is handed out until", "foqs topic resume t"),
        (READY, {"is_reserved": True}, "It is being handed out at this moment.", "Ask again"),
        (READY, {"better_count": 1}, "1 better item of its topic, by priority, then by time, comes before it", "--priority -1"),
        (READY, {"better_count": 1_234}, "and 1,234 better items of its topic, by priority, then by time, come", "consumers"),
        (READY, {"better_count": 10, "is_better_count_exact": False}, "more than 10 better items", "Add consumers"),
        (READY, {"better_count": None}, "could not be counted", "Ask again"),
        (READY, {"waiter_count": 0, "last_dequeue_ms_ago": 90_000}, "the last who took a ready item of it came 1.5 min ago", "dequeue"),
        (READY, {"waiter_count": 0}, "nobody has taken a ready item of it that this host remembers", "Have a consumer"),
        (READY, {"waiter_count": 1}, "1 consumer waits for its topic", "Ask again"),
        (READY, {"waiter_count": 3}, "3 consumers wait for its topic", "Ask again"),
        (READY, {"is_in_memory": False}, "not among those held in memory", "dequeue"),
        (
            item(State.READY, payload_bytes=20_000),
            {},
            "Its payload of 20,000 bytes is larger than its namespace allows now, 10,240",
            "foqs namespace update default --payload-bytes-max 20000",
        ),
        (item(State.READY, expires_at_ms=NOW_MS + 5_000), {}, "not delivered by 2023-11-14 22:13:25 UTC, within 5.0 s", ""),
        (LEASED, {}, "A consumer has it, attempt 2, with a lease until 2023-11-14 22:13:40 UTC, for another 20.0 s.", "ack"),
        (item(State.LEASED, due_ms=NOW_MS - 10, attempt=1), {}, "Its lease of attempt 1 ended at", "database is slow"),
        (DEAD, {}, "It is dead, attempts exhausted: delivered 3 of at most 3 times", "foqs dead redrive 2-5"),
        (DEAD, {}, "It is kept until 2023-11-14 23:13:20 UTC, for another 1.0 h, then deleted.", ""),
        (None, {}, "these cannot be told apart", "enqueue it again"),
        (None, {"is_written": False}, "No item has this id yet", "Use the id that enqueue returned"),
        (None, {"read_error": "shard 2 is recovering"}, "cannot be asked just now: shard 2 is recovering.", "Wait"),
        (READY, {"breaker": "open"}, "The breaker of its shard is open", ""),
        (READY, {"rate_wait_ms": 30_000}, "used up its enqueues of this minute, for another 30.0 s", ""),
    ],
)  # fmt: skip
def test_each_reason_is_said_with_what_would_change_it(
    of: Row | None, around: dict[str, Any], reason: str, remedy: str
) -> None:
    answer = told(of, **around)
    assert [said for said in answer.reasons if reason in said], answer.reasons
    assert [said for said in answer.remedies if remedy in said] or not remedy, answer.remedies
    assert all(said.endswith(".") for said in answer.reasons)


@pytest.mark.parametrize(
    ("of", "around", "order"),
    [
        (READY, {"store_error": "x", "is_paused": True, "better_count": 2, "rate_wait_ms": 5}, ["database", "paused", "2 better", "No consumer", "minute"]),
        (DEFERRED, {"is_paused": True, "breaker": "half-open"}, ["deferred", "paused too", "breaker"]),
        (LEASED, {"is_paused": True}, ["A consumer has it", "Without an ack", "paused too"]),
        (DEAD, {"is_paused": True}, ["It is dead", "It is kept", "paused too"]),
    ],
)  # fmt: skip
def test_the_weightiest_reason_comes_first(of: Row, around: dict[str, Any], order: list[str]) -> None:
    reasons = told(of, **around).reasons
    assert len(reasons) == len(order)
    assert all(word in said for word, said in zip(order, reasons, strict=True)), reasons


@pytest.mark.parametrize(
    "held", [{"is_paused": True}, {"store_error": "x"}, {"is_draining": True}, {"is_suspended": True}]
)
def test_who_waits_while_nothing_is_handed_out_is_no_cause_for_surprise(held: dict[str, Any]) -> None:
    said = told(READY, **held, waiter_count=2)
    assert said.reasons[-1] == "2 consumers wait for its topic, until something is handed out again."
    assert len(said.remedies) == 1


def test_what_holds_up_enqueues_alone_is_not_said_of_an_item_that_cannot_be_read() -> None:
    assert len(told(None, read_error="x", breaker="open", rate_wait_ms=5).reasons) == 1


def test_nothing_is_said_of_what_is_not_so() -> None:
    assert told(READY, last_dequeue_ms_ago=10).reasons == [
        "It is ready, and the next of its topic.",
        "No consumer waits for its topic, and the last who took a ready item of it came 10 ms ago.",
    ]


@pytest.mark.parametrize(
    ("changes", "fate", "word"),
    [
        ({}, State.READY, "ready again"),
        ({"attempts_max": 2}, State.DEAD, "dead, because that was the last of 2 attempts"),
        ({"attempts_max": 3}, State.READY, "ready again"),
        ({"policy": DeliveryPolicy.AT_MOST_ONCE, "attempts_max": 2}, None, "delivered at most once"),
        ({"expires_at_ms": NOW_MS + 20_000, "attempts_max": 2}, None, "its TTL is over then"),
        ({"expires_at_ms": NOW_MS + 20_001}, State.READY, "ready again"),
    ],
)
def test_the_end_of_a_lease_is_foretold_as_life_has_it(changes: dict[str, Any], fate: State | None, word: str) -> None:
    of = item(State.LEASED, due_ms=NOW_MS + 20_000, attempt=2, token=9, **changes)
    assert word in told(of).reasons[1]
    end_ms = NOW_MS + 20_000
    verdict = apply_event(
        Event(EventKind.DUE, 5), of, FlushContext(end_ms, end_ms, 10, {"default": RetryPolicy(1, 1, 1, 1)})
    )
    assert (verdict.row.state if verdict.row else None) == fate
    assert (verdict.effect is Effect.DELETED) is (fate is None)


def test_commands_name_the_namespace_and_can_be_pasted() -> None:
    of = item(State.READY, topic="my mail; rm -rf")
    assert told(of, is_paused=True, namespace="a b").remedies[0] == (
        "Resume it: foqs topic resume 'my mail; rm -rf' -n 'a b'"
    )


def test_times_are_shown_to_the_end_of_time() -> None:
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
