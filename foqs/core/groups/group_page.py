"""A read of one page of the rows of a topic with a limit, beside the flushes, and what flushes change meanwhile.

Always true: an item that a flush has changed since the read began counts as it is now, whatever the page shows of it.
Bounded: a page beside which more than `CHANGES_MAX` items change is void, and read again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

from foqs.core.groups.group import ABOVE_ALL
from foqs.core.groups.places import GroupPlace, Placed, group_name, line_place
from foqs.core.items.item import NUMBER_MAX, OrderKey, Row, State

CHANGES_MAX: Final = 100_000
"""Changed items that a page notes: about 20 MB. A page takes some milliseconds."""


class PageKind(enum.Enum):
    """What a page is read for."""

    DELIVERED = "items that were delivered, of all groups"
    REFILL = "waiting items above the boundary, of all groups"
    LOOKUP = "waiting items above the cuts of long groups"


class GroupPage:
    """The read of one page: at most `rows_max` rows of a state above `after`, in order."""

    __slots__ = ("_changes", "after", "is_void", "kind", "rows_max", "state")

    def __init__(self, kind: PageKind, state: State, after: OrderKey, rows_max: int) -> None:
        self.kind = kind
        self.state = state
        self.after = after
        self.rows_max = rows_max
        self.is_void = False
        self._changes: dict[int, tuple[str, Placed | None]] = {}
        """The items that flushes have changed, by number: their group, and their place now."""

    def note(self, name: str, old: Placed | None, new: Placed | None) -> None:
        """Note a changed item of a group, before and after."""
        if old is not None:
            self._changes[old[1] & NUMBER_MAX] = name, None
        if new is not None:
            self._changes[new[1] & NUMBER_MAX] = name, new
        if len(self._changes) > CHANGES_MAX:
            self.is_void = True
            self._changes.clear()

    def is_changed(self, number: int) -> bool:
        """Return whether a flush has changed an item since the page began."""
        return number in self._changes

    def end(self, rows: Sequence[Row]) -> OrderKey:
        """Return the key up to which the page has read the rows of its state."""
        return ABOVE_ALL if len(rows) < self.rows_max else rows[-1].order_key

    def unchanged(self, rows: Iterable[Row], *, is_strict: bool) -> list[tuple[str, Placed]]:
        """Return the group and the place of the rows that no flush has changed."""
        changes = self._changes
        return [
            (group_name(row), placed)
            for row in rows
            if row.id not in changes and (placed := line_place(row, is_strict=is_strict)) is not None
        ]

    def waiting(self, rows: Iterable[Row], end: OrderKey, *, is_strict: bool) -> list[tuple[str, OrderKey]]:
        """Return group and key of the items that wait now above `after`, up to `end`."""
        found = self.unchanged(rows, is_strict=is_strict)
        found += [(name, placed) for name, placed in self._changes.values() if placed is not None]
        return [(name, key) for name, (place, key) in found if place is GroupPlace.WAITING and self.after < key <= end]

    def changed_names(self) -> set[str]:
        """Return the groups of the items that flushes have changed."""
        return {name for name, _ in self._changes.values()}
