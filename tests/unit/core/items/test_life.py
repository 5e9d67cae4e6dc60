"""The life of an item: the table is total, its rules do what it declares, and nothing else can happen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import GIVEN_UP_MS, TIME_MS_MAX, DeliveryPolicy, NewItem, Row, State
from foqs.core.items.life import (
    OWN_EVENTS,
    TABLE,
    Effect,
    Event,
    EventKind,
    FlushContext,
    RetryPolicy,
    Transition,
    apply_event,
    backoff_ms,
    becomes_ready,
    new_row,
)
from foqs_contract.errors import ErrorCode
from tests.support import builders
from tools import diagram

NOW = 1_000_000
POLICY = RetryPolicy(backoff_ms_min=100, backoff_ms_max=1_000, dead_retention_ms=5_000, key_window_ms=1)
OLD, NEW = 41, 42
"""The token of the row's last lease, and the token of the flush."""
CONTEXT = FlushContext(NOW, NOW, NEW, {"n": POLICY})
ATTEMPTS = 3
"""The attempts that the row has had."""

BASE = builders.row(
    7,
    namespace="n",
    deliver_after_ms=NOW - 50,
    enqueued_at_ms=NOW - 100,
    lease_ms=30,
    payload=b"x",
    metadata=b"m",
    token=OLD,
    attempt=ATTEMPTS,
)


def expected_due_ms(row: Row, now_ms: int) -> int | None:
    """Return the `due_ms` that a row in this state must have."""
    if row.state is State.DEFERRED:
        return min(row.deliver_after_ms, TIME_MS_MAX if row.expires_at_ms is None else row.expires_at_ms)
    if row.state is State.READY:
        return row.expires_at_ms
    if row.state is State.DEAD:
        return now_ms + POLICY.dead_retention_ms
    return row.due_ms


def rows(state: State) -> Iterator[Row]:
    """Yield every kind of row in a state: with and without a TTL, expired or not, last attempt or not, due or not."""
    for ttl_left, policy, attempts_max, due_in in product(
        (None, -5, 0, 1, 500), DeliveryPolicy, (0, ATTEMPTS, ATTEMPTS + 1), (-5, 0, 1, 500)
    ):
        row = replace(BASE, state=state, policy=policy, attempts_max=attempts_max)
        if ttl_left is not None:
            row.ttl_ms = 100 + ttl_left
            row.expires_at_ms = NOW + ttl_left
        if state is State.DEFERRED:
            row.deliver_after_ms = NOW + due_in
            row.due_ms = expected_due_ms(row, NOW)
        elif state is State.READY:
            row.due_ms = row.expires_at_ms
        else:
            row.due_ms = NOW + due_in
        yield row


def events(kind: EventKind) -> Iterator[Event]:
    """Yield every variant of an event."""
    by_lease = kind in (EventKind.ACK, EventKind.NACK, EventKind.EXTEND, EventKind.RELEASE, EventKind.SUPERSEDE)
    tokens: tuple[int | None, ...] = (OLD, OLD - 1, 0) if by_lease else (0,)
    if kind is EventKind.EXTEND:
        tokens += (None,)
    for token in tokens:
        event = Event(kind, BASE.id, "n", token=token, topic="other" if kind is EventKind.MOVE else "")
        yield event
        if kind is EventKind.NACK:
            for delay, dead, metadata in product((None, 0, 1, 700), (False, True), (None, b"", b"new")):
                yield replace(event, delay_ms=delay, dead=dead, metadata=metadata, jitter=0.5)
            for after in (NOW - 10, NOW, NOW + 10, TIME_MS_MAX * 2):
                yield replace(event, deliver_after_ms=after)
        if kind is EventKind.UPDATE:
            for delay, priority, metadata in product((None, 0, 1, 700), (None, -7), (None, b"", b"new")):
                yield replace(event, delay_ms=delay, priority=priority, metadata=metadata)
            for after in (NOW - 10, NOW, NOW + 10, TIME_MS_MAX * 2):
                yield replace(event, deliver_after_ms=after)
        if kind in (EventKind.EXTEND, EventKind.DELIVER):
            yield replace(event, lease_ms=1)
            yield replace(event, lease_ms=TIME_MS_MAX)
        if kind is EventKind.EXTEND and token is not None:
            yield replace(event, lease_ms=0)
        if kind is EventKind.SUPERSEDE:
            yield replace(event, is_unbegun=True)
        if kind is EventKind.MOVE:
            yield replace(event, topic=BASE.topic)
            yield replace(event, ttl_remaining_ms=7)
            yield replace(event, ttl_remaining_ms=TIME_MS_MAX)
        if kind is EventKind.DUE:
            yield replace(event, has_waiter=True)
            yield replace(event, has_waiter=True, lease_ms=1)


