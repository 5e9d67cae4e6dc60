"""Groups in the plainest form: the rows of one topic in one shard, and what their owner remembers of its groups.

The rules of docs/design/groups.md without speed: the specification of `foqs.core.groups`. The table is the
truth and outlives its owners. An owner changes the table only in `commit`, which also brings its memory up to date.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from foqs.core.items.item import State

Key: TypeAlias = tuple[int, int, int]
"""(priority, deliver-after, number): the order of a group's line."""

LAST: Final[Key] = (1 << 60, 0, 0)
"""Above every key."""
NOTHING: Final[Key] = (-1 << 60, 0, 0)
"""Below every key: nothing is read yet."""


@dataclass(slots=True, frozen=True)
class PlainItem:
    """A row. `after` is its place in the line; a nack does not change it."""

    number: int
    group: str
    priority: int
    after: int
    state: State
    attempt: int = 0
    token: int = 0

    @property
    def key(self) -> Key:
        return (self.priority, self.after, self.number)


Table: TypeAlias = dict[int, PlainItem]


class Place(enum.Enum):
    """What an item is in the line of its group."""

    WAITING = "ready, and never delivered"
    RETURNED = "ready, and delivered before"
    BACKING_OFF = "deferred, and delivered before"
    LEASED = "leased"


DELIVERED: Final = (Place.RETURNED, Place.BACKING_OFF, Place.LEASED)


def place_of(item: PlainItem | None) -> Place | None:
    """Return the place of an item; None if it is not in the line. It follows from state and attempt alone."""
    if item is None:
        return None
    if item.state is State.LEASED:
        return Place.LEASED
    if item.state is State.READY:
        return Place.RETURNED if item.attempt else Place.WAITING
    return Place.BACKING_OFF if item.state is State.DEFERRED and item.attempt else None


Line: TypeAlias = dict[int, tuple[Place, Key]]


def line_of(items: Iterable[PlainItem]) -> Line:
    return {item.number: (place, item.key) for item in items if (place := place_of(item)) is not None}


def offer_of(
    line: Mapping[int, tuple[Place, Key]], reserved: Collection[int], limit: int | None, run_max: int = 1
) -> list[int]:
    """Return the items of a group that may be reserved now, in order. In a strict group: the items of one run."""
    order = sorted(line, key=lambda number: line[number][1])
    ready = [n for n in order if n not in reserved and line[n][0] in (Place.WAITING, Place.RETURNED)]
    leased = {n for n in order if line[n][0] is Place.LEASED}
    if limit != 1:
        return ready if limit is None else ready[: max(0, limit - len(leased.union(reserved)))]
    if leased or reserved:
        return []
    delivered = [n for n in order if line[n][0] in DELIVERED]
    run: list[int] = []
    for number in delivered + [n for n in order if n not in delivered]:
        if number not in ready or len(run) == run_max:
            break
        run.append(number)
    return run


@dataclass(slots=True)
class Group:
    """What is known of one group: its items in each place, up to the boundary of that place."""

    line: Line = field(default_factory=dict)
    boundaries: dict[Place, Key] = field(default_factory=lambda: dict.fromkeys(Place, LAST))

    def keys(self, place: Place) -> list[Key]:
        return sorted(key for each, key in self.line.values() if each is place)

    def has_all(self, place: Place) -> bool:
        return self.boundaries[place] == LAST

    def limit_to(self, keys_max: Mapping[Place, int]) -> None:
        """Forget the last items of a place that has too many."""
        for place in Place:
            keys = self.keys(place)
            if len(keys) > keys_max[place]:
                boundary = self.boundaries[place] = keys[keys_max[place] - 1]
                self.line = {n: (p, k) for n, (p, k) in self.line.items() if p is not place or k <= boundary}

    def certain_line(self, limit: int | None) -> Line:
        """Return the part of the line from which an offer follows, whatever lies above the boundaries; empty if nothing does."""
        if limit is not None and not self.has_all(Place.LEASED) and len(self.keys(Place.LEASED)) < limit:
            return {}
        ready = (Place.WAITING, Place.RETURNED)
        if limit != 1:
            end = min(self.boundaries[place] for place in ready)
            return {n: (p, k) for n, (p, k) in self.line.items() if p is Place.LEASED or (p in ready and k <= end)}
        end = min(self.boundaries[Place.RETURNED], self.boundaries[Place.BACKING_OFF])
        if end == LAST:
            return self.line
        return {
            n: (p, k) for n, (p, k) in self.line.items() if p is Place.LEASED or (p is not Place.WAITING and k <= end)
        }

    def is_short(self, limit: int | None) -> bool:
        """Return whether what is known in some place is used up, and the rows may have more."""
        needed = dict.fromkeys(Place, 1) | {Place.LEASED: limit or 0}
        return any(not self.has_all(place) and len(self.keys(place)) < needed[place] for place in Place)


