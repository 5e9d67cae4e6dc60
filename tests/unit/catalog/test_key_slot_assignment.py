"""The assignment of key slots to shards: its text form, recording, division, and import."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.catalog import changes
from foqs.catalog.document import EMPTY_DOCUMENT, Document, parse, render
from foqs.catalog.key_slot_assignment import format_slots, parse_slot_range
from foqs_contract.errors import InvalidArgument
from foqs_contract.key_slots import KEY_SLOT_COUNT
from tests.support.example_counts import examples

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
def test_slots_have_a_short_text_form(slots: Any, texts: list[str]) -> None:
    assert format_slots(slots) == texts


@settings(max_examples=examples(100))
@given(st.sets(st.integers(0, KEY_SLOT_COUNT - 1)))
def test_text_form_parses_to_the_same_slots(slots: set[int]) -> None:
    found = [slot for text in format_slots(slots) for slot in parse_slot_range(text)]
    assert sorted(found) == sorted(slots)


@pytest.mark.parametrize("text", ["", "a", "-1", "1-", "5-4", "0-5/0", "0-1024", "1024", "1/2", "00001", " 1", "1\n"])
def test_malformed_slot_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="4-10/2"):
        parse_slot_range(text)


def test_divided_tier_has_a_short_document() -> None:
    divided = changes.record_slots(NEW, "default", dict.fromkeys(range(32), NONE), range(32))
    assert len(render(divided)) < 32 * 60
    assert parse(render(divided)) == divided


# ------------------------------------------------------------------- recording


def test_slots_of_tables_are_recorded_and_recorded_slots_stay() -> None:
    before = document(t={1: held(1, 2)})
    after = changes.record_slots(before, "t", {1: held(2, 3), 2: held(9)}, [])
    assert after.slots == {"t": {1: held(1, 2, 3), 2: held(9)}}
    assert after.version == 6
    assert changes.record_slots(after, "t", {1: NONE, 2: held(9)}, []) is after


def test_shard_with_a_slot_of_another_is_skipped_but_other_shards_are_recorded() -> None:
    before = document(t={1: held(1, 2)})
    after = changes.record_slots(before, "t", {2: held(2, 3), 3: held(4)}, [])
    assert after.slots["t"] == {1: held(1, 2), 3: held(4)}


def test_each_tier_has_its_own_slots() -> None:
    after = changes.record_slots(document(t={1: held(1)}), "u", {2: held(1)}, [2])
    assert after.slots == {"t": {1: held(1)}, "u": {2: held(1)}}


@pytest.mark.parametrize(
    ("recorded", "own", "tier_shards"),
    [
        ({}, {1: NONE}, [1, 2]),
        ({1: NONE}, {}, [1, 2]),
        ({1: NONE, 2: NONE, 9: held(5)}, {}, [1, 2]),
        ({1: NONE}, {2: held(5)}, [1, 2]),
        ({1: NONE, 2: NONE}, {}, []),
    ],
)
def test_slots_are_not_divided_until_all_shards_are_recorded_as_empty(
    recorded: dict[int, frozenset[int]], own: dict[int, frozenset[int]], tier_shards: list[int]
) -> None:
    after = changes.record_slots(document(t=recorded), "t", own, tier_shards)
    assert after.slots["t"] == {**recorded, **own}


def test_slots_are_divided_when_the_last_shard_is_recorded() -> None:
    first = changes.record_slots(NEW, "t", {2: NONE}, [1, 2])
    second = changes.record_slots(first, "t", {1: NONE}, [1, 2])
    assert second.slots["t"] == {1: frozenset(range(0, KEY_SLOT_COUNT, 2)), 2: frozenset(range(1, KEY_SLOT_COUNT, 2))}
    assert changes.record_slots(second, "t", {3: NONE}, [1, 2, 3]).slots["t"] == {**second.slots["t"], 3: NONE}


# ------------------------------------------------------------------ an import


def test_import_adds_free_slots_and_removes_none() -> None:
    given_slots = document(t={1: held(1), 2: held(2)}, u={3: held(1)})
    for recorded, slots in [
        ({}, given_slots.slots),
        ({1: held(1, 7)}, {1: held(1, 7), 2: held(2)}),
        ({1: NONE, 4: NONE}, {1: held(1), 2: held(2), 4: NONE}),
    ]:
        before = document(t=recorded) if recorded else NEW
        after = changes.restore(before, given_slots)
        assert after.slots == (slots if not recorded else {"t": slots, "u": {3: held(1)}})
    old = Document(1, {})
    assert changes.restore(given_slots, old).slots == given_slots.slots


def test_import_does_not_record_shards_without_slots() -> None:
    """A shard may have got slots since the export, and slots are divided once all shards are known to hold none."""
    after = changes.restore(EMPTY_DOCUMENT, document(t={1: NONE, 2: NONE}, u={3: NONE, 4: held(1)}))
    assert after.slots == {"u": {4: held(1)}}


def test_import_of_another_shards_slots_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"slots\.t\.2: slots 1, 3 of shard 2 .* shard 1.*leave") as caught:
        changes.restore(document(t={1: held(1, 2, 3)}), document(t={2: held(1, 3, 4)}))
    assert caught.value.field == "json"
