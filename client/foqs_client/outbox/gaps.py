"""The gaps of an outbox: ids that were not seen below one that was.

The transaction of such an id was rolled back, or has not ended. Holds `Gaps`. Always
true: the ranges are disjoint and bounded in number; a gap ends when its row is found, when
it is old, or when there are too many. A row that comes later is left to a sweep. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeAlias

IdRange: TypeAlias = tuple[int, int]
"""(first, last), both included."""


class Gaps:
    """The gaps that are read with each page.

    Args:
        keep_s: how long a gap is read: the longest transaction that keeps its place in the order.
        ranges_max: beyond this number the oldest ones end.
    """

    def __init__(self, keep_s: float, ranges_max: int) -> None:
        self._keep_s = keep_s
        self._ranges_max = ranges_max
        self._seen_s: dict[IdRange, float] = {}
        """When each was first missed, oldest first."""

    @property
    def ranges(self) -> list[IdRange]:
        """The ranges to read, by id."""
        return sorted(self._seen_s)

    def add(self, ranges: Iterable[IdRange], now_s: float) -> None:
        """Add ranges that were missed now."""
        for each in ranges:
            self._seen_s[each] = now_s
        for each in list(self._seen_s)[: max(0, len(self._seen_s) - self._ranges_max)]:
            del self._seen_s[each]

    def remove_found(self, ids: Iterable[int]) -> None:
        """Remove ids whose rows were found. What is left of a range keeps its age."""
        found = sorted(set(ids))
        if not found:
            return
        kept: dict[IdRange, float] = {}
        for (first, last), seen_s in self._seen_s.items():
            inside = found[bisect_left(found, first) : bisect_right(found, last)]
            kept.update(dict.fromkeys(missing_between(first - 1, [*inside, last + 1]), seen_s))
        self._seen_s = kept

    def remove_old(self, read_s: float) -> None:
        """Remove gaps that were read once more when they were old. All were read at `read_s`."""
        # A relay may have stood still meanwhile: age alone does not say that the row was looked for.
        for each in [each for each, seen_s in self._seen_s.items() if read_s - seen_s >= self._keep_s]:
            del self._seen_s[each]


def missing_between(read_to: int, ids: Sequence[int]) -> list[IdRange]:
    """Return the ranges above `read_to` and below the last of these rising ids that are not among them."""
    missing: list[IdRange] = []
    for id in ids:
        if id > read_to + 1:
            missing.append((read_to + 1, id - 1))
        read_to = id
    return missing
