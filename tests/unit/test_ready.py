"""The ready index against a table that is simply sorted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foqs.core.item import Key
from foqs.core.ready import ReadyIndex

TOPIC = ("ns", "t")
KEYS = st.tuples(st.integers(-2, 2), st.integers(0, 3), st.integers(1, 60))


def filled(*keys: Key, window: int = 100, total: int = 1_000) -> ReadyIndex:
    index = ReadyIndex(window, total)
    for key in keys:
        index.add(TOPIC, key)
    return index


def test_take_gives_the_lowest_priority_then_the_oldest_then_the_first_id() -> None:
    index = filled((1, 5, 1), (0, 9, 2), (0, 5, 4), (0, 5, 3))
    assert [index.take(TOPIC) for _ in range(4)] == [(0, 5, 3), (0, 5, 4), (0, 9, 2), (1, 5, 1)]
    assert index.head(TOPIC) is None


def test_a_full_window_evicts_its_worst_key_and_says_that_more_may_lie_beyond() -> None:
    index = filled((0, 0, 1), (0, 0, 2), (0, 0, 3), window=2)
    assert list(index.window(TOPIC)) == [(0, 0, 1), (0, 0, 2)]
    assert index.refill_after(TOPIC) == (0, 0, 2)
    index.take(TOPIC)
    assert not index.needs_refill(TOPIC)
    index.take(TOPIC)
    assert index.needs_refill(TOPIC)


def test_a_key_above_the_boundary_stays_out_until_a_refill_brings_it() -> None:
    index = filled((0, 0, 1), (0, 0, 2), (0, 0, 3), window=2)
    index.add(TOPIC, (5, 0, 9))
    assert list(index.window(TOPIC)) == [(0, 0, 1), (0, 0, 2)]
    index.refill(TOPIC, [(0, 0, 3), (5, 0, 9)], complete=True)
    assert list(index.window(TOPIC)) == [(0, 0, 1), (0, 0, 2), (0, 0, 3), (5, 0, 9)]
    assert index.refill_after(TOPIC) is None


def test_an_urgent_item_enters_a_full_window() -> None:
    index = filled((0, 0, 1), (0, 0, 2), window=2)
    index.add(TOPIC, (-1, 0, 3))
    assert index.take(TOPIC) == (-1, 0, 3)


def test_a_reserved_key_is_not_refilled_and_comes_back_when_given_back() -> None:
    index = ReadyIndex(10, 10)
    index.discover(TOPIC)
    index.refill(TOPIC, [(0, 0, 1), (0, 0, 2)], complete=False)
    assert index.take(TOPIC) == (0, 0, 1)
    index.discover(TOPIC)
    index.refill(TOPIC, [(0, 0, 1), (0, 0, 2)], complete=True)
    assert list(index.window(TOPIC)) == [(0, 0, 2)]
    index.give_back(1)
    assert list(index.window(TOPIC)) == [(0, 0, 1), (0, 0, 2)]


def test_a_settled_key_does_not_come_back() -> None:
    index = filled((0, 0, 1))
    index.take(TOPIC)
    index.settle(1)
    index.give_back(1)
    assert index.head(TOPIC) is None
    assert index.reserved == 0


def test_the_total_is_bounded_and_every_topic_keeps_its_best_key() -> None:
    index = ReadyIndex(100, 10)
    for number in range(1, 51):
        index.add(("ns", f"t{number % 5}"), (0, 0, number))
    assert len(index) <= 10
    for topic in range(5):
        assert index.head(("ns", f"t{topic}")) is not None


def test_an_empty_complete_topic_is_forgotten() -> None:
    index = filled((0, 0, 1))
    index.discard(TOPIC, (0, 0, 1))
    assert index.topics() == []
    assert not index.needs_refill(TOPIC)


def test_a_reserved_key_that_is_ready_no_longer_cannot_be_given_back() -> None:
    index = filled((0, 0, 1), (0, 0, 2))
    index.take(TOPIC)
    index.discard(TOPIC, (0, 0, 1))
    assert index.give_back(1) is None
    assert list(index.window(TOPIC)) == [(0, 0, 2)]


def test_a_topic_that_the_table_has_no_more_of_needs_no_refill() -> None:
    index = ReadyIndex(10, 10)
    index.discover(TOPIC)
    index.forget(TOPIC)
    assert not index.needs_refill(TOPIC)
    assert index.topics() == []
    filled((0, 0, 1)).forget(("ns", "unknown"))


def test_a_refill_brings_what_there_is_room_for_and_at_least_one_key() -> None:
    index = ReadyIndex(10, 12)
    assert index.room == 5
    for number in range(1, 10):
        index.add(("ns", f"t{number}"), (0, 0, number))
    assert index.room == 3
    for number in range(10, 20):
        index.add(("ns", f"t{number}"), (0, 0, number))
    assert index.room == 1


def test_the_oldest_is_found_among_every_head_and_some_of_the_others() -> None:
    index = filled((0, 9, 1), (1, 3, 2), (2, 1, 3))
    index.add(("ns", "u"), (0, 5, 4))
    assert index.oldest_ms(0) == 5
    assert index.oldest_ms(1) == 3
    assert index.oldest_ms(100) == 1
    assert ReadyIndex(1, 1).oldest_ms(100) is None


@given(st.lists(KEYS, unique_by=lambda key: key[2]), st.integers(1, 8), st.integers(1, 20))
def test_taking_everything_yields_the_table_in_order(keys: list[Key], window: int, total: int) -> None:
    index = ReadyIndex(window, total)
    for key in keys:
        index.add(TOPIC, key)
    table = sorted(keys)
    taken: list[Key] = []
    while True:
        while index.needs_refill(TOPIC):
            after = index.refill_after(TOPIC)
            rest = [key for key in table if after is None or key > after][:window]
            index.refill(TOPIC, rest, complete=len(rest) < window)
        if index.head(TOPIC) is None:
            break
        taken.append(index.take(TOPIC))
    assert taken == table


class AgainstATable(RuleBasedStateMachine):
    """Invariant 13: the READY rows at or below the boundary are exactly those in the window or reserved."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ReadyIndex(4, 6)
        self.table: dict[int, Key] = {}
        self.reserved: set[int] = set()

    @rule(key=KEYS)
    def add(self, key: Key) -> None:
        if key[2] not in self.table:
            self.table[key[2]] = key
            self.index.add(TOPIC, key)

    @rule(number=st.integers(1, 60))
    def discard(self, number: int) -> None:
        if number in self.table:
            self.reserved.discard(number)
            self.index.discard(TOPIC, self.table.pop(number))
            if not self.table:
                self.index.forget(TOPIC)

    @precondition(lambda self: self.index.head(TOPIC) is not None)
    @rule()
    def take(self) -> None:
        key = self.index.take(TOPIC)
        assert key == min(key for number, key in self.table.items() if number not in self.reserved)
        self.reserved.add(key[2])

    @precondition(lambda self: self.reserved)
    @rule(settle=st.booleans())
    def end_of_a_reservation(self, settle: bool) -> None:
        number = min(self.reserved)
        self.reserved.discard(number)
        if settle:
            del self.table[number]
            self.index.settle(number)
        else:
            self.index.give_back(number)

    @rule(limit=st.integers(1, 4))
    def refill(self, limit: int) -> None:
        after = self.index.refill_after(TOPIC)
        if after is not None:
            rest = sorted(key for key in self.table.values() if key > after)[:limit]
            self.index.refill(TOPIC, rest, complete=len(rest) < limit)

    @invariant()
    def the_window_is_the_table_up_to_the_boundary(self) -> None:
        boundary = self.index.refill_after(TOPIC)
        free = sorted(key for number, key in self.table.items() if number not in self.reserved)
        assert list(self.index.window(TOPIC)) == [key for key in free if boundary is None or key <= boundary]


TestAgainstATable = AgainstATable.TestCase
TestAgainstATable.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_take_from_an_unknown_topic_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        ReadyIndex(1, 1).take(TOPIC)
