"""Purge markers: the rows that they cover, and their effect on a flush."""

from __future__ import annotations

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.operation import ALREADY_GONE, Acks, Events, Inserts, Leases, Operation
from foqs.core.flush.planning import plan_flush
from foqs.core.flush.purge_markers import ClearPurgeMarker, DeletePurgedRows, PurgeMarker, PurgeMarkers, SetPurgeMarker
from foqs.core.items.item import Row, State
from foqs.core.items.life import Event, EventKind, FlushContext, RetryPolicy
from foqs.core.timing.due_timers import DueTimers
from foqs_contract.errors import NotFound
from tests.support.builders import keyed_item, new_item, row

TOPIC = ("default", "t")
CONTEXT = FlushContext(5_000, 5_000, 77, {"default": RetryPolicy(1, 2, 3, 1_000)})


def decide(
    table: dict[int, Row], markers: PurgeMarkers, *operations: Operation
) -> tuple[FlushPlan, dict[int, list[object]]]:
    """Return the plan, and the results of each operation by its place."""
    parts = [Part(operation, 0, len(operation)) for operation in operations]
    plan = plan_flush(Batch(parts), table.get, CONTEXT, DueTimers(1_000), purge_markers=markers)
    return plan, {parts.index(part): list(results) for part, results in plan.results}


def test_a_marker_covers_the_rows_of_its_topic_up_to_its_number_and_no_others() -> None:
    markers = PurgeMarkers([PurgeMarker(*TOPIC, 5)])
    assert [markers.covers(row(number)) for number in (1, 5, 6)] == [True, True, False]
    assert not markers.covers(row(1, topic="T"))
    assert not markers.covers(row(1, namespace="other"))
    assert not PurgeMarkers().covers(row(1))
    assert (markers.last_number(TOPIC), markers.last_number(("default", "T"))) == (5, 0)


def test_a_marker_only_rises_and_is_removed_only_with_its_present_number() -> None:
    markers = PurgeMarkers([PurgeMarker(*TOPIC, 5)])
    markers.add(PurgeMarker(*TOPIC, 9))
    markers.add(PurgeMarker(*TOPIC, 7))
    assert markers.last_number(TOPIC) == 9
    markers.remove(PurgeMarker(*TOPIC, 5))
    assert markers.next_to_purge() == PurgeMarker(*TOPIC, 9)
    assert PurgeMarker(*TOPIC, 9) in markers
    markers.remove(PurgeMarker(*TOPIC, 9))
    markers.remove(PurgeMarker(*TOPIC, 9))
    assert (len(markers), markers.next_to_purge(), markers.topic_count("default")) == (0, None, 0)


def test_namespaces_take_turns_and_the_oldest_marker_of_each_comes_first() -> None:
    many = [PurgeMarker("many", f"{n}", 5) for n in range(3)]
    markers = PurgeMarkers([*many, PurgeMarker("one", "t", 5)])
    assert [markers.next_to_purge() for _ in range(4)] == [many[0], PurgeMarker("one", "t", 5)] * 2
    markers.add(PurgeMarker("late", "t", 5))
    markers.remove(many[0])
    risen = PurgeMarker("many", "1", 8)
    markers.add(risen)
    assert [markers.next_to_purge() for _ in range(4)] == [
        risen,
        PurgeMarker("one", "t", 5),
        PurgeMarker("late", "t", 5),
        risen,
    ]
    assert [markers.topic_count(name) for name in ("many", "one", "late", "none")] == [2, 1, 1, 0]


def test_a_flush_may_set_markers_of_several_topics_but_only_one_of_each() -> None:
    operations = [
        SetPurgeMarker(("n", "t"), None),
        SetPurgeMarker(("n", "u"), None),
        SetPurgeMarker(("nt", ""), None),
    ]
    numbers = [number for operation in operations for number in operation.numbers]
    assert len(set(numbers)) == 3
    assert max(numbers) < 0
    assert (
        SetPurgeMarker(("n", "t"), None).numbers
        == operations[0].numbers
        == ClearPurgeMarker(PurgeMarker("n", "t", 5), None).numbers
    )


def test_a_covered_item_is_gone_for_every_event() -> None:
    table = {
        1: row(1, state=State.LEASED, token=9, due_ms=1),
        2: row(2, state=State.DEFERRED, due_ms=1),
        3: row(3),
        4: row(4, state=State.DEAD, due_ms=1),
        5: row(5),
    }
    plan, results = decide(
        table,
        PurgeMarkers([PurgeMarker(*TOPIC, 4)]),
        Acks("default", [1], [9], None),
        Events("", [Event(EventKind.DUE, number) for number in (2, 4)], None),
        Leases("default", [(TOPIC, [table[3].order_key, table[5].order_key])], None, 0, None),
    )
    assert results[0] == [ALREADY_GONE]
    assert (plan.deleted, plan.changed) == ({EventKind.ACK: []}, [])
    [covered, leased] = results[2]
    assert covered is None
    assert isinstance(leased, Row)
    assert leased.id == 5
    for kind in (EventKind.NACK, EventKind.RELEASE, EventKind.EXTEND, EventKind.UPDATE, EventKind.REDRIVE):
        events = [Event(kind, number, "default", token=9) for number in (1, 4)]
        _, results = decide(table, PurgeMarkers([PurgeMarker(*TOPIC, 4)]), Events("default", events, None))
        assert all(isinstance(result, NotFound) for result in results[0]), kind


def test_a_covered_new_item_is_not_inserted_but_its_key_is_used() -> None:
    items = [keyed_item("a"), keyed_item("b", "u"), keyed_item("c")]
    operation = Inserts("default", items, 3, 0, None, has_idempotency_keys=True)
    plan, results = decide({}, PurgeMarkers([PurgeMarker(*TOPIC, 4)]), operation)
    assert results[0] == [None] * 3
    assert [(new.id, new.topic) for new in plan.inserted] == [(4, "u"), (5, "t")]
    assert set(plan.keys.added["default"]) == {b"a", b"b", b"c"}
    plan, _ = decide({}, PurgeMarkers([PurgeMarker(*TOPIC, 4)]), Inserts("default", [new_item()], 4, 0, None))
    assert (plan.inserted, plan.topics) == ([], {"default": set()})


def test_a_marker_counts_from_the_flush_after_its_own() -> None:
    purge = SetPurgeMarker(TOPIC, None)
    purge.marker = purge.marker._replace(last_number=9)
    plan, results = decide({1: row(1, token=3)}, PurgeMarkers(), purge, Acks("default", [1], [3], None))
    assert plan.markers_set == [PurgeMarker(*TOPIC, 9)]
    assert results == {1: [None]}


def test_purged_rows_are_deleted_as_they_were_read_and_the_marker_is_cleared() -> None:
    rows = [row(number) for number in (1, 2, 3)]
    markers = PurgeMarkers([PurgeMarker(*TOPIC, 9)])
    plan, results = decide({}, markers, DeletePurgedRows(rows, None), ClearPurgeMarker(PurgeMarker(*TOPIC, 9), None))
    assert (plan.purged, plan.markers_cleared) == (rows, [PurgeMarker(*TOPIC, 9)])
    assert results == {0: [None] * 3, 1: [None]}