def has_time(event: Event) -> bool:
    return event.delay_ms is not None or event.deliver_after_ms is not None


def transitions(state: State, kind: EventKind) -> Iterator[tuple[Event, Row, Transition]]:
    for row, event in product(rows(state), events(kind)):
        before = replace(row)
        transition = apply_event(event, row, CONTEXT)
        assert row == before, "a rule must not change the row that it is given"
        yield event, row, transition


def state_after(row: Row, transition: Transition) -> State | None:
    if transition.effect in (Effect.DELETED, Effect.MOVED):
        return None
    if transition.effect is Effect.UNCHANGED:
        return row.state
    assert transition.row is not None
    return transition.row.state


PAIRS = list(product(State, EventKind))
IDS = [f"{state.name}-{kind.value}" for state, kind in PAIRS]


def test_the_table_has_a_row_for_every_state_and_event() -> None:
    assert set(TABLE) == set(PAIRS)


@pytest.mark.parametrize(("state", "kind"), PAIRS, ids=IDS)
def test_a_rule_leads_to_exactly_the_states_that_it_declares_and_keeps_what_must_not_change(
    state: State, kind: EventKind
) -> None:
    declared = {next_state for _, next_state in TABLE[state, kind].outcomes}
    reached = set()
    for event, row, transition in transitions(state, kind):
        reached.add(state_after(row, transition))
        assert (transition.row is not None) == (transition.effect in (Effect.CHANGED, Effect.MOVED))
        assert_only_a_refusal_has_an_error(event, transition)
        if transition.row is not None:
            assert_due_follows_from_the_state(event, row, transition.row)
            if kind is not EventKind.MOVE:
                assert_the_rest_is_kept(event, row, transition.row)
    assert reached == declared


def assert_only_a_refusal_has_an_error(event: Event, transition: Transition) -> None:
    """Check that an error comes without a change, and that a caller whose event changes nothing gets one.

    Only the shard's own events, and the end of a lease that has ended, may find nothing to do.
    """
    if transition.error is None:
        own = event.kind in OWN_EVENTS or event.lease_ms == 0
        assert own or transition.effect is not Effect.UNCHANGED
    else:
        assert transition.effect is Effect.UNCHANGED
        assert not transition.already_gone
        changes = event.kind in (EventKind.UPDATE, EventKind.MOVE)
        allowed = ErrorCode.INVALID_ARGUMENT if changes else ErrorCode.STALE_LEASE
        assert transition.error.number in (allowed, ErrorCode.NOT_FOUND)


def assert_the_rest_is_kept(event: Event, row: Row, new: Row) -> None:
    kind = event.kind
    lasting = ("id", "namespace", "topic", "enqueued_at_ms", "lease_ms", "ttl_ms", "policy", "payload")
    for name in (*lasting, "attempts_max", "payload_bytes"):
        assert getattr(new, name) == getattr(row, name), name
    leased = kind is EventKind.DELIVER or (event.has_waiter and new.state is State.LEASED)
    is_over = kind in (EventKind.NACK, EventKind.RELEASE, EventKind.REDRIVE)
    token = NEW if leased else -row.token if is_over else 0 if kind is EventKind.SUPERSEDE else row.token
    assert new.token == token
    attempts = {EventKind.RELEASE: row.attempt - 1, EventKind.SUPERSEDE: row.attempt - 1, EventKind.REDRIVE: 0}
    assert new.attempt == (row.attempt + 1 if leased else attempts.get(kind, row.attempt))
    if kind is not EventKind.REDRIVE:
        assert new.expires_at_ms == row.expires_at_ms
    if kind is EventKind.GIVE_UP:
        assert new.deliver_after_ms == GIVEN_UP_MS
    elif kind not in (EventKind.NACK, EventKind.REDRIVE, EventKind.UPDATE) and event.lease_ms != 0:
        assert new.deliver_after_ms == row.deliver_after_ms
    changed = kind in (EventKind.NACK, EventKind.UPDATE) and event.metadata is not None
    assert new.metadata == (event.metadata if changed else row.metadata)
    changed = kind is EventKind.UPDATE and event.priority is not None
    assert new.priority == (event.priority if changed else row.priority)


