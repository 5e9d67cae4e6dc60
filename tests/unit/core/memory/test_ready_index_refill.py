"""Refills of the ready index: what a read may bring that runs beside everything else."""

from __future__ import annotations

from bisect import bisect_right

from foqs.core.items.item import order_key_number
from foqs.core.memory.ready_index import ReadyIndex
from tests.support.ready_windows import (
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


def test_a_refill_extends_the_window_up_to_the_last_key_read() -> None:
    index = index_over_larger_table(*order_keys(1, 2))
    refill = reading(index)
    assert (refill.topic, refill.after) == (TOPIC, order_key(2))
    index.finish_refill(refill, order_keys(5, 6), complete=False)
    assert window(index) == order_keys(1, 2, 5, 6)
    assert index.boundary(TOPIC) == order_key(6)
    finish_refill(index, order_keys(9), complete=True)
    assert window(index) == order_keys(1, 2, 5, 6, 9)
    assert index.boundary(TOPIC) is None


def test_one_refill_of_a_topic_is_open_at_a_time() -> None:
    index = index_over_larger_table(order_key(1))
    refill = reading(index)
    assert index.start_refill(TOPIC) is None
    index.cancel_refill(refill)
    index.finish_refill(refill, order_keys(2), complete=True)
    assert window(index) == order_keys(1)
    again = reading(index)
    index.cancel_refill(refill)
    assert index.start_refill(TOPIC) is None
    index.finish_refill(again, order_keys(2), complete=True)
    assert window(index) == order_keys(1, 2)


def test_a_refill_asks_for_half_a_window_and_for_no_more_than_has_room() -> None:
    index = ReadyIndex(10, 1_000)
    index.discover(TOPIC)
    assert reading(index).limit == 5
    index.discover(TOPIC)
    finish_refill(index, order_keys(*range(1, 8)), complete=False)
    assert reading(index).limit == 3
    index.discover(TOPIC)
    finish_refill(index, order_keys(*range(1, 11)), complete=False)
    assert index.start_refill(TOPIC) is None
    small = ReadyIndex(10, 3)
    small.discover(TOPIC)
    assert reading(small).limit == 3
    tiny = ReadyIndex(1, 3)
    tiny.discover(TOPIC)
    assert reading(tiny).limit == 1


def test_topics_in_use_that_are_deeper_together_than_the_index_do_not_put_each_other_out() -> None:
    index = ReadyIndex(10_000, 50_000)
    topics = [("ns", f"topic-{number}") for number in range(60)]
    table = order_keys(*range(1, 20_001))
    after = dict.fromkeys(topics, 0)
    for topic in topics:
        index.discover(topic)
    read = taken = 0
    for _ in range(20):
        for topic in topics:
            if index.is_low(topic, 100):
                refill = index.start_refill(topic)
                assert refill is not None
                start = bisect_right(table, refill.after)
                found = table[start : start + refill.limit]
                index.finish_refill(refill, found, complete=False)
                read += len(found)
            keys = index.reserve(topic, 100)
            assert keys == table[after[topic] : after[topic] + 100]
            after[topic] += 100
            taken += len(keys)
            index.confirm_reservations([order_key_number(key) for key in keys])
    assert read < 4 * taken


def test_topics_with_little_take_nothing_from_the_refill_of_a_deep_one() -> None:
    index = ReadyIndex(10_000, 50_000)
    for number in range(1_000):
        index.add_many(("ns", f"small-{number}"), order_keys(1, 2))
    index.discover(TOPIC)
    assert reading(index).limit == 5_000


def test_what_was_reserved_before_the_read_is_skipped_whether_it_is_still_or_was_leased_meanwhile() -> None:
    index = filled_index(*order_keys(1, 2, 3))
    index.reserve(TOPIC, 2)
    index.discover(TOPIC)
    refill = reading(index)
    index.confirm_reservations([1])
    index.finish_refill(refill, order_keys(1, 2, 3), complete=True)
    assert window(index) == order_keys(3)


def test_what_was_reserved_before_the_read_and_given_back_meanwhile_enters() -> None:
    index = filled_index(*order_keys(1, 2, 3))
    taken = index.reserve(TOPIC, 2)
    index.discover(TOPIC)
    refill = reading(index)
    index.release_reservations(TOPIC, taken)
    index.finish_refill(refill, order_keys(1, 2, 3), complete=True)
    assert window(index) == order_keys(1, 2, 3)
    assert len(index) == 3


def test_what_went_after_it_was_read_does_not_come_back() -> None:
    index = index_over_larger_table(order_key(1))
    refill = reading(index)
    index.discard(TOPIC, order_key(3))
    index.finish_refill(refill, order_keys(2, 3, 4), complete=False)
    assert window(index) == order_keys(1, 2, 4)


def test_what_became_ready_above_the_boundary_after_the_read_is_not_lost() -> None:
    index = index_over_larger_table(order_key(1))
    refill = reading(index)
    index.add_many(TOPIC, order_keys(3, 9))
    index.finish_refill(refill, order_keys(2, 4), complete=False)
    assert window(index) == order_keys(1, 2, 3, 4)
    assert index.boundary(TOPIC) == order_key(4)


def test_what_became_ready_above_everything_read_is_in_a_complete_read() -> None:
    index = index_over_larger_table(order_key(1))
    refill = reading(index)
    index.add(TOPIC, order_key(9))
    index.finish_refill(refill, order_keys(2), complete=True)
    assert window(index) == order_keys(1, 2, 9)
    assert index.boundary(TOPIC) is None


def test_what_became_ready_and_was_read_as_well_enters_once() -> None:
    index = index_over_larger_table(order_key(1))
    refill = reading(index)
    index.add(TOPIC, order_key(3))
    index.finish_refill(refill, order_keys(2, 3), complete=True)
    assert window(index) == order_keys(1, 2, 3)
    assert len(index) == 3


def test_what_was_re_keyed_to_below_the_boundary_is_not_taken_from_the_read() -> None:
    index = index_over_larger_table(order_key(5))
    refill = reading(index)
    index.discard(TOPIC, order_key(7, 1))
    index.add(TOPIC, order_key(7, -1))
    index.finish_refill(refill, [order_key(6), order_key(7, 1)], complete=True)
    assert window(index) == [order_key(7, -1), order_key(5), order_key(6)]
    assert len(index) == 3


def test_what_was_re_keyed_to_above_the_boundary_enters_by_its_last_key() -> None:
    index = index_over_larger_table(*order_keys(1, 2))
    refill = reading(index)
    for old, new in (
        (order_key(1), order_key(1, 1)),
        (order_key(1, 1), order_key(1, 2)),
        (order_key(4), order_key(4, 9)),
    ):
        index.discard(TOPIC, old)
        index.add(TOPIC, new)
    index.finish_refill(refill, [order_key(3), order_key(4), order_key(1, 1), order_key(5, 3)], complete=False)
    assert window(index) == [order_key(2), order_key(3), order_key(1, 2), order_key(5, 3)]


def test_what_was_taken_while_the_read_ran_is_not_added_by_what_was_noted_or_read() -> None:
    index = index_over_larger_table(order_key(5))
    refill = reading(index)
    index.discard(TOPIC, order_key(7, 1))
    index.add(TOPIC, order_key(7, -1))
    assert index.reserve(TOPIC, 1) == [order_key(7, -1)]
    index.confirm_reservations([7])
    index.finish_refill(refill, [order_key(7, 1)], complete=True)
    assert window(index) == order_keys(5)


def test_a_window_that_was_forgotten_takes_nothing_from_the_read() -> None:
    index = index_over_larger_table(order_key(1))
    refill = reading(index)
    index.forget(TOPIC)
    index.add(TOPIC, order_key(9))
    index.finish_refill(refill, order_keys(2, 3), complete=False)
    assert window(index) == order_keys(9)
    assert index.boundary(TOPIC) is None


def test_a_window_that_was_discovered_anew_takes_nothing_from_the_former_read() -> None:
    index = index_over_larger_table(order_key(1))
    refill = reading(index)
    index.discover(TOPIC)
    index.finish_refill(refill, order_keys(2, 3), complete=True)
    assert index.needs_refill(TOPIC)


def test_a_window_that_was_lowered_takes_nothing_from_the_read() -> None:
    index = ReadyIndex(4, 4)
    index.discover(TOPIC)
    finish_refill(index, order_keys(2, 3), complete=False)
    finish_refill(index, order_keys(4), complete=False)
    refill = reading(index)
    index.add_many(TOPIC, [order_key(1, -1), order_key(9, -1)])
    assert index.boundary(TOPIC) == order_key(3)
    index.reserve(TOPIC, 3)
    index.finish_refill(refill, order_keys(6), complete=True)
    assert window(index) == order_keys(3)
    assert index.boundary(TOPIC) == order_key(3)


def test_a_read_during_which_too_much_happened_is_void_and_can_be_repeated() -> None:
    index = ReadyIndex(4, 5)
    index.discover(TOPIC)
    refill = reading(index)
    index.add_many(TOPIC, order_keys(*range(10, 15)))
    assert index.start_refill(TOPIC) is None
    index.add_many(TOPIC, order_keys(15))
    assert len(refill.changes) <= 6
    index.finish_refill(refill, order_keys(1), complete=True)
    assert index.needs_refill(TOPIC)
    finish_refill(index, order_keys(1, 10), complete=False)
    assert window(index) == order_keys(1, 10)


def test_what_is_reserved_elsewhere_does_not_make_a_read_void() -> None:
    index = ReadyIndex(4, 3)
    for number in range(1, 9):
        index.add(OTHER, order_key(number))
        index.reserve(OTHER, 1)
    index.discover(TOPIC)
    refill = reading(index)
    index.add(TOPIC, order_key(20))
    index.finish_refill(refill, order_keys(20), complete=True)
    assert window(index) == order_keys(20)
