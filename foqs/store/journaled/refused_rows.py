"""The rows that the database refused to be written back, and how the refused one of many is found.

A refused write-back is divided, and each half is tried in a flush of its own, until a row is refused
alone. Its events are carried forward at once, so it is not the oldest item any more, and again whenever it
is due. Then it is tried again, alone. An item whose columns did not hold it `REFUSALS_MAX` times is given up:
the shard makes it DEAD when it is READY. Its row is then tried every `DUE_TIMES_OF_DEAD` times that it is due, and
as at first when it is not DEAD any more. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.items.item import State
from foqs.core.journal.dirty_items import DirtyItems
from foqs.core.journal.write_back import WriteBackChoice, within_bytes

REFUSALS_MAX: Final = 3
"""How often a row is tried that the columns of the table do not hold, before its item is given up."""
DUE_TIMES_OF_DEAD: Final = 12
"""How often the item of such a row is due until the row is tried again: once a minute."""


@dataclass(slots=True)
class _Refusals:
    """What is known of one row.

    Attributes:
        bad_values: how often the columns did not hold it.
        is_dead: its item was given up and is DEAD since.
        due_times: how often it was due since it was tried.
    """

    bad_values: int = 0
    is_dead: bool = False
    due_times: int = 0

    @property
    def is_given_up(self) -> bool:
        return self.bad_values >= REFUSALS_MAX


class RefusedRows:
    """The refused rows of one ownership."""

    def __init__(self) -> None:
        self.alone: dict[int, Position | None] = {}
        """Refused alone, with the first event that is to be carried forward; None: it was."""
        self._refusals: dict[int, _Refusals] = {}
        """Those that were refused alone at least once."""
        self._groups: deque[Sequence[int]] = deque()
        """Refused together, or due again, to be tried one group after the other."""

    def __len__(self) -> int:
        """The rows that were refused alone, whether they are tried again or not."""
        return len(self._refusals)

    def choose(self, numbers: Sequence[int]) -> list[int]:
        """Return what a flush writes back: these numbers, of which none was refused alone, or a group that is tried by itself."""
        return list(self._groups[0] if self._groups else numbers)

    def to_carry(self, dirty_items: DirtyItems, choice: WriteBackChoice) -> list[int]:
        """Return the items that would hold the floor: refused just now, or due again. The latter are tried again."""
        carried: list[int] = []
        for number, first in [*self.alone.items()]:
            item, refusals = dirty_items.get(number), self._refusals[number]
            if item is None or (refusals.is_dead and item.state is not State.DEAD):
                self.forget(number)
                continue
            refusals.is_dead = refusals.is_given_up and item.state is State.DEAD
            if item.first == first:
                carried.append(number)
            elif choice.is_due(item.first):
                carried.append(number)
                refusals.due_times += 1
                if not refusals.is_given_up or refusals.due_times >= DUE_TIMES_OF_DEAD:
                    refusals.due_times = 0
                    del self.alone[number]
                    self._groups.append((number,))
        return within_bytes(dirty_items, carried)

    def given_up(self, dirty_items: DirtyItems) -> list[int]:
        """Return the READY items that are given up. Others may end before they are READY."""
        return [
            number
            for number, refusals in self._refusals.items()
            if refusals.is_given_up
            and not refusals.is_dead
            and (item := dirty_items.get(number)) is not None
            and item.state is State.READY
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
        if item is None or number in dirty_items.unreadable:
            self.forget(number)
            return []
        self.alone[number] = None if number in carried else item.first
        self._refusals.setdefault(number, _Refusals()).bad_values += is_bad_value
        return [number]

    def forget(self, number: int) -> None:
        """Forget an item: it is gone, or the journal lacks its payload."""
        self.alone.pop(number, None)
        self._refusals.pop(number, None)

    def on_written(self, numbers: Sequence[int]) -> None:
        """Note that rows were written back."""
        if self._groups and list(self._groups[0]) == list(numbers):
            self._groups.popleft()
        if self._refusals:
            for number in numbers:
                self.forget(number)
