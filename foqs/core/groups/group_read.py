"""Reads of groups beside the flushes, and what flushes change meanwhile.

A *look-up* reads groups by name. A *walk* reads all groups of a topic, in pages by name. Always true: an item
that a flush changed since the read began counts as it is now, whatever the read found of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from foqs.core.groups.known_keys import ABOVE_ALL, BELOW_ALL, KnownKeys
from foqs.core.groups.places import Placed
from foqs.core.items.item import NUMBER_MAX, OrderKey

FoundGroups: TypeAlias = Mapping[str, list[KnownKeys]]
"""What a read found: the items of each group by `GroupPlace`, from the first one on. A group without items may be missing."""

TOUCHED_MAX: Final = 10_000
"""A read during which flushes make more changes than this is void, and made again."""


class GroupRead:
    """A read of some groups, or a page of a walk.

    Attributes:
        names: the groups of a look-up; None: the read is a page of a walk.
        after: a page has the groups with names above this one.
        keys_max, leases_max: how many items of a group and place to read, and how many leased ones.
        is_void: its result must not be used.
    """

    __slots__ = ("_touched", "_touched_count", "after", "is_void", "keys_max", "leases_max", "names")

    def __init__(self, names: frozenset[str] | None, after: str, keys_max: int, leases_max: int) -> None:
        self.names = names
        self.after = after
        self.keys_max = keys_max
        self.leases_max = leases_max
        self.is_void = False
        self._touched: dict[str, dict[int, Placed | None]] = {}
        """The items that flushes have changed since the read began, as they are now, by group."""
        self._touched_count = 0

    def note(self, name: str, old: Placed | None, new: Placed | None) -> None:
        """Note a changed item, of which one of both is not None."""
        if self.is_void or (name <= self.after if self.names is None else name not in self.names):
            return
        touched = self._touched.get(name)
        if touched is None:
            touched = self._touched[name] = {}
        if old is not None:
            touched[old[1] & NUMBER_MAX] = None
        if new is not None:
            touched[new[1] & NUMBER_MAX] = new
        self._touched_count += 1
        if self._touched_count > TOUCHED_MAX:
            self.is_void = True
            self._touched.clear()

    def names_up_to(self, found: FoundGroups, last: str | None) -> set[str]:
        """Return the groups that this read decides. `last`: the last name of a page; None: it was the last page."""
        if self.names is not None:
            return set(self.names)
        names = {*found, *self._touched}
        return names if last is None else {name for name in names if name <= last}

    def known_of(self, name: str, found: FoundGroups, nothing: list[KnownKeys]) -> list[KnownKeys]:
        """Return what is known of a group now. `nothing`: the places of a group without items."""
        known = found.get(name, nothing)
        touched = self._touched.get(name)
        if not touched:
            return [*known]
        known = [places.without(touched) for places in known]
        for placed in touched.values():
            if placed is not None:
                known[placed[0]].add(placed[1])
        return known


def found_keys(order_keys: list[OrderKey], keys_max: int) -> KnownKeys:
    """Return what a read of one place found that asked for the first `keys_max` items."""
    if len(order_keys) < keys_max:
        return KnownKeys(order_keys, ABOVE_ALL)
    return KnownKeys(order_keys, order_keys[-1] if order_keys else BELOW_ALL)
