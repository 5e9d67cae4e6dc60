"""Names in their order, from which pages are read.

Holds `SortedNames`, which keeps them so, and `in_order`, which sorts what was
not kept so. Always true: a name stands in it once, in a sorted run of bounded
length; what comes and goes moves one run, however many names there are. Knows
nothing of what is named.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import Final

_RUN_MAX: Final = 512
SORTED_PER_STEP_MAX: Final = 2_048
"""Names sorted in one go: a millisecond."""
NAMES_PER_STEP_MAX: Final = 256
"""Names given out in one go; the caller looks at each of them."""


def merge_names(lists: Iterable[Sequence[str]], start_name: str, *, is_exclusive: bool = False) -> Iterator[str | None]:
    """The names from `start_name` on, or `is_exclusive` it, of all lists in order, each once.

    None stands where the caller should let others run: no more than SORTED_MAX names
    are sorted, nor PASSED_MAX given out, without one.
    """
    runs: list[list[str]] = []
    unsorted = 0
    for names in lists:
        for start in range(0, len(names), SORTED_PER_STEP_MAX):
            part = names[start : start + SORTED_PER_STEP_MAX]
            if unsorted + len(part) > SORTED_PER_STEP_MAX:
                unsorted = 0
                yield None
            unsorted += len(part)
            runs.append(
                sorted([name for name in part if name > start_name or (name == start_name and not is_exclusive)])
            )
    last: str | None = None
    passed = 0
    for name in merge(*runs):
        if name != last:
            if passed == NAMES_PER_STEP_MAX:
                passed = 0
                yield None
            passed += 1
            last = name
            yield name


class SortedNames:
    """A set of names that gives them out in order."""

    __slots__ = ("_last_names", "_runs", "_size")

    def __init__(self) -> None:
        self._runs: list[list[str]] = []
        self._last_names: list[str] = []
        """The last name of each run."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, name: str) -> None:
        """One that is there already stays."""
        runs, lasts = self._runs, self._last_names
        if not runs:
            runs.append([])
            lasts.append(name)
        at = min(bisect_left(lasts, name), len(lasts) - 1)
        run = runs[at]
        place = bisect_left(run, name)
        if place < len(run) and run[place] == name:
            return
        run.insert(place, name)
        self._size += 1
        if len(run) > _RUN_MAX:
            half = len(run) // 2
            runs.insert(at + 1, run[half:])
            del run[half:]
            lasts.insert(at, run[-1])
            at += 1
        lasts[at] = runs[at][-1]

    def discard(self, name: str) -> None:
        """One that is not there is left out in silence."""
        at = bisect_left(self._last_names, name)
        if at == len(self._last_names):
            return
        run = self._runs[at]
        place = bisect_left(run, name)
        if run[place] != name:
            return
        del run[place]
        self._size -= 1
        if run:
            self._last_names[at] = run[-1]
        else:
            del self._runs[at], self._last_names[at]

    def page_from(self, start_name: str, count: int, *, is_exclusive: bool) -> list[str]:
        """The first names from this one on, or `is_exclusive` it, in order: at most `count`."""
        find = bisect_right if is_exclusive else bisect_left
        at = find(self._last_names, start_name)
        if at == len(self._runs):
            return []
        found = self._runs[at][find(self._runs[at], start_name) :]
        while len(found) < count and (at := at + 1) < len(self._runs):
            found += self._runs[at]
        return found[:count]
