"""Chooses what a flush writes on a disk without room, so that the journal becomes shorter: no new row is written.

Changed and ended items get their rows, because these are changed in place or deleted. Young items are carried
forward: written again at the end of the journal, so that the row that has them may be trimmed, if it is among the
oldest, or else lose its payloads. Always true: a row loses its payloads only if no young item needs one of them
after the flush; and items are carried only if that takes less room than it frees, in the end. Pure.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.items.item import EPOCH_MAX
from foqs.core.journal.dirty_items import DirtyItem, DirtyItems
from foqs.core.journal.journal_positions import JournalPositions

GAIN_PERCENT_MIN: Final = 12
"""The part of the freed bytes that must be left after items were carried forward."""
NEEDED_GAIN_PERCENT_MIN: Final = 2
"""The same when the room is needed, because a part of the reserve is used up."""
CARRIED_ITEMS_MAX: Final = 2_000
"""The most items that a flush carries forward."""
_ROWS_LOOKED_AT: Final = 256
_ITEMS_LOOKED_AT: Final = 10_000
"""How many rows of the journal, and items of them, one flush looks at: some milliseconds."""
_END: Final[Position] = (EPOCH_MAX + 1, 0)


@dataclass(slots=True, frozen=True)
class Compaction:
    """What one flush writes so that the journal becomes shorter.

    Attributes:
        carried: items that are carried forward.
        emptied: rows of the journal that lose their payloads.
    """

    carried: list[int]
    emptied: list[Position]


def rows_in_place(dirty_items: DirtyItems, items_max: int, refused: Container[int] = ()) -> list[int]:
    """Return those of the oldest items that have rows, and the first ended ones. `refused`: their rows are not tried."""
    found = dict.fromkeys([*dirty_items.oldest(items_max, but=refused), *dirty_items.ended(items_max, refused)])
    numbers = [number for number in found if not _is_young(dirty_items.get(number))]
    return numbers[:items_max]


def compaction(
    dirty_items: DirtyItems,
    positions: JournalPositions,
    bytes_max: int,
    refused: Container[int] = (),
    gain_percent_min: int = GAIN_PERCENT_MIN,
) -> Compaction:
    """Return what makes the journal shorter.

    Args:
        bytes_max: about the most bytes that are carried.
        gain_percent_min: the part of the freed bytes that must be left.
        refused: items whose rows are not tried, so that they hold the floor like young ones.
    """
    carried = items_to_carry(dirty_items, positions, bytes_max, refused, gain_percent_min)
    bytes_left = bytes_max - sum(dirty_items.carried_bytes_of(number) for number in carried)
    known, emptied, items_left = set(carried), [], _ITEMS_LOOKED_AT
    for position, payload_bytes in positions.next_payloads(_ROWS_LOOKED_AT):
        if dirty_items.unreadable.has_first(position):
            continue  # an operator may still look at what is left of the row
        numbers = dirty_items.with_first(position)
        items_left -= len(numbers)
        if items_left < 0:
            break
        young = [n for n in numbers if n not in known and _is_young(dirty_items.get(n))]
        bytes_taken = sum(map(dirty_items.carried_bytes_of, young))
        if young and (
            bytes_taken > bytes_left
            or len(known) + len(young) > CARRIED_ITEMS_MAX
            or not _pays(bytes_taken, payload_bytes, gain_percent_min)
        ):
            continue
        emptied.append(position)
        carried += young
        known.update(young)
        bytes_left -= bytes_taken
    return Compaction(carried, emptied)


def items_to_carry(
    dirty_items: DirtyItems,
    positions: JournalPositions,
    bytes_max: int,
    refused: Container[int] = (),
    gain_percent_min: int = GAIN_PERCENT_MIN,
) -> list[int]:
    """Return the oldest items that hold the floor and are carried forward so that the floor rises.

    They are as few as pay by themselves; or, if the whole journal would become shorter, as many as fit.
    """
    held = dirty_items.unreadable.floor() or _END
    is_long = _pays(dirty_items.carried_bytes, positions.live_bytes, gain_percent_min)
    numbers = dirty_items.oldest(CARRIED_ITEMS_MAX)
    carried: list[int] = []
    as_many: list[int] = []
    bytes_taken, bytes_trimmed, first = 0, 0, None

    def is_enough(floor: Position) -> bool:
        nonlocal as_many, bytes_trimmed
        former, bytes_trimmed = bytes_trimmed, positions.bytes_to_trim(min(floor, held))
        if bytes_trimmed > former and is_long:
            as_many = [*carried]
        return _pays(bytes_taken, bytes_trimmed, gain_percent_min)

    for number in numbers:
        item = dirty_items.get(number)
        assert item is not None
        if first is not None and item.first != first and is_enough(item.first):
            return carried
        first = item.first
        if _is_young(item) or number in refused:
            carried.append(number)
            bytes_taken += dirty_items.carried_bytes_of(number)
            if bytes_taken > bytes_max:
                return as_many
    is_whole = len(numbers) == len(dirty_items) - len(dirty_items.unreadable)
    return carried if is_whole and is_enough(held) else as_many


def _pays(bytes_taken: int, bytes_freed: int, gain_percent_min: int) -> bool:
    return 100 * bytes_taken <= (100 - gain_percent_min) * bytes_freed


def _is_young(item: DirtyItem | None) -> bool:
    return item is not None and item.row is not None
