"""Finds the best items of several shards, by merging their ready indexes.

Keys of different shards are compared by their arrival ranks. Whole runs of ranks are
sorted and bisected, never compared one by one. Ranks may be equal, in one index and in
several: then any index may come first. Always true: the keys that an index gives are
its first ones, and all together are at most as many as were asked for. Stores nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Final

from foqs.core.items.item import NUMBER_MAX, OrderKey, TopicName, arrival_rank, arrival_ranks
from foqs.core.memory.ready_index import ReadyIndex
from foqs.core.memory.ready_window import ABOVE_ALL

_PEEK_SPARE: Final = 2
"""Keys to peek at beyond the even share of an index, so that most merges need only one peek."""

_PEEK_FACTOR: Final = 4
"""Each further peek returns this many times more keys."""


def reserve_best(
    indexes: Sequence[ReadyIndex], topic: TopicName, count: int, limits: Sequence[int]
) -> list[list[OrderKey]]:
    """Reserve the best `count` keys of all indexes. Return the reserved keys of each index, in order.

    No index gives more than its limit, which must be at least 1. Fewer keys are
    reserved if the window of an index ends while its table may hold more: keys
    beyond that end are left, because that table may hold a better one.
    """
    if len(indexes) == 1:
        return [indexes[0].reserve(topic, min(count, limits[0]))]
    if count == 1:
        return _reserve_first(indexes, topic)
    if any(index.takes_turns(topic) for index in indexes):
        return _reserve_in_turn(indexes, topic, count, limits)
    peek_count = _peek_count(indexes, count)
    parts: list[list[int]] = []
    rank_max: int | None = None
    for index in indexes:
        order_keys, boundary = index.peek_with_boundary(topic, peek_count)
        ranks = arrival_ranks(order_keys)
        parts.append(ranks)
        if boundary is not None:
            rank_max = _lower_rank_max(rank_max, boundary, ranks[-1] if ranks else None)
    if sum(map(bool, parts)) < 2:
        parts = [
            arrival_ranks(index.peek(topic, count)) if part else part
            for index, part in zip(indexes, parts, strict=True)
        ]
        counts = list(map(len, parts))
    else:
        counts = _counts_per_index(indexes, topic, count, parts, peek_count)
    if rank_max is not None:
        counts = [min(part_count, bisect_right(part, rank_max)) for part_count, part in zip(counts, parts, strict=True)]
    return [
        index.reserve(topic, min(index_count, limit)) if index_count else []
        for index, index_count, limit in zip(indexes, counts, limits, strict=True)
    ]


def _reserve_first(indexes: Sequence[ReadyIndex], topic: TopicName) -> list[list[OrderKey]]:
    """Reserve one key. A fast path, because many consumers ask for one item of each of many topics."""
    reserved: list[list[OrderKey]] = [[] for _ in indexes]
    best_at = _best_index(indexes, topic)
    if best_at is not None:
        reserved[best_at] = indexes[best_at].reserve(topic, 1)
    return reserved


def _best_index(indexes: Sequence[ReadyIndex], topic: TopicName, rooms: Sequence[int] | None = None) -> int | None:
    """Return which index has the best key of all that have room; None if none has one, or the table may hold a better one.

    Args:
        rooms: how many keys of each index may be reserved; None: one of each.
    """
    rank_max: int | None = None
    best: int | None = None
    best_at = 0
    for at, index in enumerate(indexes):
        order_keys, boundary = index.peek_with_boundary(topic, 1)
        rank = arrival_rank(order_keys[0]) if order_keys else None
        if boundary is not None:
            rank_max = _lower_rank_max(rank_max, boundary, rank)
        if rank is not None and (best is None or rank < best) and (rooms is None or rooms[at]):
            best, best_at = rank, at
    if best is None or (rank_max is not None and best > rank_max):
        return None
    return best_at


def _reserve_in_turn(
    indexes: Sequence[ReadyIndex], topic: TopicName, count: int, limits: Sequence[int]
) -> list[list[OrderKey]]:
    """Reserve the keys of a fair topic: the lowest turn of all indexes first, which each reservation may change.

    Of equal turns, any index may come first: so each gives its part of a round in one step.
    """
    reserved: list[list[OrderKey]] = [[] for _ in indexes]
    lasts = [(key | NUMBER_MAX, at) for at, index in enumerate(indexes) if (key := index.best_key(topic)) is not None]
    heapify(lasts)
    while count and lasts:
        at = lasts[0][1]
        last = min(lasts[1:3])[0] if len(lasts) > 1 else ABOVE_ALL
        best = indexes[at].reserve_in_turn(topic, min(count, limits[at] - len(reserved[at])), last)
        reserved[at] += best
        count -= len(best)
        first = indexes[at].best_key(topic)
        if first is None or len(reserved[at]) >= limits[at]:
            heappop(lasts)
        else:
            heapreplace(lasts, (first | NUMBER_MAX, at))
    return reserved


def reserve_runs(
    indexes: Sequence[ReadyIndex], topic: TopicName, count: int, limits: Sequence[int], run_max: int
) -> list[list[list[OrderKey]]]:
    """Reserve the best heads of strict groups, each with its run of at most `run_max` items. Return the runs of each index, in order.

    All together have at most `count` keys; else as `reserve_best`.
    """
    reserved: list[list[list[OrderKey]]] = [[] for _ in indexes]
    rooms = [*limits]
    while count and (best_at := _best_index(indexes, topic, rooms)) is not None:
        items_max = min(count, rooms[best_at], run_max)
        index = indexes[best_at]
        run = index.reserve_run(topic, items_max) if index.gives_runs(topic) else index.reserve(topic, 1)
        reserved[best_at].append(run)
        rooms[best_at] -= len(run)
        count -= len(run)
    return reserved


def _lower_rank_max(rank_max: int | None, boundary: OrderKey, last_rank: int | None) -> int:
    """Return the lower of `rank_max` and the rank above which the table may hold keys. `last_rank` is the rank of the last key of a peek."""
    rank = arrival_rank(boundary)
    if last_rank is not None and last_rank > rank:
        rank = last_rank
    return rank if rank_max is None or rank < rank_max else rank_max


def plan_prefetch(indexes: Sequence[ReadyIndex], topic: TopicName, count: int) -> list[list[OrderKey]]:
    """Return the keys that are not prefetched yet among the best `count` of all windows, by index. Reserves nothing."""
    peek_count = _peek_count(indexes, count)
    parts = [arrival_ranks(index.peek(topic, peek_count)) for index in indexes]
    counts = _counts_per_index(indexes, topic, count, parts, peek_count)
    return [
        index.not_prefetched(topic, index_count) if index_count else []
        for index, index_count in zip(indexes, counts, strict=True)
    ]


def _peek_count(indexes: Sequence[ReadyIndex], count: int) -> int:
    """Return how many keys of each index to peek at first."""
    return min(count, count // len(indexes) + _PEEK_SPARE) if indexes and count > 0 else 0


def _counts_per_index(
    indexes: Sequence[ReadyIndex], topic: TopicName, count: int, parts: list[list[int]], peek_count: int
) -> list[int]:
    """Return how many of the best `count` keys of all windows each index has.

    `parts` are the ranks of the first `peek_count` keys of each. A part is extended if more keys of its index are peeked at.
    """
    if not peek_count:
        return [0] * len(parts)
    if count == 1:
        firsts = [(part[0], at) for at, part in enumerate(parts) if part]
        best_at = min(firsts)[1] if firsts else None
        return [int(at == best_at) for at in range(len(parts))]
    best = sorted(chain.from_iterable(parts))
    unfinished = list(range(len(parts)))
    while True:
        worst = best[count - 1] if len(best) >= count else None
        # An index may have more good keys if all the keys seen of it are good enough.
        unfinished = [
            at for at in unfinished if len(parts[at]) == peek_count and (worst is None or parts[at][-1] < worst)
        ]
        if not unfinished or peek_count == count:
            break
        peek_count = min(count, _PEEK_FACTOR * peek_count)
        for at in unfinished:
            part = arrival_ranks(indexes[at].peek(topic, peek_count))
            best += part[len(parts[at]) :]
            parts[at] = part
        best.sort()
    if worst is None:
        return [len(part) for part in parts]
    counts = [bisect_right(part, worst) for part in parts]
    surplus = sum(counts) - count
    for at in reversed(range(len(parts))):
        taken_back = min(surplus, counts[at] - bisect_left(parts[at], worst))
        counts[at] -= taken_back
        surplus -= taken_back
    return counts
