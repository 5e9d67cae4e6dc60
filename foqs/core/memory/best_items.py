"""The best items of several shards: their ready indexes, merged.

Whole runs of keys are compared and cut, by sorting and bisecting, never one by
one. Keys of two indexes may be equal: then the former index comes first.
Nothing is kept here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from typing import Final, TypeVar

from foqs.core.items.item import OrderKey, TopicName
from foqs.core.memory.ready_index import ReadyIndex

T = TypeVar("T")

_PEEK_SPARE: Final = 2
"""Looked at of each index beyond its even share, so that most merges need no second look."""

_PEEK_FACTOR: Final = 4
"""How much further each look goes."""


def reserve_best(
    indexes: Sequence[ReadyIndex], topic: TopicName, count: int, limits: Sequence[int]
) -> list[list[OrderKey]]:
    """Takes the best `count` keys of all indexes: for each index those it gave up, in order, and no more than its `limits`, at least 1.

    They are fewer where an index's window ends while its table may hold more:
    no key is taken beyond what every window covers, as a better one may be in
    that table.
    """
    if len(indexes) == 1:
        return [indexes[0].reserve(topic, min(count, limits[0]))]
    if count == 1:
        return _reserve_first(indexes, topic)
    look = _peek_count(indexes, count)
    parts: list[list[OrderKey]] = []
    sure: OrderKey | None = None
    for index in indexes:
        keys, boundary = index.peek_with_boundary(topic, look)
        parts.append(keys)
        if boundary is not None and (sure is None or boundary < sure):
            sure = boundary
    if sum(map(bool, parts)) < 2:
        shares: Sequence[int] = [count if part else 0 for part in parts]
    else:
        shares = _counts_per_index(indexes, topic, count, parts, look)
    return [
        index.reserve(topic, min(share, limit), sure) if share else []
        for index, share, limit in zip(indexes, shares, limits, strict=True)
    ]


def _reserve_first(indexes: Sequence[ReadyIndex], topic: TopicName) -> list[list[OrderKey]]:
    """`take_best` of one key: many consumers ask for one item of each of many topics."""
    sure: OrderKey | None = None
    best: OrderKey | None = None
    best_at = 0
    for at, index in enumerate(indexes):
        keys, boundary = index.peek_with_boundary(topic, 1)
        if boundary is not None and (sure is None or boundary < sure):
            sure = boundary
        if keys and (best is None or keys[0] < best):
            best, best_at = keys[0], at
    taken: list[list[OrderKey]] = [[] for _ in indexes]
    if best is not None and (sure is None or best <= sure):
        taken[best_at] = indexes[best_at].reserve(topic, 1)
    return taken


def plan_prefetch(indexes: Sequence[ReadyIndex], topic: TopicName, count: int) -> list[list[OrderKey]]:
    """For each index those keys among the best `count` of all windows that are not loaded. Nothing is reserved."""
    look = _peek_count(indexes, count)
    shares = _counts_per_index(indexes, topic, count, [index.peek(topic, look) for index in indexes], look)
    return [index.not_prefetched(topic, share) if share else [] for index, share in zip(indexes, shares, strict=True)]


def merge_values(keys: Sequence[Sequence[OrderKey]], values: Sequence[Sequence[T]]) -> list[T]:
    """The values of all parts in the order of their keys; `keys` and `values` have the same shape."""
    if sum(map(bool, keys)) < 2:
        return list(chain.from_iterable(values))
    every_key = list(chain.from_iterable(keys))
    every_value = list(chain.from_iterable(values))
    return [every_value[at] for at in sorted(range(len(every_key)), key=every_key.__getitem__)]


def _peek_count(indexes: Sequence[ReadyIndex], count: int) -> int:
    """How many keys of each index to look at first."""
    return min(count, count // len(indexes) + _PEEK_SPARE) if indexes and count > 0 else 0


def _counts_per_index(
    indexes: Sequence[ReadyIndex], topic: TopicName, count: int, parts: list[list[OrderKey]], peek_count: int
) -> list[int]:
    """How many of the best `count` keys of all windows each index has; `parts` are the first `peek_count` of each."""
    if not peek_count:
        return [0] * len(parts)
    if count == 1:
        heads = [(part[0], at) for at, part in enumerate(parts) if part]
        best_at = min(heads)[1] if heads else None
        return [int(at == best_at) for at in range(len(parts))]
    best = sorted(chain.from_iterable(parts))
    behind = list(range(len(parts)))
    while True:
        worst = best[count - 1] if len(best) >= count else None
        # An index whose keys seen are all good enough may have more of them.
        behind = [at for at in behind if len(parts[at]) == peek_count and (worst is None or parts[at][-1] < worst)]
        if not behind or peek_count == count:
            break
        peek_count = min(count, _PEEK_FACTOR * peek_count)
        for at in behind:
            more = indexes[at].peek(topic, peek_count)
            best += more[len(parts[at]) :]
            parts[at] = more
        best.sort()
    if worst is None:
        return [len(part) for part in parts]
    shares = [bisect_right(part, worst) for part in parts]
    surplus = sum(shares) - count
    for at in reversed(range(len(parts))):
        if surplus and shares[at] and parts[at][shares[at] - 1] == worst:
            shares[at] -= 1
            surplus -= 1
    return shares
