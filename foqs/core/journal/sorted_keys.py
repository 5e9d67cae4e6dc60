"""Integer keys in order, of which many are added and removed at once.

They are in segments of bounded length, so a change moves the keys of its own segments only, and a read
looks at the keys that it returns. Always true: each segment is sorted, has at least one key, and is before
the next one. Knows nothing of what the keys stand for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final

SEGMENT_KEYS: Final = 1_000
"""The length of a new segment. A segment of twice as many keys is divided."""
_ONE_BY_ONE_MAX: Final = 32
"""The most keys of a segment that are added or removed one by one. More are faster by going over the segment once."""


class SortedKeys:
    """A set of keys in order. None is negative."""

    __slots__ = ("_lasts", "_segments")

    def __init__(self) -> None:
        self._segments: list[list[int]] = []
        self._lasts: list[int] = []
        """The last key of each segment."""

    def __len__(self) -> int:
        return sum(map(len, self._segments))

    def __bool__(self) -> bool:
        return bool(self._segments)

    def first_after(self, after: int, keys_max: int, last: int | None = None) -> list[int]:
        """Return the first keys above `after`, in order, at most `keys_max`, up to `last`."""
        segments, at = self._segments, bisect_right(self._lasts, after)
        found: list[int] = []
        begin = bisect_right(segments[at], after) if at < len(segments) else 0
        while len(found) < keys_max and at < len(segments) and (last is None or segments[at][0] <= last):
            found += segments[at][begin : begin + keys_max - len(found)]
            at, begin = at + 1, 0
        return found if last is None else found[: bisect_right(found, last)]

    def add(self, keys: list[int]) -> None:
        """Add keys, of which none is here yet. Sorts the list."""
        keys.sort()
        segments, lasts = self._segments, self._lasts
        if not segments and keys:
            segments.append([])
            lasts.append(-1)
        begin = 0
        while begin < len(keys):
            # What is above all others goes to the last segment.
            at = min(bisect_left(lasts, keys[begin]), len(lasts) - 1)
            end = len(keys) if at == len(lasts) - 1 else bisect_left(keys, lasts[at], begin)
            segment = segments[at]
            first = bisect_left(segment, keys[begin])
            if first == len(segment) or segment[first] > keys[end - 1]:
                segment[first:first] = keys[begin:end]  # neighbors, as new items of one priority
            elif end - begin <= _ONE_BY_ONE_MAX:
                for place in range(begin, end):
                    insort(segment, keys[place])
            else:
                segment += keys[begin:end]
                segment.sort()
            lasts[at] = segment[-1]
            if len(segment) >= 2 * SEGMENT_KEYS:
                self._divide(at)
            begin = end

    def remove(self, keys: list[int]) -> None:
        """Remove keys, all of which are here. Sorts the list."""
        keys.sort()
        segments, lasts = self._segments, self._lasts
        begin = 0
        while begin < len(keys):
            at = bisect_left(lasts, keys[begin])
            segment = segments[at]
            end = bisect_right(keys, lasts[at], begin)
            first, count = bisect_left(segment, keys[begin]), end - begin
            if segment[first + count - 1] == keys[end - 1]:
                del segment[first : first + count]  # neighbors, as items that were delivered in order
            elif count <= _ONE_BY_ONE_MAX:
                for place in range(begin, end):
                    del segment[bisect_left(segment, keys[place])]
            else:
                removed = set(keys[begin:end])
                segment[:] = [key for key in segment if key not in removed]
            if segment:
                lasts[at] = segment[-1]
            else:
                del segments[at], lasts[at]
            begin = end

    def _divide(self, at: int) -> None:
        segment = self._segments[at]
        parts = [segment[begin : begin + SEGMENT_KEYS] for begin in range(0, len(segment), SEGMENT_KEYS)]
        self._segments[at : at + 1] = parts
        self._lasts[at : at + 1] = [part[-1] for part in parts]

    # ------------------------------------------------------------------- check

    def check(self) -> None:
        """Assert what is always true of the segments."""
        keys = self.first_after(-1, len(self))
        assert keys == sorted(set(keys)) and len(keys) == len(self), "keys are not in order, or one is here twice"
        assert all(self._segments) and self._lasts == [segment[-1] for segment in self._segments]
        assert all(len(segment) < 2 * SEGMENT_KEYS for segment in self._segments), "a segment is too long"