def assert_due_follows_from_the_state(event: Event, row: Row, new: Row) -> None:
    if event.kind is EventKind.UPDATE and not has_time(event):
        assert (new.state, new.due_ms) == (row.state, row.due_ms)
        return
    if new.state is State.LEASED:
        lease_ms = row.lease_ms if event.lease_ms is None else event.lease_ms
        end_ms = min(NOW + lease_ms, TIME_MS_MAX)
        assert new.due_ms == (end_ms if event.token is not None else max(end_ms, row.due_ms or 0))
    else:
        assert new.due_ms == expected_due_ms(new, NOW)
    for moment in (new.due_ms, new.deliver_after_ms, new.expires_at_ms):
        assert moment is None or moment <= TIME_MS_MAX
    if new.state is State.DEFERRED and event.kind is not EventKind.MOVE:
        assert new.deliver_after_ms > NOW


@pytest.mark.parametrize("state", State)
def test_only_the_last_token_acks(state: State) -> None:
    for event, _, transition in transitions(state, EventKind.ACK):
        assert (transition.effect is Effect.DELETED) == (event.token == OLD)


def test_an_item_that_was_never_delivered_cannot_be_acked() -> None:
    for state in (State.READY, State.DEFERRED):
        row = replace(BASE, state=state, token=0, attempt=0)
        transition = apply_event(Event(EventKind.ACK, row.id, "n", token=0), row, CONTEXT)
        assert transition.effect is Effect.UNCHANGED
        assert transition.error is not None and transition.error.number is ErrorCode.STALE_LEASE


@pytest.mark.parametrize("kind", [EventKind.NACK, EventKind.EXTEND, EventKind.RELEASE])
def test_a_lease_is_used_only_by_its_holder_and_only_while_it_lasts(kind: EventKind) -> None:
    for state in State:
        for event, _, transition in transitions(state, kind):
            allowed = state is State.LEASED and event.token in ((OLD, None) if kind is EventKind.EXTEND else (OLD,))
            if kind is EventKind.EXTEND and state is State.READY:
                continue  # see below
            assert (transition.error is None) == allowed


def test_the_last_token_leases_a_ready_item_again_with_the_same_token_and_attempt() -> None:
    for event, row, transition in transitions(State.READY, EventKind.EXTEND):
        is_expired = row.expires_at_ms is not None and row.expires_at_ms <= NOW
        if event.token != OLD or not row.token:
            assert transition.error is not None and transition.error.number is ErrorCode.STALE_LEASE
        elif is_expired:
            assert transition.error is not None and transition.error.number is ErrorCode.NOT_FOUND
        elif event.lease_ms == 0:
            assert transition.error is None and transition.effect is Effect.UNCHANGED
        else:
            lease_ms = row.lease_ms if event.lease_ms is None else event.lease_ms
            assert transition.row == replace(row, state=State.LEASED, due_ms=min(NOW + lease_ms, TIME_MS_MAX))


def test_an_extension_of_0_ms_does_what_a_nack_without_a_delay_does_but_keeps_the_token() -> None:
    for row in rows(State.LEASED):
        extend = Event(EventKind.EXTEND, row.id, "n", token=row.token, lease_ms=0)
        nacked = apply_event(replace(extend, kind=EventKind.NACK, lease_ms=None, delay_ms=0), row, CONTEXT)
        expected = nacked if nacked.row is None else replace(nacked, row=replace(nacked.row, token=row.token))
        assert apply_event(extend, row, CONTEXT) == expected


