"""Cuts: what they cover, and what a flush makes of it."""

from __future__ import annotations

from foqs.core.errors import NotFound
from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.decision import Decision, decide_batch
from foqs.core.flush.purge_markers import ClearPurgeMarker, DeletePurgedRows, PurgeMarker, PurgeMarkers, SetPurgeMarker
from foqs.core.flush.work import ALREADY_GONE, Acks, Events, HandOut, Inserts, Work
from foqs.core.items.item import Row, State
from foqs.core.items.life import Event, EventKind, FlushContext, RetryPolicy
from foqs.core.timing.due_timers import DueTimers
from tests.support.builders import keyed_item, new_item, row

TOPIC = ("default", "t")
MOMENT = FlushContext(5_000, 5_000, 77, {"default": RetryPolicy(1, 2, 3, 1_000)})


def judged(table: dict[int, Row], cuts: PurgeMarkers, *works: Work) -> tuple[Decision, dict[int, list[object]]]:
    """The decision, and what each work is told, by its place."""
    parts = [Part(work, 0, len(work)) for work in works]
    decision = decide_batch(Batch(parts), table.get, MOMENT, DueTimers(1_000), purge_markers=cuts)
    return decision, {parts.index(part): list(told) for part, told in decision.results}


def nobody() -> None: ...


def test_a_cut_covers_its_topics_rows_up_to_its_number_and_no_others() -> None:
    cuts = PurgeMarkers([PurgeMarker(*TOPIC, 5)])
    assert [cuts.covers(row(number)) for number in (1, 5, 6)] == [True, True, False]
    assert not cuts.covers(row(1, topic="T"))
    assert not cuts.covers(row(1, namespace="other"))
    assert not PurgeMarkers().covers(row(1))
    assert (cuts.last_number(TOPIC), cuts.last_number(("default", "T"))) == (5, 0)


def test_a_cut_rises_and_never_sinks_and_ends_only_as_it_is_now() -> None:
    cuts = PurgeMarkers([PurgeMarker(*TOPIC, 5)])
    cuts.add(PurgeMarker(*TOPIC, 9))
    cuts.add(PurgeMarker(*TOPIC, 7))
    assert cuts.last_number(TOPIC) == 9
    cuts.remove(PurgeMarker(*TOPIC, 5))
    assert cuts.next_to_purge() == PurgeMarker(*TOPIC, 9)
    assert PurgeMarker(*TOPIC, 9) in cuts
    cuts.remove(PurgeMarker(*TOPIC, 9))
    cuts.remove(PurgeMarker(*TOPIC, 9))
    assert (len(cuts), cuts.next_to_purge(), cuts.topic_count("default")) == (0, None, 0)


def test_namespaces_take_turns_and_of_one_the_eldest_cut_comes_first() -> None:
    many = [PurgeMarker("many", f"{n}", 5) for n in range(3)]
    cuts = PurgeMarkers([*many, PurgeMarker("one", "t", 5)])
    assert [cuts.next_to_purge() for _ in range(4)] == [many[0], PurgeMarker("one", "t", 5)] * 2
    cuts.add(PurgeMarker("late", "t", 5))
    cuts.remove(many[0])
    risen = PurgeMarker("many", "1", 8)
    cuts.add(risen)
    assert [cuts.next_to_purge() for _ in range(4)] == [
        risen,
        PurgeMarker("one", "t", 5),
        PurgeMarker("late", "t", 5),
        risen,
    ]
    assert [cuts.topic_count(name) for name in ("many", "one", "late", "none")] == [2, 1, 1, 0]


def test_cuts_of_several_topics_are_made_in_one_flush_and_those_of_one_are_not() -> None:
    works = [SetPurgeMarker(("n", "t"), nobody), SetPurgeMarker(("n", "u"), nobody), SetPurgeMarker(("nt", ""), nobody)]
    numbers = [number for work in works for number in work.numbers]
    assert len(set(numbers)) == 3
    assert max(numbers) < 0
    assert (
        SetPurgeMarker(("n", "t"), nobody).numbers
        == works[0].numbers
        == ClearPurgeMarker(PurgeMarker("n", "t", 5), nobody).numbers
    )


def test_to_every_event_an_item_below_the_cut_is_gone() -> None:
    table = {
        1: row(1, state=State.LEASED, token=9, due_ms=1),
        2: row(2, state=State.DEFERRED, due_ms=1),
        3: row(3),
        4: row(4, state=State.DEAD, due_ms=1),
        5: row(5),
    }
    decision, told = judged(
        table,
        PurgeMarkers([PurgeMarker(*TOPIC, 4)]),
        Acks("default", [1], [9], nobody),
        Events("", [Event(EventKind.DUE, number) for number in (2, 4)], nobody),
        HandOut("default", [(TOPIC, [table[3].order_key, table[5].order_key])], None, 0, nobody),
    )
    assert told[0] == [ALREADY_GONE]
    assert (decision.deleted, decision.changed) == ({EventKind.ACK: []}, [])
    [none, leased] = told[2]
    assert none is None
    assert isinstance(leased, Row)
    assert leased.id == 5
    for kind in (EventKind.NACK, EventKind.RELEASE, EventKind.EXTEND, EventKind.UPDATE, EventKind.REDRIVE):
        events = [Event(kind, number, "default", token=9) for number in (1, 4)]
        _, told = judged(table, PurgeMarkers([PurgeMarker(*TOPIC, 4)]), Events("default", events, nobody))
        assert all(isinstance(getattr(verdict, "error", None), NotFound) for verdict in told[0]), kind


def test_an_item_numbered_below_the_cut_is_not_inserted_and_its_key_is_taken() -> None:
    items = [keyed_item("a"), keyed_item("b", "u"), keyed_item("c")]
    work = Inserts("default", items, 3, nobody, has_keys=True)
    decision, told = judged({}, PurgeMarkers([PurgeMarker(*TOPIC, 4)]), work)
    assert told[0] == [None] * 3
    assert [(each.id, each.topic) for each in decision.inserted] == [(4, "u"), (5, "t")]
    assert set(decision.keys["default"]) == {b"a", b"b", b"c"}
    decision, _ = judged({}, PurgeMarkers([PurgeMarker(*TOPIC, 4)]), Inserts("default", [new_item()], 4, nobody))
    assert (decision.inserted, decision.topics) == ([], {"default": set()})


def test_a_cut_counts_from_the_flush_after_its_own() -> None:
    cut = SetPurgeMarker(TOPIC, nobody)
    cut.marker = cut.marker._replace(last_number=9)
    decision, told = judged({1: row(1, token=3)}, PurgeMarkers(), cut, Acks("default", [1], [3], nobody))
    assert decision.markers_set == [PurgeMarker(*TOPIC, 9)]
    assert told == {1: [None]}


def test_rows_of_a_cut_are_deleted_as_they_were_read_and_the_cut_ends() -> None:
    rows = [row(number) for number in (1, 2, 3)]
    cuts = PurgeMarkers([PurgeMarker(*TOPIC, 9)])
    decision, told = judged({}, cuts, DeletePurgedRows(rows, nobody), ClearPurgeMarker(PurgeMarker(*TOPIC, 9), nobody))
    assert (decision.purged, decision.markers_cleared) == (rows, [PurgeMarker(*TOPIC, 9)])
    assert told == {0: [None] * 3, 1: [None]}
