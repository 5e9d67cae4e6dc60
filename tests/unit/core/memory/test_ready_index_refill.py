"""Refills of the ready index, whose reads run while the index changes."""

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


def test_a_topic_has_at_most_one_refill_at_a_time() -> None:
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


def test_a_refill_reads_half_a_window_and_no_more_than_fits() -> None:
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


def test_topics_in_use_that_exceed_the_index_together_do_not_evict_each_other() -> None:
    index = ReadyIndex(10_000, 50_000)
    topics = [("ns", f"topic-{number}") for number in range(60)]
    table = order_keys(*range(1, 20_001))
    after = dict.fromkeys(topics, 0)
    for topic in topics:
        index.discover(topic)
    read_count = reserved_count = 0
    for _ in range(20):
        for topic in topics:
            if index.is_low(topic, 100):
                refill = index.start_refill(topic)
                assert refill is not None
                start = bisect_right(table, refill.after)
                found = table[start : start + refill.limit]
                index.finish_refill(refill, found, complete=False)
                read_count += len(found)
            keys = index.reserve(topic, 100)
            assert keys == table[after[topic] : after[topic] + 100]
            after[topic] += 100
            reserved_count += len(keys)
            index.confirm_reservations([order_key_number(key) for key in keys])
    assert read_count < 4 * reserved_count


def test_small_topics_do_not_limit_the_refill_of_a_large_one() -> None:
    index = ReadyIndex(10_000, 50_000)
    for number in range(1_000):
        index.add_many(("ns", f"small-{number}"), order_keys(1, 2))
    index.discover(TOPIC)
    assert reading(index).limit == 5_000


def test_keys_reserved_before_the_read_are_skipped_even_if_they_were_leased_meanwhile() -> None:
    index = filled_index(*order_keys(1, 2, 3))
    index.reserve(TOPIC, 2)
    index.discover(TOPIC)
    refill = reading(index)
    index.confirm_reservations([1])
    index.finish_refill(refill, order_keys(1, 2, 3), complete=True)
    assert window(index) == order_keys(3)


def test_keys_reserved_before_the_read_and_released_meanwhile_are_added() -> None:
    index = filled_index(*order_keys(1, 2, 3))
    reserved = index.reserve(TOPIC, 2)
    index.discover(TOPIC)
    refill = reading(index)
    index.release_reservations(TOPIC, reserved)
    index.finish_refill(refill, order_keys(1, 2, 3), complete=True)
    assert window(index) == order_keys(1, 2, 3)
    assert len(index) == 3


def test_a_key_discarded_after_it_was_read_is_not_added() -> None:
    index = index_over_larger_table(order_key(1))
    refill = reading(index)
    index.discard(TOPIC, order_key(3))
    index.finish_refill(refill, order_keys(2, 3, 4), complete=False)
    assert window(index) == order_keys(1, 2, 4)


def test_an_item_whose_new_key_is_above_the_boundary_is_added_by_its_last_key() -> None:
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


def test_an_item_that_was_leased_during_the_read_is_not_added() -> None:
    index = index_over_larger_table(order_key(5))
    refill = reading(index)
    index.discard(TOPIC, order_key(7, 1))
    index.add(TOPIC, order_key(7, -1))
    assert index.reserve(TOPIC, 1) == [order_key(7, -1)]
    index.confirm_reservations([7])
    index.finish_refill(refill, [order_key(7, 1)], complete=True)
    assert window(index) == order_keys(5)


def test_a_forgotten_window_ignores_the_read() -> None:
    index = index_over_larger_table(order_key(1))
    refill = reading(index)
    index.forget(TOPIC)
    index.add(TOPIC, order_key(9))
    index.finish_refill(refill, order_keys(2, 3), complete=False)
    assert window(index) == order_keys(9)
    assert index.boundary(TOPIC) is None


def test_a_window_that_was_discovered_again_ignores_the_former_read() -> None:
    index = index_over_larger_table(order_key(1))
    refill = reading(index)
    index.discover(TOPIC)
    index.finish_refill(refill, order_keys(2, 3), complete=True)
    assert index.needs_refill(TOPIC)


def test_a_window_with_a_lowered_boundary_ignores_the_read() -> None:
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


def test_a_read_with_too_many_changes_meanwhile_is_void_and_can_be_repeated() -> None:
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


def test_reservations_of_other_topics_do_not_make_a_read_void() -> None:
    index = ReadyIndex(4, 3)
    for number in range(1, 9):
        index.add(OTHER, order_key(number))
        index.reserve(OTHER, 1)
    index.discover(TOPIC)
    refill = reading(index)
    index.add(TOPIC, order_key(20))
    index.finish_refill(refill, order_keys(20), complete=True)
    assert window(index) == order_keys(20)