@pytest.mark.parametrize(
    ("state", "kind"),
    [(State.LEASED, EventKind.NACK), (State.LEASED, EventKind.RELEASE), (State.DEAD, EventKind.REDRIVE)],
)
def test_the_last_token_of_an_item_that_was_given_back_acks_it_and_does_not_extend_its_lease(
    state: State, kind: EventKind
) -> None:
    for event, row, transition in transitions(state, kind):
        if transition.row is None or event.token not in (OLD, None):
            continue
        for token in (row.token, -row.token):
            extended = apply_event(Event(EventKind.EXTEND, row.id, "n", token=token), transition.row, CONTEXT)
            assert extended.error is not None and extended.error.number is ErrorCode.STALE_LEASE
        acked = apply_event(Event(EventKind.ACK, row.id, "n", token=row.token), transition.row, CONTEXT)
        assert acked.effect is Effect.DELETED


def test_an_item_that_was_never_delivered_cannot_be_extended() -> None:
    row = replace(BASE, state=State.READY, token=0, attempt=0)
    transition = apply_event(Event(EventKind.EXTEND, row.id, "n", token=0), row, CONTEXT)
    assert transition.error is not None and transition.error.number is ErrorCode.STALE_LEASE


@pytest.mark.parametrize("lease_ms", [None, 1, 700])
def test_extension_without_a_token_does_what_that_of_the_holder_does_but_never_shortens_the_lease(
    lease_ms: int | None,
) -> None:
    kept = 0
    for row in rows(State.LEASED):
        by_holder = Event(EventKind.EXTEND, row.id, "n", token=row.token, lease_ms=lease_ms)
        expected = apply_event(by_holder, row, CONTEXT)
        found = apply_event(replace(by_holder, token=None), row, CONTEXT)
        assert expected.row is not None and found.row is not None
        end_ms = max(expected.row.due_ms or 0, row.due_ms or 0)
        assert found == replace(expected, row=replace(expected.row, due_ms=end_ms))
        kept += found.row != expected.row
    assert kept or lease_ms != 1


@pytest.mark.parametrize("state", [State.DEFERRED, State.READY, State.DEAD])
def test_extension_without_a_token_of_an_item_without_a_lease_names_the_remedy(state: State) -> None:
    for row in rows(state):
        transition = apply_event(Event(EventKind.EXTEND, row.id, "n", token=None), row, CONTEXT)
        assert transition.error is not None and transition.error.number is ErrorCode.STALE_LEASE
        assert "the item is not leased" in transition.error.message
        assert "explain" in transition.error.message


@pytest.mark.parametrize("kind", [EventKind.ACK, EventKind.NACK, EventKind.RELEASE])
def test_only_an_extension_may_come_without_a_token(kind: EventKind) -> None:
    for state in State:
        for row in rows(state):
            transition = apply_event(Event(kind, row.id, "n", token=None), row, CONTEXT)
            assert transition.error is not None and transition.error.number is ErrorCode.STALE_LEASE


def test_the_token_of_a_superseded_item_settles_nothing() -> None:
    for event, row, transition in transitions(State.LEASED, EventKind.SUPERSEDE):
        if event.token == OLD - 1:
            assert transition.effect is Effect.UNCHANGED, "a later lease is another one's"
            continue
        if transition.row is None:
            is_once = row.policy is DeliveryPolicy.AT_MOST_ONCE and not event.is_unbegun
            assert is_once or row.expires_at_ms is not None
            continue
        for kind in (EventKind.ACK, EventKind.NACK, EventKind.EXTEND, EventKind.RELEASE):
            for token in (row.token, -row.token, 0):
                late = apply_event(Event(kind, row.id, "n", token=token), transition.row, CONTEXT)
                assert late.effect is Effect.UNCHANGED
                assert late.error is not None and late.error.number is ErrorCode.STALE_LEASE


