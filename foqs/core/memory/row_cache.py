"""Rows that a shard's owner still remembers, so that a flush need not read them back.

A shard has one owner and its writer does one thing at a time, so a remembered
row is the row in the table: it is replaced when a flush that changes it is
committed, and forgotten when it is deleted. A row that is here must not be
changed; a leased one has no payload, as its delivery carries that. Whatever is
not here is read.

Two pools, each with its budget, which the caches of a host's shards share: rows
just written, of which a full pool takes no new ones, because the oldest are
wanted soonest; and rows loaded ahead. A row stays in its pool for as long as it
is here. Knows neither the index nor who reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from foqs.core.items.item import Row, State
from foqs.core.memory.reservations import ROW_BYTES, Budget, LongestPayloads, PrefetchBudget, size_of


class Prefetch:
    """Rows that are being read ahead: those of `numbers`."""

    __slots__ = ("namespace", "numbers", "reserved_bytes")

    def __init__(self, namespace: str, numbers: list[int], size: int) -> None:
        self.namespace = namespace
        self.numbers = numbers
        self.reserved_bytes = size
        """Set aside for them."""

    @property
    def payload_bytes_max(self) -> int:
        """Of each row: together no more is read than is set aside."""
        return max(0, self.reserved_bytes // len(self.numbers) - ROW_BYTES)

    def numbers_to_read_again(self, rows: Sequence[Row]) -> list[int]:
        """Of these rows, which were read, those that came without payload and have room beside the others."""
        left = self.reserved_bytes - size_of(rows)
        fitting: list[int] = []
        for row in rows:
            if row.payload is None and row.payload_bytes <= left:
                left -= row.payload_bytes
                fitting.append(row.id)
        return fitting


class RowCache:
    """Rows by id. `get` is its dict's own: `get(number)` is the row or None.

    Args:
        written_budget: the budget of rows just written.
        prefetch_budget: the budget of rows loaded ahead.
        longest_payloads: told of what is loaded, for all shards of the host.
    """

    def __init__(
        self, written_budget: Budget, prefetch_budget: PrefetchBudget, longest_payloads: LongestPayloads
    ) -> None:
        self.longest_payloads: Final = longest_payloads
        self._written_budget: Final = written_budget
        self._prefetch_budget: Final = prefetch_budget
        self._rows: dict[int, Row] = {}
        self._prefetched: set[int] = set()
        """Those in the pool of rows loaded ahead."""
        self._prefetching: dict[int, Prefetch] = {}
        """Ids being read, as far as nothing was written to them since their load began."""
        self._prefetches: set[Prefetch] = set()
        """Those that have room set aside."""
        self.get: Final[Callable[[int], Row | None]] = self._rows.get

    def __len__(self) -> int:
        return len(self._rows)

    def store_written(self, rows: Iterable[Row]) -> None:
        """Rows as a flush has just committed them, each id once; `payload` may be None.

        New rows are taken in as far as there is room. One that was here already
        is replaced, and dropped when it has grown beyond the room.
        """
        fresh = {row.id: row for row in rows}
        self._invalidate_prefetches(fresh)
        if self._rows.keys().isdisjoint(fresh):
            self._add(self._written_budget, list(fresh.values()))
            return
        known = self._rows.keys() & fresh.keys()
        ahead = known & self._prefetched
        self._replace(self._prefetch_budget, [fresh[number] for number in ahead])
        self._replace(self._written_budget, [fresh[number] for number in known - ahead])
        self._add(self._written_budget, [row for number, row in fresh.items() if number not in known])

    def store_prefetched(self, rows: Iterable[Row]) -> None:
        """Rows as they are in the table now, with payload; as many as there is room for. What is here already stays."""
        fresh = [row for row in rows if row.id not in self._rows]
        self._prefetched.update([row.id for row in self._add(self._prefetch_budget, fresh)])

    def remove(self, numbers: Collection[int]) -> None:
        """These rows are gone, or no longer known."""
        self._invalidate_prefetches(numbers)
        self._remove(numbers)

    def clear(self) -> None:
        """Forgets everything and gives the room back: the shard is another's now."""
        for load in list(self._prefetches):
            self.cancel_prefetch(load)
        self._remove(list(self._rows))

    # ----------------------------------------------------------- loading ahead

    def start_prefetch(self, namespace: str, weight: float, numbers: Iterable[int], now_s: float) -> Prefetch | None:
        """What to read of these ids, best first: those without payload here, as many as the namespace has room for.

        The read may run beside flushes; `finish_prefetch` or `cancel_prefetch` ends it. None
        when there is nothing to read, or no room.
        """
        rows, loading = self._rows, self._prefetching
        wanted = [
            number
            for number in numbers
            if number not in loading and ((row := rows.get(number)) is None or row.payload is None)
        ]
        if not wanted:
            return None
        count, size = self._prefetch_budget.reserve(namespace, weight, len(wanted), now_s)
        if not count:
            return None
        load = Prefetch(namespace, wanted[:count], size)
        loading.update(dict.fromkeys(load.numbers, load))
        self._prefetches.add(load)
        return load

    def finish_prefetch(self, prefetch: Prefetch, rows: Sequence[Row]) -> None:
        """Takes in what was read, unless it was written to since. Only between two flushes.

        A row that came without payload is remembered so: its length is known.
        """
        current = [row for row in rows if self._prefetching.get(row.id) is prefetch and row.id not in self._rows]
        self.cancel_prefetch(prefetch)
        self._prefetch_budget.learn_row_bytes(prefetch.namespace, rows)
        self.longest_payloads.record(prefetch.namespace, max([row.payload_bytes for row in rows], default=0))
        # A payload never changes: it serves whatever else of its row has changed since.
        filled = [
            replace(here, payload=row.payload)
            for row in rows
            if row.payload is not None and (here := self._rows.get(row.id)) is not None and here.state is State.READY
        ]
        if filled:
            self._remove([row.id for row in filled])
        self.store_prefetched(filled + current)

    def cancel_prefetch(self, prefetch: Prefetch) -> None:
        """The read failed or is not wanted any more; safe to repeat."""
        if prefetch not in self._prefetches:
            return
        self._prefetches.discard(prefetch)
        for number in prefetch.numbers:
            if self._prefetching.get(number) is prefetch:
                del self._prefetching[number]
        self._prefetch_budget.release_reservation(prefetch.namespace, len(prefetch.numbers), prefetch.reserved_bytes)

    # ------------------------------------------------------------------ inside

    def _invalidate_prefetches(self, numbers: Collection[int]) -> None:
        """Whatever is being read of these rows is no longer to be trusted."""
        if self._prefetching and not self._prefetching.keys().isdisjoint(numbers):
            for number in numbers:
                self._prefetching.pop(number, None)

    def _add(self, budget: Budget, rows: list[Row]) -> list[Row]:
        """Takes in the first of these rows, as many as fit; returns them."""
        if not rows:
            return rows
        size = size_of(rows)
        taken = budget.new_rows_that_fit(rows, size)
        if len(taken) < len(rows):
            rows, size = taken, size_of(taken)
        budget.add(rows, size)
        self._rows.update(zip([row.id for row in rows], rows, strict=True))
        return rows

    def _replace(self, budget: Budget, rows: list[Row]) -> None:
        """Puts new versions in the place of those that are here; drops those that have grown beyond the room."""
        if not rows:
            return
        numbers = [row.id for row in rows]
        former = [self._rows[number] for number in numbers]
        size = size_of(rows)
        budget.remove(former, size_of(former))
        if not budget.fits(len(rows), size):
            # Those that have not grown come first: they always fit.
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
        gone = [row for number in numbers if (row := pop(number, None)) is not None]
        if self._prefetched:
            ahead = [row for row in gone if row.id in self._prefetched]
            if ahead:
                gone = [row for row in gone if row.id not in self._prefetched]
                self._prefetched.difference_update([row.id for row in ahead])
                self._prefetch_budget.remove(ahead, size_of(ahead))
        if gone:
            self._written_budget.remove(gone, size_of(gone))
