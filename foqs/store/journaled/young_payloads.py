"""The payloads of young items that the memory has left in the journal, for a flush that needs them.

Where the journal lacks one, it is damaged, or another owner has trimmed it, and then the fence says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from foqs.core.flush.journal_rows import PayloadPlace
from foqs.core.items.item import Row
from foqs.core.journal.dirty_items import DirtyItem
from foqs.store.journaled.journal_memory import JournalMemory
from foqs.store.port import Store, WriteRefused


@dataclass(slots=True, frozen=True)
class YoungPayloads:
    """Payloads by the numbers of their items, and of those that the journal lacks, a sentence each."""

    found: Mapping[int, bytes]
    lacking: Mapping[int, str]

    def check(self, numbers: Iterable[int]) -> None:
        """Raise `WriteRefused` if the journal lacks the payload of one of these."""
        for number in numbers:
            if number in self.lacking:
                raise WriteRefused(self.lacking[number])

    def row(self, row: Row, payload_bytes_max: int) -> Row:
        """Return a copy of a young item, with its payload if that is not longer."""
        row = row.copy()
        row.payload = self.found.get(row.id, row.payload) if row.payload_bytes <= payload_bytes_max else None
        return row


async def young_payloads(store: Store, memory: JournalMemory, numbers: Sequence[int]) -> YoungPayloads:
    """Read the payloads of those of these items that are young and whose payloads are not in memory."""
    items = {
        number: item
        for number in numbers
        if (item := memory.dirty_items.get(number)) is not None and item.row is not None and item.row.payload is None
    }
    places = {number: place_of(item) for number, item in items.items()}
    found = await store.journal_payloads([*places.values()]) if places else {}
    return YoungPayloads(
        {number: found[place] for number, place in places.items() if place in found},
        {number: lacks_payload(number, items[number]) for number, place in places.items() if place not in found},
    )


def place_of(item: DirtyItem) -> PayloadPlace:
    """Return where the payload of a young item is."""
    assert item.row is not None
    return PayloadPlace(item.first, item.payload_offset, item.row.payload_bytes)


def lacks_payload(number: int, item: DirtyItem) -> str:
    """Return the sentence on an item whose payload the journal lacks."""
    epoch, flush = item.first
    return (
        f"the journal row of epoch {epoch}, flush {flush} lacks the payload of item {number}: cancel the item, or restore "
        "the shard's tables from a backup"
    )
