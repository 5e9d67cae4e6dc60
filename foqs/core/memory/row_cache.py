"""The rows that the owner of a shard remembers, so that a flush need not read them.

A shard has one owner, and its writer does one thing at a time. So a cached row equals
the row in the table: it is replaced when a flush that changes it is committed, and
removed when it is deleted. A cached row must not be changed. A leased row has no
payload, because its delivery carries it. Rows that are not cached are read.

There are two pools, each with a budget that the caches of all shards of a host share:
rows just written, and prefetched rows. A full pool of written rows accepts no new
ones, because the oldest ones are needed first. A row stays in its pool while it is
cached. Knows neither the index nor the reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from foqs.core.items.item import Row, State
from foqs.core.memory.reservations import ROW_BYTES, Budget, LongestPayloads, PrefetchBudget, size_of


class Prefetch:
    """A prefetch in progress: the rows of `numbers` are being read."""

    __slots__ = ("namespace", "numbers", "reserved_bytes")

    def __init__(self, namespace: str, numbers: list[int], size: int) -> None:
        self.namespace = namespace
        self.numbers = numbers
        self.reserved_bytes = size
        """Bytes reserved for them."""

    @property
    def payload_bytes_max(self) -> int:
        """The longest payload to read of a row, so that all rows together stay within the reservation."""
        return max(0, self.reserved_bytes // len(self.numbers) - ROW_BYTES)

    def numbers_to_read_again(self, rows: Sequence[Row]) -> list[int]:
        """Return the numbers of the rows that were read without payload and fit into the reservation with it."""
        left = self.reserved_bytes - size_of(rows)
        fitting: list[int] = []
        for row in rows:
            if row.payload is None and row.payload_bytes <= left:
                left -= row.payload_bytes
                fitting.append(row.id)
        return fitting


class RowCache:
    """Rows by number. `get(number)`, which returns the row or None, is the dict's own method, for speed.

    Args:
        written_budget: the budget of rows just written.
        prefetch_budget: the budget of prefetched rows.
        longest_payloads: records the payloads of prefetched rows, for all shards of the host.
    """

    def __init__(
        self, written_budget: Budget, prefetch_budget: PrefetchBudget, longest_payloads: LongestPayloads
    ) -> None:
        self.longest_payloads: Final = longest_payloads
        self._written_budget: Final = written_budget
        self._prefetch_budget: Final = prefetch_budget
        self._rows: dict[int, Row] = {}
        self._prefetched: set[int] = set()
        """The numbers in the pool of prefetched rows."""
        self._prefetching: dict[int, Prefetch] = {}
        """Numbers that are being read, without those written since their prefetch began."""
        self._prefetches: set[Prefetch] = set()
        """The prefetches in progress, which hold reservations."""
        self.get: Final[Callable[[int], Row | None]] = self._rows.get

    def __len__(self) -> int:
        return len(self._rows)

    def __bool__(self) -> bool:
        return len(self) > 0

    def store_written(self, rows: Iterable[Row]) -> None:
        """Store rows as a flush has just committed them, each number once. `payload` may be None.

        New rows are stored while they fit. A cached row is replaced, and dropped if
        the new version no longer fits.
        """
        written = {row.id: row for row in rows}
        self._invalidate_prefetches(written)
        if self._rows.keys().isdisjoint(written):
            self._add(self._written_budget, list(written.values()))
            return
        cached = self._rows.keys() & written.keys()
        prefetched = cached & self._prefetched
        self._replace(self._prefetch_budget, [written[number] for number in prefetched])
        self._replace(self._written_budget, [written[number] for number in cached - prefetched])
        self._add(self._written_budget, [row for number, row in written.items() if number not in cached])

    def store_prefetched(self, rows: Iterable[Row]) -> None:
        """Store rows as they are in the table now, with payload, while they fit. Rows that are cached already stay."""
        new = [row for row in rows if row.id not in self._rows]
        self._prefetched.update([row.id for row in self._add(self._prefetch_budget, new)])

    def remove(self, numbers: Collection[int]) -> None:
        """Remove rows that are deleted, or whose state is unknown."""
        self._invalidate_prefetches(numbers)
        self._remove(numbers)

    def rows(self) -> list[Row]:
        """Return all cached rows."""
        return list(self._rows.values())

    def clear(self) -> None:
        """Remove all rows and release their room, because the shard is closed or lost."""
        for prefetch in list(self._prefetches):
            self.cancel_prefetch(prefetch)
        self._remove(list(self._rows))

    # --------------------------------------------------------------- prefetch

    def start_prefetch(self, namespace: str, weight: float, numbers: Iterable[int], now_s: float) -> Prefetch | None:
        """Begin a prefetch and return it; None if there is nothing to read or no room.

        It reads those of `numbers`, best first, whose payload is not cached, as many as the
        namespace has room for. The read may run during flushes; `finish_prefetch` or
        `cancel_prefetch` ends it.
        """
        rows, prefetching = self._rows, self._prefetching
        missing = [
            number
            for number in numbers
            if number not in prefetching and ((row := rows.get(number)) is None or row.payload is None)
        ]
        if not missing:
            return None
        count, size = self._prefetch_budget.reserve(namespace, weight, len(missing), now_s)
        if not count:
            return None
        prefetch = Prefetch(namespace, missing[:count], size)
        prefetching.update(dict.fromkeys(prefetch.numbers, prefetch))
        self._prefetches.add(prefetch)
        return prefetch

    def finish_prefetch(self, prefetch: Prefetch, rows: Sequence[Row]) -> None:
        """Store the rows that were read. Of a row written since, only the payload is used. Only between two flushes.

        A row that was read without its payload is stored too, because its length is useful.
        """
        current = [row for row in rows if self._prefetching.get(row.id) is prefetch and row.id not in self._rows]
        self.cancel_prefetch(prefetch)
        self._prefetch_budget.learn_row_bytes(prefetch.namespace, rows)
        self.longest_payloads.record(prefetch.namespace, max([row.payload_bytes for row in rows], default=0))
        # A payload never changes, so it is valid even if the rest of its row has changed.
        filled = [
            replace(cached, payload=row.payload)
            for row in rows
            if row.payload is not None
            and (cached := self._rows.get(row.id)) is not None
            and cached.state is State.READY
        ]
        if filled:
            self._remove([row.id for row in filled])
        self.store_prefetched(filled + current)

    def cancel_prefetch(self, prefetch: Prefetch) -> None:
        """End a prefetch whose read failed or is no longer needed. Safe to repeat."""
        if prefetch not in self._prefetches:
            return
        self._prefetches.discard(prefetch)
        for number in prefetch.numbers:
            if self._prefetching.get(number) is prefetch:
                del self._prefetching[number]
        self._prefetch_budget.release_reservation(prefetch.namespace, len(prefetch.numbers), prefetch.reserved_bytes)

    # ------------------------------------------------------------------ inside

    def _invalidate_prefetches(self, numbers: Collection[int]) -> None:
        """Ignore the results of reads of these rows."""
        if self._prefetching and not self._prefetching.keys().isdisjoint(numbers):
            for number in numbers:
                self._prefetching.pop(number, None)

    def _add(self, budget: Budget, rows: list[Row]) -> list[Row]:
        """Add the rows that fit, and return them."""
        if not rows:
            return rows
        size = size_of(rows)
        fitting = budget.new_rows_that_fit(rows, size)
        if len(fitting) < len(rows):
            rows, size = fitting, size_of(fitting)
        budget.add(rows, size)
        self._rows.update(zip([row.id for row in rows], rows, strict=True))
        return rows

    def _replace(self, budget: Budget, rows: list[Row]) -> None:
        """Replace cached rows by new versions. Drop those that no longer fit."""
        if not rows:
            return
        numbers = [row.id for row in rows]
        old_rows = [self._rows[number] for number in numbers]
        size = size_of(rows)
        budget.remove(old_rows, size_of(old_rows))
        if not budget.fits(len(rows), size):
            # Rows that have not grown come first, because they always fit.
            rows.sort(key=lambda row: size_of([row]) - size_of([self._rows[row.id]]))
            rows = budget.rows_that_fit(rows, size)
            size = size_of(rows)
            numbers, all_numbers = [row.id for row in rows], numbers
            for number in set(all_numbers).difference(numbers):
                del self._rows[number]
                self._prefetched.discard(number)
        budget.add(rows, size)
        self._rows.update(zip(numbers, rows, strict=True))

    def _remove(self, numbers: Collection[int]) -> None:
        pop = self._rows.pop
        removed = [row for number in numbers if (row := pop(number, None)) is not None]
        if self._prefetched:
            prefetched = [row for row in removed if row.id in self._prefetched]
            if prefetched:
                removed = [row for row in removed if row.id not in self._prefetched]
                self._prefetched.difference_update([row.id for row in prefetched])
                self._prefetch_budget.remove(prefetched, size_of(prefetched))
        if removed:
            self._written_budget.remove(removed, size_of(removed))
