"""The rows that the database refused to be written back, and how the refused one of many is found.

A refused write-back is divided, and each half is tried in a flush of its own, until a row is refused
alone. Such a row is not tried again, and its events are carried forward. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from foqs.core.journal.dirty_items import DirtyItems
from foqs.core.journal.write_back import WriteBackChoice


class RefusedRows:
    """The refused rows of one ownership."""

    def __init__(self) -> None:
        self.alone: set[int] = set()
        """Refused alone."""
        self._groups: deque[Sequence[int]] = deque()
        """Refused together, to be tried one group after the other."""

    def choose(self, numbers: Sequence[int]) -> list[int]:
        """Return what a flush writes back of these numbers, or a group that was refused with others."""
        if self._groups:
            return list(self._groups[0])
        return [number for number in numbers if number not in self.alone] if self.alone else list(numbers)

    def to_carry(self, dirty_items: DirtyItems, choice: WriteBackChoice) -> list[int]:
        """Return the items that cannot be written back and have been dirty for long: they hold the floor."""
        if not self.alone:
            return []
        items = {number: item for number in self.alone if (item := dirty_items.get(number)) is not None}
        self.alone = set(items)
        return [number for number, item in items.items() if choice.is_due(item.first)]

    def on_refused(self, numbers: Sequence[int]) -> list[int]:
        """Note that a write-back was refused. Returns the row that was refused alone, if it was one."""
        if self._groups:
            self._groups.popleft()
        if len(numbers) == 1:
            self.alone.update(numbers)
            return list(numbers)
        half = len(numbers) // 2
        self._groups += (numbers[:half], numbers[half:])
        return []

    def on_written(self, numbers: Sequence[int]) -> None:
        """Note that rows were written back."""
        if self._groups and list(self._groups[0]) == list(numbers):
            self._groups.popleft()
