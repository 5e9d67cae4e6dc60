"""A flush decides as the transition table does, entry by entry."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.completions import CompletionEntry, Completions, NewNumbers
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.moves import Moves
from foqs.core.flush.operation import ALREADY_GONE, Acks, Dues, Events, Inserts, Leases
from foqs.core.flush.planning import chain_finders, entry_result, plan_flush
from foqs.core.flush.purge_markers import DeletePurgedRows, PurgeMarker, PurgeMarkers
from foqs.core.flush.replay_lookup import ReplayLookup
from foqs.core.items.idempotency_keys import (
    IdempotencyKey,
    KeyName,
    completed_item_key,
    completion_key,
    move_digest,
    move_key,
)
from foqs.core.items.item import DeliveryPolicy, KeyedItem, NewItem, Row, State
from foqs.core.items.life import Effect, Event, EventKind, FlushContext, RetryPolicy, Transition
from foqs.core.timing.due_timers import DueTimers, TimerEntry, timer_entry
from foqs_contract.errors import InvalidArgument, KeyConflict, KeyEnded, RateLimited, StaleLease
from tests.support.plain_flush import (
    is_same_result,
    keys_after,
    keys_of,
    make_item,
    make_keyed_item,
    make_row,
    plain_flush,
    table_after,
)
from tests.support.plain_intake import Caller, whole

NOW = 1_000_000
TOKEN = 42
KEY_WINDOW_MS = 700
TOPIC_KEY_WINDOW_MS = 300
POLICIES = {
    "n": RetryPolicy(100, 1_000, dead_retention_ms=5_000, key_window_ms=KEY_WINDOW_MS),
    "m": RetryPolicy(
        100,
        1_000,
        dead_retention_ms=5_000,
        key_window_ms=KEY_WINDOW_MS,
        topic_key_windows_ms={"t": TOPIC_KEY_WINDOW_MS},
    ),
}
CONTEXT = FlushContext(NOW, NOW, TOKEN, POLICIES)
IDS = range(1, 21)
FIRST_NEW = 100


def timers(watermark_ms: int | None = None) -> DueTimers:
    new = DueTimers(5_000)
    if watermark_ms is not None:
        new.on_scan_completed(watermark_ms, watermark_ms + 5_000)
    return new


def decide(batch: Batch, rows: list[Row], watermark_ms: int | None = None) -> FlushPlan:
    return plan_flush(batch, {row.id: row for row in rows}.get, CONTEXT, timers(watermark_ms))


def batch_of(*operations: Any) -> Batch:
    batch = Batch()
    for operation in operations:
        batch.add([Part(operation, 0, len(operation))])
    return batch


# ------------------------------------------------------------ against the table

moments = st.sampled_from([NOW - 5_000, NOW - 1, NOW, NOW + 1, NOW + 5_000])


@st.composite
def a_table(draw: st.DrawFn) -> dict[int, Row]:
    table = {}
    for number in draw(st.sets(st.sampled_from(IDS), max_size=15)):
        expires_at_ms = draw(st.none() | moments)
        state = draw(st.sampled_from(State))
        table[number] = make_row(
            number,
            namespace=draw(st.sampled_from("nm")),
            topic=draw(st.sampled_from("tu")),
            state=state,
            deliver_after_ms=draw(moments),
            due_ms=draw(moments if state is State.LEASED else st.none() | moments),  # a lease has an end
            ttl_ms=None if expires_at_ms is None else 700,
            expires_at_ms=expires_at_ms,
            lease_ms=draw(st.sampled_from([500, 900])),
            policy=draw(st.sampled_from(DeliveryPolicy)),
            attempts_max=draw(st.sampled_from([0, 1, 3])),
            attempt=draw(st.integers(1, 3)),
            token=draw(st.sampled_from([0, 5, 6, -5])),
            trace_context=draw(st.sampled_from([None, b"trace"])),
            first_delivered_at_ms=draw(st.sampled_from([None, NOW - 5_000, NOW])),
        )
    return table


@st.composite
def an_event(draw: st.DrawFn, kind: EventKind, number: int, namespace: str) -> Event:
    return Event(
        kind,
        number,
        draw(st.sampled_from([namespace, None])),
        token=draw(st.sampled_from([0, 5, 6])),
        delay_ms=draw(st.sampled_from([None, 0, 300])),
        deliver_after_ms=draw(st.none() | moments),
        jitter=0.5,
        metadata=draw(st.sampled_from([None, b"new"])),
        dead=draw(st.booleans()),
        lease_ms=draw(st.sampled_from([None, 50])),
    )


@st.composite
def a_new_item(draw: st.DrawFn, namespace: str) -> NewItem:
    at_ms = draw(st.none() | moments)
    return make_item(
        namespace=namespace,
        topic=draw(st.sampled_from("tu")),
        delay_ms=None if at_ms is not None else draw(st.sampled_from([0, 300])),
        deliver_after_ms=at_ms,
        ttl_ms=draw(st.sampled_from([None, 1, 700])),
        lease_ms=draw(st.sampled_from([500, 900])),
        trace_context=draw(st.sampled_from([None, b"trace"])),
    )


some_keys = st.sampled_from([b"j", b"k", b"l"])
distinct_keys = st.lists(some_keys, min_size=1, max_size=3, unique=True)
some_key_ends = st.none() | moments | st.sampled_from([NOW + KEY_WINDOW_MS, NOW + KEY_WINDOW_MS + 1])
some_digests = st.sampled_from([b"one", b"two"])
some_move_keys = st.sampled_from(IDS).map(move_key)
some_completion_keys = st.sampled_from(IDS).map(completion_key) | st.sampled_from(IDS).map(
    lambda number: completed_item_key(number, 0)
)
some_move_digests = st.sampled_from("tv").map(lambda topic: move_digest(topic, b""))


@st.composite
def some_key_rows(draw: st.DrawFn) -> dict[KeyName, IdempotencyKey]:
    rows: dict[KeyName, IdempotencyKey] = {}
    for name in draw(
        st.sets(st.tuples(st.sampled_from("nm"), some_keys | some_move_keys | some_completion_keys), max_size=6)
    ):
        rows[name] = IdempotencyKey(*name, 50 + len(rows), draw(some_digests | some_move_digests), draw(moments))
    return rows


@st.composite
def a_completion(draw: st.DrawFn, number: int, namespace: str) -> CompletionEntry:
    items: list[NewItem] = draw(st.lists(a_new_item(namespace), min_size=1, max_size=3))
    for place, key in enumerate(draw(st.lists(some_keys, max_size=len(items), unique=True))):
        items[place] = KeyedItem(
            **asdict(items[place]),
            idempotency_key=key,
            digest=draw(some_digests),
            key_until_ms=draw(some_key_ends),
        )
    return CompletionEntry(number, draw(st.sampled_from([0, 5, 6])), items, draw(some_digests))


@st.composite
def a_batch(draw: st.DrawFn) -> Batch:
    """Draw parts of operations, each number once. Some operations have more entries than their parts."""
    batch = Batch()
    numbers = draw(st.permutations(IDS))
    while numbers:
        count = draw(st.integers(1, 6))
        chosen, numbers = numbers[:count], numbers[count:]
        namespace = draw(st.sampled_from("nm"))
        kind = draw(st.sampled_from(EventKind))
        operation: Acks | Completions | Events | Leases | Moves
        if kind is EventKind.ACK and draw(st.booleans()):
            operation = Acks(namespace, chosen, [draw(st.sampled_from([0, 5, 6])) for _ in chosen], None)
        elif kind is EventKind.ACK:
            operation = Completions(namespace, [draw(a_completion(number, namespace)) for number in chosen], 0, None)
            operation.number(0, len(chosen), 100 * FIRST_NEW + chosen[0] * 100)
        elif kind is EventKind.DELIVER and draw(st.booleans()):
            spans = [((namespace, "t"), keys_of(chosen[:2])), ((namespace, "u"), keys_of(chosen[2:]))]
            operation = Leases(namespace, spans, draw(st.sampled_from([None, 50])), 0, None)
        elif kind is EventKind.MOVE:
            events = [Event(kind, number, namespace, topic=draw(st.sampled_from("tv"))) for number in chosen]
            operation = Moves(namespace, events, 0, None)
            operation.number(0, len(events), 10 * FIRST_NEW + chosen[0] * 10, NOW)
        elif kind is EventKind.DUE and draw(st.booleans()):
            operation = Dues(chosen, {}, None)
        else:
            operation = Events(namespace, [draw(an_event(kind, number, namespace)) for number in chosen], None)
        start = draw(st.integers(0, len(operation) - 1))
        part = Part(operation, start, draw(st.integers(start + 1, len(operation))))
        batch.add([part])
        with_waiter = [number for number in part.numbers if isinstance(operation, Dues) and draw(st.booleans())]
        if with_waiter:
            spans = [((namespace, "t"), keys_of(with_waiter))]
            batch.direct_deliveries.append(whole(Leases(namespace, spans, draw(st.sampled_from([None, 50])), 0, None)))
    first = FIRST_NEW
    for namespace in draw(st.lists(st.sampled_from("nm"), max_size=4)):
        items: list[NewItem] = draw(st.lists(a_new_item(namespace), min_size=1, max_size=4))
        keyed, is_whole = draw(st.booleans()), draw(st.booleans())
        if keyed:
            names = draw(distinct_keys if is_whole else st.lists(some_keys, min_size=4, max_size=4))
            items = [
                KeyedItem(
                    **asdict(item), idempotency_key=name, digest=draw(some_digests), key_until_ms=draw(some_key_ends)
                )
                for item, name in zip(items, names, strict=False)
            ]
        inserts = Inserts(namespace, items, first, 0, None, has_idempotency_keys=keyed, is_whole=is_whole)
        inserted = a_part(draw, inserts)
        batch.add([inserted])
        first += len(items)
        with_waiter = [number for number in inserted.numbers if draw(st.booleans())]
        if with_waiter:
            spans = [((namespace, "t"), keys_of(with_waiter))]
            batch.direct_deliveries.append(whole(Leases(namespace, spans, draw(st.sampled_from([None, 50])), 0, None)))
    for namespace in draw(st.lists(st.sampled_from("nm"), max_size=2)):
        is_whole = draw(st.booleans())
        names = draw(distinct_keys if is_whole else st.lists(some_keys, min_size=1, max_size=3))
        refused = [make_keyed_item(name, draw(some_digests)) for name in names]
        lookup = ReplayLookup(namespace, refused, [RateLimited("x")] * len(refused), None, is_whole=is_whole)
        batch.add([a_part(draw, lookup)])
    return batch


def a_part(draw: st.DrawFn, operation: Inserts | ReplayLookup) -> Part[Any]:
    """Draw a part of an operation: all of it, if it is whole."""
    if operation.is_whole:
        return whole(operation)
    start = draw(st.integers(0, len(operation) - 1))
    return Part(operation, start, draw(st.integers(start + 1, len(operation))))


def _entries(table: dict[int, Row]) -> set[TimerEntry]:
    return {entry for entry in map(timer_entry, table.values()) if entry is not None}


@given(a_batch(), a_table(), some_key_rows(), st.sampled_from([None, NOW - 1_000, NOW + 40, NOW + 600, NOW + 10_000]))
def test_a_batch_is_decided_like_its_entries_one_by_one(
    batch: Batch, table: dict[int, Row], keys: dict[KeyName, IdempotencyKey], watermark_ms: int | None
) -> None:
    before = {number: replace(row) for number, row in table.items()}, dict(keys)
    plain = plain_flush(batch, table, keys, CONTEXT, watermark_ms)
    found = {
        name: keys[name] for name in (*batch.key_names(), *batch.lookup_key_names(lambda number: None)) if name in keys
    }
    plan = plan_flush(batch, table.get, CONTEXT, timers(watermark_ms), found)
    assert (table, keys) == before
    assert keys_after(plan, keys) == plain.keys

    parts = [*batch.direct_deliveries, *batch.acks, *batch.events, *batch.moves, *batch.completions]
    parts += [*batch.leases, *batch.inserts, *batch.replay_lookups]
    assert [part for part, _ in plan.results] == parts
    for (part, results), expected in zip(plan.results, plain.results, strict=True):
        assert len(results) == part.count
        assert all(map(is_same_result, results, expected))
    direct = [row for _, rows in plan.results[: len(batch.direct_deliveries)] for row in rows]
    assert plan.direct_count == sum(isinstance(row, Row) for row in direct)
    assert table_after(plan, table) == plain.table
    writes = plan.writes()
    assert _entries(table).difference(writes.timers_removed).union(writes.timers_added) == _entries(plain.table)
    assert not set(writes.timers_added) & set(writes.timers_removed)
    ends = plan.lease_ends()
    for row in plain.table.values():
        if row.state is State.LEASED and row != table.get(row.id):
            assert row.due_ms is not None
            assert row.id in ends[row.due_ms]

    deleted = [row for rows in plan.deleted.values() for row in rows]
    old_rows, new_rows = plan.leased
    touched = [*deleted, *[old for _, old, _ in plan.changed], *[old for old, _ in plan.moved], *old_rows]
    assert all(row is table[row.id] for row in touched)
    assert [row.id for row in new_rows] == [row.id for row in old_rows]
    assert sorted(number for ids in plan.leases.values() for number in ids) == sorted(row.id for row in old_rows)
    assert all(plain.table[row.id] == row for row in new_rows)
    added = [*plan.inserted, *[new for _, new in plan.moved]]
    written = [row.id for row in (*touched, *added)]
    assert len(written) == len(set(written))
    kinds = {event.id: event.kind for part in batch.events for event in part.operation.events}
    for kind, rows in plan.deleted.items():
        assert all(kinds.get(row.id, kind) is kind for row in rows)
    assert all(kinds[old.id] is kind for kind, old, _ in plan.changed)
    assert {(namespace, topic) for namespace, topics in plan.topics.items() for topic in topics} == {
        (row.namespace, row.topic) for row in added
    }


@given(a_batch(), a_table())
def test_a_batch_that_is_decided_again_has_the_same_outcome(batch: Batch, table: dict[int, Row]) -> None:
    first = plan_flush(batch, table.get, CONTEXT, timers(NOW + 600))
    again = plan_flush(batch, table.get, CONTEXT, timers(NOW + 600))
    assert table_after(first, table) == table_after(again, table)
    assert [results for _, results in first.results[: len(batch.direct_deliveries)]] == [
        results for _, results in again.results[: len(batch.direct_deliveries)]
    ]


# ------------------------------------------------------------------- rule by rule


def test_acks_delete_only_rows_of_their_token_and_namespace() -> None:
    rows = [
        make_row(1, state=State.LEASED, token=5, due_ms=NOW + 7),
        make_row(2, state=State.LEASED, token=6),
        make_row(3, state=State.READY, token=5, due_ms=NOW + 9),
        make_row(4, state=State.LEASED, token=5, namespace="m"),
        make_row(5, token=0),
        make_row(7, state=State.READY, token=-5),  # released
    ]
    operation = Acks("n", [1, 2, 3, 4, 5, 6, 7], [5, 5, 5, 5, 0, 5, 5], None)
    plan = decide(batch_of(operation), rows)
    assert [row.id for row in plan.deleted[EventKind.ACK]] == [1, 3, 7]
    assert plan.timers_removed == [(NOW + 9, 3)], "leases have no timers"
    ((_, results),) = plan.results
    assert results[0] is None
    assert results[2] is None
    assert results[5] is ALREADY_GONE
    assert [type(results[i]).__name__ for i in (1, 3, 4)] == ["StaleLease", "NotFound", "StaleLease"]


def test_a_delivery_leases_ready_rows_with_the_token_of_the_flush_and_the_items_lease_times() -> None:
    rows = [
        make_row(1),
        make_row(2, lease_ms=900, attempt=2),
        make_row(3, state=State.DEFERRED),
        make_row(4, expires_at_ms=NOW),
    ]
    rows += [make_row(5), make_row(6, lease_ms=900, attempt=2)]
    plan = decide(batch_of(Caller().delivery(1, 2, 3, 4, 5, 6, 7)), rows)
    ((_, results),) = plan.results
    assert [row and (row.id, row.state, row.due_ms, row.token, row.attempt) for row in results] == [
        (1, State.LEASED, NOW + 500, TOKEN, 1),
        (2, State.LEASED, NOW + 900, TOKEN, 3),
        None,
        None,
        (5, State.LEASED, NOW + 500, TOKEN, 1),
        (6, State.LEASED, NOW + 900, TOKEN, 3),
        None,
    ]
    assert plan.leases == {(NOW + 500, TOKEN, 1, NOW): [1, 5], (NOW + 900, TOKEN, 3, NOW): [2, 6]}
    assert [row.id for row in plan.deleted[EventKind.DELIVER]] == [4]


def test_equal_leases_of_several_deliveries_are_one_group() -> None:
    caller = Caller()
    plan = decide(batch_of(caller.delivery(1, 2), caller.delivery(3)), [make_row(n) for n in (1, 2, 3)])
    assert plan.leases == {(NOW + 500, TOKEN, 1, NOW): [1, 2, 3]}


def test_leases_of_items_that_were_delivered_before_are_a_group_of_their_own() -> None:
    rows = [make_row(1), make_row(2, first_delivered_at_ms=NOW - 9), make_row(3)]
    plan = decide(batch_of(Caller().delivery(1, 2, 3)), rows)
    assert plan.leases == {(NOW + 500, TOKEN, 1, NOW): [1, 3], (NOW + 500, TOKEN, 1, None): [2]}
    assert [row.first_delivered_at_ms for row in plan.leased[1]] == [NOW, NOW - 9, NOW]
    assert [lease.first_delivered_at_ms for lease in plan.writes().leases] == [NOW, None]


def test_lease_time_of_the_caller_overrides_that_of_the_item() -> None:
    operation = Leases("n", [(("n", "t"), keys_of([1, 2]))], 50, 0, None)
    plan = decide(batch_of(operation), [make_row(1), make_row(2, lease_ms=900)])
    assert plan.leases == {(NOW + 50, TOKEN, 1, NOW): [1, 2]}


def test_entries_without_their_row_are_deleted_by_the_scan_that_finds_them() -> None:
    rows = [
        make_row(1, state=State.DEFERRED, deliver_after_ms=NOW - 5, due_ms=NOW - 5),
        make_row(2, state=State.DEFERRED, deliver_after_ms=NOW + 50, due_ms=NOW + 50),
        make_row(3, state=State.LEASED, due_ms=NOW - 3),
        make_row(4),
    ]
    dues = [NOW - 5, NOW - 4, NOW - 3, NOW - 2, NOW - 1]
    operation = Dues([1, 2, 3, 4, 5], {}, None, dues)
    assert decide(Batch([Part(operation, 0, 5)]), rows).writes().timers_removed == [
        *zip(dues, range(1, 6), strict=True)
    ]
    part = decide(Batch([Part(operation, 3, 5)]), rows).writes()
    assert (part.timers_removed, part.timers_added) == ([(NOW - 2, 4), (NOW - 1, 5)], [])


def test_purged_rows_lose_their_entries() -> None:
    rows = [make_row(1, due_ms=NOW + 9), make_row(2), make_row(3, state=State.LEASED, due_ms=NOW + 9)]
    writes = decide(Batch([Part(DeletePurgedRows(rows, None), 0, 3)]), []).writes()
    assert (writes.deletes, writes.timers_removed) == ([1, 2, 3], [(NOW + 9, 1)])


def test_item_that_follows_and_is_covered_by_a_purge_is_not_inserted() -> None:
    items = [make_item(topic="u"), make_item(topic="v"), make_item(topic="u")]
    operation = Completions("n", [CompletionEntry(1, 5, items, b"digest")], 0, None)
    operation.number(0, 1, FIRST_NEW)
    markers = PurgeMarkers([PurgeMarker("n", "u", FIRST_NEW + 1)])
    rows = {1: make_row(1, state=State.LEASED, token=5)}
    plan = plan_flush(batch_of(operation), rows.get, CONTEXT, timers(), purge_markers=markers)
    assert plan.results[0][1] == [NewNumbers([FIRST_NEW + 1, FIRST_NEW + 2, FIRST_NEW + 3], False)]
    assert [(row.id, row.topic) for row in plan.inserted] == [(FIRST_NEW + 2, "v"), (FIRST_NEW + 3, "u")]
    assert plan.deleted_numbers() == [1]
    assert [key.key for key in plan.keys.records_added()] == [completion_key(1)]
    raised = PurgeMarkers([PurgeMarker("n", "u", FIRST_NEW + 3), PurgeMarker("n", "v", FIRST_NEW + 3)])
    covered = plan_flush(batch_of(operation), rows.get, CONTEXT, timers(), purge_markers=raised)
    assert (covered.inserted, covered.topics) == ([], {"n": set()})


def test_no_due_is_written_below_the_watermark() -> None:
    watermark_ms = NOW + 10_000
    caller = Caller()
    inserts = Inserts("n", [make_item(delay_ms=10), make_item(ttl_ms=10), make_item(), make_item()], FIRST_NEW, 0, None)
    batch = batch_of(caller.delivery(1), caller.events(EventKind.NACK, 2), inserts)
    batch.direct_deliveries = [whole(Leases("n", [(("n", "t"), keys_of([FIRST_NEW + 3]))], None, 0, None))]
    plan = decide(batch, [make_row(1), make_row(2, state=State.LEASED)], watermark_ms)
    assert list(plan.leases) == [(watermark_ms, TOKEN, 1, NOW)]
    assert [row.due_ms for row in plan.leased[1]] == [watermark_ms]
    assert [(new.due_ms, new.deliver_after_ms) for _, _, new in plan.changed] == [(watermark_ms, NOW + 100)]
    assert [row.due_ms for row in plan.inserted] == [watermark_ms, watermark_ms, None, watermark_ms]
    assert plan.inserted[0].deliver_after_ms == NOW + 10


def test_a_new_item_that_is_delivered_directly_is_inserted_leased() -> None:
    inserts = Inserts("n", [make_item(), make_item(delay_ms=10), make_item()], FIRST_NEW, 0, None)
    batch = batch_of(inserts)
    batch.direct_deliveries = [whole(Leases("n", [(("n", "t"), keys_of([FIRST_NEW + 1, FIRST_NEW + 2]))], 50, 0, None))]
    plan = decide(batch, [])
    assert [(row.state, row.token, row.attempt, row.due_ms) for row in plan.inserted] == [
        (State.READY, 0, 0, None),
        (State.DEFERRED, 0, 0, NOW + 10),
        (State.LEASED, TOKEN, 1, NOW + 50),
    ]
    assert plan.results[0][1] == [None, plan.inserted[2]]
    assert plan.direct_count == 1
    assert (plan.leases, plan.leased) == ({}, ([], []))


def test_callers_of_direct_deliveries_wait_for_the_memory_if_other_items_become_ready() -> None:
    def can_notify_first(*others: Any) -> bool:
        batch = batch_of(Inserts("n", [make_item()], FIRST_NEW, 0, None), *others)
        batch.direct_deliveries = [whole(Leases("n", [(("n", "t"), keys_of([FIRST_NEW]))], 50, 0, None))]
        return decide(
            batch, [make_row(1, topic="u"), make_row(2, topic="u", state=State.LEASED)]
        ).can_notify_before_apply

    def move(number: int) -> Moves:
        return Moves("n", [Event(EventKind.MOVE, number, "n", topic="t")], 0, None)

    assert can_notify_first()
    assert can_notify_first(move(2)), "a leased item is not moved"
    assert not can_notify_first(move(1))
    assert not can_notify_first(Inserts("n", [make_item()], FIRST_NEW + 1, 0, None))


def test_due_items_with_a_waiter_are_leased_directly_and_items_that_are_not_due_are_not() -> None:
    due = {"state": State.DEFERRED, "due_ms": NOW, "deliver_after_ms": NOW}
    rows = [make_row(1, **due), make_row(2, **due), make_row(3, **due | {"deliver_after_ms": NOW + 1})]
    rows += [make_row(4, **due, expires_at_ms=NOW), make_row(5, state=State.LEASED, due_ms=NOW, token=7, attempt=2)]
    batch = batch_of(Dues([1, 2, 3, 4, 5, 6], {}, None))
    batch.direct_deliveries = [whole(Leases("n", [(("n", "t"), keys_of([1, 3, 4, 5, 6]))], 50, 0, None))]
    plan = decide(batch, rows)
    ((first, *nothing),) = [[row and (row.id, row.token, row.attempt, row.due_ms) for row in plan.results[0][1]]]
    assert first == (1, TOKEN, 1, NOW + 50)
    assert nothing == [None, None, (5, TOKEN, 3, NOW + 50), None]
    assert [(kind, new.id, new.state) for kind, _, new in plan.changed] == [
        (EventKind.DUE, 1, State.LEASED),
        (EventKind.DUE, 2, State.READY),
        (EventKind.DUE, 5, State.LEASED),
    ]
    assert [row.id for row in plan.deleted[EventKind.DUE]] == [4]


def test_a_batch_uses_only_the_rows_of_its_own_dues() -> None:
    due = {"state": State.LEASED, "due_ms": NOW, "token": 7, "attempt": 1}
    rows = {number: make_row(number, **due) for number in (1, 2)}
    operation = Dues([1, 2, 3], rows, None)
    assert [*map(dict, Batch([Part(operation, 0, 3)]).due_rows())] == [rows]
    second = Batch([Part(operation, 1, 3)])
    assert [*map(dict, second.due_rows())] == [{2: rows[2]}]
    assert chain_finders(*second.due_rows())(1) is None


def keyed(*items: KeyedItem, first: int = FIRST_NEW, namespace: str = "n") -> Inserts:
    return Inserts(namespace, items, first, 0, None, has_idempotency_keys=True)


def test_new_keys_get_records_with_the_numbers_and_digests_of_their_items() -> None:
    operations = keyed(make_keyed_item(b"a"), make_keyed_item(b"b", b"two")), keyed(make_keyed_item(b"c"), first=200)
    plan = decide(batch_of(*operations), [])
    until_ms = NOW + POLICIES["n"].key_window_ms
    assert plan.keys.added["n"] == {
        b"a": IdempotencyKey("n", b"a", FIRST_NEW, b"one", until_ms),
        b"b": IdempotencyKey("n", b"b", FIRST_NEW + 1, b"two", until_ms),
        b"c": IdempotencyKey("n", b"c", 200, b"one", until_ms),
    }
    assert [results for _, results in plan.results] == [[None, None], [None]]
    assert [row.id for row in plan.inserted] == [FIRST_NEW, FIRST_NEW + 1, 200]


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("is_read", [False, True])
def test_keys_of_a_topic_with_a_window_of_its_own_are_remembered_for_that(is_whole: bool, is_read: bool) -> None:
    items = [make_keyed_item(b"own", namespace="m", topic="t"), make_keyed_item(b"other", namespace="m", topic="u")]
    operation = Inserts("m", items, FIRST_NEW, 0, None, has_idempotency_keys=True, is_whole=is_whole)
    ended = {("m", b"own"): IdempotencyKey("m", b"own", 7, b"one", NOW)} if is_read else {}
    plan = plan_flush(batch_of(operation), chain_finders({}), CONTEXT, timers(), ended)
    records = {**plan.keys.added.get("m", {}), **plan.keys.replaced.get("m", {})}
    untils = {key: record.until_ms - NOW for key, record in records.items()}
    assert untils == {b"own": TOPIC_KEY_WINDOW_MS, b"other": KEY_WINDOW_MS}


@pytest.mark.parametrize("is_whole", [False, True])
def test_key_with_an_end_is_remembered_until_then_also_in_a_topic_with_a_shorter_window(is_whole: bool) -> None:
    ends = {b"early": TOPIC_KEY_WINDOW_MS - 1, b"late": KEY_WINDOW_MS}
    items = [make_keyed_item(key, key_until_ms=NOW + end, namespace="m", topic="t") for key, end in ends.items()]
    operation = Inserts("m", items, FIRST_NEW, 0, None, has_idempotency_keys=True, is_whole=is_whole)
    plan = plan_flush(batch_of(operation), chain_finders({}), CONTEXT, timers(), {})
    untils = {key: record.until_ms - NOW for key, record in plan.keys.added["m"].items()}
    assert untils == {b"early": TOPIC_KEY_WINDOW_MS, b"late": KEY_WINDOW_MS}


def test_the_first_of_equal_keys_in_a_flush_wins_and_the_others_get_its_number() -> None:
    item = make_keyed_item(b"k", topic="won")
    operations = keyed(item, item, make_keyed_item(b"k", b"two", topic="lost")), keyed(make_keyed_item(b"k"), first=200)
    plan = decide(batch_of(*operations, keyed(make_keyed_item(b"k", namespace="m"), first=300, namespace="m")), [])
    (_, first), (_, second), (_, other) = plan.results
    assert first[:2] == [None, FIRST_NEW]
    assert isinstance(first[2], KeyConflict)
    assert second == [FIRST_NEW]
    assert other == [None]
    assert [row.id for row in plan.inserted] == [FIRST_NEW, 300]
    assert plan.topics == {"n": {"won"}, "m": {"t"}}


def test_a_key_record_counts_until_its_time() -> None:
    found = {
        ("n", key): IdempotencyKey("n", key, 7, b"one", until_ms)
        for key, until_ms in ((b"in", NOW + 1), (b"over", NOW))
    }
    operation = keyed(
        make_keyed_item(b"in"), make_keyed_item(b"over"), make_keyed_item(b"new"), make_keyed_item(b"over", b"two")
    )
    plan = plan_flush(batch_of(operation), chain_finders({}), CONTEXT, timers(), found)
    ((_, results),) = plan.results
    assert results[:3] == [7, None, None]
    assert isinstance(results[3], KeyConflict)
    assert (list(plan.keys.added["n"]), list(plan.keys.replaced["n"])) == ([b"new"], [b"over"])
    assert plan.keys.replaced["n"][b"over"].item_id == FIRST_NEW + 1


def test_a_new_key_with_an_end_is_written_only_before_it_and_a_remembered_one_is_a_repeat_after_it() -> None:
    ends = {b"over": NOW, b"next": NOW + 1, b"last": NOW + KEY_WINDOW_MS, b"late": NOW + KEY_WINDOW_MS + 1}
    found = {("n", b"known"): IdempotencyKey("n", b"known", 7, b"one", NOW + 1)}
    operation = keyed(
        make_keyed_item(b"known", key_until_ms=NOW - 1),
        *(make_keyed_item(key, key_until_ms=end_ms) for key, end_ms in ends.items()),
    )
    batch = batch_of(operation)

    assert batch.lookup_key_names(lambda number: None) == [("n", key) for key in (b"known", *ends)]
    plan = plan_flush(batch, chain_finders({}), CONTEXT, timers(), found)
    [(_, (known, over, *written, late))] = plan.results
    assert (known, written) == (7, [None, None])
    assert isinstance(over, KeyEnded)
    assert isinstance(late, InvalidArgument)
    assert late.field == "key_until_ms"
    assert list(plan.keys.added["n"]) == [b"next", b"last"]


def test_keys_without_ends_are_not_read() -> None:
    assert batch_of(keyed(make_keyed_item(b"k"))).lookup_key_names(lambda number: None) == []


def test_a_key_in_use_at_the_first_attempt_of_a_flush_stays_in_use_for_later_attempts() -> None:
    found = {("n", b"k"): IdempotencyKey("n", b"k", 7, b"one", NOW + 1)}
    late = replace(CONTEXT, now_ms=NOW + 1_000_000)
    plan = plan_flush(batch_of(keyed(make_keyed_item(b"k"))), chain_finders({}), late, timers(), found)
    assert [list(results) for _, results in plan.results] == [[7]]
    assert plan.inserted == []


def test_a_direct_delivery_of_a_repeat_gets_no_item() -> None:
    batch = batch_of(keyed(make_keyed_item(b"k"), make_keyed_item(b"k")))
    batch.direct_deliveries = [whole(Leases("n", [(("n", "t"), keys_of([FIRST_NEW, FIRST_NEW + 1]))], None, 0, None))]
    plan = decide(batch, [])
    assert plan.results[0][1] == [plan.inserted[0], None]


def test_a_part_of_a_work_is_decided_without_the_rest() -> None:
    inserts = Inserts("n", [make_item(topic="t"), make_item(topic="u"), make_item(topic="v")], FIRST_NEW, 0, None)
    acks = Acks("n", [1, 2, 3], [7, 8, 9], None)
    batch = Batch([Part(acks, 1, 3), Part(inserts, 1, 2)])
    plan = decide(batch, [make_row(n, state=State.LEASED, token=6 + n) for n in (1, 2, 3)])
    assert [(row.id, row.topic) for row in plan.inserted] == [(FIRST_NEW + 1, "u")]
    assert plan.topics == {"n": {"u"}}
    assert [row.id for row in plan.deleted[EventKind.ACK]] == [2, 3]


def test_topics_of_inserts_are_listed_once() -> None:
    caller = Caller()
    plan = decide(batch_of(caller.inserts(10, 1, 1), caller.inserts(20, 1), caller.inserts(30, 1, namespace="m")), [])
    assert plan.topics == {"n": {"t"}, "m": {"t"}}


def test_a_row_is_looked_up_in_one_source_after_the_other() -> None:
    first, second, third = make_row(1), make_row(2), make_row(1, topic="u")
    assert chain_finders({1: first})(1) is first
    find = chain_finders({1: first}, {1: third, 2: second}.get)
    assert (find(1), find(2), find(3)) == (first, second, None)


def test_the_result_of_an_entry_is_none_an_error_or_already_gone() -> None:
    error = StaleLease("x")
    assert entry_result(Transition(Effect.DELETED)) is None
    assert entry_result(Transition(Effect.UNCHANGED, already_gone=True)) is ALREADY_GONE
    assert entry_result(Transition(Effect.UNCHANGED, error=error)) is error


def test_old_rows_are_not_changed() -> None:
    ready, leased = make_row(1), make_row(2, state=State.LEASED)
    copies = replace(ready), replace(leased)
    caller = Caller()
    decide(batch_of(caller.delivery(1), caller.events(EventKind.RELEASE, 2)), [ready, leased], NOW + 10_000)
    assert (ready, leased) == copies
