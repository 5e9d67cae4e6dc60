"""A read of groups that goes through the rows of their topic in order, page by page.

The order index has no groups, so a look-up reads the rows of all groups from the first one that may be its own. It
ends as soon as it has enough items of each group. Always true: a page begins where the last one ended, or further on
where a group begins that is looked up. What it has found may be older than the changes that its `GroupRead` has noted.
Bounded: it keeps at most `groups_max` groups. If a walk finds more, it goes through the READY rows a second time, and
keeps those with the first heads. What it must remember of the others counts as notes of its `GroupRead`: too many make it
void, and the next walk reads a part of the groups. Reads no table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from foqs.core.groups.group import STRICT, UNGROUPED
from foqs.core.groups.group_read import FoundGroups, GroupRead
from foqs.core.groups.known_keys import ABOVE_ALL, BELOW_ALL, NO_ITEMS, NOTHING_KNOWN, KnownKeys
from foqs.core.groups.places import GroupPlace, line_place
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.items.item import OrderKey, Row, State


class GroupPage(NamedTuple):
    """The next page to read: rows of a state above a key."""

    state: State
    after: OrderKey | None


class _Found:
    """The keys that were found of one group, by place, and whether there were more of a place than were kept."""

    __slots__ = ("has_more", "keys")

    def __init__(self) -> None:
        self.keys: list[list[OrderKey]] = [[] for _ in GroupPlace]
        self.has_more = [False for _ in GroupPlace]


class GroupScan:
    """One read. The caller reads page after page, and gives what it has found to `TopicGroups.finish_read`.

    Args:
        read: the read, which has begun.
        limit: the limit of the topic's groups.
    """

    def __init__(self, read: GroupRead, limit: int | None, groups_max: int) -> None:
        self.read = read
        self._is_strict: Final = limit == STRICT
        self._limit: Final = limit
        self._groups_max: Final = groups_max
        self._found: dict[str, _Found] = {}
        self._is_cut = False
        """Whether a walk has found more groups than are kept."""
        self._states: list[State] = [State.READY]
        if not read.starts:
            # DEFERRED items lock only strict groups.
            self._states = (
                [State.LEASED, State.DEFERRED, State.READY] if self._is_strict else [State.LEASED, State.READY]
            )
        self._busy: dict[str, int] = {}
        """Of a walk, the items that lock each group."""
        self._first_returned: dict[str, OrderKey] = {}
        """Of a walk, the first item of each strict group that was delivered before."""
        self._members: set[str] | None = None
        """In the second pass over the READY rows of a walk, the groups that are kept."""
        self._passed: set[str] = set()
        """In the second pass, groups that have waiting items before their first returned one. They are not kept."""
        self._last_ready: OrderKey = BELOW_ALL + 1
        """The last key of READY rows that was read."""
        self._after: OrderKey | None = None
        self._later: list[tuple[OrderKey, str]] = sorted(
            [(start, name) for name, start in read.starts.items()], reverse=True
        )
        """Groups of a look-up of waiting items of which the scan has not reached the start, the first one last."""
        self._open: set[str] = set()
        """Groups of which it has reached the start, and needs more items."""
        if self._later:
            self._skip()

    def next_page(self) -> GroupPage | None:
        """Return the page to read; None if the scan has ended."""
        return GroupPage(self._states[0], self._after) if self._states else None

    def add(self, rows: Sequence[Row], limit: int) -> None:
        """Add a page, of which at most `limit` rows were read."""
        for row in rows:
            name = UNGROUPED if row.item_group is None else row.item_group.decode()
            if not self.read.has(name):
                continue
            if self._members is not None:
                self._add_member(self._members, name, row)
                continue
            if self.read.names is None:
                self._note(name, row)
            found = self._found.get(name) or self._new_found(name)
            if found is not None and (start := self.read.starts.get(name)) is not None and row.order_key <= start:
                found = None
            if found is not None:
                self._add_row(name, found, row)
        if rows and self._states[0] is State.READY:
            self._last_ready = rows[-1].order_key
        if len(rows) < limit:
            if self._states.pop(0) is State.READY and self._is_cut and self._members is None:
                self._begin_second_pass()
            self._after = None
        else:
            self._after = rows[-1].order_key
            if self.read.starts:
                self._skip()

    def _new_found(self, name: str) -> _Found | None:
        if self.read.names is None and len(self._found) >= self._groups_max:
            self._is_cut = True
            return None
        found = self._found[name] = _Found()
        return found

    def _note(self, name: str, row: Row) -> None:
        """Note what locks a group, or comes first in it, whether it is kept or not."""
        if row.item_group is None:
            return
        if row.state is State.LEASED or (row.state is State.DEFERRED and row.attempt):
            if name not in self._busy:
                self.read.count_note()
            self._busy[name] = self._busy.get(name, 0) + 1
        elif row.state is State.READY and row.attempt and self._is_strict and name not in self._first_returned:
            self.read.count_note()
            self._first_returned[name] = row.order_key

    def _begin_second_pass(self) -> None:
        """Read the READY rows again, and keep the groups with the first heads: not those that are locked."""
        self._found = {}
        self._members = set()
        self._states.append(State.READY)

    def _is_locked(self, name: str) -> bool:
        return self._limit is not None and self._busy.get(name, 0) >= self._limit

    def _add_member(self, members: set[str], name: str, row: Row) -> None:
        """Add a READY row in the second pass."""
        if self._is_locked(name):
            return
        if name not in members:
            first = self._first_returned.get(name, row.order_key)
            if row.order_key != first:
                if row.order_key < first:
                    self._passed.add(name)
                return
            if len(members) >= self._groups_max:
                if self.read.cut is None:
                    self.read.cut = row.order_key - 1  # no group that is left out has an earlier head
                return
            members.add(name)
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = _Found()
        self._add_row(name, found, row)

    def _add_row(self, name: str, found: _Found, row: Row) -> None:
        placed = line_place(row, is_strict=self._is_strict)
        if placed is None:
            return
        place, key = placed
        keys = found.keys[place]
        if len(keys) < (self.read.leases_max if place is GroupPlace.LEASED else self.read.keys_max):
            keys.append(key)
        else:
            found.has_more[place] = True
            self._open.discard(name)

    def _skip(self) -> None:
        """Open the groups whose start the scan has reached. If none needs more, go on at the next start, or end."""
        while self._later:
            start, name = self._later[-1]
            if self._after is None or start > self._after:
                if self._open:
                    break
                self._after = start
            self._later.pop()
            found = self._found.get(name)
            if found is None or not found.has_more[GroupPlace.WAITING]:
                self._open.add(name)
        if not self._open:
            self._states = []

    # --------------------------------------------------------------- its result

    def found(self, groups: TopicGroups) -> FoundGroups:
        """Return what was found of each group, between two flushes. Groups that must be read again are wanted again."""
        read = self.read
        if self._members is not None and read.cut is None:
            read.cut = ABOVE_ALL  # all others are locked
        if read.parts > 1:
            # Later items come with the walks of their parts; earlier ones are looked up.
            read.cut = self._last_ready if read.cut is None else min(read.cut, self._last_ready)
        if self._members is not None:
            return {name: self._member(name, found) for name, found in self._found.items()}
        if not read.starts:
            return {name: self._known_of(found) for name, found in self._found.items()}
        result: dict[str, list[KnownKeys]] = {}
        for name, start in read.starts.items():
            group = groups.get(name)
            if group is None or group.known[GroupPlace.WAITING].boundary != start:
                continue  # it was forgotten, or knows less than when the read began
            found = self._found.get(name) or _Found()
            new = found.keys[GroupPlace.WAITING]
            boundary = new[-1] if found.has_more[GroupPlace.WAITING] else ABOVE_ALL
            known = group.known[GroupPlace.WAITING].keys
            result[name] = [KnownKeys(known + new, boundary), *group.known[GroupPlace.RETURNED :]]
        read.names = frozenset(result)
        return result

    def _member(self, name: str, found: _Found) -> list[KnownKeys]:
        """Return what is known of a group of the second pass. What that pass has not kept must be looked up."""
        known = self._known_of(found)
        if name in self._busy:
            known[GroupPlace.LEASED] = NOTHING_KNOWN
        if name in self._passed:
            known[GroupPlace.WAITING] = NOTHING_KNOWN
        return known

    def _known_of(self, found: _Found) -> list[KnownKeys]:
        return [
            NO_ITEMS if not keys else KnownKeys(keys, keys[-1] if has_more else ABOVE_ALL)
            for keys, has_more in zip(found.keys, found.has_more, strict=True)
        ]