@pytest.mark.parametrize(
    "kind", [EventKind.DUE, EventKind.DELIVER, EventKind.NACK, EventKind.RELEASE, EventKind.SUPERSEDE]
)
def test_nothing_becomes_ready_or_leased_after_its_ttl(kind: EventKind) -> None:
    for state in (State.DEFERRED, State.READY, State.LEASED):
        for _, row, transition in transitions(state, kind):
            new = transition.row
            if new is not None and row.expires_at_ms is not None and row.expires_at_ms <= NOW:
                assert new.state is State.DEAD


@pytest.mark.parametrize("kind", [EventKind.DUE, EventKind.NACK])
def test_an_item_out_of_attempts_is_never_ready_again(kind: EventKind) -> None:
    for _, row, transition in transitions(State.LEASED, kind):
        if row.attempts_max == ATTEMPTS and transition.row is not None:
            assert transition.row.state is State.DEAD


@pytest.mark.parametrize("kind", [EventKind.DUE, EventKind.NACK])
def test_an_at_most_once_item_is_never_ready_again(kind: EventKind) -> None:
    for event, row, transition in transitions(State.LEASED, kind):
        if row.policy is DeliveryPolicy.AT_MOST_ONCE and transition.row is not None:
            assert transition.row.state is State.DEAD
            assert event.dead


def test_a_due_item_with_a_waiter_is_leased_as_if_it_had_become_ready_first() -> None:
    for state, lease_ms in product(State, (None, 77)):
        for row in rows(state):
            due = apply_event(Event(EventKind.DUE, row.id), row, CONTEXT)
            with_waiter = apply_event(Event(EventKind.DUE, row.id, lease_ms=lease_ms, has_waiter=True), row, CONTEXT)
            is_ready = due.row is not None and due.row.state is State.READY
            assert becomes_ready(row, NOW) == is_ready
            if is_ready:
                assert with_waiter == apply_event(Event(EventKind.DELIVER, row.id, lease_ms=lease_ms), due.row, CONTEXT)
            else:
                assert with_waiter == due


def test_an_event_of_another_namespace_changes_nothing() -> None:
    for state, kind in PAIRS:
        row = next(rows(state))
        for event in events(kind):
            transition = apply_event(replace(event, namespace="other"), row, CONTEXT)
            assert transition.effect is Effect.UNCHANGED
            assert not transition.already_gone
            if kind not in OWN_EVENTS:
                assert transition.error is not None and transition.error.number is ErrorCode.NOT_FOUND


def test_only_ack_and_cancel_succeed_on_an_item_that_is_gone() -> None:
    for kind in EventKind:
        for event in events(kind):
            transition = apply_event(event, None, CONTEXT)
            assert transition.effect is Effect.UNCHANGED
            assert transition.already_gone == (kind in (EventKind.ACK, EventKind.CANCEL))
            assert (transition.error is None) == (kind in OWN_EVENTS or transition.already_gone)


@pytest.mark.parametrize("kind", [EventKind.NACK, EventKind.EXTEND])
def test_an_item_of_a_strict_group_keeps_its_place_when_it_is_given_back(kind: EventKind) -> None:
    grouped = replace(BASE, state=State.LEASED, item_group=b"group", deliver_after_ms=NOW - 50, due_ms=NOW + 5)
    strict = replace(CONTEXT, strict_topics={(BASE.namespace, BASE.topic)})
    changes = {"lease_ms": 0} if kind is EventKind.EXTEND else {"delay_ms": 700}
    event = Event(kind, BASE.id, "n", token=BASE.token, **changes)  # type: ignore[arg-type]
    for context, row, keeps in (
        (strict, grouped, True),
        (CONTEXT, grouped, False),
        (strict, replace(grouped, item_group=None), False),
    ):
        new = apply_event(event, row, context).row
        assert new is not None
        assert (new.deliver_after_ms == row.deliver_after_ms) is keeps
        if new.state is State.DEFERRED:
            assert new.ready_at_ms == new.due_ms == NOW + 700
            for late in (NOW + 699, NOW + 700):
                due = apply_event(Event(EventKind.DUE, row.id), new, replace(context, now_ms=late))
                assert (due.effect is Effect.CHANGED) is (late == NOW + 700)


