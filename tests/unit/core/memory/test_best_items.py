"""The merge of several ready indexes, compared with sorting all keys."""

from __future__ import annotations

from itertools import accumulate, chain

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import OrderKey, arrival_rank, make_number, pack_order_key
from foqs.core.memory.best_items import plan_prefetch, reserve_best
from foqs.core.memory.ready_index import ReadyIndex
from tests.support.ready_windows import TOPIC, finish_refill, order_key, order_keys, window

Numbers = list[list[int]]

numbers = st.lists(st.lists(st.integers(1, 40), max_size=25, unique=True).map(sorted), min_size=1, max_size=6)
"""The keys of each index. Two indexes may have equal ones."""
clustered = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 60)).map(
        lambda run: list(range(1 + 20 * run[0], 1 + 20 * run[0] + run[1]))
    ),
    min_size=1,
    max_size=6,
)
"""Like `numbers`, with long runs."""
counts = st.integers(0, 80)


def complete(keys: Numbers) -> list[ReadyIndex]:
    """Return indexes whose windows hold all keys of their tables."""
    indexes = [ReadyIndex(1_000, 10_000) for _ in keys]
    for index, part in zip(indexes, keys, strict=True):
        index.add_many(TOPIC, order_keys(*part))
    return indexes


def incomplete(keys: Numbers, seen: list[int]) -> list[ReadyIndex]:
    """Return indexes that have each read the first `seen` keys of their tables."""
    indexes = [ReadyIndex(1_000, 10_000) for _ in keys]
    for index, part, count in zip(indexes, keys, seen, strict=True):
        index.discover(TOPIC)
        if count:
            finish_refill(index, order_keys(*part[:count]), complete=count > len(part))
    return indexes


def ranked(keys: Numbers) -> list[tuple[OrderKey, int]]:
    return sorted((key, at) for at, part in enumerate(keys) for key in order_keys(*part))


@given(numbers | clustered, counts)
def test_the_best_keys_of_all_windows_are_reserved(keys: Numbers, count: int) -> None:
    indexes = complete(keys)
    parts = reserve_best(indexes, TOPIC, count, [1_000] * len(indexes))
    assert sorted((key, at) for at, part in enumerate(parts) for key in part) == ranked(keys)[:count]
    assert all(part == sorted(part) for part in parts)
    left = [(key, at) for at, index in enumerate(indexes) for key in window(index)]
    assert sorted(left) == ranked(keys)[count:]


@given(numbers | clustered, counts, st.data())
def test_no_key_is_reserved_if_a_table_may_hold_a_better_one(keys: Numbers, count: int, data: st.DataObject) -> None:
    seen = [data.draw(st.integers(0, len(part) + 1)) for part in keys]
    indexes = incomplete(keys, seen)
    ends = [(order_key(part[n - 1]) if n else 0) for part, n in zip(keys, seen, strict=True) if n <= len(part)]
    parts = reserve_best(indexes, TOPIC, count, [1_000] * len(indexes))
    certain = [(key, at) for key, at in ranked(keys) if not ends or key <= min(ends)]
    assert sorted((key, at) for at, part in enumerate(parts) for key in part) == certain[:count]


@given(numbers | clustered, counts, st.data())
def test_the_best_keys_that_are_not_prefetched_are_planned(keys: Numbers, count: int, data: st.DataObject) -> None:
    indexes = complete(keys)
    prefetched_to = [data.draw(st.integers(0, 41)) for _ in keys]
    for index, number in zip(indexes, prefetched_to, strict=True):
        index.set_prefetched(TOPIC, order_key(number))
    parts = plan_prefetch(indexes, TOPIC, count)
    best = ranked(keys)[:count]
    assert parts == [
        [key for key, of_index in best if of_index == at and key > order_key(number)]
        for at, number in enumerate(prefetched_to)
    ]
    assert [window(index) for index in indexes] == [order_keys(*part) for part in keys]
    assert sum(index.reserved_count for index in indexes) == 0


def test_no_index_gives_more_than_its_limit_and_the_others_give_no_worse_keys_instead() -> None:
    indexes = complete([[1, 2, 3], [4, 5]])
    assert reserve_best(indexes, TOPIC, 4, [2, 9]) == [order_keys(1, 2), order_keys(4)]
    assert reserve_best(complete([[1, 2, 3]]), TOPIC, 3, [2]) == [order_keys(1, 2)]
    assert reserve_best(complete([[1, 2, 3], []]), TOPIC, 3, [2, 9]) == [order_keys(1, 2), []]


def test_without_indexes_nothing_is_reserved_or_planned() -> None:
    assert reserve_best([], TOPIC, 3, []) == []
    assert plan_prefetch([], TOPIC, 3) == []


