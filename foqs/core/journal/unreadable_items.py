"""The young items of a shard whose payloads the journal lacks.

Their rows cannot be written, and their events cannot be written again, so they hold the floor until they
end. Always true: none of them is among the items that are chosen for a write-back. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import islice
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.flush.journal_rows import pack_position, unpack_position
from foqs.core.items.item import NUMBER_MAX, State
from foqs.core.journal.sorted_keys import SortedKeys

_NUMBER_BITS: Final = NUMBER_MAX.bit_length()
_STEP: Final = 100
"""How many places are read at once to find one that counts."""


class UnreadableItems:
    """The unreadable items of one ownership."""

    def __init__(self) -> None:
        self._firsts: dict[int, Position] = {}
        self._places = SortedKeys()
        """(first event, number) of each, in one integer."""
        self._ready: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, number: object) -> bool:
        return number in self._firsts

    def __iter__(self) -> Iterator[int]:
        return iter(self._firsts)

    def add(self, number: int, first: Position, state: State) -> None:
        """Add an item that is not here yet."""
        self._firsts[number] = first
        self._places.add([_place(first, number)])
        self.set_state(number, state)

    def remove(self, number: int) -> None:
        """Forget an item."""
        self._places.remove([_place(self._firsts.pop(number), number)])
        self._ready.pop(number, None)

    def set_state(self, number: int, state: State) -> None:
        """Note the state of an item that is here."""
        if state is State.READY:
            self._ready[number] = None
        else:
            self._ready.pop(number, None)

    def ready(self, items_max: int) -> list[int]:
        """Return READY ones, at most `items_max`."""
        return [*islice(self._ready, items_max)]

    def has_first(self, first: Position) -> bool:
        """Return whether one of them has this first event."""
        return bool(self._places.first_after(_place(first, 0) - 1, 1, _place(first, NUMBER_MAX)))

    def floor(self, clean: Container[int] = ()) -> Position | None:
        """Return the least first event of those that are not in `clean`; None: there are none."""
        after = -1
        while page := self._places.first_after(after, _STEP):
            for place in page:
                if place & NUMBER_MAX not in clean:
                    return unpack_position(place >> _NUMBER_BITS)
            after = page[-1]
        return None


def _place(first: Position, number: int) -> int:
    return pack_position(first) << _NUMBER_BITS | number
