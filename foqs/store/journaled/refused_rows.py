"""The rows that the database refused to be written back, and how the refused one of many is found.

A refused write-back is divided, and each half is tried in a flush of its own, until a row is refused
alone. Its events are carried forward at once, so it is not the oldest item any more, and again whenever it
is due. Then it is tried again, alone, until its columns did not hold it `REFUSALS_MAX` times. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.items.item import State
from foqs.core.journal.dirty_items import DirtyItems
from foqs.core.journal.write_back import WriteBackChoice, within_bytes

REFUSALS_MAX: Final = 3
"""How often a row is tried that the columns of the table do not hold."""


class RefusedRows:
    """The refused rows of one ownership."""

    def __init__(self) -> None:
        self.alone: dict[int, Position | None] = {}
        """Refused alone, with the first event that is to be carried forward; None: it was."""
        self._refusals: dict[int, int] = {}
        """How often the columns did not hold a row."""
        self._groups: deque[Sequence[int]] = deque()
        """Refused together, or due again, to be tried one group after the other."""

    def choose(self, numbers: Sequence[int]) -> list[int]:
        """Return what a flush writes back of these numbers, or a group that is tried by itself."""
        if self._groups:
            return list(self._groups[0])
        return [number for number in numbers if number not in self.alone] if self.alone else list(numbers)

    def to_carry(self, dirty_items: DirtyItems, choice: WriteBackChoice) -> list[int]:
        """Return the items that would hold the floor: refused just now, or due again. The latter are tried again."""
        carried: list[int] = []
        for number, first in [*self.alone.items()]:
            item = dirty_items.get(number)
            if item is None:
                self._forget(number)
            elif item.first == first:
                carried.append(number)
            elif choice.is_due(item.first):
                carried.append(number)
                if not self._is_given_up(number):
                    del self.alone[number]
                    self._groups.append((number,))
        return within_bytes(dirty_items, carried)

    def given_up(self, dirty_items: DirtyItems) -> list[int]:
        """Return the READY items whose rows are not tried any more. Others may end before they are READY."""
        return [
            number
            for number in self.alone
            if self._is_given_up(number) and (item := dirty_items.get(number)) is not None and item.state is State.READY
        ]

    def on_refused(
        self, numbers: Sequence[int], dirty_items: DirtyItems, carried: Collection[int], *, is_bad_value: bool
    ) -> list[int]:
        """Note that a write-back was refused. Returns the row that was refused alone, if it was one.

        Args:
            carried: the items that the flush carried forward when it was repeated.
        """
        if self._groups:
            self._groups.popleft()
        if len(numbers) > 1:
            half = len(numbers) // 2
            self._groups += (numbers[:half], numbers[half:])
            return []
        (number,) = numbers
        item = dirty_items.get(number)
        if item is None:
            self._forget(number)
            return []
        self.alone[number] = None if number in carried else item.first
        self._refusals[number] = self._refusals.get(number, 0) + is_bad_value
        return [number]

    def on_written(self, numbers: Sequence[int]) -> None:
        """Note that rows were written back."""
        if self._groups and list(self._groups[0]) == list(numbers):
            self._groups.popleft()
        if self._refusals:
            for number in numbers:
                self._forget(number)

    def _is_given_up(self, number: int) -> bool:
        return self._refusals.get(number, 0) >= REFUSALS_MAX

    def _forget(self, number: int) -> None:
        self.alone.pop(number, None)
        self._refusals.pop(number, None)
