"""The groups of one topic in memory: a cache of their rows, from which the heads of the topic follow.

Always true between two flushes: a group in memory has the items of its rows, in each place up to the boundary of
that place. A group with reservations is in memory. An absent group has no items if all groups are in memory; else its
head lies above the boundary, or it cannot be delivered now, or it is wanted, or a read of it is under way. While walks
read parts of the groups, and beyond `WANTED_MAX`, an absent group may have an earlier head: it waits for its walk.
No head, permit or turn is stored. Knows no window and no table; see docs/design/groups.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from foqs.core.groups.group import STRICT, UNGROUPED, Group, no_items
from foqs.core.groups.group_read import FoundGroups, GroupRead
from foqs.core.groups.known_keys import ABOVE_ALL, BELOW_ALL, NO_ITEMS, NOTHING_KNOWN
from foqs.core.groups.last_heads import LastHeads
from foqs.core.groups.places import GroupPlace, Placed
from foqs.core.items.item import NUMBER_MAX, OrderKey

GROUP_KEYS_MAX: Final = 32
"""Items of one group and place in memory."""
GROUP_LOOKUPS: Final = 100
"""Groups of one look-up."""
WANTED_MAX: Final = 100_000
"""Absent groups that are to be looked up. What would be more is left to the next walk."""


@dataclass(slots=True)
class HeadChanges:
    """What a window of heads must follow: first the removed keys, then the added ones, and nothing above the boundary stays.

    Attributes:
        removed: keys that are no heads any more.
        added: new heads at or below the boundary, in order. If `is_reset`, all of them: the window is emptied before.
    """

    removed: list[OrderKey]
    added: list[OrderKey]
    boundary: OrderKey
    is_reset: bool = False


class _Walk:
    """A read of all groups, page by page.

    Attributes:
        position: groups with names up to this one were read.
        boundary: no absent group that was read has a head at or below it. It becomes the topic's when the walk ends.
        has_all: no group was forgotten since the walk began.
        part, parts: it reads this one of so many parts of the groups.
    """

    __slots__ = ("boundary", "has_all", "part", "parts", "position")

    def __init__(self, part: int, parts: int) -> None:
        self.part = part
        self.parts = parts
        self.position = ""
        self.boundary: OrderKey = ABOVE_ALL
        self.has_all = True


class TopicGroups:
    """The groups of one topic.

    After each flush, read or end of reservations, `settle` returns how the heads have changed.

    Args:
        limit: how many items of a group may be leased at once; 1: strict order; None: any number.
        groups_max: groups in memory; those with reservations are kept. It may be changed, and counts from the next `settle` on.
        keys_max: items of one group and place in memory.
        has_all: the topic has no items with groups yet. If not, a walk must read them.
        keys_min: a group with fewer known items of a place is looked up, if its rows may have more.
        lookups_max: groups of one look-up.
    """

    def __init__(
        self,
        limit: int | None,
        groups_max: int,
        keys_max: int = GROUP_KEYS_MAX,
        *,
        has_all: bool = False,
        keys_min: int = 1,
        lookups_max: int = GROUP_LOOKUPS,
    ) -> None:
        self.groups_max = groups_max
        self.limit = limit
        self.has_all = has_all
        self.boundary: OrderKey = ABOVE_ALL if has_all else BELOW_ALL
        """No absent group has a head at or below this key. Heads above it are not offered."""
        self._keys_max: Final = keys_max
        self._keys_min: Final = keys_min
        self._lookups_max: Final = lookups_max
        self._groups: dict[str, Group] = {}
        self._head_groups: dict[OrderKey, Group] = {}
        """The group of each head."""
        self._reserved: dict[int, Group] = {}
        """The group of each reserved item, by its number."""
        self._idle: OrderedDict[Group, None] = OrderedDict()
        """Groups that have neither heads nor reservations, those that were settled first in front."""
        self._last_heads = LastHeads(self._groups)
        self._touched: dict[Group, None] = {}
        """Groups whose heads may have changed since they were settled."""
        self._wanted: OrderedDict[str, None] = OrderedDict()
        """Groups to be looked up."""
        self._reads: list[GroupRead] = []
        self._walk: _Walk | None = None
        self._walk_count = 0
        self.walk_parts = 1
        """Into how many parts walks divide the groups, one after the other. More than one while a walk of all would be void."""
        self._window_boundary = self.boundary
        """The boundary of the last changes that were returned."""
        self._is_reset = False

    def __len__(self) -> int:
        return len(self._groups)

    def __bool__(self) -> bool:
        return len(self) > 0

    # --------------------------------------------------------------- queries

    def get(self, name: str) -> Group | None:
        """Return what is known of a group; None if it is absent."""
        return self._groups.get(name)

    def groups(self) -> list[Group]:
        """Return the groups in memory."""
        return [*self._groups.values()]

    def holders(self, name: str, key: OrderKey) -> list[int] | None:
        """Return what holds a READY item of a group back; see `Group.holders`. An absent group is held back by what is unknown."""
        if self.limit is None or name == UNGROUPED:
            return None
        group = self._groups.get(name)
        return [] if group is None else group.holders(key, self.limit)

    @property
    def may_have_more(self) -> bool:
        """Whether groups that are absent may have heads, which a walk would find."""
        return self.boundary < ABOVE_ALL

    @property
    def has_wanted(self) -> bool:
        """Whether there are groups to be looked up."""
        return bool(self._wanted)

    # -------------------------------------------------------------- delivery

    def reserve(self, order_keys: Iterable[OrderKey]) -> None:
        """Take the permits of heads that a dequeue has reserved. Other keys of the window have no group, and are ignored."""
        for key in order_keys:
            group = self._head_groups.pop(key, None)
            if group is not None:
                group.heads.remove(key)
                self._take_permit(group, key & NUMBER_MAX)

    def reserve_run(self, head: OrderKey, run_max: int) -> list[OrderKey]:
        """Take the permit of a strict group for its head and those that follow it. Return them in order."""
        group = self._head_groups[head]
        run = group.run(run_max) if self.limit == STRICT else [head]
        self.reserve((head,))
        for key in run[1:]:
            self._take_permit(group, key & NUMBER_MAX)
        return run

    def end_reservations(self, numbers: Iterable[int]) -> None:
        """Return permits: reservations were given back, or a flush has settled them. What they are now, rows say."""
        for number in numbers:
            group = self._reserved.pop(number, None)
            if group is not None:
                group.reserved = tuple([each for each in group.reserved if each != number])
                self._touched[group] = None

    def _take_permit(self, group: Group, number: int) -> None:
        group.reserved = (*group.reserved, number)
        self._reserved[number] = group
        self._idle.pop(group, None)

    # ------------------------------------------------------------ after a flush

    def follow(self, name: str, old: Placed | None, new: Placed | None) -> None:
        """Give one changed row, before and after, to its group. In any order within a flush; `settle` comes at its end."""
        if self.limit is None or name == UNGROUPED:
            # Leases lock nothing, and are not remembered.
            old = None if old is not None and old[0] is GroupPlace.LEASED else old
            new = None if new is not None and new[0] is GroupPlace.LEASED else new
        if old is None and new is None:
            return
        for read in self._reads:
            read.note(name, old, new)
        group = self._groups.get(name) or self._take_in(name, old, new)
        if group is not None:
            if old is not None:
                group.discard(old)
            if new is not None:
                group.add(new)
            self._touched[group] = None

    def _take_in(self, name: str, old: Placed | None, new: Placed | None) -> Group | None:
        """Return a group that is absent and known to be empty. Another one is looked up if it may have a head now."""
        boundary, is_empty, walk = self.boundary, self.has_all, self._walk
        if walk is not None and name <= walk.position:
            boundary, is_empty = max(boundary, walk.boundary), is_empty or walk.has_all
        if is_empty:
            return self._add_group(name)
        was_delivered = old is not None and old[0] is not GroupPlace.WAITING
        if was_delivered or (new is not None and self._may_come_first(new, boundary)):
            if len(self._wanted) < WANTED_MAX:
                self._want(name)
            else:
                self._lower_boundary(ABOVE_ALL - 1)  # a walk finds it when no head is left
                if walk is not None:
                    walk.has_all = False
        return None

    def _may_come_first(self, new: Placed, boundary: OrderKey) -> bool:
        return new[0] is not GroupPlace.WAITING or new[1] <= boundary

    def want(self, names: Iterable[str]) -> None:
        """Have groups looked up."""
        for name in names:
            self._want(name)

    def _want(self, name: str) -> None:
        """Have a group looked up, unless a read of it is under way: its result will be what the rows are then."""
        for read in self._reads:
            if read.names is not None and name in read.names:
                return
        self._wanted[name] = None

    def _add_group(self, name: str) -> Group:
        group = self._groups[name] = Group(name, no_items(self.limit))
        return group

    def purge(self) -> None:
        """Forget all groups: the topic has no rows any more. Reservations stay until their flush ends them."""
        self._forget_all()
        for group in self._groups.values():
            group.known = no_items(self.limit)
        self.has_all, self.boundary = True, ABOVE_ALL
        self._wanted.clear()

    def set_limit(self, limit: int | None) -> None:
        """Follow the topic's policy. All groups are forgotten, and a walk must read them. Leases and reservations stay."""
        if limit != self.limit:
            self.limit = limit
            self._forget_all()
            self.has_all, self.boundary = False, BELOW_ALL

    def _forget_all(self) -> None:
        """Forget all that is known, and make the reads under way void."""
        kept = {group.name: group for group in self._reserved.values()}
        self._groups.clear()
        self._groups.update(kept)
        for group in kept.values():
            group.known, group.heads, group.listed = [NOTHING_KNOWN] * len(GroupPlace), [], BELOW_ALL
        self._head_groups.clear()
        self._last_heads.clear()
        self._idle.clear()
        self._touched = dict.fromkeys(kept.values())
        self._reads.clear()
        self._walk = None
        self._is_reset = True

    # -------------------------------------------------------------- the heads

    def settle(self) -> HeadChanges:
        """Compute the heads of touched groups, ask for more of short ones, and keep the bounds. Return the new heads."""
        removed: list[OrderKey] = []
        added: list[OrderKey] = []
        for group in self._touched:
            self._settle_group(group, removed, added)
        self._touched = {}
        self._forget_groups()
        is_reset = self._is_reset or self.boundary > self._window_boundary
        if is_reset:
            added, removed = [*self._head_groups], []
        boundary = self.boundary
        added = sorted([key for key in added if key <= boundary])
        self._window_boundary, self._is_reset = boundary, False
        return HeadChanges(removed, added, boundary, is_reset)

    def _settle_group(self, group: Group, removed: list[OrderKey], added: list[OrderKey]) -> None:
        group.limit_to(self._keys_max, self._leases_max)
        heads, former = self.offer(group), group.heads
        if heads != former:
            for key in former:
                if key not in heads:
                    del self._head_groups[key]
                    removed.append(key)
            for key in heads:
                if key not in former:
                    self._head_groups[key] = group
                    added.append(key)
            group.heads = heads
        if group.is_short(self._limit_of(group.name), self._keys_min):
            self._want(group.name)
        elif group.is_empty:
            del self._groups[group.name]
            self._idle.pop(group, None)
            return
        if group.heads or group.reserved:
            self._idle.pop(group, None)
            if group.heads:
                self._last_heads.add(group)
        else:
            self._idle[group] = None

    def offer(self, group: Group) -> list[OrderKey]:
        """Return the items of a group that may be reserved now, in order. None of them is in doubt."""
        return group.offer(self._limit_of(group.name))

    def _limit_of(self, name: str) -> int | None:
        return None if name == UNGROUPED else self.limit

    @property
    def _leases_max(self) -> int:
        return max(self._keys_max, self.limit or 0)

    def _forget_groups(self) -> None:
        """Forget groups beyond `groups_max`: first those that cannot be delivered now, then those with the last heads."""
        while len(self._groups) > self.groups_max:
            group: Group | None
            if self._idle:
                group, _ = self._idle.popitem(last=False)
            else:
                group = self._last_heads.pop()
                if group is None:
                    return
                self._lower_boundary(group.heads[0] - 1)
            for key in group.heads:
                del self._head_groups[key]
            del self._groups[group.name]
            self.has_all = False
            if self._walk is not None:
                self._walk.has_all = False

    def _lower_boundary(self, boundary: OrderKey) -> None:
        self.boundary = min(self.boundary, boundary)
        if self._walk is not None:
            self._walk.boundary = min(self._walk.boundary, boundary)

    # ----------------------------------------------------------------- reads

    def start_lookup(self) -> GroupRead | None:
        """Return the read of groups that are wanted; None if there is none. `finish_read` or `cancel_read` ends it."""
        names = [*islice(self._wanted, min(self._lookups_max, self.groups_max))]
        if not names:
            return None
        starts = {name: start for name in names if (start := self._waiting_start(name)) is not None}
        if len(starts) < len(names):
            # Groups of which more must be read come first.
            names, starts = [name for name in names if name not in starts], {}
        for name in names:
            del self._wanted[name]
        read = self._start_read(frozenset(names), "")
        read.starts = starts
        return read

    def _waiting_start(self, name: str) -> OrderKey | None:
        group = self._groups.get(name)
        return None if group is None else group.waiting_start(self._limit_of(name))

    def start_walk_page(self) -> GroupRead | None:
        """Return the read of the next page of a walk over all groups, which it may begin. None while one is under way."""
        for read in self._reads:
            if read.names is None:
                return None
        if self._walk is None:
            self._walk = _Walk(self._walk_count % self.walk_parts, self.walk_parts)
            self._walk_count += 1
        read = self._start_read(None, self._walk.position)
        read.part, read.parts = self._walk.part, self._walk.parts
        return read

    @property
    def is_walking(self) -> bool:
        """Whether a walk has begun and not ended. Its next page follows each page."""
        return self._walk is not None

    def _start_read(self, names: frozenset[str] | None, after: str) -> GroupRead:
        read = GroupRead(names, after, self._keys_max, 0 if self.limit is None else self._leases_max)
        self._reads.append(read)
        return read

    def finish_read(self, read: GroupRead, found: FoundGroups, last: str | None = None) -> None:
        """Use a read, between two flushes, when all commits are known. `settle` follows.

        Args:
            found: what the read found, as it was at some moment since the read began.
            last: the last name of a page of a walk: all groups above `read.after` up to it were read. None: the page is
                the last one.
        """
        if not self.is_under_way(read):
            return
        if read.is_void:
            self.cancel_read(read)
            if read.names is None:
                self._walk, self.walk_parts = None, 2 * read.parts
            return
        self._reads.remove(read)
        for name in read.names_up_to(found, last):
            group = self._groups.get(name) or self._add_group(name)
            group.known = read.known_of(name, found, no_items(self.limit))
            if self.limit is None:
                group.known[GroupPlace.LEASED] = NOTHING_KNOWN
            self._wanted.pop(name, None)
            self._touched[group] = None
        walk = self._walk
        if read.names is None and walk is not None:
            if read.cut is not None:
                walk.boundary, walk.has_all = min(walk.boundary, read.cut), False
            if last is not None:
                walk.position = last
            else:
                self.boundary, self.has_all, self._walk = walk.boundary, walk.has_all, None
                if read.is_small:
                    self.walk_parts = max(1, walk.parts // 2)
                if self.has_all:
                    self._wanted.clear()
            if read.cut is not None:
                for name in read.touched_names().difference(found):
                    self._want(name)

    def cancel_read(self, read: GroupRead) -> None:
        """End a read that failed, or is void. What it was to read is wanted again."""
        if self.is_under_way(read):
            self._reads.remove(read)
            self._wanted.update(dict.fromkeys(read.names or ()))

    def is_under_way(self, read: GroupRead) -> bool:
        """Return whether a read has begun and not ended. To forget all groups ends it."""
        return read in self._reads

    # ----------------------------------------------------------------- check

    def check(self) -> None:
        """Assert what is always true between two flushes, as far as memory alone shows it."""
        assert not self._touched, "groups were not settled"
        assert self.has_all is False or self.boundary == ABOVE_ALL, (
            "all groups are in memory, and a boundary hides heads"
        )
        for name, group in self._groups.items():
            self._check_group(name, group)
        assert set(self._head_groups) == {key for group in self._groups.values() for key in group.heads}
        assert sorted(self._reserved) == sorted(n for group in self._groups.values() for n in group.reserved)
        idle = {name for name, group in self._groups.items() if not group.heads and not group.reserved}
        assert idle == {group.name for group in self._idle}

    def _check_group(self, name: str, group: Group) -> None:
        assert group.name == name
        assert not NO_ITEMS.keys and not NOTHING_KNOWN.keys, "an item was added to a place that groups share"
        assert group.heads == self.offer(group), (
            f"invariant 13: {name} has {group.heads}, and offers {self.offer(group)}"
        )
        for number in group.reserved:
            assert self._reserved.get(number) is group, f"invariant 23: the permit of {number} is lost"
        for key in group.heads:
            assert self._head_groups.get(key) is group, f"invariant 13: the group of the head {key} is unknown"
