"""Which shard shall hold which slots: as text, recorded, divided, and given by an import."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.catalog import changes
from foqs.catalog.document import EMPTY_DOCUMENT, Document, parse, render
from foqs.catalog.key_slot_assignment import format_slots, parse_slot_range
from foqs.core.errors import InvalidArgument
from foqs.core.items.idempotency_keys import KEY_SLOT_COUNT

NEW = changes.create(EMPTY_DOCUMENT, "a", None, {})
NONE: frozenset[int] = frozenset()


def held(*slots: int) -> frozenset[int]:
    return frozenset(slots)


def document(**tiers: dict[int, frozenset[int]]) -> Document:
    return Document(5, NEW.namespaces, tiers)


# -------------------------------------------------------------------- as text


@pytest.mark.parametrize(
    ("slots", "texts"),
    [
        ([], []),
        ([7], ["7"]),
        ([0, 5], ["0", "5"]),
        ([4, 5], ["4-5"]),
        ([4, 6, 8], ["4-8/2"]),
        ([1, 5, 6, 7, 30, 40, 50, 51], ["1", "5-7", "30-50/10", "51"]),
        (range(KEY_SLOT_COUNT), ["0-1023"]),
        (range(1, KEY_SLOT_COUNT, 3), ["1-1021/3"]),
    ],
)
def test_slots_are_short_as_text(slots: Any, texts: list[str]) -> None:
    assert format_slots(slots) == texts


@settings(max_examples=100)
@given(st.sets(st.integers(0, KEY_SLOT_COUNT - 1)))
def test_text_means_the_slots_that_it_was_made_of(slots: set[int]) -> None:
    found = [slot for text in format_slots(slots) for slot in parse_slot_range(text)]
    assert sorted(found) == sorted(slots)


@pytest.mark.parametrize("text", ["", "a", "-1", "1-", "5-4", "0-5/0", "0-1024", "1024", "1/2", "00001", " 1", "1\n"])
def test_what_names_no_slots_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="4-10/2"):
        parse_slot_range(text)


def test_a_tier_that_was_divided_is_a_few_lines() -> None:
    whole = changes.record_slots(NEW, "default", dict.fromkeys(range(32), NONE), range(32))
    assert len(render(whole)) < 32 * 60
    assert parse(render(whole)) == whole


# ------------------------------------------------------------------- recording


def test_what_a_table_holds_is_recorded_and_what_is_recorded_stays() -> None:
    before = document(t={1: held(1, 2)})
    after = changes.record_slots(before, "t", {1: held(2, 3), 2: held(9)}, [])
    assert after.slots == {"t": {1: held(1, 2, 3), 2: held(9)}}
    assert after.version == 6
    assert changes.record_slots(after, "t", {1: NONE, 2: held(9)}, []) is after


def test_a_shard_that_holds_a_slot_of_another_is_left_out_and_its_neighbours_are_not() -> None:
    before = document(t={1: held(1, 2)})
    after = changes.record_slots(before, "t", {2: held(2, 3), 3: held(4)}, [])
    assert after.slots["t"] == {1: held(1, 2), 3: held(4)}


def test_tiers_have_slots_of_their_own() -> None:
    after = changes.record_slots(document(t={1: held(1)}), "u", {2: held(1)}, [2])
    assert after.slots == {"t": {1: held(1)}, "u": {2: held(1)}}


@pytest.mark.parametrize(
    ("there", "own", "sharing"),
    [
        ({}, {1: NONE}, [1, 2]),
        ({1: NONE}, {}, [1, 2]),
        ({1: NONE, 2: NONE, 9: held(5)}, {}, [1, 2]),
        ({1: NONE}, {2: held(5)}, [1, 2]),
        ({1: NONE, 2: NONE}, {}, []),
    ],
)
def test_slots_are_not_divided_while_a_shard_has_not_said_or_somebody_has_some(
    there: dict[int, frozenset[int]], own: dict[int, frozenset[int]], sharing: list[int]
) -> None:
    after = changes.record_slots(document(t=there), "t", own, sharing)
    assert after.slots["t"] == {**there, **own}


def test_slots_are_divided_by_whoever_records_the_last_shard() -> None:
    first = changes.record_slots(NEW, "t", {2: NONE}, [1, 2])
    second = changes.record_slots(first, "t", {1: NONE}, [1, 2])
    assert second.slots["t"] == {1: frozenset(range(0, KEY_SLOT_COUNT, 2)), 2: frozenset(range(1, KEY_SLOT_COUNT, 2))}
    assert changes.record_slots(second, "t", {3: NONE}, [1, 2, 3]).slots["t"] == {**second.slots["t"], 3: NONE}


# ------------------------------------------------------------------ an import


def test_an_import_gives_slots_that_nobody_has_and_takes_none() -> None:
    given_slots = document(t={1: held(1), 2: held(2)}, u={3: held(1)})
    for there, slots in [
        ({}, given_slots.slots),
        ({1: held(1, 7)}, {1: held(1, 7), 2: held(2)}),
        ({1: NONE, 4: NONE}, {1: held(1), 2: held(2), 4: NONE}),
    ]:
        before = document(t=there) if there else NEW
        after = changes.restore(before, given_slots)
        assert after.slots == (slots if not there else {"t": slots, "u": {3: held(1)}})
    old = Document(1, {})
    assert changes.restore(given_slots, old).slots == given_slots.slots


def test_an_import_does_not_say_that_a_shard_has_none() -> None:
    """It may have got some since the export, and slots are divided when all are known to have none."""
    after = changes.restore(EMPTY_DOCUMENT, document(t={1: NONE, 2: NONE}, u={3: NONE, 4: held(1)}))
    assert after.slots == {"u": {4: held(1)}}


def test_an_import_of_what_another_shard_has_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"slots\.t\.2: slots 1, 3 of shard 2 .* shard 1.*leave") as caught:
        changes.restore(document(t={1: held(1, 2, 3)}), document(t={2: held(1, 3, 4)}))
    assert caught.value.field == "json"
