"""The memory that the groups of one topic take, and may take, in units.

Always true after `LimitedTopic.settle`: groups take at most `units_max`, unless held ones alone take more. If the memory is
full, an eighth of it is given up, so that it is not full again soon. Decides what must go, and forgets nothing itself.
"""

from __future__ import annotations

from typing import Final

from foqs.core.groups.group import KEYS_PER_UNIT, Group
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.items.item import OrderKey

GROUP_KEYS_MAX: Final = 64
"""Waiting items of one group in memory, or as many as the limit if that is more. Others are read when a quarter of them is left."""
FAIR_KEYS_MAX: Final = 1_000
"""The same for a fair topic of few groups: two pages, so that a group with very many items reads each row about once."""
PARKED_KEYS_MAX: Final = KEYS_PER_UNIT - 1
"""The same for a group that backs off, if the memory is full: these items take no unit."""
_ROOM_PART: Final = 8
"""A memory that is full gives up this part of itself."""


class GroupRoom:
    """The memory for the groups of one topic.

    Args:
        units_max: the memory in units; see `Group.count_units`. It may be changed, and counts from the next `settle` on.
        keys_max: waiting items of one group in memory, if the limit is not higher. In a fair topic less, if there are many groups.

    Attributes:
        group_units: what the groups took when they were settled last.
        loose_units: how much of it would be free if all waiting items were forgotten.
        parked: groups that wait for the end of a backoff, and whose waiting items take memory.
        is_full: held groups fill the memory, so no other group is read until some of them have ended.
        forgotten_groups: groups that have left the memory because it was full.
    """

    def __init__(self, groups: TopicGroups, units_max: int, keys_max: int) -> None:
        self.units_max = units_max
        self.group_units = 0
        self.loose_units = 0
        self.parked: Final[dict[Group, None]] = {}
        self.is_full = False
        self.forgotten_groups = 0
        self._groups: Final = groups
        self._keys_max: Final = keys_max

    @property
    def units(self) -> int:
        """The memory that was taken when the groups were settled last."""
        return self.group_units + self._groups.ungrouped.units

    @property
    def units_target(self) -> int:
        """How much memory is taken after room was made."""
        return min(self.units_max - self.units_max // _ROOM_PART, self.units_max - 1)

    @property
    def group_keys_max(self) -> int:
        """How many waiting items of a group may be known."""
        groups = self._groups
        if groups.turns is None:
            return max(self._keys_max, groups.limit)
        share = KEYS_PER_UNIT * self.units_max // (2 * max(1, len(groups.by_name)))
        return min(self._keys_max, max(PARKED_KEYS_MAX, share))

    def note_full(self) -> None:
        """Note whether the memory is full, after all room was made."""
        self.is_full = self.units > self.units_target and (self.is_full or self.units >= self.units_max)

    @property
    def has_too_many_parked(self) -> bool:
        """Whether parked groups keep others out of a full memory: waiting items are a large part of it."""
        return bool(self.parked) and self.loose_units * _ROOM_PART >= self.units_max

    def lowered_boundary(self) -> OrderKey:
        """Return the boundary to which that of the topic must fall, so that room is made. Held groups stay in any case."""
        groups = self._groups
        # With each of these keys, one unit is given back.
        keys = groups.ungrouped.keys[KEYS_PER_UNIT - 1 :: KEYS_PER_UNIT]
        for group in groups.by_name.values():
            if group.waiting and not group.is_held:
                keys.append(group.waiting[0])
            keys += group.waiting[KEYS_PER_UNIT - 1 :: KEYS_PER_UNIT]
        keys.sort()
        excess = min(self.units - self.units_target, len(keys))
        return keys[-excess] - 1 if excess else groups.boundary

    def recount(self) -> None:
        """Count the groups that were left when all else was forgotten."""
        groups = self._groups.by_name.values()
        self.group_units = sum([group.units for group in groups])
        self.loose_units = sum([group.loose_units for group in groups])
        self.parked.clear()

    def check(self) -> None:
        """Assert that the units are those of the groups, and within their bound."""
        groups = self._groups.by_name
        assert self.group_units == sum([group.units for group in groups.values()])
        assert self.loose_units == sum([group.loose_units for group in groups.values()])
        others = [group.name for group in groups.values() if group.waiting and not group.is_held]
        assert self.units <= self.units_max or not others, (
            f"invariant 18: {self.units} units of {self.units_max} are taken"
        )
        for group in self.parked:
            assert groups.get(group.name) is group, f"{group.name} is parked, and not in memory"
