"""The ready index: windows, reservations, limits. Its refills are in test_ready_index_refill.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import unpack_order_key
from foqs.core.memory.ready_index import ReadyIndex
from tests.support.ready_windows import (
    ALL,
    OTHER,
    TOPIC,
    filled_index,
    finish_refill,
    index_over_larger_table,
    order_key,
    order_keys,
    reading,
    window,
)

# ------------------------------------------------------------------- windows


def test_reserve_returns_the_lowest_priority_then_the_oldest_then_the_first_number() -> None:
    index = filled_index(order_key(1, 1, 5), order_key(2, 0, 9), order_key(4, 0, 5), order_key(3, -1, 7))
    assert index.reserve(TOPIC, 3) == [order_key(3, -1, 7), order_key(4, 0, 5), order_key(2, 0, 9)]
    assert index.reserve(TOPIC, 3) == [order_key(1, 1, 5)]
    assert index.reserve(TOPIC, 3) == []
    assert filled_index(*order_keys(1)).reserve(TOPIC, 0) == []


def test_topics_that_may_have_items_are_filtered_in_the_given_order() -> None:
    index = filled_index(*order_keys(1))
    index.discover(OTHER)
    assert index.filter_known([OTHER, ("default", "none"), TOPIC]) == [OTHER, TOPIC]
    index.reserve(TOPIC, 1)
    assert index.filter_known({TOPIC: 1, OTHER: 1}) == [OTHER]
    assert index.filter_known([TOPIC]) == []


def test_a_full_window_evicts_its_worst_keys_and_lowers_its_boundary() -> None:
    index = filled_index(*order_keys(1, 2, 3, 4), window=2)
    assert window(index) == order_keys(1, 2)
    assert index.boundary(TOPIC) == order_key(2)
    index.reserve(TOPIC, 1)
    assert not index.needs_refill(TOPIC)
    assert index.is_low(TOPIC, 2)
    index.reserve(TOPIC, 1)
    assert index.needs_refill(TOPIC)


def test_a_window_that_covers_the_table_needs_no_refill() -> None:
    index = filled_index(*order_keys(1, 2))
    assert not index.is_low(TOPIC, 100)
    assert index.start_refill(TOPIC) is None
    assert index.start_refill(OTHER) is None


def test_a_key_above_the_boundary_stays_out_and_one_below_enters() -> None:
    index = index_over_larger_table(*order_keys(2, 4))
    index.add_many(TOPIC, order_keys(1, 3, 5, 6))
    assert window(index) == order_keys(1, 2, 3, 4)
    index.add(TOPIC, order_key(7))
    assert len(index) == 4


def test_an_urgent_item_enters_a_full_window() -> None:
    index = filled_index(*order_keys(1, 2), window=2)
    index.add(TOPIC, order_key(3, -1))
    assert window(index) == [order_key(3, -1), order_key(1)]


def test_a_key_that_is_in_the_window_or_reserved_is_not_added_again() -> None:
    index = filled_index(*order_keys(1, 2, 3, 4))
    index.reserve(TOPIC, 1)
    index.add_many(TOPIC, order_keys(1, 2, 4, 5))
    index.add(TOPIC, order_key(5))
    assert window(index) == order_keys(2, 3, 4, 5)
    assert len(index) == 4
    index.reserve(TOPIC, ALL)
    index.add_many(TOPIC, order_keys(1, 2, 3, 4, 5))
    assert window(index) == []


@given(st.lists(st.lists(st.integers(1, 60), max_size=12, unique=True), max_size=12), st.integers(0, 9))
def test_many_keys_are_added_as_if_one_by_one(batches: list[list[int]], count: int) -> None:
    index, expected = filled_index(*order_keys(*range(10, 20))), set(range(10, 20))
    reserved = {unpack_order_key(key)[2] for key in index.reserve(TOPIC, count)}
    for batch in batches:
        index.add_many(TOPIC, order_keys(*sorted(batch)))
        expected.update(batch)
    assert window(index) == order_keys(*sorted(expected - reserved))
    assert len(index) == len(expected - reserved)


@given(st.data())
def test_a_window_keeps_its_order_over_many_reservations_and_releases(data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(1, 200), unique=True, max_size=80))
    index, expected = filled_index(*order_keys(*numbers)), sorted(numbers)
    while expected:
        count = data.draw(st.integers(1, 9))
        reserved = index.reserve(TOPIC, count)
        assert reserved == order_keys(*expected[:count])
        released = data.draw(st.integers(0, len(reserved)))
        index.release_reservations(TOPIC, reserved[:released][::-1])
        expected = expected[:released] + expected[count:]
        if data.draw(st.booleans()) and expected:
            discarded = data.draw(st.sampled_from(expected))
            index.discard(TOPIC, order_key(discarded))
            expected.remove(discarded)
        assert window(index) == order_keys(*expected)
        if expected and released == len(reserved):
            index.reserve(TOPIC, 1)
            expected = expected[1:]


def test_an_empty_topic_that_covers_its_table_is_forgotten() -> None:
    index = filled_index(order_key(1))
    index.discard(TOPIC, order_key(1))
    assert index.topics() == []
    index.add(TOPIC, order_key(2))
    index.reserve(TOPIC, 1)
    assert index.topics() == []
    refilled_empty = index_over_larger_table()
    finish_refill(refilled_empty, [], complete=True)
    assert refilled_empty.topics() == []


def test_a_forgotten_topic_has_no_keys() -> None:
    index = filled_index(*order_keys(1, 2))
    index.forget_all([TOPIC, OTHER])
    assert (index.topics(), len(index), index.best_key(TOPIC)) == ([], 0, None)


def test_a_forgotten_topic_is_not_evicted_from() -> None:
    index = ReadyIndex(100, 6)
    index.add_many(TOPIC, order_keys(1, 2, 3))
    index.forget(TOPIC)
    index.add_many(OTHER, order_keys(*range(1, 9)))
    assert (len(index), len(window(index, OTHER))) == (6, 6)


def test_the_oldest_item_is_found_among_all_first_keys_and_some_others() -> None:
    index = filled_index(order_key(1, 0, 9), order_key(2, 1, 3), order_key(3, 2, 1))
    index.add(OTHER, order_key(4, 0, 5))
    assert index.oldest_ms(0) == 5
    assert index.oldest_ms(1) == 3
    assert index.oldest_ms(100) == 1
    index.reserve(TOPIC, 3)
    assert index.oldest_ms(100) == 5
    assert ReadyIndex(1, 1).oldest_ms(100) is None


# -------------------------------------------------------------- reservations


def test_a_confirmed_key_cannot_be_released() -> None:
    index = filled_index(*order_keys(1, 2))
    index.reserve(TOPIC, 2)
    assert index.confirm_reservations([1]) == 1
    assert index.release_reservations(TOPIC, order_keys(1, 2))
    assert window(index) == order_keys(2)
    assert index.reserved_count == 0


def test_a_reserved_item_that_gets_a_new_key_is_free_under_the_new_key_only() -> None:
    index = filled_index(*order_keys(1, 2))
    index.reserve(TOPIC, 1)
    index.discard(TOPIC, order_key(1))
    index.add(TOPIC, order_key(1, -1))
    assert index.confirm_reservations([1]) == 0
    assert index.reserve(TOPIC, 1) == [order_key(1, -1)]
    assert not index.release_reservations(TOPIC, [order_key(1)])
    assert index.reserved_count == 1
    assert index.release_reservations(TOPIC, [order_key(1, -1)])
    assert window(index) == [order_key(1, -1), order_key(2)]


# -------------------------------------------------------------------- limits


def test_the_total_is_bounded_and_every_topic_keeps_its_best_key() -> None:
    index = ReadyIndex(100, 10)
    for number in range(1, 51):
        index.add(("ns", f"t{number % 5}"), order_key(number))
    assert len(index) == 10
    assert [index.best_key(("ns", f"t{topic}")) for topic in range(5)] == order_keys(5, 1, 2, 3, 4)


def test_more_topics_than_keys_keep_one_key_each() -> None:
    index = ReadyIndex(100, 3)
    for number in range(1, 11):
        index.add_many(("ns", f"t{number}"), order_keys(number, number + 100))
    assert [len(window(index, ("ns", f"t{number}"))) for number in range(1, 11)] == [1] * 10


def test_the_least_recently_used_topic_is_evicted_from_first() -> None:
    index = ReadyIndex(100, 9)
    names = [("ns", name) for name in "abc"]
    for at, topic in enumerate(names):
        index.add_many(topic, order_keys(*range(10 * at + 1, 10 * at + 4)))
    index.release_reservations(names[0], index.reserve(names[0], 1))
    index.add(("ns", "d"), order_key(50))
    assert [len(window(index, topic)) for topic in names] == [3, 2, 3]
    assert index.boundary(names[1]) == order_key(12)
    index.add_many(("ns", "d"), order_keys(51, 52))
    assert [len(window(index, topic)) for topic in names] == [3, 1, 2]


def test_a_topic_that_was_just_refilled_is_not_evicted_from() -> None:
    index = ReadyIndex(100, 6)
    index.discover(TOPIC)
    finish_refill(index, order_keys(1, 2), complete=False)
    index.add_many(OTHER, order_keys(11, 12, 13))
    finish_refill(index, order_keys(3), complete=False)
    index.add(("ns", "v"), order_key(20))
    assert (len(window(index, TOPIC)), len(window(index, OTHER))) == (3, 2)


def test_the_refill_of_a_topic_in_use_evicts_keys_of_the_others() -> None:
    index = ReadyIndex(8, 10)
    for number in range(1, 4):
        index.add_many(("ns", f"t{number}"), order_keys(*range(number * 10, number * 10 + 4)))
    index.discover(TOPIC)
    refill = reading(index)
    assert refill.limit == 4
    index.finish_refill(refill, order_keys(1, 2, 3, 4), complete=False)
    assert window(index) == order_keys(1, 2, 3, 4)
    assert len(index) == 10


def test_a_topic_with_one_key_left_is_evicted_from_again_when_it_has_grown() -> None:
    index = ReadyIndex(100, 4)
    index.add_many(TOPIC, order_keys(1, 2, 3))
    index.add_many(OTHER, order_keys(11, 12, 13))
    assert (len(window(index, TOPIC)), len(window(index, OTHER))) == (1, 3)
    index.reserve(OTHER, 3)
    finish_refill(index, order_keys(2, 3), complete=False)
    assert len(window(index, TOPIC)) == 3
    index.add_many(OTHER, order_keys(14, 15, 16))
    assert (len(window(index, TOPIC)), len(window(index, OTHER))) == (1, 3)


# ------------------------------------------------------------------ prefetch


def test_prefetched_keys_are_counted_from_the_first_and_leave_when_they_are_reserved() -> None:
    index = filled_index(*order_keys(1, 2, 3, 4, 5))
    assert (index.prefetched_count(TOPIC), index.not_prefetched(TOPIC, 3)) == (0, order_keys(1, 2, 3))
    index.set_prefetched(TOPIC, order_key(3))
    assert (index.prefetched_count(TOPIC), index.not_prefetched(TOPIC, 4)) == (3, order_keys(4))
    index.reserve(TOPIC, 2)
    assert (index.prefetched_count(TOPIC), index.not_prefetched(TOPIC, 3)) == (1, order_keys(4, 5))
    index.reserve(TOPIC, 2)
    assert (index.prefetched_count(TOPIC), index.not_prefetched(TOPIC, 1)) == (0, order_keys(5))
    assert (index.prefetched_count(OTHER), index.not_prefetched(OTHER, 9)) == (0, [])
    index.set_prefetched(OTHER, order_key(9))


def test_no_key_above_a_lowered_boundary_counts_as_prefetched() -> None:
    index = filled_index(*order_keys(1, 2, 3, 4), window=4)
    index.set_prefetched(TOPIC, order_key(4))
    index.add(TOPIC, order_key(9, -1))
    index.reserve(TOPIC, 2)
    finish_refill(index, order_keys(4, 5), complete=True)
    assert window(index) == order_keys(2, 3, 4, 5)
    assert index.not_prefetched(TOPIC, 9) == order_keys(4, 5)
