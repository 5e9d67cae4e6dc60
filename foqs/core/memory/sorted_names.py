"""Sorted names, which are read in pages.

Holds `SortedNames`, a set that is kept sorted, `SortedView`, which sorts the names of a
changing set when they are read, `merge_views`, and `merge_names`, which sorts unsorted
lists. Always true: a name occurs in `SortedNames` once, in a sorted run of bounded
length, so a change moves one run however many names there are. Knows nothing of the
things that are named.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
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
CHANGES_PER_STEP_MAX: Final = 512
"""Changes of a view that are applied in one step, which takes about a millisecond."""
CHANGES_MIN: Final = 4_096
"""A view keeps at least this many changes, or as many as it has names, until it is read; beyond that it is sorted again."""


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

    def append(self, names: list[str]) -> None:
        """Add a sorted run of at most RUN_MAX names, at least one, that come after all others."""
        self._runs.append(names)
        self._last_names.append(names[-1])
        self._size += len(names)

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


class SortedView:
    """The sorted names of a set that changes often and is read rarely.

    Always true: a change costs one entry of a list; the next reader applies the changes since
    the last one. So pages that follow one another sort nothing, and names that are not read
    cost nothing.

    Args:
        names: the set, which changes; each change is noted.
    """

    __slots__ = ("_changed", "_names", "_sorted")

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._sorted: SortedNames | None = None
        self._changed: list[str] = []
        """Names that were added or removed since the view was made, or since they were applied."""

    def note(self, name: str) -> bool:
        """Note that a name was added or removed. Return False if sorting again is cheaper, so the view should be dropped."""
        self._changed.append(name)
        return len(self._changed) <= max(CHANGES_MIN, len(self._names))

    def update(self) -> Iterator[None]:
        """Bring the view up to date. Yields when the caller should let other tasks run."""
        if self._sorted is None:
            found = SortedNames()
            run: list[str] = []
            for name in merge_names([list(self._names)], ""):
                if name is None:
                    yield None
                    continue
                run.append(name)
                if len(run) == RUN_MAX // 2:  # it has room for more
                    found.append(run)
                    run = []
            if run:
                found.append(run)
            if self._sorted is None:  # else another reader was faster
                self._sorted = found
        for step in range(0, len(self._changed), CHANGES_PER_STEP_MAX):
            if step:
                yield None
            changed = self._changed[:CHANGES_PER_STEP_MAX]
            del self._changed[:CHANGES_PER_STEP_MAX]
            for name in changed:
                if name in self._names:
                    self._sorted.add(name)
                else:
                    self._sorted.discard(name)

    def page_from(self, start_name: str, count: int, *, is_exclusive: bool) -> list[str]:
        """See `SortedNames.page_from`. The view must have been brought up to date once."""
        assert self._sorted is not None
        return self._sorted.page_from(start_name, count, is_exclusive=is_exclusive)


def merge_views(
    views: Sequence[SortedView], start_name: str, *, is_exclusive: bool = False, prefix: str = ""
) -> Iterator[str | None]:
    """Yield the names of all views from `start_name` on, in order and each once, as `merge_names` does with lists.

    Args:
        prefix: only names with it are yielded. `start_name` must not come before it.
    """
    while True:
        for view in views:
            yield from view.update()
        pages = [view.page_from(start_name, NAMES_PER_STEP_MAX, is_exclusive=is_exclusive) for view in views]
        # Behind the end of a full page there may be names that are not in it.
        ends = [page[-1] for page in pages if len(page) == NAMES_PER_STEP_MAX]
        end = min(ends, default=None)
        last: str | None = None
        for name in merge(*pages):
            if end is not None and name > end:
                break
            if not name.startswith(prefix):
                return
            if name != last:
                last = name
                yield name
        if end is None:
            return
        start_name, is_exclusive = end, True
        yield None
