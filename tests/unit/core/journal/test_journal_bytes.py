"""The bytes of a flush's events: what is encoded is decoded, and damage is found."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import NUMBER_MAX, PRIORITY_MAX, PRIORITY_MIN, TIME_MS_MAX, DeliveryPolicy, Row, State
from foqs.core.journal import journal_bytes
from foqs.core.journal.journal_bytes import JournalDamaged, JournalTooNew, decode_events, encode_events
from foqs.core.journal.journal_events import Base, FlushEvents, ItemChange, Rewrite
from tests.support import builders

NAMES = st.sampled_from(["orders", "größe", "", "x" * 200])
NUMBERS = st.integers(1, NUMBER_MAX)
TIMES = st.integers(0, TIME_MS_MAX)
OPTIONAL_TIMES = st.none() | TIMES
PRIORITIES = st.integers(PRIORITY_MIN, PRIORITY_MAX)
STATES = st.sampled_from(State)
TOKENS = st.integers(-NUMBER_MAX, NUMBER_MAX)
SIZES = st.integers(0, 1 << 20)
ROWS = st.builds(
    Row,
    NUMBERS,
    NAMES,
    NAMES,
    PRIORITIES,
    TIMES,
    TIMES,
    TIMES,
    OPTIONAL_TIMES,
    OPTIONAL_TIMES,
    st.sampled_from(DeliveryPolicy),
    st.integers(0, 1000),
    SIZES,
    st.none(),
    st.binary(max_size=20),
    STATES,
    OPTIONAL_TIMES,
    TOKENS,
    st.integers(0, 1000),
    st.none() | st.binary(max_size=20),
    OPTIONAL_TIMES,
    st.none() | st.binary(max_size=20),
)
REWRITES = st.none() | st.builds(Rewrite, PRIORITIES, TIMES, OPTIONAL_TIMES, st.binary(max_size=20))
CHANGES = st.builds(
    ItemChange, NUMBERS, NAMES, NAMES, STATES, OPTIONAL_TIMES, TOKENS, st.integers(0, 1000), OPTIONAL_TIMES, REWRITES
)
BASES = st.builds(Base, NAMES, NAMES, STATES, OPTIONAL_TIMES, SIZES, PRIORITIES, TIMES)
GROUPED = FlushEvents(added=[builders.row(1, payload=None), builders.row(2, payload=None, item_group=b"customer")])
EVENTS = st.builds(
    FlushEvents,
    st.lists(ROWS, max_size=8),
    st.lists(CHANGES, max_size=8, unique_by=lambda change: change.number),
    st.lists(NUMBERS, max_size=8),
    st.dictionaries(NUMBERS, BASES, max_size=8),
    st.lists(NUMBERS, max_size=8),
)


@given(EVENTS)
def test_decoded_events_are_those_that_were_encoded(events: FlushEvents) -> None:
    assert decode_events(encode_events(events)) == events


@pytest.mark.parametrize("first", [1, 1 << 40])
def test_consecutive_numbers_take_no_room_each(first: int) -> None:
    short, long = (encode_events(FlushEvents(ended=list(range(first, first + count)))) for count in (2, 10_000))
    assert len(short) == len(long)


@given(EVENTS, st.data())
def test_a_changed_byte_is_damage(events: FlushEvents, data: st.DataObject) -> None:
    encoded = bytearray(encode_events(events))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(JournalDamaged):
        decode_events(bytes(encoded))


@given(EVENTS, st.data())
def test_missing_bytes_are_damage(events: FlushEvents, data: st.DataObject) -> None:
    encoded = encode_events(events)
    with pytest.raises(JournalDamaged):
        decode_events(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


def test_events_of_a_newer_program_are_refused_and_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_bytes, "VERSION", 9)
    encoded = encode_events(GROUPED)
    monkeypatch.undo()
    with pytest.raises(
        JournalTooNew, match="version 9, and this program knows versions up to 2: run the newer foqs that wrote"
    ):
        decode_events(encoded)


def test_only_events_with_groups_have_the_version_that_programs_without_groups_refuse() -> None:
    plain = FlushEvents(added=[builders.row(1, payload=None)], ended=[2])
    assert [encode_events(events)[0] for events in (plain, FlushEvents(ended=[1]), GROUPED)] == [1, 1, 2]
    assert decode_events(encode_events(plain)) == plain


def test_events_with_groups_of_version_1_are_read() -> None:
    body = encode_events(GROUPED)[5:]
    first = bytes([1])
    assert decode_events(first + crc32(body, crc32(first)).to_bytes(4, "little") + body) == GROUPED
