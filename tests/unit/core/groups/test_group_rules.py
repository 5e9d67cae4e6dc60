"""An owner offers exactly what the rows of its groups allow.

The rules of docs/design/groups.md, over random histories with reads that take long, limits that change, and owners
that are replaced. Each rule has a planted mistake that breaks it, and each mistake must be found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import pytest

from foqs.core.items.item import State
from tests.support.group_histories import History, play
from tests.support.plain_groups import Place, PlainGroupOwner, PlainItem, Read, offer_of, place_of

HISTORIES: Final = 1_000
PLANTED_HISTORIES_MAX: Final = 4_000
"""A planted mistake must be found within this many."""


def test_owner_offers_what_the_rows_of_its_groups_allow() -> None:
    for seed in range(HISTORIES):
        difference = play(seed, PlainGroupOwner)
        assert difference is None, difference


# ------------------------------------------------------------- planted mistakes


class RunsTwo(PlainGroupOwner):
    """Leases count, and reservations do not."""

    def reserved_in(self, name: str) -> list[int]:
        return []


class LeaksAtReturn(PlainGroupOwner):
    """A lease that ends without an ack keeps its permit: a nack, a release, the end of its time."""

    def follow(self, name: str, number: int, old: PlainItem | None, new: PlainItem | None) -> None:
        if place_of(old) is not Place.LEASED or new is None:
            super().follow(name, number, old, new)


class LeaksAtCancel(PlainGroupOwner):
    """A leased item that is cancelled or purged keeps its permit."""

    def follow(self, name: str, number: int, old: PlainItem | None, new: PlainItem | None) -> None:
        if new is not None:
            super().follow(name, number, old, new)


class DeadKeepsPermit(PlainGroupOwner):
    def follow(self, name: str, number: int, old: PlainItem | None, new: PlainItem | None) -> None:
        if new is None or new.state is not State.DEAD:
            super().follow(name, number, old, new)


class GivesBackWithoutPermit(PlainGroupOwner):
    def give_back(self, numbers: Iterable[int]) -> None:
        pass


class KeepsPermitOfVanishedItem(PlainGroupOwner):
    """A reservation ends with its lease, and not when the flush finds no READY row."""

    def commit(self, changes: Mapping[int, PlainItem | None], leased: Collection[int] = ()) -> None:
        super().commit(changes, [number for number in leased if number in changes])


class SkipsAfterNack(PlainGroupOwner):
    """A group goes on beside an item that backs off."""

    def offer(self, name: str, run_max: int = 1) -> list[int]:
        line = {n: entry for n, entry in self.groups[name].line.items() if entry[0] is not Place.BACKING_OFF}
        return offer_of(line, self.reserved_in(name), self.limit, run_max)


class ReturnsBehind(PlainGroupOwner):
    """A returned item is one among the waiting ones."""

    def offer(self, name: str, run_max: int = 1) -> list[int]:
        line = {
            n: (Place.WAITING if place is Place.RETURNED else place, key)
            for n, (place, key) in self.groups[name].line.items()
        }
        return offer_of(line, self.reserved_in(name), self.limit, run_max)


class DelayedBlocks(PlainGroupOwner):
    """An item that was never delivered and is deferred holds its group."""

    def follow(self, name: str, number: int, old: PlainItem | None, new: PlainItem | None) -> None:
        super().follow(name, number, old, new)
        group = self.groups.get(name)
        if group is not None and new is not None and new.state is State.DEFERRED:
            group.line[number] = (Place.BACKING_OFF, new.key)


class NewItemUnlocks(PlainGroupOwner):
    """A new item makes a group of its own beside the one that is locked."""

    def follow(self, name: str, number: int, old: PlainItem | None, new: PlainItem | None) -> None:
        if old is None and name in self.groups and not self.reserved_in(name):
            self.groups[name].line.clear()
        super().follow(name, number, old, new)


class AbsentMeansEmpty(PlainGroupOwner):
    """A group that is not in memory counts as a new one."""

    def follow(self, name: str, number: int, old: PlainItem | None, new: PlainItem | None) -> None:
        before, self.has_all = self.has_all, True
        super().follow(name, number, old, new)
        self.has_all = before


class ForgetsLeasesAtTakeover(PlainGroupOwner):
    """A group that is read has no leases."""

    def counts(self, item: PlainItem, read: Read) -> bool:
        return super().counts(item, read) and item.state is not State.LEASED


class BelievesReads(PlainGroupOwner):
    """What was read counts, although a flush has changed it since."""

    def finish_read(self, read: Read) -> None:
        read.touched.clear()
        super().finish_read(read)


class ForgetsUnlockOfAbsentGroup(PlainGroupOwner):
    """A group that left the memory while it was locked is not looked up when its lease ends."""

    def follow(self, name: str, number: int, old: PlainItem | None, new: PlainItem | None) -> None:
        if name in self.groups or self.has_all or old is None:
            super().follow(name, number, old, new)


class ForgetsBetterItemOfAbsentGroup(PlainGroupOwner):
    def may_come_first(self, place: Place, new: PlainItem | None) -> bool:
        return place is not Place.WAITING


class OffersUncertainItems(PlainGroupOwner):
    """What is known of a group counts, although its rows may have better items, or more leases."""

    def offer(self, name: str, run_max: int = 1) -> list[int]:
        return offer_of(self.groups[name].line, self.reserved_in(name), self.limit, run_max)


class OffersUncertainHeads(PlainGroupOwner):
    """Heads above the boundary are offered, although groups that are absent may have better ones."""

    def settle(self) -> None:
        boundary = self.boundary
        super().settle()
        self.boundary = max(boundary, self.boundary)


class ExtendsEndedLeases(History):
    """A lease that ended is taken up again beside those that took its permit."""

    def extends_ended_leases(self, limit: int | None) -> bool:
        return True


PLANTED = (
    RunsTwo,
    LeaksAtReturn,
    LeaksAtCancel,
    DeadKeepsPermit,
    KeepsPermitOfVanishedItem,
    GivesBackWithoutPermit,
    SkipsAfterNack,
    ReturnsBehind,
    DelayedBlocks,
    NewItemUnlocks,
    AbsentMeansEmpty,
    ForgetsLeasesAtTakeover,
    BelievesReads,
    ForgetsUnlockOfAbsentGroup,
    ForgetsBetterItemOfAbsentGroup,
    OffersUncertainItems,
    OffersUncertainHeads,
)


@pytest.mark.parametrize("owner_type", PLANTED)
def test_planted_mistake_is_found(owner_type: type[PlainGroupOwner]) -> None:
    assert any(play(seed, owner_type) for seed in range(PLANTED_HISTORIES_MAX))


def test_extension_of_an_ended_lease_would_exceed_the_limit() -> None:
    assert any(play(seed, PlainGroupOwner, ExtendsEndedLeases) for seed in range(PLANTED_HISTORIES_MAX))


def test_higher_limit_makes_a_group_deliverable_that_left_the_memory_while_it_was_locked() -> None:
    locked = PlainItem(1, "a", 0, 1, State.READY)
    owner = PlainGroupOwner({1: locked}, 1, groups_max=1, keys_max=9)
    owner.finish_read(owner.start_read(of_all=True))
    assert owner.reserve_best() == [1]
    leased = {1: replace(locked, state=State.LEASED, attempt=1, token=7)}
    owner.commit(leased, [1])
    owner.commit({2: PlainItem(2, "a", 0, 2, State.READY), 3: PlainItem(3, "b", 0, 3, State.READY)})
    assert [name for _, name in owner.heads()] == ["b"]
    owner.set_limit(2)
    assert owner.heads() == []
    owner.finish_read(owner.start_read(of_all=True))
    assert owner.reserve_best() == [2]


def test_returned_item_above_the_boundary_of_its_group_is_not_certain() -> None:
    rows = [PlainItem(number, "a", 0, number, State.READY) for number in (1, 2, 3)]
    returned = PlainItem(4, "a", 0, 4, State.READY, attempt=1, token=7)
    owner = PlainGroupOwner({row.number: row for row in (*rows, returned)}, 2, groups_max=9, keys_max=1)
    owner.finish_read(owner.start_read(of_all=True))
    assert owner.reserve_best() == [1]
    owner.commit({1: None}, [1])
    assert owner.reserve_best() == []
    owner.finish_read(owner.start_read(of_all=False))
    assert owner.reserve_best() == [2]
