"""Windows of the ready index that hold the heads of a source: in place, beside other topics, and within no bound of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final

import pytest

from foqs.core.items.item import NUMBER_MAX, OrderKey, pack_order_key
from foqs.core.memory.ready_index import ReadyIndex
from tests.support.example_counts import examples

LIMITED: Final = ("namespace", "limited")
OTHER: Final = ("namespace", "other")


class Source:
    """Notes what is reserved."""

    takes_turns = False
    gives_runs = False

    def __init__(self) -> None:
        self.reserved: set[int] = set()

    def reserve(self, order_keys: Iterable[OrderKey]) -> None:
        assert not self.takes_turns
        self.reserved.update([key & NUMBER_MAX for key in order_keys])

    def reserve_in_turn(
        self, heads: Sequence[OrderKey], count: int, last: OrderKey
    ) -> tuple[list[OrderKey], int, list[OrderKey]]:
        raise AssertionError("it takes no turns")

    def reserve_run(self, head: OrderKey, items_max: int, is_free: Callable[[int], bool]) -> list[OrderKey]:
        raise AssertionError("it gives no runs")

    def end_reservations(self, numbers: Iterable[int]) -> None:
        self.reserved.difference_update(numbers)


class TurnSource(Source):
    """Two groups that take turns: a head that is reserved is followed by the next one of its group, behind the other group."""

    takes_turns = True

    def __init__(self, items: int) -> None:
        super().__init__()
        self.items = items

    def reserve_in_turn(
        self, heads: Sequence[OrderKey], count: int, last: OrderKey
    ) -> tuple[list[OrderKey], int, list[OrderKey]]:
        offered, taken = [*heads], list[OrderKey]()
        while offered and offered[0] <= last and len(taken) < count:
            taken.append(offered.pop(0))
            number = taken[-1] & NUMBER_MAX
            offered = sorted([*offered, key(number + 2)]) if number + 2 <= self.items else offered
        self.reserved.update([each & NUMBER_MAX for each in taken])
        return taken, len(set(taken).intersection(heads)), [each for each in offered if each not in heads]


def key(number: int) -> OrderKey:
    return pack_order_key(0, number, number)


@pytest.mark.parametrize("seed", range(examples(20)))
def test_window_holds_the_heads_that_were_added_up_to_the_boundary(seed: int) -> None:
    random = Random(seed)
    index, source = ReadyIndex(100, 100), Source()
    index.set_source(LIMITED, source, 0)
    heads: set[int] = set()
    for _ in range(200):
        if random.random() < 0.4:
            taken = [key & NUMBER_MAX for key in index.reserve(LIMITED, random.randint(1, 3))]
            assert taken == sorted(heads)[: len(taken)]
            heads.difference_update(taken)
            assert source.reserved.issuperset(taken)
            index.confirm_reservations(taken)
            assert not source.reserved
        else:
            new = {random.randint(1, 300) for _ in range(random.choice((1, 1, 5, 30)))}
            gone = {number for number in (*heads, 1_000) if random.random() < 0.1}
            boundary = random.choice((None, None, random.randint(1, 300)))
            is_reset = random.random() < 0.1
            heads = (set() if is_reset else heads - gone) | new
            if boundary is not None:
                heads = {number for number in heads if number <= boundary}
                new &= heads
            index.set_heads(
                LIMITED,
                list(map(key, gone)),
                list(map(key, sorted(new))),
                None if boundary is None else key(boundary),
                is_reset=is_reset,
            )
        assert index.peek(LIMITED, 1_000) == list(map(key, sorted(heads)))
        assert len(index) == len(heads)
        index.check()
    index.remove_source(LIMITED)
    assert len(index) == 0
    assert index.needs_refill(LIMITED)
    index.check()


@pytest.mark.parametrize("count", [1, 3, 4, 100])
@pytest.mark.parametrize("boundary", [None, key(1_000)])
def test_reserved_head_is_followed_by_the_next_one_of_its_group_in_the_same_step(
    count: int, boundary: OrderKey | None
) -> None:
    index, source = ReadyIndex(100, 100), TurnSource(10)
    index.set_source(LIMITED, source, 0)
    index.set_heads(LIMITED, (), [key(1), key(2)], boundary, is_reset=True)
    taken: list[int] = []
    assert [each & NUMBER_MAX for each in index.reserve_in_turn(LIMITED, 100, key(3))] == [1, 2, 3]
    taken += [1, 2, 3]
    while reserved := index.reserve(LIMITED, count):
        assert len(reserved) == min(count, 10 - len(taken))
        taken += [each & NUMBER_MAX for each in reserved]
        index.check()
    assert taken == [*range(1, 11)]
    assert source.reserved == set(taken)
    assert (LIMITED in index) == (boundary is not None)


@pytest.mark.parametrize("gone", [False, True])
def test_head_that_is_given_back_after_its_source_was_removed_is_read_from_the_table(gone: bool) -> None:
    """The key of a head is not that of its row: it has a turn."""
    index, rows = ReadyIndex(100, 100), [pack_order_key(0, 1_000 + number, number) for number in (1, 2, 3)]
    index.set_source(LIMITED, TurnSource(0), None)
    index.set_heads(LIMITED, (), [key(1)], None, is_reset=False)
    [head] = index.reserve(LIMITED, 1)
    index.remove_source(LIMITED)
    refill(index, rows)
    index.check()
    assert index.peek(LIMITED, 9) == rows[1:]
    assert all(index.covers(LIMITED, row) for row in rows)
    if gone:
        index.discard(LIMITED, rows.pop(0))
    assert index.release_reservations(LIMITED, [head]) != gone
    if not gone:
        refill(index, rows)
    index.check()
    index.check_ready(LIMITED, len(rows))
    assert index.peek(LIMITED, 9) == rows
    assert index.reserve(LIMITED, 9) == rows
    assert index.release_reservations(LIMITED, rows)
    assert index.peek(LIMITED, 9) == rows, "only the source's own reservations are read again"


def refill(index: ReadyIndex, rows: Sequence[OrderKey]) -> None:
    found = index.start_refill(LIMITED)
    assert found is not None
    index.finish_refill(found, rows, complete=True)


def test_heads_evict_no_keys_of_other_topics() -> None:
    index = ReadyIndex(100, 50)
    index.add_many(OTHER, [key(number) for number in range(1, 41)])
    index.set_source(LIMITED, Source(), 0)
    index.set_heads(LIMITED, (), [key(number) for number in range(101, 301)], None, is_reset=True)
    index.add(OTHER, key(41))
    assert len(index.peek(OTHER, 100)) == 41
    assert index.evicted_count == 0
    index.add_many(OTHER, [key(number) for number in range(42, 61)])
    assert len(index.peek(OTHER, 100)) == 50
    assert len(index.peek(LIMITED, 1_000)) == 200
    index.check()


def test_change_of_few_heads_does_not_make_the_window_again() -> None:
    index = ReadyIndex(100, 100)
    index.set_source(LIMITED, Source(), 0)
    index.set_heads(LIMITED, (), [key(number) for number in range(1, 10_001)], None, is_reset=True)
    order_keys = index._windows[LIMITED].order_keys
    index.set_heads(LIMITED, [key(500)], [key(20_000)], None, is_reset=False)
    assert index._windows[LIMITED].order_keys is order_keys
    assert len(order_keys) == 10_000
