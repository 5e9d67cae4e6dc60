"""Which items of a run follow when one ends early, and what the plan of a flush does with them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.operation import Acks, Dues, Events
from foqs.core.flush.planning import plan_flush
from foqs.core.flush.run_ends import RunEnds, find_run_ends
from foqs.core.groups.group import Group
from foqs.core.groups.places import line_place
from foqs.core.items.item import Row, State
from foqs.core.items.life import Event, EventKind, FlushContext, RetryPolicy
from foqs.core.timing.due_timers import DueTimers
from foqs_contract.errors import StaleLease
from tests.support.plain_flush import make_row

NOW = 1_000_000
TOKEN = 5
CONTEXT = FlushContext(NOW, NOW, 42, {"n": RetryPolicy(100, 1_000, 5_000, 700)})


def leased(number: int, **changes: Any) -> Row:
    values: dict[str, Any] = {"state": State.LEASED, "token": TOKEN, "attempt": 1, "due_ms": NOW + 500} | changes
    return make_row(number, item_group=b"group", **values)


def run_of(*rows: Row) -> dict[int, tuple[int, ...]]:
    """Return the runs of these rows as a topic knows them."""
    group = Group("group")
    for row in rows:
        placed = line_place(row, is_strict=True)
        assert placed is not None
        group.add(placed)
    return {number: run for run in group.leased_runs() for number in run}


def event(kind: EventKind, number: int, **changes: Any) -> Event:
    return Event(kind, number, "n", token=TOKEN, **changes)


def batch_of(*operations: Acks | Events) -> Batch:
    return Batch([Part(operation, 0, len(operation)) for operation in operations])


def find(batch: Batch, *rows: Row, busy: Collection[int] = ()) -> RunEnds:
    taken = {*batch.event_numbers, *busy}
    return find_run_ends(batch, [run_of(*rows)], lambda number: number not in taken)


def decide(batch: Batch, *rows: Row, busy: Collection[int] = ()) -> tuple[FlushPlan, dict[int, Row]]:
    """Return the plan of a batch, and the rows after it."""
    plan = plan_flush(
        batch, {row.id: row for row in rows}.get, CONTEXT, DueTimers(5_000), run_ends=find(batch, *rows, busy=busy)
    )
    table = {row.id: row for row in rows} | {new.id: new for _, _, new in plan.changed}
    for number in plan.deleted_numbers():
        del table[number]
    return plan, table


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        (event(EventKind.NACK, 2), True),
        (event(EventKind.RELEASE, 2), True),
        (event(EventKind.EXTEND, 2, lease_ms=0), True),
        (event(EventKind.NACK, 2, dead=True), False),
        (event(EventKind.EXTEND, 2, lease_ms=900), False),
        (event(EventKind.CANCEL, 2), False),
        (event(EventKind.UPDATE, 2, priority=3), False),
    ],
)
def test_items_behind_an_early_end_are_superseded_in_its_flush(given: Event, ends: bool) -> None:
    rows = [leased(number) for number in (1, 2, 3, 4)]
    plan, table = decide(batch_of(Events("n", [given], None)), *rows)
    assert table[1] == rows[0]
    for row in rows[2:]:
        new = table[row.id]
        assert (new.state, new.token, new.attempt) == ((State.READY, 0, 0) if ends else (State.LEASED, TOKEN, 1))
    assert [kind for kind, *_ in plan.changed].count(EventKind.SUPERSEDE) == 2 * ends


def test_an_event_that_is_refused_supersedes_nothing() -> None:
    rows = [leased(1), leased(2)]
    stale = Event(EventKind.NACK, 1, "n", token=TOKEN - 1)
    plan, table = decide(batch_of(Events("n", [stale], None)), *rows)
    assert not plan.changed
    assert [*table.values()] == rows


def test_the_first_of_leases_that_end_together_is_charged_whatever_the_order_of_their_events() -> None:
    rows = [leased(number, due_ms=NOW) for number in (1, 2, 3)]
    plan, table = decide(batch_of(Dues([3, 1, 2], {}, None)), *rows)
    assert [table[number].attempt for number in (1, 2, 3)] == [1, 0, 0]
    assert plan.results[0][1] == [None] * 3


def test_a_lease_that_was_extended_supersedes_nothing_when_the_others_end() -> None:
    rows = [leased(1, due_ms=NOW + 900), leased(2, due_ms=NOW), leased(3, due_ms=NOW)]
    _, table = decide(batch_of(Dues([1, 2, 3], {}, None)), *rows)
    assert [table[number].state for number in (1, 2, 3)] == [State.LEASED, State.READY, State.READY]
    assert [table[number].attempt for number in (1, 2, 3)] == [1, 0, 0]


def test_a_lease_that_ends_behind_one_that_lasts_leaves_no_token() -> None:
    """Its consumer has not begun it. With a last token, it could ack it after the one before it has failed."""
    rows = [leased(1, due_ms=NOW + 900), leased(2, due_ms=NOW), leased(3, due_ms=NOW + 900)]
    _, table = decide(batch_of(Dues([2], {}, None)), *rows)
    assert [(table[number].state, table[number].token) for number in (1, 2, 3)] == [
        (State.LEASED, TOKEN),
        (State.READY, 0),
        (State.READY, 0),
    ]


def test_a_lease_that_ends_behind_one_that_is_acked_in_the_same_flush_is_charged() -> None:
    rows = [leased(1, due_ms=NOW), leased(2, due_ms=NOW), leased(3, due_ms=NOW)]
    _, table = decide(batch_of(Acks("n", [1], [TOKEN], None), Dues([2, 3], {}, None)), *rows)
    assert [table[number].attempt for number in (2, 3)] == [1, 0]
    assert table[2].token == TOKEN


def test_items_that_other_flushes_have_leased_are_of_other_runs() -> None:
    """The limit of their group was higher then, so they are of other consumers."""
    rows = [leased(1), leased(2, token=TOKEN + 1), leased(3), leased(4, token=TOKEN + 1), leased(5, token=TOKEN + 2)]
    _, table = decide(batch_of(Events("n", [event(EventKind.NACK, 1, delay_ms=0)], None)), *rows)
    assert [number for number, row in sorted(table.items()) if row.state is State.LEASED] == [2, 4, 5]


def test_items_that_were_delivered_before_come_first_in_a_run() -> None:
    rows = [leased(1), leased(9, attempt=3), leased(8, attempt=2), leased(2)]
    batch = batch_of(Events("n", [event(EventKind.NACK, 9)], None))
    assert find(batch, *rows).behind == {9: [1, 2]}
    batch = batch_of(Events("n", [event(EventKind.NACK, 1)], None))
    assert find(batch, *rows).behind == {1: [2]}


def test_an_item_with_another_event_is_superseded_by_a_later_flush_and_one_that_is_settled_is_not() -> None:
    rows = [leased(number) for number in (1, 2, 3, 4, 5, 6)]
    batch = batch_of(
        Acks("n", [2], [TOKEN], None),
        Events("n", [event(EventKind.NACK, 1), event(EventKind.NACK, 3, delay_ms=0)], None),
        Events("n", [event(EventKind.EXTEND, 4)], None),
    )
    plan, table = decide(batch, *rows, busy=[6])
    assert sorted(table) == [1, 3, 4, 5, 6]
    assert (table[3].state, table[3].attempt) == (State.READY, 1)
    assert (table[4].state, table[6].state) == (State.LEASED, State.LEASED)
    assert (table[5].state, table[5].attempt) == (State.READY, 0)
    assert {*plan.superseded_later} >= {4, 6}
    assert not plan.can_notify_before_apply


def test_a_flush_without_early_ends_finds_nothing() -> None:
    found = find(batch_of(Events("n", [event(EventKind.EXTEND, 1)], None)), leased(1), leased(2))
    assert not found
    assert not find(batch_of(Events("n", [event(EventKind.NACK, 7)], None)), leased(1), leased(2))


def test_the_token_of_a_superseded_item_is_stale_in_the_next_flush() -> None:
    rows = [leased(1), leased(2)]
    _, table = decide(batch_of(Events("n", [event(EventKind.NACK, 1)], None)), *rows)
    late = plan_flush(batch_of(Acks("n", [2], [TOKEN], None)), table.get, CONTEXT, DueTimers(5_000))
    [(_, [result])] = late.results
    assert isinstance(result, StaleLease)