def test_redrive_resets_the_attempts_and_the_ttl() -> None:
    for _, row, transition in transitions(State.DEAD, EventKind.REDRIVE):
        new = transition.row
        assert new is not None
        assert (new.state, new.attempt, new.deliver_after_ms) == (State.READY, 0, NOW)
        assert new.expires_at_ms == (None if row.ttl_ms is None else NOW + row.ttl_ms)


def with_ttl(row: Row, event: Event) -> Row:
    """Return a moved row with the TTL of its event, if it has one."""
    if event.ttl_remaining_ms is not None:
        row.expires_at_ms = min(NOW + event.ttl_remaining_ms, TIME_MS_MAX)
        row.due_ms = expected_due_ms(row, NOW)
    return row


def test_moved_item_is_a_new_one_that_was_never_delivered_and_keeps_all_else() -> None:
    for state in (State.READY, State.DEFERRED):
        for event, row, transition in transitions(state, EventKind.MOVE):
            is_expired = row.expires_at_ms is not None and row.expires_at_ms <= NOW
            if is_expired or event.topic == row.topic:
                assert transition.effect is Effect.UNCHANGED
            else:
                new = replace(row, topic="other", token=0, attempt=0, first_delivered_at_ms=None)
                if state is State.DEFERRED and row.deliver_after_ms <= NOW:
                    new = replace(new, state=State.READY, due_ms=row.expires_at_ms)
                assert transition == Transition(Effect.MOVED, with_ttl(new, event))


def test_moved_dead_item_is_ready_with_a_new_ttl_as_after_a_redrive() -> None:
    for event, row, transition in transitions(State.DEAD, EventKind.MOVE):
        redriven = apply_event(Event(EventKind.REDRIVE, row.id, "n"), row, CONTEXT).row
        assert redriven is not None
        if event.topic == "other":
            new = replace(redriven, topic="other", token=0, first_delivered_at_ms=None)
            assert transition == Transition(Effect.MOVED, with_ttl(new, event))
        else:
            assert transition.error is not None and transition.error.field == "topic"


@pytest.mark.parametrize("group", [b"g", None])
@pytest.mark.parametrize("topic", ["other", "unlimited"])
def test_item_with_a_group_that_is_moved_to_a_topic_with_a_limit_is_the_last_one_there(
    group: bytes | None, topic: str
) -> None:
    context = replace(CONTEXT, limited_topics={("n", "other"), ("n", BASE.topic)})
    is_last = (group, topic) == (b"g", "other")
    for state in (State.READY, State.DEFERRED, State.DEAD):
        for row in rows(state):
            event = Event(EventKind.MOVE, row.id, "n", topic=topic)
            moved = apply_event(event, replace(row, item_group=group), context).row
            numbered = apply_event(replace(event, accepted_ms=NOW + 9), replace(row, item_group=group), context).row
            if moved is not None and is_last and moved.state is State.READY:
                moved.deliver_after_ms = NOW + 9
            assert numbered == moved, "one that is DEFERRED comes when it is due"


@pytest.mark.parametrize("ttl_remaining_ms", [None, 60_000])
def test_item_that_backs_off_in_a_strict_group_is_moved_to_the_place_of_the_end_of_its_backoff(
    ttl_remaining_ms: int | None,
) -> None:
    """The place of its first delivery was before items that the other topic has got since."""
    strict = replace(CONTEXT, strict_topics={("n", BASE.topic)})
    leased = replace(BASE, state=State.LEASED, item_group=b"g", deliver_after_ms=NOW - 900, due_ms=NOW + 10)
    nacked = apply_event(Event(EventKind.NACK, BASE.id, "n", token=OLD, delay_ms=700), leased, strict).row
    assert nacked is not None and nacked.deliver_after_ms == NOW - 900
    move = Event(EventKind.MOVE, BASE.id, "n", topic="other", ttl_remaining_ms=ttl_remaining_ms)
    moved = apply_event(move, nacked, strict).row
    assert moved is not None
    assert (moved.state, moved.deliver_after_ms, moved.due_ms) == (State.DEFERRED, NOW + 700, NOW + 700)


