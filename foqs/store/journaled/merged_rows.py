"""Rows by their numbers, and timer entries, with the memory of a journal laid over the tables.

Both are read between two flushes and beside them. Knows no connections: the caller reads the tables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from foqs.core.flush.journal_rows import PayloadPlace
from foqs.core.items.item import Row
from foqs.core.journal.dirty_items import DirtyItem
from foqs.core.journal.journal_events import apply_change
from foqs.store.journaled.entry_pages import MergedPage, check_room
from foqs.store.journaled.journal_memory import JournalMemory
from foqs.store.journaled.young_payloads import lacks_payload, place_of
from foqs.store.port import DueRow, PayloadMissing, StoreLost

_ATTEMPTS_MAX: Final = 20
"""How often rows are read because flushes write them meanwhile."""


class MergedRows:
    """Rows of one result: those of the table that were read for it, with the memory laid over them at its end.

    One record spans all reads of the tables, so all of it is of one moment.
    """

    def __init__(
        self,
        memory: JournalMemory,
        read_rows: Callable[[Mapping[int, int]], Awaitable[Sequence[Row]]],
        read_payloads: Callable[[Sequence[PayloadPlace]], Awaitable[Mapping[PayloadPlace, bytes]]],
    ) -> None:
        self._memory = memory
        self._read_rows = read_rows
        self._read_payloads = read_payloads
        self.touched: Final = memory.reads.begin_read()
        """All rows that flushes wrote since the first read."""
        self._found: dict[int, tuple[int, Row | None]] = {}
        """What was read of the table, with `touched.flushes` as it was when this read began."""
        self._payloads: dict[PayloadPlace, bytes | None] = {}
        self._attempts = 0

    def __enter__(self) -> MergedRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.reads.end_read(self.touched)

    def add(self, begun: int, numbers: Iterable[int], rows: Iterable[Row]) -> None:
        """Add what a read brought that began after `begun` flushes: the rows of these numbers, or that there are none."""
        self._found.update((number, (begun, None)) for number in numbers)
        self._found.update((row.id, (begun, row)) for row in rows)

    async def of_numbers(self, payload_limits: Mapping[int, int]) -> list[Row]:
        """Return the items of these numbers that exist, with payloads up to their limits. Raises as `assembled`."""
        while (rows := await self.assembled(payload_limits)) is None:
            pass
        return rows

    async def assembled(self, payload_limits: Mapping[int, int]) -> list[Row] | None:
        """Return the items of these numbers as they are now. Reads what is missing, and returns None then.

        Raises:
            StoreLost: flushes write these rows so often that they cannot be read.
            PayloadMissing: the journal lacks a payload.
        """
        check_room(self.touched)
        rows, unread = self._assembled(payload_limits)
        if not unread:
            return rows
        self._attempts += 1
        if self._attempts > _ATTEMPTS_MAX:
            raise StoreLost("rows that flushes change all the time could not be read; try again")
        await self.read(unread, payload_limits)
        return None

    async def read(self, numbers: Collection[int], payload_limits: Mapping[int, int]) -> None:
        """Read what the memory lacks of these numbers: rows, and payloads of young items."""
        young = {number: item for number in numbers if (item := self._memory.dirty_items.get(number)) and item.row}
        begun = self.touched.flushes
        others = [number for number in numbers if number not in young]
        self.add(begun, others, await self._read_rows({number: payload_limits[number] for number in others}))
        unreadable = self._memory.dirty_items.unreadable
        places = [
            place_of(item)
            for number, item in young.items()
            if _lacks_payload(item.row, payload_limits[number]) and number not in unreadable
        ]
        if places:
            found = await self._read_payloads(places)
            self._payloads.update((place, found.get(place)) for place in places)

    def _assembled(self, payload_limits: Mapping[int, int]) -> tuple[list[Row], list[int]]:
        """Return the items as they are now, and the numbers of those that must be read first."""
        rows: list[Row] = []
        unread: list[int] = []
        for number, limit in payload_limits.items():
            item = self._memory.dirty_items.get(number)
            if item is not None and item.row is not None:
                row = self._young_row(item, limit)
                if row is None:
                    unread.append(number)
                else:
                    rows.append(row)
            elif item is None or not item.is_ended:
                begun, row = self._found.get(number, (-1, None))
                if begun < 0 or self.touched.is_touched_after(number, begun) or _lacks_payload(row, limit):
                    unread.append(number)
                elif row is not None:
                    rows.append(row if item is None or item.change is None else apply_change(row, item.change))
        return rows, unread

    def _young_row(self, item: DirtyItem, limit: int) -> Row | None:
        """Return a copy of a young item; None if its payload must be read."""
        assert item.row is not None
        row = item.row.copy()
        if row.payload_bytes > limit or row.id in self._memory.dirty_items.unreadable:
            row.payload = None
        elif _lacks_payload(row, limit):
            place = place_of(item)
            if place not in self._payloads:
                return None
            row.payload = self._payloads[place]
            if row.payload is None:
                self._memory.suspects[row.id] = None
                raise PayloadMissing(lacks_payload(row.id, item))
        return row


def _lacks_payload(row: Row | None, limit: int) -> bool:
    return row is not None and row.payload is None and row.payload_bytes <= limit


async def due_page(
    memory: JournalMemory,
    low_ms: int | None,
    high_ms: int,
    after: DueRow | None,
    limit: int,
    read_page: Callable[[DueRow | None, int], Awaitable[Sequence[DueRow]]],
) -> list[DueRow]:
    """Return a page of timer entries, of rows and of dirty items."""
    with memory.reads.record() as touched:
        page = MergedPage(memory, touched, None if after is None else _due_place(after), limit, _due_place, _number_at)
        while not page.is_complete():
            read_limit, place = page.read_limit, page.read_after
            page.add(await read_page(None if place is None else DueRow(*place), read_limit), read_limit)
        begin = _due_place(after) if after is not None else (low_ms or 0, 0)
        return page.merged(memory.dues(begin, high_ms, limit, touched))


def _due_place(due: DueRow) -> tuple[int, int]:
    return (due.due_ms, due.id)


def _number_at(place: tuple[int, int]) -> int:
    return place[1]
