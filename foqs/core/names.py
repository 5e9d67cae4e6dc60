"""Names in their order, from which pages are read.

Always true: a name stands in it once, in a sorted run of bounded length; what
comes and goes moves one run, however many names there are. Knows nothing of
what is named.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

_RUN_MAX: Final = 512


class SortedNames:
    """A set of names that gives them out in order."""

    __slots__ = ("_lasts", "_runs", "_size")

    def __init__(self) -> None:
        self._runs: list[list[str]] = []
        self._lasts: list[str] = []
        """The last name of each run."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, name: str) -> None:
        """One that is there already stays."""
        runs, lasts = self._runs, self._lasts
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
        at = bisect_left(self._lasts, name)
        if at == len(self._lasts):
            return
        run = self._runs[at]
        place = bisect_left(run, name)
        if run[place] != name:
            return
        del run[place]
        self._size -= 1
        if run:
            self._lasts[at] = run[-1]
        else:
            del self._runs[at], self._lasts[at]

    def following(self, name: str, count: int, *, beyond: bool) -> list[str]:
        """The first names from this one on, or `beyond` it, in order: at most `count`."""
        find = bisect_right if beyond else bisect_left
        at = find(self._lasts, name)
        if at == len(self._runs):
            return []
        found = self._runs[at][find(self._runs[at], name) :]
        while len(found) < count and (at := at + 1) < len(self._runs):
            found += self._runs[at]
        return found[:count]
