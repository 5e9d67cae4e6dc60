"""Chooses what a flush writes on a disk without room, so that the journal becomes shorter: no new row is written.

Changed and ended items get their rows, because these are changed in place or deleted. A young item is carried
forward: written again at the end of the journal. Always true: young items are carried only if that takes less
room than the rows that can be trimmed then. Pure.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.items.item import EPOCH_MAX
from foqs.core.journal.dirty_items import DirtyItem, DirtyItems
from foqs.core.journal.journal_positions import JournalPositions
from foqs.core.journal.write_back import WRITE_BACK_BYTES_MAX

GAIN_PERCENT_MIN: Final = 12
"""The part of the trimmed bytes that must be left after items were carried forward."""
_END: Final[Position] = (EPOCH_MAX + 1, 0)
_EVENT_BYTES: Final = 128
"""At least what an item takes among the events, besides its metadata."""


def rows_in_place(dirty_items: DirtyItems, items_max: int, refused: Container[int] = ()) -> list[int]:
    """Return those of the oldest items that have rows, and the first ended ones. `refused`: their rows are not tried."""
    found = dict.fromkeys([*dirty_items.oldest(items_max, but=refused), *dirty_items.ended(items_max, refused)])
    numbers = [number for number in found if not _is_young(dirty_items.get(number))]
    return numbers[:items_max]


def items_to_carry(
    dirty_items: DirtyItems,
    positions: JournalPositions,
    items_max: int,
    refused: Container[int] = (),
) -> list[int]:
    """Return the oldest items that hold the floor and are carried forward: as few as pay.

    Args:
        refused: items whose rows are not tried, so that they hold the floor like young ones.
    """
    held = dirty_items.unreadable.floor() or _END
    numbers = dirty_items.oldest(items_max)
    carried: list[int] = []
    bytes_taken, first = 0, None
    for number in numbers:
        item = dirty_items.get(number)
        assert item is not None
        if (
            first is not None
            and item.first != first
            and _pays(bytes_taken, positions.bytes_to_trim(min(item.first, held)))
        ):
            return carried
        first = item.first
        if _is_young(item) or number in refused:
            carried.append(number)
            bytes_taken += _size_of(item)
            if bytes_taken > WRITE_BACK_BYTES_MAX:
                return []
    is_whole = len(numbers) == len(dirty_items) - len(dirty_items.unreadable)
    return carried if is_whole and _pays(bytes_taken, positions.bytes_to_trim(held)) else []


def _pays(bytes_taken: int, bytes_trimmed: int) -> bool:
    return 100 * bytes_taken <= (100 - GAIN_PERCENT_MIN) * bytes_trimmed


def _is_young(item: DirtyItem | None) -> bool:
    return item is not None and item.row is not None


def _size_of(item: DirtyItem) -> int:
    row = item.row
    if row is None:
        return _EVENT_BYTES
    return _EVENT_BYTES + row.payload_bytes + len(row.metadata) + len(row.trace_context or b"")
