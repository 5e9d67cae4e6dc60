"""The rules of docs/design/groups.md, over random histories with reads that take long, limits that change, and owners
that are replaced. The plain owner and the real parts play the same ones. Each rule has a planted mistake in the real
parts that breaks it, and each mistake must be found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

import pytest

from foqs.core.groups.group import Group, no_items
from foqs.core.groups.group_read import FoundGroups, GroupRead
from foqs.core.groups.known_keys import ABOVE_ALL, KnownKeys
from foqs.core.groups.places import GroupPlace, Placed
from foqs.core.groups.topic_groups import HeadChanges, TopicGroups
from foqs.core.items.item import OrderKey, State, pack_order_key
from tests.support.core_groups import CheckedCoreGroupOwner, CoreGroupOwner, ScanningGroupOwner
from tests.support.group_histories import GroupOwner, History, OwnerFactory, play
from tests.support.plain_groups import PlainGroupOwner, PlainItem

HISTORIES: Final = 1_000
PLANTED_HISTORIES_MAX: Final = 4_000
"""A planted mistake must be found within this many."""

OWNERS: Final = (PlainGroupOwner, CheckedCoreGroupOwner, ScanningGroupOwner)


@pytest.mark.parametrize("owner_type", OWNERS)
def test_owner_offers_what_the_rows_of_its_groups_allow(owner_type: OwnerFactory) -> None:
    for seed in range(HISTORIES):
        difference = play(seed, owner_type)
        assert difference is None, difference


# ------------------------------------------------------------- planted mistakes


class RunsTwo(TopicGroups):
    """Leases count, and reservations do not."""

    def offer(self, group: Group) -> list[OrderKey]:
        copy = Group(group.name, group.known)
        return super().offer(copy)


class LeaksAtReturn(TopicGroups):
    """A lease that ends without an ack keeps its permit: a nack, a release, the end of its time."""

    def follow(self, name: str, old: Placed | None, new: Placed | None) -> None:
        if old is None or old[0] is not GroupPlace.LEASED or new is None:
            super().follow(name, old, new)


class LeaksAtCancel(TopicGroups):
    """A leased item that is cancelled or purged keeps its permit."""

    def follow(self, name: str, old: Placed | None, new: Placed | None) -> None:
        if new is not None:
            super().follow(name, old, new)


class DeadKeepsPermit(CoreGroupOwner):
    def placed(self, item: PlainItem | None) -> Placed | None:
        if item is not None and item.state is State.DEAD:
            return GroupPlace.LEASED, pack_order_key(*item.key)
        return super().placed(item)


class GivesBackWithoutPermit(CoreGroupOwner):
    def give_back(self, numbers: Iterable[int]) -> None:
        self.index.confirm_reservations(numbers)


class KeepsPermitOfVanishedItem(CoreGroupOwner):
    """A reservation ends with its lease, and not when the flush finds no READY row."""

    def end_reservations(self, numbers: Collection[int]) -> None:
        super().end_reservations([number for number in numbers if number in self.table])


class SkipsAfterNack(TopicGroups):
    """A group goes on beside an item that backs off."""

    def follow(self, name: str, old: Placed | None, new: Placed | None) -> None:
        super().follow(name, old, None if new is not None and new[0] is GroupPlace.BACKING_OFF else new)


class ReturnsBehind(CoreGroupOwner):
    """A returned item is one among the waiting ones."""

    def placed(self, item: PlainItem | None) -> Placed | None:
        placed = super().placed(item)
        return (GroupPlace.WAITING, placed[1]) if placed is not None and placed[0] is GroupPlace.RETURNED else placed


class DelayedBlocks(CoreGroupOwner):
    """An item that was never delivered and is deferred holds its group."""

    def placed(self, item: PlainItem | None) -> Placed | None:
        return super().placed(replace(item, attempt=1) if item is not None and item.state is State.DEFERRED else item)


class NewItemUnlocks(TopicGroups):
    """A new item makes a group of its own beside the one that is locked."""

    def follow(self, name: str, old: Placed | None, new: Placed | None) -> None:
        group = self.get(name)
        if old is None and group is not None and not group.reserved:
            group.known = no_items(self.limit)
        super().follow(name, old, new)


class AbsentMeansEmpty(TopicGroups):
    """A group that is not in memory counts as a new one."""

    def _take_in(self, name: str, old: Placed | None, new: Placed | None) -> Group | None:
        return self._add_group(name)


class ForgetsLeasesAtTakeover(CoreGroupOwner):
    """A group that is read has no leases."""

    def found(self, read: GroupRead, rows: Sequence[PlainItem]) -> FoundGroups:
        return super().found(read, [row for row in rows if row.state is not State.LEASED])


class BelievesReads(TopicGroups):
    """What was read counts, although a flush has changed it since."""

    def _start_read(self, names: frozenset[str] | None, after: str) -> GroupRead:
        read = super()._start_read(names, after)
        self._reads[-1] = read = _BelievingRead(names, after, read.keys_max, read.leases_max)
        return read


class _BelievingRead(GroupRead):
    def note(self, name: str, old: Placed | None, new: Placed | None) -> None:
        pass


class ForgetsUnlockOfAbsentGroup(TopicGroups):
    """A group that left the memory while it was locked is not looked up when its lease ends."""

    def _take_in(self, name: str, old: Placed | None, new: Placed | None) -> Group | None:
        return super()._take_in(name, old, new) if self.has_all or old is None else None


class ForgetsBetterItemOfAbsentGroup(TopicGroups):
    def _may_come_first(self, new: Placed, boundary: OrderKey) -> bool:
        return new[0] is not GroupPlace.WAITING


class ForgetsItemBehindTheWalk(TopicGroups):
    """An item comes for a group that a walk has read and forgotten, and the group is not looked up."""

    def _may_come_first(self, new: Placed, boundary: OrderKey) -> bool:
        return super()._may_come_first(new, self.boundary)


class OffersUncertainItems(TopicGroups):
    """What is known of a group counts, although its rows may have better items, or more leases."""

    def offer(self, group: Group) -> list[OrderKey]:
        copy = Group(group.name, [KnownKeys(known.keys, ABOVE_ALL) for known in group.known])
        copy.reserved = group.reserved
        return super().offer(copy)


class OffersUncertainHeads(TopicGroups):
    """Heads above the boundary are offered, although groups that are absent may have better ones."""

    def settle(self) -> HeadChanges:
        boundary = self.boundary
        changes = super().settle()
        self.boundary = max(boundary, self.boundary)
        return changes


class LookUpEndsPermits(TopicGroups):
    """A group that is read has no reservations."""

    def finish_read(self, read: GroupRead, found: FoundGroups, last: str | None = None) -> None:
        for name in read.names or ():
            group = self.get(name)
            if group is not None:
                self.end_reservations(group.reserved)
        super().finish_read(read, found, last)


class ExtendsEndedLeases(History):
    """A lease that ended is taken up again beside those that took its permit."""

    def extends_ended_leases(self, limit: int | None) -> bool:
        return True


PLANTED = (
    RunsTwo,
    LeaksAtReturn,
    LeaksAtCancel,
    DeadKeepsPermit,
    GivesBackWithoutPermit,
    KeepsPermitOfVanishedItem,
    SkipsAfterNack,
    ReturnsBehind,
    DelayedBlocks,
    NewItemUnlocks,
    AbsentMeansEmpty,
    ForgetsLeasesAtTakeover,
    BelievesReads,
    ForgetsUnlockOfAbsentGroup,
    ForgetsBetterItemOfAbsentGroup,
    ForgetsItemBehindTheWalk,
    OffersUncertainItems,
    OffersUncertainHeads,
    LookUpEndsPermits,
)


def owner_with(mistake: type[TopicGroups] | type[CoreGroupOwner]) -> type[CoreGroupOwner]:
    """Return an owner with a mistake, which checks nothing itself: the histories must find it."""
    if issubclass(mistake, CoreGroupOwner):
        return mistake
    return type(mistake.__name__, (CoreGroupOwner,), {"groups_type": mistake})


@pytest.mark.parametrize("mistake", PLANTED)
def test_planted_mistake_is_found(mistake: type[TopicGroups] | type[CoreGroupOwner]) -> None:
    owner_type = owner_with(mistake)
    assert any(play(seed, owner_type) for seed in range(PLANTED_HISTORIES_MAX))


def test_extension_of_an_ended_lease_would_exceed_the_limit() -> None:
    assert any(play(seed, CoreGroupOwner, ExtendsEndedLeases) for seed in range(PLANTED_HISTORIES_MAX))


# --------------------------------------------------------------- single stories


def walk(owner: GroupOwner) -> None:
    """Let a walk run to its end."""
    owner.finish_read(owner.start_read(of_all=True))
    while is_walking(owner):
        owner.finish_read(owner.start_read(of_all=True))


def is_walking(owner: GroupOwner) -> bool:
    return isinstance(owner, CoreGroupOwner) and owner.groups.is_walking


@pytest.mark.parametrize("make_owner", OWNERS)
def test_higher_limit_makes_a_group_deliverable_that_left_the_memory_while_it_was_locked(
    make_owner: OwnerFactory,
) -> None:
    locked = PlainItem(1, "a", 0, 1, State.READY)
    owner = make_owner({1: locked}, 1, 1, 9)
    walk(owner)
    assert owner.reserve_best() == [1]
    owner.commit({1: replace(locked, state=State.LEASED, attempt=1, token=7)}, [1])
    owner.commit({2: PlainItem(2, "a", 0, 2, State.READY), 3: PlainItem(3, "b", 0, 3, State.READY)})
    assert [name for _, name in owner.heads()] == ["b"]
    owner.set_limit(2)
    assert owner.heads() == []
    walk(owner)
    assert owner.reserve_best() == [2]


@pytest.mark.parametrize("make_owner", OWNERS)
def test_returned_item_above_the_boundary_of_its_group_is_not_certain(make_owner: OwnerFactory) -> None:
    rows = [PlainItem(number, "a", 0, number, State.READY) for number in (1, 2, 3)]
    returned = PlainItem(4, "a", 0, 4, State.READY, attempt=1, token=7)
    owner = make_owner({row.number: row for row in (*rows, returned)}, 2, 9, 1)
    walk(owner)
    assert owner.reserve_best() == [1]
    owner.commit({1: None}, [1])
    assert owner.reserve_best() == []
    owner.finish_read(owner.start_read(of_all=False))
    assert owner.reserve_best() == [2]