def test_leased_item_is_not_moved() -> None:
    for _, _, transition in transitions(State.LEASED, EventKind.MOVE):
        assert transition.error is not None and transition.error.number is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("first_ms", [None, NOW - 70])
def test_only_the_first_lease_sets_the_time_of_the_first_delivery(first_ms: int | None) -> None:
    context = replace(CONTEXT, now_ms=NOW + 1)
    for state, kind in TABLE:
        if kind is EventKind.MOVE:
            continue
        for row in rows(state):
            before = replace(row, first_delivered_at_ms=first_ms, trace_context=b"trace")
            event = Event(kind, before.id, token=OLD, metadata=b"new", has_waiter=True)
            new = apply_event(event, before, context).row
            if new is None:
                continue
            is_first = first_ms is None and new.state is State.LEASED and new.token == NEW
            assert new.first_delivered_at_ms == (NOW + 1 if is_first else first_ms)
            assert new.trace_context == b"trace"


def test_an_update_moves_the_time_of_an_item_that_is_not_leased_but_never_beyond_its_ttl() -> None:
    for state in (State.READY, State.DEFERRED):
        for event, row, transition in transitions(state, EventKind.UPDATE):
            expired = row.expires_at_ms is not None and row.expires_at_ms <= NOW
            if expired:
                assert transition.error is not None and transition.error.number is ErrorCode.NOT_FOUND
            elif has_time(event):
                requested_ms = NOW + event.delay_ms if event.delay_ms is not None else event.deliver_after_ms
                assert requested_ms is not None
                after = min(max(requested_ms, NOW), TIME_MS_MAX)
                if row.expires_at_ms is not None and after >= row.expires_at_ms:
                    assert transition.error is not None and transition.error.number is ErrorCode.INVALID_ARGUMENT
                    field = "change.delay_ms" if event.delay_ms is not None else "change.deliver_after_ms"
                    assert transition.error.field == field
                    continue
                new = transition.row
                assert new is not None
                assert new.state is (State.DEFERRED if after > NOW else State.READY)
                is_kept = state is State.READY and after <= NOW
                assert new.deliver_after_ms == (row.deliver_after_ms if is_kept else after)


def test_an_update_cannot_set_the_time_of_a_leased_or_dead_item() -> None:
    for state in (State.LEASED, State.DEAD):
        for event, _, transition in transitions(state, EventKind.UPDATE):
            assert (transition.error is not None) == has_time(event)
            if transition.error is not None:
                assert transition.error.number is ErrorCode.INVALID_ARGUMENT
                assert transition.error.field in ("change.delay_ms", "change.deliver_after_ms")


def test_a_nack_without_a_time_backs_off() -> None:
    row = replace(BASE, state=State.LEASED, due_ms=NOW + 5)
    for attempt, jitter in ((1, 0.0), (2, 0.5), (9, 0.999)):
        transition = apply_event(
            Event(EventKind.NACK, 7, "n", token=OLD, jitter=jitter), replace(row, attempt=attempt), CONTEXT
        )
        assert transition.row is not None
        assert transition.row.deliver_after_ms == NOW + backoff_ms(POLICY, attempt, jitter)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.integers(0, 10_000), st.integers(0, 100_000))
def test_backoff_lies_between_half_of_its_ceiling_and_all_of_it(
    attempt: int, jitter: float, least_ms: int, more_ms: int
) -> None:
    policy = RetryPolicy(
        backoff_ms_min=least_ms, backoff_ms_max=least_ms + more_ms, dead_retention_ms=1, key_window_ms=1
    )
    ceiling = min(policy.backoff_ms_max, least_ms * 2 ** min(attempt - 1, 40))
    assert ceiling / 2 <= backoff_ms(policy, attempt, jitter) <= ceiling


