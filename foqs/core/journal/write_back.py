"""Chooses the items whose rows a flush writes back.

A young or changed item is due when it has been dirty for `after_ms`: most of them end before. An
ended item is due at once, because its row must be deleted in any case, but such items fill the least
part of a flush only. Always true: the oldest come first, so the floor of the journal rises. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.journal.dirty_items import DirtyItems

LEAST_PERCENT: Final = 20
"""The part of a flush that write-backs get whenever there are that many."""
MOST_PERCENT: Final = 60
"""The part that they never exceed."""
URGENT_PERCENT: Final = 80
"""Above this part of a bound, items are written back before they are due."""
WRITE_BACK_BYTES_MAX: Final = 4 << 20
"""The payloads that a flush writes back. One item may have more."""
FULL_PERCENT: Final = 100
"""From here on, flushes also write the rows that they change."""


class WriteBackChoice:
    """The choices of one ownership.

    Args:
        after_ms: how long an item is dirty before its row is written.
        position: the place before the first flush. What was replayed counts as dirty since `now_ms`.
    """

    def __init__(self, after_ms: int, position: Position, now_ms: int) -> None:
        self._after_ms = after_ms
        self._positions: deque[tuple[int, Position]] = deque([(now_ms, position)])
        """When each flush was committed, as far as its items are not due."""
        self._due_position: Position | None = None
        """Items with first events up to here are due, since `_due_ms`."""
        self._due_ms = now_ms

    def on_committed(self, position: Position, now_ms: int) -> None:
        """Note that a flush was committed."""
        self._positions.append((now_ms, position))

    def numbers(
        self,
        dirty_items: DirtyItems,
        now_ms: int,
        flush_items_max: int,
        fullness_percent: int,
        but: Container[int] = (),
    ) -> list[int]:
        """Return the numbers of the items to write back in a flush of at most `flush_items_max` entries.

        Args:
            fullness_percent: the largest part of a bound that is used; 100 or more in a hand-over.
            but: items that are left out, so that others have their place.
        """
        numbers = self._due_numbers(dirty_items, now_ms, flush_items_max, fullness_percent, but)
        return within_bytes(dirty_items, numbers)

    def _due_numbers(
        self,
        dirty_items: DirtyItems,
        now_ms: int,
        flush_items_max: int,
        fullness_percent: int,
        but: Container[int],
    ) -> list[int]:
        least, most = flush_items_max * LEAST_PERCENT // 100, flush_items_max * MOST_PERCENT // 100
        self._advance(now_ms)
        if fullness_percent >= URGENT_PERCENT:
            return dirty_items.oldest(most, but=but)
        found = [] if self._due_position is None else dirty_items.oldest(most, self._due_position, but)
        if len(found) < least:
            known = set(found)
            ended = [number for number in dirty_items.ended(least, but) if number not in known]
            found += ended[: least - len(found)]
        return found

    def is_due(self, first: Position) -> bool:
        """Return whether an item with this first event has been dirty for long, as of the last choice."""
        return self._due_position is not None and first <= self._due_position

    def next_due_ms(self, dirty_items: DirtyItems) -> int | None:
        """Return when the oldest item is due, or was due; None if none is dirty."""
        first = dirty_items.first
        if first is None:
            return None
        if self.is_due(first):
            return self._due_ms
        # Earlier flushes may have left no item, so that they need nothing.
        return next((at_ms + self._after_ms for at_ms, position in self._positions if position >= first), None)

    def _advance(self, now_ms: int) -> None:
        positions = self._positions
        while positions and positions[0][0] + self._after_ms <= now_ms:
            committed_ms, self._due_position = positions.popleft()
            self._due_ms = committed_ms + self._after_ms


def within_bytes(dirty_items: DirtyItems, numbers: list[int]) -> list[int]:
    """Return the first of these numbers: those whose payloads are `WRITE_BACK_BYTES_MAX` together, at least one."""
    bytes_left = WRITE_BACK_BYTES_MAX
    for at, number in enumerate(numbers):
        item = dirty_items.get(number)
        if item is not None and item.row is not None:
            bytes_left -= item.row.payload_bytes
            if bytes_left < 0:
                return numbers[: max(at, 1)]
    return numbers
