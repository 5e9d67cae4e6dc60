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

from foqs.core.item import Key, TopicName
from foqs.core.ready import ReadyIndex

T = TypeVar("T")

_LOOK_SPARE: Final = 2
"""Looked at of each index beyond its even share, so that most merges need no second look."""

_LOOK_FACTOR: Final = 4
"""How much further each look goes."""


def take_best(indexes: Sequence[ReadyIndex], topic: TopicName, count: int, most: Sequence[int]) -> list[list[Key]]:
    """Takes the best `count` keys of all indexes: for each index those it gave up, in order, and no more than its `most`, at least 1.

    They are fewer where an index's window ends while its table may hold more:
    no key is taken beyond what every window covers, as a better one may be in
    that table.
    """
    if len(indexes) == 1:
        return [indexes[0].take(topic, min(count, most[0]))]
    if count == 1:
        return _take_first(indexes, topic)
    look = _look(indexes, count)
    parts: list[list[Key]] = []
    sure: Key | None = None
    for index in indexes:
        keys, boundary = index.front(topic, look)
        parts.append(keys)
        if boundary is not None and (sure is None or boundary < sure):
            sure = boundary
    if sum(map(bool, parts)) < 2:
        shares: Sequence[int] = [count if part else 0 for part in parts]
    else:
        shares = _shares(indexes, topic, count, parts, look)
    return [
        index.take(topic, min(share, limit), sure) if share else []
        for index, share, limit in zip(indexes, shares, most, strict=True)
    ]


def _take_first(indexes: Sequence[ReadyIndex], topic: TopicName) -> list[list[Key]]:
    """`take_best` of one key: many consumers ask for one item of each of many topics."""
    sure: Key | None = None
    best: Key | None = None
    best_at = 0
    for at, index in enumerate(indexes):
        keys, boundary = index.front(topic, 1)
        if boundary is not None and (sure is None or boundary < sure):
            sure = boundary
        if keys and (best is None or keys[0] < best):
            best, best_at = keys[0], at
    taken: list[list[Key]] = [[] for _ in indexes]
    if best is not None and (sure is None or best <= sure):
        taken[best_at] = indexes[best_at].take(topic, 1)
    return taken


def plan_loads(indexes: Sequence[ReadyIndex], topic: TopicName, want: int) -> list[list[Key]]:
    """For each index those keys among the best `want` of all windows that are not loaded. Nothing is reserved."""
    look = _look(indexes, want)
    shares = _shares(indexes, topic, want, [index.peek(topic, look) for index in indexes], look)
    return [index.unloaded(topic, share) if share else [] for index, share in zip(indexes, shares, strict=True)]


def in_order(keys: Sequence[Sequence[Key]], values: Sequence[Sequence[T]]) -> list[T]:
    """The values of all parts in the order of their keys; `keys` and `values` have the same shape."""
    if sum(map(bool, keys)) < 2:
        return list(chain.from_iterable(values))
    every_key = list(chain.from_iterable(keys))
    every_value = list(chain.from_iterable(values))
    return [every_value[at] for at in sorted(range(len(every_key)), key=every_key.__getitem__)]


def _look(indexes: Sequence[ReadyIndex], count: int) -> int:
    """How many keys of each index to look at first."""
    return min(count, count // len(indexes) + _LOOK_SPARE) if indexes and count > 0 else 0


def _shares(
    indexes: Sequence[ReadyIndex], topic: TopicName, count: int, parts: list[list[Key]], look: int
) -> list[int]:
    """How many of the best `count` keys of all windows each index has; `parts` are the first `look` of each."""
    if not look:
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
        behind = [at for at in behind if len(parts[at]) == look and (worst is None or parts[at][-1] < worst)]
        if not behind or look == count:
            break
        look = min(count, _LOOK_FACTOR * look)
        for at in behind:
            more = indexes[at].peek(topic, look)
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