@given(numbers)
def test_a_single_reserved_key_is_the_best_and_among_equal_ones_that_of_the_first_index(keys: Numbers) -> None:
    parts = reserve_best(complete(keys), TOPIC, 1, [1_000] * len(keys))
    assert [(key, at) for at, part in enumerate(parts) for key in part] == ranked(keys)[:1]


arrivals = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)), max_size=40)
"""For each item that a host accepts: its shard, the time since the one before it, and how often its shard was taken over since."""


@given(arrivals, st.integers(0, 50))
def test_items_of_one_millisecond_come_in_order_of_their_arrival_whatever_the_epochs_of_their_shards(
    accepted: list[tuple[int, int, int]], count: int
) -> None:
    indexes = [ReadyIndex(1_000, 10_000) for _ in range(3)]
    epochs, now_ms = [900, 5, 70], 1_000
    expected: list[OrderKey] = []
    for sequence, (shard, passed_ms, takeovers) in enumerate(accepted, 1):
        epochs[shard] += takeovers
        now_ms += passed_ms
        expected.append(pack_order_key(0, now_ms, make_number(epochs[shard], sequence)))
        indexes[shard].add(TOPIC, expected[-1])
    parts = reserve_best(indexes, TOPIC, count, [1_000] * 3)
    assert sorted(key for part in parts for key in part) == sorted(expected[:count])
    one_by_one = [key for _ in expected[count:] for part in reserve_best(indexes, TOPIC, 1, [1] * 3) for key in part]
    assert one_by_one == expected[count:]


of_former_owners = st.lists(
    st.lists(st.builds(make_number, st.integers(1, 3), st.integers(1, 60)), max_size=40, unique=True).map(sorted),
    min_size=2,
    max_size=4,
)
"""The items of one millisecond in each shard, which several hosts accepted: a later epoch may have lower sequences."""


@given(of_former_owners, st.integers(1, 60), st.data())
def test_no_more_and_no_worse_items_are_reserved_than_asked_for_whatever_the_sequences_of_former_owners(
    keys: Numbers, count: int, data: st.DataObject
) -> None:
    seen = [data.draw(st.sampled_from((len(part) // 2, len(part) + 1))) for part in keys]
    indexes = incomplete(keys, seen)
    ranks = [list(accumulate(map(arrival_rank, window(index)), max)) for index in indexes]
    ends = [max(of_index, default=0) for of_index, part, n in zip(ranks, keys, seen, strict=True) if n <= len(part)]
    certain = sorted(rank for rank in chain(*ranks) if rank <= min(ends, default=rank))
    parts = reserve_best(indexes, TOPIC, count, [1_000] * len(indexes))
    assert parts == [order_keys(*of_index[: len(part)]) for part, of_index in zip(parts, keys, strict=True)]
    reserved = sorted(chain(*(of_index[: len(part)] for part, of_index in zip(parts, ranks, strict=True))))
    assert reserved == certain[: len(reserved)]
    assert bool(certain) <= len(reserved) <= count
    if not ends:
        assert len(reserved) == min(count, len(certain))


@given(of_former_owners, st.integers(0, 60))
def test_no_more_items_are_planned_than_asked_for(keys: Numbers, count: int) -> None:
    parts = plan_prefetch(complete(keys), TOPIC, count)
    assert sum(map(len, parts)) == min(count, sum(map(len, keys)))


def test_the_items_of_one_shard_keep_their_order_beside_an_item_of_another_host_with_a_higher_sequence() -> None:
    indexes = [ReadyIndex(1_000, 10_000) for _ in range(2)]
    keys = [pack_order_key(0, 1_000, make_number(epoch, sequence)) for epoch, sequence in ((3, 80), (4, 20), (4, 30))]
    other = pack_order_key(0, 1_000, make_number(9, 25))
    indexes[0].add_many(TOPIC, keys)
    indexes[1].add(TOPIC, other)
    assert reserve_best(indexes, TOPIC, 2, [9, 9]) == [keys[:1], [other]]
    assert reserve_best(indexes, TOPIC, 2, [9, 9]) == [keys[1:], []]


def test_a_window_that_ends_with_a_lower_sequence_than_before_gives_its_keys() -> None:
    indexes = [ReadyIndex(1_000, 10_000) for _ in range(2)]
    keys = [pack_order_key(0, 1_000, make_number(epoch, sequence)) for epoch, sequence in ((3, 80), (4, 20))]
    indexes[0].discover(TOPIC)
    finish_refill(indexes[0], keys, complete=False)
    assert reserve_best(indexes, TOPIC, 1, [9, 9]) == [keys[:1], []]
    assert reserve_best(indexes, TOPIC, 5, [9, 9]) == [keys[1:], []]