def test_backoff_doubles_until_it_is_capped() -> None:
    waits = [backoff_ms(POLICY, attempt, 0.0) for attempt in range(1, 8)]
    assert waits == [100, 200, 400, 800, 1_000, 1_000, 1_000]
    assert all(shorter <= longer for shorter, longer in pairwise(waits))


NEW_ITEM = NewItem(
    namespace="n",
    topic="t",
    priority=3,
    payload=b"payload",
    metadata=b"meta",
    delay_ms=0,
    deliver_after_ms=None,
    lease_ms=30,
    ttl_ms=None,
    policy=DeliveryPolicy.AT_MOST_ONCE,
    attempts_max=4,
)


@given(
    st.none() | st.integers(0, 10**6) | st.just(TIME_MS_MAX),
    st.integers(0, TIME_MS_MAX),
    st.none() | st.integers(1, 10**6) | st.just(TIME_MS_MAX),
    st.integers(NOW - 1_000, NOW + 100),
)
def test_a_new_item_is_ready_or_deferred_with_its_times_counted_from_now(
    delay_ms: int | None, after_ms: int, ttl_ms: int | None, accepted_ms: int
) -> None:
    after = after_ms if delay_ms is None else None
    row = new_row(replace(NEW_ITEM, delay_ms=delay_ms, deliver_after_ms=after, ttl_ms=ttl_ms), 9, accepted_ms, NOW)
    requested_ms = after_ms if delay_ms is None else NOW + delay_ms
    if requested_ms > NOW:
        assert (row.state, row.deliver_after_ms) == (State.DEFERRED, min(requested_ms, TIME_MS_MAX))
    else:  # the arrival clock may be ahead of the shard clock
        assert row.state is State.READY
        assert row.deliver_after_ms == max(accepted_ms, 0 if delay_ms == 0 else requested_ms)
    assert row.expires_at_ms == (None if ttl_ms is None else min(NOW + ttl_ms, TIME_MS_MAX))
    assert row.due_ms == expected_due_ms(row, NOW)
    assert (row.token, row.attempt, row.enqueued_at_ms) == (0, 0, NOW)
    assert (row.id, row.payload, row.payload_bytes, row.metadata) == (9, b"payload", 7, b"meta")
    assert (row.priority, row.lease_ms, row.policy, row.attempts_max) == (3, 30, DeliveryPolicy.AT_MOST_ONCE, 4)


def test_picture_and_table_show_every_transition_that_changes_an_item() -> None:
    arrows = dict(re.findall(r"<title>(\w+ to \w+): (.*)</title>", diagram.picture()))
    table = diagram.table()
    for (state, kind), rule in TABLE.items():
        for guard, next_state in rule.outcomes:
            assert guard in table
            if next_state is not state:
                label = arrows[f"{state.name} to {'gone' if next_state is None else next_state.name}"]
                assert (f"{kind.value} ({guard})" if guard else kind.value) in label
    assert table.count("| **") == len(EventKind)


def test_arrow_without_a_position_in_the_diagram_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(diagram.ARROWS, ("DEAD", "READY"))
    with pytest.raises(diagram.Failed, match="differ about DEAD to READY"):
        diagram.picture()


def test_picture_and_table_are_written_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "ARCHITECTURE.md", tmp_path / "docs" / "life.svg"
    files = ["--file", str(file), "--picture", str(picture)]
    assert diagram.main(files) == 1
    assert "there is no ARCHITECTURE.md" in capsys.readouterr().err
    file.write_text("before\n")
    assert diagram.main(files) == 1
    file.write_text(f"before\n{diagram.BEGIN}\nold\n{diagram.END}\nafter\n")
    assert diagram.main([*files, "--check"]) == 1
    assert "old" in file.read_text()
    assert diagram.main(files) == 0
    assert diagram.main([*files, "--check"]) == 0
    drawn = file.read_text()
    assert drawn.startswith(f"before\n{diagram.BEGIN}\n![")
    assert f"(docs/life.svg)\n\n{diagram.table()}\n{diagram.END}\nafter\n" in drawn
    picture.write_text("old")
    assert diagram.main([*files, "--check"]) == 1
