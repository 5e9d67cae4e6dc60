"""Sorted names, which are read in pages.

Holds `SortedNames`, a set that is kept sorted, and `merge_names`, which sorts unsorted
lists. Always true: a name occurs in `SortedNames` once, in a sorted run of bounded
length, so a change moves one run however many names there are. Knows nothing of the
things that are named.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import Final

RUN_MAX: Final = 512
"""The most names of one sorted run."""
SORTED_PER_STEP_MAX: Final = 2_048
"""Names sorted in one step, which takes about a millisecond."""
SCANNED_PER_STEP_MAX: Final = 16_384
"""Names whose beginning is compared in one step, which takes about a millisecond."""
NAMES_PER_STEP_MAX: Final = 256
"""Names yielded in one step. The caller processes each of them."""


def merge_names(
    lists: Iterable[Sequence[str]], start_name: str, *, is_exclusive: bool = False, prefix: str = ""
) -> Iterator[str | None]:
    """Yield the names of all lists from `start_name` on, in order and each once. `is_exclusive` leaves `start_name` out.

    Only names with the prefix are sorted and yielded.

    Yields None when the caller should let other tasks run: after each SCANNED_PER_STEP_MAX names compared with the
    prefix, each SORTED_PER_STEP_MAX names sorted, and each NAMES_PER_STEP_MAX names yielded.
    """
    runs: list[list[str]] = []
    unsorted = 0
    for names in lists:
        if prefix:
            chosen: list[str] = []
            for start in range(0, len(names), SCANNED_PER_STEP_MAX):
                if start:
                    yield None
                chosen += [name for name in names[start : start + SCANNED_PER_STEP_MAX] if name.startswith(prefix)]
            names = chosen
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
    yielded = 0
    for name in merge(*runs):
        if name != last:
            if yielded == NAMES_PER_STEP_MAX:
                yielded = 0
                yield None
            yielded += 1
            last = name
            yield name


class SortedNames:
    """A sorted set of names."""

    __slots__ = ("_last_names", "_runs", "_size")

    def __init__(self) -> None:
        self._runs: list[list[str]] = []
        self._last_names: list[str] = []
        """The last name of each run."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, name: str) -> None:
        """Add a name, unless it is there."""
        runs, last_names = self._runs, self._last_names
        if not runs:
            runs.append([])
            last_names.append(name)
        at = min(bisect_left(last_names, name), len(last_names) - 1)
        run = runs[at]
        place = bisect_left(run, name)
        if place < len(run) and run[place] == name:
            return
        run.insert(place, name)
        self._size += 1
        if len(run) > RUN_MAX:
            half = len(run) // 2
            runs.insert(at + 1, run[half:])
            del run[half:]
            last_names.insert(at, run[-1])
            at += 1
        last_names[at] = runs[at][-1]

    def discard(self, name: str) -> None:
        """Remove a name, if it is there."""
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
        """Return at most `count` names from `start_name` on, in order. `is_exclusive` leaves `start_name` out."""
        bisect = bisect_right if is_exclusive else bisect_left
        at = bisect(self._last_names, start_name)
        if at == len(self._runs):
            return []
        names = self._runs[at][bisect(self._runs[at], start_name) :]
        while len(names) < count and (at := at + 1) < len(self._runs):
            names += self._runs[at]
        return names[:count]
