"""Rows by their numbers, and timer entries, with the memory of a journal laid over the tables.

Both are read between two flushes and beside them. Knows no connections: the caller reads the tables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from foqs.core.flush.journal_rows import PayloadPlace
from foqs.core.items.item import Row
from foqs.core.journal.dirty_items import DirtyItem
from foqs.core.journal.journal_events import apply_change
from foqs.core.journal.touched_numbers import TouchedNumbers
from foqs.store.journaled.journal_memory import JournalMemory
from foqs.store.journaled.page_merge import merge_page
from foqs.store.port import DueRow, StoreLost

_ATTEMPTS_MAX: Final = 20
"""How often a read is repeated because flushes wrote what it reads."""


class MergedRows:
    """Rows of one result: those of the table that were read for it, with the memory laid over them at its end.

    The record of each read stays open until the result is complete, so all of it is of one moment.
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
        self._records: list[TouchedNumbers] = []
        self._found: dict[int, tuple[TouchedNumbers, Row | None]] = {}
        self._payloads: dict[PayloadPlace, bytes | None] = {}

    def __enter__(self) -> MergedRows:
        return self

    def __exit__(self, *_: object) -> None:
        for record in self._records:
            self._memory.reads.end_read(record)

    @property
    def touched(self) -> TouchedNumbers:
        """All rows that flushes wrote since the first read."""
        return self._records[0]

    def begin_read(self) -> TouchedNumbers:
        """Begin to read rows of the table."""
        record = self._memory.reads.begin_read()
        self._records.append(record)
        return record

    def add(self, record: TouchedNumbers, numbers: Iterable[int], rows: Iterable[Row]) -> None:
        """Add what a read brought: the rows of these numbers, or that there are none."""
        check_room(record)
        self._found.update((number, (record, None)) for number in numbers)
        self._found.update((row.id, (record, row)) for row in rows)

    def counts(self, number: int) -> bool:
        """Return whether the row of this number that was read is what the item is."""
        found = self._found.get(number)
        return found is not None and number not in found[0].numbers and number not in self._memory.dirty_items

    async def of_numbers(self, payload_limits: Mapping[int, int]) -> list[Row]:
        """Return the items of these numbers that exist, with payloads up to their limits."""
        for _ in range(_ATTEMPTS_MAX):
            rows, unread = self.assembled(payload_limits)
            if not unread:
                return rows
            await self.read(unread, payload_limits)
        raise StoreLost("rows that flushes change all the time could not be read; try again")

    async def read(self, numbers: Iterable[int], payload_limits: Mapping[int, int]) -> None:
        """Read what is missing of these numbers: rows, or payloads of young items."""
        young = {number: item for number in numbers if (item := self._memory.dirty_items.get(number)) and item.row}
        record = self.begin_read()
        others = [number for number in numbers if number not in young]
        self.add(record, others, await self._read_rows({number: payload_limits[number] for number in others}))
        places = [_place_of(item) for item in young.values()]
        if places:
            found = await self._read_payloads(places)
            self._payloads.update((place, found.get(place)) for place in places)

    def assembled(self, payload_limits: Mapping[int, int]) -> tuple[list[Row], list[int]]:
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
                found = self._found.get(number)
                if found is None or number in found[0].numbers:
                    unread.append(number)
                elif found[1] is not None:
                    rows.append(
                        found[1] if item is None or item.change is None else apply_change(found[1], item.change)
                    )
        return rows, unread

    def _young_row(self, item: DirtyItem, limit: int) -> Row | None:
        """Return a copy of a young item; None if its payload must be read."""
        assert item.row is not None
        row = item.row.copy()
        if row.payload_bytes > limit:
            row.payload = None
        elif row.payload is None:
            place = _place_of(item)
            if place not in self._payloads:
                return None
            row.payload = self._payloads[place]
            if row.payload is None:
                raise StoreLost(
                    "the journal does not have the payload of an item any more; the shard has another owner"
                )
        return row


def _place_of(item: DirtyItem) -> PayloadPlace:
    assert item.row is not None
    return PayloadPlace(item.first, item.payload_offset, item.row.payload_bytes)


async def due_page(
    memory: JournalMemory,
    low_ms: int | None,
    high_ms: int,
    after: DueRow | None,
    limit: int,
    read_page: Callable[[DueRow | None], Awaitable[Sequence[DueRow]]],
) -> list[DueRow]:
    """Return a page of timer entries, of rows and of dirty items."""
    found: dict[int, DueRow] = {}
    while True:
        with memory.reads.record() as touched:
            page = await read_page(after)
        check_room(touched)
        is_full = bool(page) and len(page) >= limit
        dues = [DueRow(due_ms, number) for due_ms, number in memory.dirty_items.dues_up_to(high_ms)]
        dues += [
            DueRow(item.timer_due_ms, number)
            for number, item in touched.numbers.items()
            if item is not None and item.timer_due_ms is not None and number not in memory.dirty_items
        ]
        added = [
            due
            for due in dues
            if due.due_ms <= high_ms
            and (low_ms is None or due.due_ms >= low_ms)
            and (after is None or _due_place(due) > _due_place(after))
        ]
        merged = merge_page(page, is_full, lambda due: memory.is_known(due.id, touched), added, _due_place)
        found |= {due.id: due for due in merged}
        if not is_full or len(found) >= limit:
            return sorted(found.values(), key=_due_place)[:limit]
        after = page[-1]


def _due_place(due: DueRow) -> tuple[int, int]:
    return (due.due_ms, due.id)


def check_room(touched: TouchedNumbers) -> None:
    """Raise `StoreLost` if a record is void."""
    if touched.is_void:
        raise StoreLost("flushes wrote too many rows during a read; try again")
