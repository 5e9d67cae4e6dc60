"""A page of entries in order: those of the tables, with the memory of a journal laid over them.

Many rows of the tables may be of items that the journal has changed since, so they are read on until enough of
them count. Always true: the page is of one moment, the end of the last read, and what was read beyond it is at
most what the memory knows better, and one page. If flushes write too many rows meanwhile, the page is read again
in shorter parts. Knows no connections: the caller reads the tables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from foqs.core.items.item import OrderKey
from foqs.core.journal.touched_numbers import TouchedNumbers
from foqs.store.journaled.journal_memory import JournalMemory
from foqs.store.port import StoreLost

_ENTRIES_MIN: Final = 500
_ENTRIES_MAX: Final = 4_000
"""How many entries are read at once if the first page of the tables was not enough."""
_SHORTER: Final = 8
"""A read that took too long is made again with an eighth of its limit."""

_Result = TypeVar("_Result")
_Entry = TypeVar("_Entry")
_Place = TypeVar("_Place", OrderKey, tuple[int, int])
_Start = TypeVar("_Start")


class MergedPage(Generic[_Entry, _Place]):
    """One page while it is read.

    Args:
        touched: a record that began before the first read.
        after: the place before the page; None: the page begins with the first entry.
        limit: the greatest number of entries.
        place_of: returns the place of an entry in the order.
        number_of: returns the number of the item at a place.
    """

    def __init__(
        self,
        memory: JournalMemory,
        touched: TouchedNumbers,
        after: _Place | None,
        limit: int,
        place_of: Callable[[_Entry], _Place],
        number_of: Callable[[_Place], int],
    ) -> None:
        self._memory = memory
        self._touched = touched
        self._begin: _Place | None = after
        self._limit: Final = limit
        self._place_of: Callable[[_Entry], _Place] = place_of
        self._number_of: Callable[[_Place], int] = number_of
        self._entries: dict[int, _Entry] = {}
        """The entries of the tables that count, by number."""
        self._is_exhausted = False
        self.read_after: _Place | None = after
        """The place after which the tables are read next."""
        self.read_limit = limit
        """How many entries are read next."""

    def add(self, entries: Sequence[_Entry], read_limit: int) -> None:
        """Add the next entries of the tables, of which at most `read_limit` were read."""
        self._entries.update((self._number_of(self._place_of(entry)), entry) for entry in entries)
        self._is_exhausted = not entries or len(entries) < read_limit
        if entries:
            self.read_after = self._place_of(entries[-1])
        self.read_limit = min(max(_ENTRIES_MIN, 2 * read_limit), _ENTRIES_MAX)

    def is_complete(self) -> bool:
        """Return whether nothing more must be read, as of now. A later flush may change that."""
        check_room(self._touched)
        memory, touched = self._memory, self._touched
        # An item that the memory knows better stays so: what is written back is touched.
        self._entries = {n: entry for n, entry in self._entries.items() if not memory.is_known(n, touched)}
        return self._is_exhausted or len(self._entries) >= self._limit

    def merged(self, known: Iterable[_Entry]) -> list[_Entry]:
        """Return the page as of now: it is complete. `known` are entries of items that the memory knows better."""
        begin, end, place_of = self._begin, self.read_after, self._place_of
        found = dict(self._entries)
        for entry in known:
            place = place_of(entry)
            if (begin is None or place > begin) and (self._is_exhausted or (end is not None and place <= end)):
                found[self._number_of(place)] = entry
        return sorted(found.values(), key=place_of)[: self._limit]


class ReadIsVoid(StoreLost):
    """Flushes wrote more rows during a read than its record holds, so nobody knows what its pages lack."""


def check_room(touched: TouchedNumbers) -> None:
    """Raise `ReadIsVoid` if a record is void."""
    if touched.is_void:
        raise ReadIsVoid("flushes wrote too many rows during a read; try again")


async def shortened(read: Callable[[int], Awaitable[_Result]], limit: int) -> tuple[_Result, int]:
    """Return what is read with a limit, or with a smaller one if the read is void, and this limit."""
    while True:
        try:
            return await read(limit), limit
        except ReadIsVoid:
            if limit <= 1:
                raise
            limit = max(limit // _SHORTER, 1)


async def in_parts(
    read: Callable[[_Start | None, int], Awaitable[list[_Entry]]],
    after: _Start | None,
    limit: int,
    place_of: Callable[[_Entry], _Start],
) -> list[_Entry]:
    """Return a page: in one part, or in shorter ones after a part was void. Each part is of one moment."""
    found: list[_Entry] = []
    part_max = limit
    while True:
        part, part_max = await shortened(partial(read, after), min(part_max, limit - len(found)))
        found += part
        if len(part) < part_max or len(found) >= limit:
            return found
        after = place_of(part[-1])
