"""One topic whose policy has rules for groups: its groups, and what follows from them.

    rows of flushes ──▶ groups ◀── pages of rows
                          │
                        settle ──▶ heads ──▶ the window of the ready index

Flushes, pages and reservations change `groups`; `settle` follows. It computes the heads of the groups that have changed, and
keeps the bound of their memory. If the memory is full, the boundary falls, and what waits above it is forgotten. If held groups
alone fill it, the topic is *full*: nothing is delivered of other groups until some have ended.

Always true between two flushes: all groups are settled. Callers use the parts of a topic themselves; here is what changes
several of them. Knows no other topic, no window and no table; see docs/design/groups.md.
"""

from __future__ import annotations

from typing import Final

from foqs.core.groups.group import ABOVE_ALL, NO_LIMIT, STRICT, Group
from foqs.core.groups.group_page import PageKind
from foqs.core.groups.group_room import GROUP_KEYS_MAX, PARKED_KEYS_MAX, GroupRoom
from foqs.core.groups.row_pages import RowPages
from foqs.core.groups.strict_items import StrictItems
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.groups.topic_heads import HeadChanges, TopicHeads
from foqs.core.groups.topic_turns import TopicTurns


class LimitedTopic:
    """The groups of a topic, their heads, the pages that fill them, and their memory.

    After each flush, read or end of reservations, `settle` returns how the heads have changed.

    Args:
        limit, turns: see `TopicGroups`.
        units_max, keys_max: see `GroupRoom`.
    """

    def __init__(
        self, limit: int, units_max: int, keys_max: int = GROUP_KEYS_MAX, turns: TopicTurns | None = None
    ) -> None:
        self.groups: Final = TopicGroups(limit, turns)
        self.heads: Final = TopicHeads(self.groups)
        self.strict_items: Final = StrictItems(self.groups)
        self.room: Final = GroupRoom(self.groups, units_max, keys_max)
        self.pages: Final = RowPages(self.groups, self.heads, self.strict_items, self.room)

    def purge(self) -> None:
        """Forget all groups: the topic has no rows any more. Reservations stay until their flush ends them."""
        self._forget_all()
        self.groups.is_read, self.groups.boundary = True, ABOVE_ALL

    def set_limit(self, limit: int) -> None:
        """Follow the topic's policy. Leases and reservations stay. Strict order needs other reads, so it forgets all groups."""
        groups = self.groups
        has_other_places = (limit == STRICT) != (groups.limit == STRICT) or (limit == NO_LIMIT) != (
            groups.limit == NO_LIMIT
        )
        groups.limit = limit
        if has_other_places:
            self._forget_all()
            groups.begin_reads()
        else:
            groups.touched = dict.fromkeys(groups.by_name.values())

    def _forget_all(self) -> None:
        """Forget all that is known, and make the read under way void."""
        self.groups.forget_all()
        self.heads.forget_all()
        self.strict_items.forget_all()
        self.room.recount()
        self.pages.forget_all()

    # -------------------------------------------------------- after a change

    def settle(self) -> HeadChanges:
        """Compute the heads of touched groups, and keep the bound of the memory. Return how the heads have changed.

        A full topic offers the heads that it knows in any case, and so does a fair one: a turn says nothing about the place of a row.
        """
        groups, room = self.groups, self.room
        self._settle_touched()
        if room.units > room.units_max and room.loose_units + groups.ungrouped.units:
            self._make_room()
        room.note_full()
        if room.is_full and room.has_too_many_parked:
            self._shorten_parked()
        if groups.turns is None and not room.is_full and groups.boundary < ABOVE_ALL:
            return self.heads.take_changes(groups.boundary, groups.boundary)
        may_find_more = self.pages.starved or not groups.is_read or (groups.boundary < ABOVE_ALL and not room.is_full)
        return self.heads.take_changes(ABOVE_ALL, ABOVE_ALL - 1 if may_find_more else None)

    def _settle_touched(self) -> None:
        keys_max = self.room.group_keys_max
        for group in self.groups.touched:
            self._settle_group(group, keys_max)
        self.groups.touched = {}

    def _settle_group(self, group: Group, keys_max: int) -> None:
        groups, room = self.groups, self.room
        group.keep_first(keys_max)
        if group.cut >= groups.boundary:
            group.cut = ABOVE_ALL
        self.heads.update(group)
        if group.noted_runs or (len(group.leased) > 1 and groups.limit == STRICT):
            self.strict_items.note_runs(group)
        room.group_units -= group.units
        room.loose_units -= group.loose_units
        if group.is_empty:
            group.units = group.loose_units = 0
            del groups.by_name[group.name]
            if groups.turns is not None:
                groups.turns.remove(group)
        else:
            group.units, group.loose_units = group.count_units()
            room.group_units += group.units
            room.loose_units += group.loose_units
        backs_off = bool(group.backing_off) and not group.heads
        if backs_off and len(group.waiting) > PARKED_KEYS_MAX:
            room.parked[group] = None
        else:
            room.parked.pop(group, None)
        self.pages.sort(group, keys_max, backs_off=backs_off)

    def _make_room(self) -> None:
        """Lower the boundary, and forget what waits above it. Held groups stay. In a fair topic, long groups give room first."""
        groups, room = self.groups, self.room
        if groups.turns is not None:
            keys_max = room.group_keys_max
            groups.touched = {group: None for group in groups.by_name.values() if len(group.waiting) > keys_max}
            self._settle_touched()
            if room.units <= room.units_target:
                return
        groups.boundary = room.lowered_boundary()
        before = len(groups)
        groups.ungrouped.forget_above(groups.boundary)
        groups.touched = {group: None for group in groups.by_name.values() if group.forget_above(groups.boundary)}
        self._settle_touched()
        room.forgotten_groups += before - len(groups)
        if groups.page is not None and groups.page.kind is PageKind.REFILL:
            groups.page.is_void = True  # it begins above the boundary

    def _shorten_parked(self) -> None:
        """Forget most waiting items of groups that back off: they take memory that other groups need sooner."""
        parked = self.room.parked
        for group in parked:
            group.keep_first(PARKED_KEYS_MAX)
        self.groups.touched = dict.fromkeys(parked)
        self._settle_touched()
        self.room.note_full()

    # ----------------------------------------------------------------- check

    def check(self) -> None:
        """Assert what is always true between two flushes, as far as memory alone shows it."""
        self.groups.check()
        self.heads.check()
        self.strict_items.check()
        self.room.check()
        self.pages.check()
