"""Reads of groups beside the flushes, and what flushes change meanwhile.

A *look-up* reads groups by name. A *walk* reads all groups of a topic, or a part of them, in pages by name. Always true: an
item that a flush changed since the read began counts as it is now, whatever the read found of it. Bounded: a read that would
note more than `NOTES_MAX` changes is void, and of the new items of a group it notes the first ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Final, TypeAlias
from zlib import crc32

from foqs.core.groups.known_keys import ABOVE_ALL, BELOW_ALL, KnownKeys
from foqs.core.groups.places import GroupPlace, Placed
from foqs.core.items.item import NUMBER_MAX, OrderKey

FoundGroups: TypeAlias = Mapping[str, list[KnownKeys]]
"""What a read found: the items of each group by `GroupPlace`, from the first one on. A group without items may be missing."""

NOTES_MAX: Final = 100_000
"""A read during which flushes change more items than this is void, and made again: about 25 MB."""


class GroupRead:
    """A read of some groups, or a page of a walk.

    Attributes:
        names: the groups of a look-up; None: the read is a page of a walk.
        after: a page has the groups with names above this one.
        keys_max, leases_max: how many items of a group and place to read, and how many leased ones.
        is_void: its result must not be used.
        starts: a look-up that reads only the waiting items of its groups has them above these keys; else it is empty.
        cut: a walk that did not keep all groups: no group that it left out has a waiting item at or below this key.
        part, parts: a walk reads this one of so many parts of the groups.
    """

    __slots__ = (
        "_first_unknown",
        "_new_keys",
        "_notes",
        "_touched",
        "after",
        "cut",
        "is_void",
        "keys_max",
        "leases_max",
        "names",
        "part",
        "parts",
        "starts",
    )

    def __init__(self, names: frozenset[str] | None, after: str, keys_max: int, leases_max: int) -> None:
        self.names = names
        self.after = after
        self.keys_max = keys_max
        self.leases_max = leases_max
        self.is_void = False
        self.starts: Mapping[str, OrderKey] = {}
        self.cut: OrderKey | None = None
        self.part = 0
        self.parts = 1
        self._touched: dict[str, dict[int, Placed | None]] = {}
        """The items that flushes have changed since the read began, as they are now, by group."""
        self._new_keys: dict[str, list[OrderKey]] = {}
        """Of groups that got new items since: the negatives of the first keys, as a heap."""
        self._first_unknown: dict[str, OrderKey] = {}
        """Of groups that got more new items than are noted: the first key that is not."""
        self._notes = 0

    def has(self, name: str) -> bool:
        """Return whether it reads this group."""
        if self.names is not None:
            return name in self.names
        return name > self.after and (self.parts == 1 or crc32(name.encode()) % self.parts == self.part)

    @property
    def is_small(self) -> bool:
        """Whether a read of twice as many groups would have been far from void."""
        return self._notes < NOTES_MAX // 4

    def note(self, name: str, old: Placed | None, new: Placed | None) -> None:
        """Note a changed item, of which one of both is not None."""
        if self.is_void or not self.has(name):
            return
        start = self.starts.get(name)
        if start is not None and (old is None or old[1] <= start) and (new is None or new[1] <= start):
            return  # it reads no such keys
        touched = self._touched.get(name)
        if touched is None:
            touched = self._touched[name] = {}
        if old is None and new is not None and new[0] is GroupPlace.WAITING and new[1] & NUMBER_MAX not in touched:
            self._note_new(name, touched, new)
            return
        for placed, now in ((old, None), (new, new)):
            if placed is not None:
                if placed[1] & NUMBER_MAX not in touched:
                    self.count_note()
                touched[placed[1] & NUMBER_MAX] = now
        if self.is_void:
            self._touched.clear()

    def _note_new(self, name: str, touched: dict[int, Placed | None], new: Placed) -> None:
        """Note a new item of a group. If there are many, the last ones count as unknown."""
        key = new[1]
        if key >= self._first_unknown.get(name, ABOVE_ALL):
            return
        keys = self._new_keys.setdefault(name, [])
        heappush(keys, -key)
        touched[key & NUMBER_MAX] = new
        self.count_note()
        if len(keys) > self.keys_max:
            last = self._first_unknown[name] = -heappop(keys)
            if touched[last & NUMBER_MAX] == (GroupPlace.WAITING, last):
                del touched[last & NUMBER_MAX]
                self._notes -= 1
        if self.is_void:
            self._touched.clear()

    def count_note(self) -> None:
        """Count what is kept beside the groups themselves. Too much makes the read void."""
        self._notes += 1
        if self._notes > NOTES_MAX:
            self.is_void = True

    def names_up_to(self, found: FoundGroups, last: str | None) -> set[str]:
        """Return the groups that this read decides. `last`: the last name of a page; None: it was the last page."""
        if self.names is not None:
            return set(self.names)
        if self.cut is not None:
            return set(found)  # it may have left out the others
        names = {*found, *self._touched}
        return names if last is None else {name for name in names if name <= last}

    def touched_names(self) -> set[str]:
        """Return the groups of which items have changed since the read began."""
        return set(self._touched)

    def known_of(self, name: str, found: FoundGroups, nothing: list[KnownKeys]) -> list[KnownKeys]:
        """Return what is known of a group now. `nothing`: the places of a group without items."""
        known = found.get(name, nothing)
        touched = self._touched.get(name, {})
        first_unknown = self._first_unknown.get(name)
        if not touched and first_unknown is None:
            return [*known]
        known = [places.without(touched) for places in known]
        for placed in touched.values():
            if placed is not None:
                known[placed[0]].add(placed[1])
        if first_unknown is not None:
            known[GroupPlace.WAITING].forget_above(first_unknown - 1)
        return known


def found_keys(order_keys: list[OrderKey], keys_max: int) -> KnownKeys:
    """Return what a read of one place found that asked for the first `keys_max` items."""
    if len(order_keys) < keys_max:
        return KnownKeys(order_keys, ABOVE_ALL)
    return KnownKeys(order_keys, order_keys[-1] if order_keys else BELOW_ALL)
