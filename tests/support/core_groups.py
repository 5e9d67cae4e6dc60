"""An owner of a topic's groups that is made of the real parts: `TopicGroups` and a ready index that holds its heads.

It does what a shard will do, and has the methods of the plain owner, so one history plays both. The table is that of
`plain_groups`. Tests replace single methods, of the owner or of its groups, by planted mistakes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foqs.core.groups.group import STRICT
from foqs.core.groups.group_read import FoundGroups, GroupRead, found_keys
from foqs.core.groups.group_scan import GroupScan
from foqs.core.groups.known_keys import ABOVE_ALL, BELOW_ALL, KnownKeys
from foqs.core.groups.places import GroupPlace, Placed, line_place, place_of
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.items.item import OrderKey, Row, TopicName, order_key_number, pack_order_key, unpack_order_key
from foqs.core.memory.ready_index import ReadyIndex
from tests.support import builders
from tests.support.plain_groups import LAST, NOTHING, Key, Line, Place, PlainItem, Table, write
from tests.support.plain_groups import place_of as plain_place_of

TOPIC: Final[TopicName] = ("namespace", "topic")
PAGE_GROUPS: Final = 2
"""Groups of one page of a walk that have waiting items."""
INDEX_KEYS_MAX: Final = 10_000


SCAN_PAGE_ROWS: Final = 2
"""Rows of one page of a scan."""


@dataclass(slots=True, eq=False)
class CoreRead:
    """A read under way. `rows`: what it has found; None: it looks at its end. `scan`: its scan, if it goes page by page."""

    read: GroupRead
    rows: list[PlainItem] | None
    scan: GroupScan | None = None


class CoreGroupOwner:
    """The owner."""

    groups_type: type[TopicGroups] = TopicGroups
    reads_from_starts = False
    """Whether a look-up of later waiting items reads only these."""

    def __init__(self, table: Table, limit: int | None, groups_max: int, keys_max: int) -> None:
        self.table = table
        self.groups = self.groups_type(limit, groups_max, keys_max)
        self.index = ReadyIndex(INDEX_KEYS_MAX, INDEX_KEYS_MAX)
        self.reads: list[CoreRead] = []
        self.reserved: set[int] = set()
        self.reads_begun = 0

    @property
    def has_all(self) -> bool:
        return self.groups.has_all

    @property
    def wanted(self) -> Collection[str]:
        return [""] if self.groups.has_wanted else []

    def window(self) -> list[OrderKey]:
        return self.index.peek(TOPIC, INDEX_KEYS_MAX)

    def heads(self) -> list[tuple[Key, str]]:
        """Return the first head of each group in the window, in order."""
        heads: dict[str, Key] = {}
        for key in self.window():
            item = self.table.get(order_key_number(key))
            heads.setdefault("a row that is gone" if item is None else item.group, unpack_order_key(key))
        return sorted((key, name) for name, key in heads.items())

    def known(self) -> Iterator[tuple[str, Line, Mapping[Place, Key]]]:
        for group in self.groups.groups():
            known = [(Place[place.name], group.known[place]) for place in GroupPlace]
            line = {order_key_number(key): (place, unpack_order_key(key)) for place, each in known for key in each.keys}
            yield group.name, line, {place: plain_boundary(each.boundary) for place, each in known}

    # ----------------------------------------------------------------- deliver

    def reserve_best(self, run_max: int = 1) -> list[int]:
        keys = self.index.reserve(TOPIC, 1)
        if run_max > 1 and keys:
            keys = self.groups.reserve_run(keys[0], run_max)
        else:
            self.groups.reserve(keys)
        numbers = [order_key_number(key) for key in keys]
        self.reserved.update(numbers)
        return numbers

    def give_back(self, numbers: Iterable[int]) -> None:
        self.end_reservations(list(numbers))
        self.settle()

    def end_reservations(self, numbers: Collection[int]) -> None:
        self.index.confirm_reservations(numbers)
        self.reserved.difference_update(numbers)
        self.groups.end_reservations(numbers)

    # ------------------------------------------------------------------- flush

    def commit(self, changes: Mapping[int, PlainItem | None], leased: Collection[int] = ()) -> None:
        before = {number: self.table.get(number) for number in changes}
        is_purge = len(changes) > 1 and not any(changes.values()) and len(changes) == len(self.table)
        write(self.table, changes)
        if is_purge:
            self.groups.purge()
        else:
            for number, new in changes.items():
                item = new or before[number]
                if item is not None:
                    self.follow(item.group, before[number], new)
        # The permits of leased items return after their rows have changed: the order is free.
        self.end_reservations(leased)
        self.settle()

    def follow(self, name: str, old: PlainItem | None, new: PlainItem | None) -> None:
        self.groups.follow(name, self.placed(old), self.placed(new))

    def placed(self, item: PlainItem | None) -> Placed | None:
        if item is None:
            return None
        place = place_of(item.state, item.attempt)
        return None if place is None else (place, pack_order_key(*item.key))

    def settle(self) -> None:
        """Let the window follow the heads."""
        changes = self.groups.settle()
        if changes.is_reset:
            self.index.forget(TOPIC)
        for key in changes.removed:
            self.index.discard(TOPIC, key)
        self.index.add_many(TOPIC, changes.added)
        for key in self.window():
            if key > changes.boundary:
                self.index.discard(TOPIC, key)
        self.reads = [each for each in self.reads if self.groups.is_under_way(each.read)]

    # ------------------------------------------------------------------- reads

    def start_read(self, *, of_all: bool) -> CoreRead | None:
        read = self.groups.start_walk_page() if of_all else self.groups.start_lookup()
        if read is None:
            return None
        if not self.reads_from_starts:
            read.starts = {}
        self.reads_begun += 1
        begun = CoreRead(read, None if self.reads_begun % 3 == 0 else list(self.table.values()))
        self.reads.append(begun)
        return begun

    def finish_read(self, begun: CoreRead) -> None:
        rows = list(self.table.values()) if begun.rows is None else begun.rows
        read, last = begun.read, None
        if read.names is None:
            names = sorted({row.group for row in rows if self.is_waiting(row) and row.group > read.after})
            last = names[PAGE_GROUPS - 1] if len(names) >= PAGE_GROUPS else None
            rows = [row for row in rows if row.group > read.after and (last is None or row.group <= last)]
        else:
            rows = [row for row in rows if row.group in read.names]
        self.groups.finish_read(read, self.found(read, rows), last)
        self.settle()

    def is_waiting(self, row: PlainItem) -> bool:
        placed = self.placed(row)
        return placed is not None and placed[0] is GroupPlace.WAITING

    def found(self, read: GroupRead, rows: Sequence[PlainItem]) -> FoundGroups:
        """Return what statements find that read the first items of each group in each place."""
        found: dict[str, list[KnownKeys]] = {}
        for name in {row.group for row in rows}:
            placed = [each for row in rows if row.group == name if (each := self.placed(row)) is not None]
            found[name] = [
                found_keys(sorted(key for each, key in placed if each is place)[:keys_max], keys_max)
                for place in GroupPlace
                for keys_max in (read.leases_max if place is GroupPlace.LEASED else read.keys_max,)
            ]
        return found

    def set_limit(self, limit: int | None) -> None:
        self.groups.set_limit(limit)
        self.settle()


class CheckedCoreGroupOwner(CoreGroupOwner):
    """An owner that also checks its memory whenever it has changed."""

    def settle(self) -> None:
        super().settle()
        self.check()

    def reserve_best(self, run_max: int = 1) -> list[int]:
        taken = super().reserve_best(run_max)
        self.check()
        return taken

    def check(self) -> None:
        self.groups.check()
        self.index.check()
        heads = sorted(key for group in self.groups.groups() for key in group.heads)
        offered = [key for key in heads if key <= self.groups.boundary]
        assert self.window() == offered, f"invariant 13: the window has {self.window()}, and the heads are {offered}"


class ScanningGroupOwner(CheckedCoreGroupOwner):
    """An owner that reads groups by scans, as a shard does: some pages when the read begins, and the others when it ends."""

    scan_type: type[GroupScan] = GroupScan
    page_rows = SCAN_PAGE_ROWS
    reads_from_starts = True

    def placed(self, item: PlainItem | None) -> Placed | None:
        return None if item is None else line_place(row_of(item), is_strict=self.is_strict)

    @property
    def is_strict(self) -> bool:
        return self.groups.limit == STRICT

    def known(self) -> Iterator[tuple[str, Line, Mapping[Place, Key]]]:
        for name, line, boundaries in super().known():
            if self.is_strict:
                yield name, line, boundaries
            else:  # returned items are in one place with waiting ones
                places = {number: plain_place_of(self.table[number]) or place for number, (place, _) in line.items()}
                named = {number: (places[number], key) for number, (_, key) in line.items()}
                yield name, named, {**boundaries, Place.RETURNED: boundaries[Place.WAITING], Place.BACKING_OFF: NOTHING}

    def start_read(self, *, of_all: bool) -> CoreRead | None:
        begun = super().start_read(of_all=of_all)
        if begun is not None:
            begun.scan = self.scan_type(begun.read, self.groups.limit, self.groups.groups_max)
            self.scan(begun.scan, self.reads_begun % 4)
        return begun

    def scan(self, scan: GroupScan, pages: int) -> None:
        """Read some pages of the table as it is now."""
        for _ in range(pages):
            page = scan.next_page()
            if page is None or scan.read.is_void:
                return
            rows = sorted([row_of(item) for item in self.table.values() if item.state is page.state], key=key_of)
            rows = [each for each in rows if page.after is None or each.order_key > page.after]
            scan.add(rows[: self.page_rows], self.page_rows)

    def finish_read(self, begun: CoreRead) -> None:
        scan, read = begun.scan, begun.read
        assert scan is not None
        self.scan(scan, 10_000)
        names = read.names or frozenset()
        found = scan.found(self.groups)
        self.groups.finish_read(read, found)
        self.groups.want(names - (read.names or frozenset()))
        self.settle()


def row_of(item: PlainItem) -> Row:
    return builders.row(
        item.number,
        item_group=item.group.encode(),
        priority=item.priority,
        deliver_after_ms=item.after,
        state=item.state,
        attempt=item.attempt,
        token=item.token,
    )


def key_of(row: Row) -> OrderKey:
    return row.order_key


def plain_boundary(boundary: OrderKey) -> Key:
    if boundary == ABOVE_ALL:
        return LAST
    return NOTHING if boundary == BELOW_ALL else unpack_order_key(boundary)
