"""Which group of a topic has the last head, so that it is the first to be forgotten.

A heap with lazy deletion. Always true: each group that has a head, and no reservation, is in the heap by
its first head. Entries that are outdated are left where they are until they come up.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from foqs.core.groups.group import Group
from foqs.core.groups.known_keys import BELOW_ALL
from foqs.core.items.item import OrderKey

_OUTDATED_FRACTION: Final = 2
"""The heap is made again when it has more than this many entries for each group."""
_ENTRIES_MIN: Final = 64


class LastHeads:
    """The groups of one topic by their first heads, the last one first.

    Args:
        groups: the groups of the topic in memory, which the caller changes.
    """

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self._groups = groups
        self._entries: list[tuple[OrderKey, str]] = []
        """The negative of each first head, and the name of its group."""

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return len(self) > 0

    def add(self, group: Group) -> None:
        """Add a group that has a head."""
        head = group.heads[0]
        if group.listed == head:
            return
        group.listed = head
        heappush(self._entries, (-head, group.name))
        if len(self._entries) > _ENTRIES_MIN + _OUTDATED_FRACTION * len(self._groups):
            self._drop_outdated()

    def pop(self) -> Group | None:
        """Remove and return the group with the last head, of those without reservations; None if there is none."""
        while self._entries:
            negative, name = heappop(self._entries)
            group = self._groups.get(name)
            if group is None or group.listed != -negative:
                continue
            group.listed = BELOW_ALL
            # A group with reservations is added again when it is settled after their end.
            if not group.reserved and group.heads and group.heads[0] == -negative:
                return group
        return None

    def clear(self) -> None:
        """Remove all groups."""
        self._entries = []

    def _drop_outdated(self) -> None:
        kept: set[tuple[OrderKey, str]] = set()
        for entry in self._entries:
            group = self._groups.get(entry[1])
            if group is not None and group.listed == -entry[0]:
                kept.add(entry)
        self._entries = [*kept]
        heapify(self._entries)