@dataclass(slots=True)
class Read:
    """A read of groups beside the flushes: of these names, or of all. `touched` are the rows that flushes wrote since."""

    names: Collection[str] | None
    rows: list[PlainItem]
    touched: dict[int, PlainItem | None] = field(default_factory=dict)


class PlainGroupOwner:
    """The owner of a topic's groups.

    Always true between two flushes: a group in `groups` has exactly the items of its rows, in each place up to the
    boundary of that place; a group that is absent has no items if `has_all`; else its head lies above `boundary`, or it
    cannot be delivered now, or it is in `wanted` or in a read under way.
    """

    def __init__(self, table: Table, limit: int | None, groups_max: int, keys_max: int) -> None:
        self.table = table
        self.limit = limit
        self.groups_max = groups_max
        self.keys_max = keys_max
        self.groups: dict[str, Group] = {}
        self.has_all = False
        self.boundary: Key = NOTHING
        self.wanted: set[str] = set()
        self.reserved: dict[int, str] = {}
        """The group of each reserved item. Of groups that are absent, too."""
        self.reads: list[Read] = []

    # ----------------------------------------------------------------- deliver

    def reserved_in(self, name: str) -> list[int]:
        return [number for number, group in self.reserved.items() if group == name]

    def offer(self, name: str, run_max: int = 1) -> list[int]:
        """Return what may be reserved of a group now."""
        return offer_of(self.groups[name].certain_line(self.limit), self.reserved_in(name), self.limit, run_max)

    def heads(self) -> list[tuple[Key, str]]:
        """Return the heads that the ready index holds, in order."""
        heads = [(self.groups[name].line[offer[0]][1], name) for name in self.groups if (offer := self.offer(name))]
        return sorted(head for head in heads if head[0] <= self.boundary)

    def reserve_best(self, run_max: int = 1) -> list[int]:
        """Reserve the first item, or a run of it."""
        for _, name in self.heads()[:1]:
            taken = self.offer(name, run_max) if self.limit == 1 else self.offer(name)[:1]
            self.reserved.update(dict.fromkeys(taken, name))
            return taken
        return []

    def give_back(self, numbers: Iterable[int]) -> None:
        """End reservations without a delivery."""
        for number in numbers:
            name = self.reserved.pop(number, None)
            if name is not None and name not in self.groups and not self.has_all:
                self.wanted.add(name)

    def known(self) -> Iterator[tuple[str, Line, Mapping[Place, Key]]]:
        """Yield what is known of each group: its items, and the boundary of each place."""
        for name, group in self.groups.items():
            yield name, group.line, group.boundaries

    # ------------------------------------------------------------------- flush

    def commit(self, changes: Mapping[int, PlainItem | None], leased: Collection[int] = ()) -> None:
        """Write rows, and then follow them. `leased` are reservations that end with this flush, delivered or not."""
        before = {number: self.table.get(number) for number in changes}
        write(self.table, changes)
        for number in leased:
            self.reserved.pop(number, None)
        for read in self.reads:
            read.touched.update(changes)
        for number, new in changes.items():
            item = new or before[number]
            if item is not None:
                self.follow(item.group, number, before[number], new)
        self.settle()

    def follow(self, name: str, number: int, old: PlainItem | None, new: PlainItem | None) -> None:
        """Bring the memory of one group up to one changed row."""
        group = self.groups.get(name)
        place = place_of(new)
        if group is None:
            if self.has_all:
                group = self.groups[name] = Group()
            else:
                if place_of(old) in DELIVERED or (place is not None and self.may_come_first(place, new)):
                    self.wanted.add(name)
                return
        group.line.pop(number, None)
        if new is not None and place is not None and new.key <= group.boundaries[place]:
            group.line[number] = (place, new.key)

    def may_come_first(self, place: Place, new: PlainItem | None) -> bool:
        return place is not Place.WAITING or (new is not None and new.key <= self.boundary)

    def settle(self) -> None:
        """Once after each flush or read: forget groups that ended, ask for more of short ones, and keep the bounds."""
        keys_max = dict.fromkeys(Place, self.keys_max) | {Place.LEASED: max(self.limit or 1, self.keys_max)}
        for name, group in list(self.groups.items()):
            group.limit_to(keys_max)
            if group.is_short(self.limit):
                self.wanted.add(name)
            elif not group.line and not self.reserved_in(name):
                del self.groups[name]
        self.evict()

    def evict(self) -> None:
        """Forget groups beyond `groups_max`: first those that cannot be delivered now, then those with the last heads."""
        while len(self.groups) > self.groups_max:
            free = [name for name in self.groups if not self.reserved_in(name)]
            if not free:
                return
            heads = {
                name: self.groups[name].line[offer[0]][1] if (offer := self.offer(name)) else LAST for name in free
            }
            name = max(free, key=lambda each: (heads[each], each))
            if heads[name] != LAST:
                self.boundary = min(self.boundary, before_key(heads[name]))
            self.has_all = False
            del self.groups[name]

    # ------------------------------------------------------------------- reads

    def start_read(self, *, of_all: bool) -> Read:
        """Begin to read the wanted groups, or a walk over all groups."""
        names = None if of_all else frozenset(self.wanted)
        if names is not None:
            self.wanted.clear()
        read = Read(names, [item for item in self.table.values() if names is None or item.group in names])
        self.reads.append(read)
        return read

    def finish_read(self, read: Read) -> None:
        """Use a read, between two flushes. Rows that were touched meanwhile count as they are now."""
        if read not in self.reads:
            return
        self.reads.remove(read)
        rows = {item.number: item for item in read.rows if self.counts(item, read)}
        rows |= {n: item for n, item in read.touched.items() if item is not None}
        names = read.names
        if names is None:
            self.boundary, self.has_all = LAST, True
            self.wanted.clear()
        found = {item.group for item in rows.values()} if names is None else names
        if names is None:
            self.groups = {name: group for name, group in self.groups.items() if self.reserved_in(name)}
        for name in found:
            self.groups[name] = Group(line_of(item for item in rows.values() if item.group == name))
        self.settle()

    def counts(self, item: PlainItem, read: Read) -> bool:
        """Return whether a row that was read counts."""
        return item.number not in read.touched

    def set_limit(self, limit: int | None) -> None:
        """Follow the topic's policy. Leases that exist stay. Groups that are absent may be deliverable now: a walk follows."""
        self.limit = limit
        if not self.has_all:
            self.boundary = NOTHING


def before_key(key: Key) -> Key:
    """Return a key just below another one."""
    return (key[0], key[1], key[2] - 1)


def write(table: Table, changes: Mapping[int, PlainItem | None]) -> None:
    for number, item in changes.items():
        if item is None:
            table.pop(number, None)
        else:
            table[number] = item
