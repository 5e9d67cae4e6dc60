"""The rules of docs/design/groups.md, over random histories with reads that take long, limits that change, and owners
that are replaced. Each rule has a planted mistake that breaks it, and each mistake must be found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

import pytest

from foqs.core.groups.group import ABOVE_ALL, STRICT, Group
from foqs.core.groups.group_page import GroupPage
from foqs.core.groups.limited_topic import LimitedTopic
from foqs.core.groups.places import GroupPlace, Placed
from foqs.core.groups.row_pages import RowPages
from foqs.core.groups.strict_items import StrictItems
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.groups.topic_heads import HeadChanges, TopicHeads
from foqs.core.items.item import NUMBER_MAX, OrderKey, Row, State, pack_order_key
from foqs.core.items.life import Event
from tests.support.core_groups import CheckedCoreGroupOwner, CoreGroupOwner, owner_with
from tests.support.example_counts import examples
from tests.support.group_histories import History, RunHistory, play
from tests.support.plain_groups import PlainItem

HISTORIES: Final = examples(1_000)
PLANTED_HISTORIES_MAX: Final = 4_000
"""A planted mistake must be found within this many."""


def test_owner_offers_what_the_rows_of_its_groups_allow() -> None:
    for seed in range(HISTORIES):
        difference = play(seed, CheckedCoreGroupOwner)
        assert difference is None, difference


def test_owner_offers_runs_that_the_rows_of_its_groups_allow_and_supersedes_the_leases_behind_an_early_end() -> None:
    for seed in range(HISTORIES):
        difference = play(seed, CheckedCoreGroupOwner, RunHistory)
        assert difference is None, difference


# ------------------------------------------------------------- planted mistakes


class RunsTwo(TopicGroups):
    """Leases count, and reservations do not."""

    def offer(self, group: Group) -> list[OrderKey]:
        copy = Group(group.name)
        copy.waiting, copy.returned, copy.backing_off = group.waiting, group.returned, group.backing_off
        copy.leased = group.leased
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
        for number in numbers:
            self.index._reserved.pop(number, None)
            self.reserved.discard(number)


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
            group.forget()
        super().follow(name, old, new)


class ForgetsLeasesAtTakeover(RowPages):
    """A new owner does not read the leases."""

    def _add_delivered(self, page: GroupPage, rows: Sequence[Row], end: OrderKey) -> None:
        super()._add_delivered(page, [row for row in rows if row.state is not State.LEASED], end)


class ForgetsReturnedItemsAtTakeover(RowPages):
    """A new owner of strict groups knows the leases, and not the items that were delivered before."""

    def _add_delivered(self, page: GroupPage, rows: Sequence[Row], end: OrderKey) -> None:
        super()._add_delivered(page, [row for row in rows if row.state is State.LEASED], end)


class BelievesPages(RowPages):
    """What a page shows counts, although a flush has changed it since."""

    def start_page(self, rows_max: int) -> GroupPage | None:
        page = super().start_page(rows_max)
        if page is not None:
            self._groups.page = _BelievingPage(page.kind, page.state, page.after, page.rows_max)
        return self._groups.page if page is not None else None


class _BelievingPage(GroupPage):
    __slots__ = ()

    def note(self, name: str, old: Placed | None, new: Placed | None) -> None:
        pass


class ForgetsHeldGroups(LimitedTopic):
    """A memory that is full forgets groups although their items are leased."""

    def _make_room(self) -> None:
        for group in self.groups.by_name.values():
            if not group.reserved:
                group.forget()
                self.groups.touched[group] = None
        self._settle_touched()
        if self.room.units > self.room.units_max:
            super()._make_room()


class UsesPageBehindTheBoundary(LimitedTopic):
    """The boundary has fallen while a page was read above it, and the page raises it again."""

    def _make_room(self) -> None:
        super()._make_room()
        if self.groups.page is not None:
            self.groups.page.is_void = False


class ExtendsFromBehind(RowPages):
    """A look-up raises the cuts of all short groups, also those whose next items lie before its page."""

    def _raise_cuts(self, page: GroupPage, rows: Sequence[Row], end: OrderKey) -> None:
        cuts = {group: group.cut for group in self._short}
        for group in cuts:
            group.cut = max(group.cut, page.after) if group.cut < end else group.cut
        super()._raise_cuts(page, rows, end)


class IgnoresCuts(TopicGroups):
    """A new item of a long group counts, although unknown ones come before it."""

    def follow(self, name: str, old: Placed | None, new: Placed | None) -> None:
        group = self.get(name)
        if group is not None:
            group.cut = ABOVE_ALL
        super().follow(name, old, new)


class StaysFull(LimitedTopic):
    """A topic that was full delivers of no other group any more."""

    def settle(self) -> HeadChanges:
        was_full = self.room.is_full
        changes = super().settle()
        self.room.is_full = self.room.is_full or was_full
        return changes


class OffersUncertainHeads(TopicHeads):
    """Heads above the boundary are offered, although groups that are not in memory may have better ones."""

    def take_changes(self, end: OrderKey, boundary: OrderKey | None) -> HeadChanges:
        changes = super().take_changes(end, boundary)
        changes.added = sorted({*changes.added, *self._above})
        changes.boundary = None if changes.boundary is None else ABOVE_ALL - 1
        return changes


class _PermitOfHead(TopicHeads):
    def reserve_run(self, head: OrderKey, items_max: int, is_free: Callable[[int], bool]) -> list[OrderKey]:
        run = super().reserve_run(head, items_max, is_free)
        for key in run[1:]:
            group = self._groups.reserved.pop(key & NUMBER_MAX)
            group.end_reservation(key & NUMBER_MAX, self._groups.boundary)
        return run


class _LeaseOfHead(TopicGroups):
    def offer(self, group: Group) -> list[OrderKey]:
        copy = Group(group.name)
        copy.waiting, copy.returned, copy.backing_off = group.waiting, group.returned, group.backing_off
        copy.leased, copy.reserved = group.leased[:1], group.reserved
        return super().offer(copy)


class LocksOnlyTheHead(CoreGroupOwner):
    """A run has the permit of its head alone, so the group goes on when that is settled."""

    mistakes = (_PermitOfHead, _LeaseOfHead)


class BeginsSecondRun(TopicGroups):
    """A returned item of a run begins another one, while others of it are leased."""

    def offer(self, group: Group) -> list[OrderKey]:
        copy = Group(group.name)
        copy.waiting, copy.returned, copy.backing_off = group.waiting, group.returned, group.backing_off
        copy.leased, copy.reserved = [] if group.returned else group.leased, group.reserved
        return super().offer(copy)


class RunPassesBackoff(TopicHeads):
    """A run goes on behind an item that backs off."""

    def reserve_run(self, head: OrderKey, items_max: int, is_free: Callable[[int], bool]) -> list[OrderKey]:
        group = self.group_of.get(head)
        kept = [] if group is None else group.backing_off
        if group is not None:
            group.backing_off = []
        run = super().reserve_run(head, items_max, is_free)
        if group is not None:
            group.backing_off = kept
        return run


class SupersedesNothing(CoreGroupOwner):
    """The tokens behind an item of a run that has ended stay valid."""

    def behind(self, number: int) -> list[int]:
        return []


class SupersedesNextOnly(CoreGroupOwner):
    """Of the items behind one that has ended, the first loses its token."""

    def behind(self, number: int) -> list[int]:
        return super().behind(number)[:1]


class SupersedesAll(CoreGroupOwner):
    """Items before the one that has ended lose their tokens, too."""

    def behind(self, number: int) -> list[int]:
        return [each for each in self.limited.strict_items.leased_runs.get(number, ()) if each != number]


class ForgetsRunsAtTakeover(StrictItems):
    """A new owner leaves the leases behind items that had ended early before it knew their groups."""

    def take_superseded(self) -> list[Event]:
        return []


class ExtendsEndedLeases(History):
    """A lease that ended is taken up again beside those that took its permit."""

    extends_ended_leases = True


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
    ForgetsLeasesAtTakeover,
    ForgetsReturnedItemsAtTakeover,
    BelievesPages,
    ForgetsHeldGroups,
    UsesPageBehindTheBoundary,
    IgnoresCuts,
    StaysFull,
    OffersUncertainHeads,
)
PLANTED_IN_RUNS = (
    LocksOnlyTheHead,
    BeginsSecondRun,
    RunPassesBackoff,
    SupersedesNothing,
    SupersedesNextOnly,
    SupersedesAll,
    ForgetsRunsAtTakeover,
)


@pytest.mark.parametrize("mistake", PLANTED)
def test_planted_mistake_is_found(mistake: type) -> None:
    owner_type = owner_with(mistake)
    assert any(play(seed, owner_type) for seed in range(PLANTED_HISTORIES_MAX))


@pytest.mark.parametrize("mistake", PLANTED_IN_RUNS)
def test_planted_mistake_in_runs_is_found(mistake: type) -> None:
    owner_type = owner_with(mistake)
    assert any(play(seed, owner_type, RunHistory) for seed in range(PLANTED_HISTORIES_MAX))


def test_planted_mistake_that_extends_an_ended_lease_is_found() -> None:
    assert any(play(seed, CoreGroupOwner, ExtendsEndedLeases) for seed in range(PLANTED_HISTORIES_MAX))


# --------------------------------------------------------------- single stories


def reserve_all(owner: CoreGroupOwner) -> list[int]:
    reserved: list[int] = []
    while taken := owner.reserve_best():
        reserved += taken
    return reserved


@pytest.mark.parametrize("pages_type", [RowPages, ExtendsFromBehind])
def test_long_groups_are_each_read_on_from_their_own_cut(pages_type: type[RowPages]) -> None:
    """The next items of one lie behind the last look-up, which goes on for another group first."""
    numbers = {"a": (1, 2, 15, 16), "b": (3, 21, 40, 41, 60, 61)}
    table = {n: PlainItem(n, group, 0, n, State.READY) for group, each in numbers.items() for n in each}
    table |= {
        n: PlainItem(n, "locked", 0, n, State.LEASED if n > 50 else State.READY, n // 50)
        for n in (*range(5, 12), 51, 52)
    }
    owner = owner_with(pages_type)(table, 2, 100, 2)
    for _ in range(40):
        owner.pages.request_more()
        owner.read_all()
    assert reserve_all(owner) == [1, 2, 3, 21]
    owner.commit({3: None, 21: None}, [3, 21])
    owner.read_all()
    assert reserve_all(owner) == [40, 41]
    owner.commit(dict.fromkeys((1, 2, 40, 41)), (1, 2, 40, 41))
    delivered: list[int] = []
    for _ in range(4):
        owner.read_all()
        taken = reserve_all(owner)
        owner.commit(dict.fromkeys(taken), taken)
        delivered += taken
    assert delivered == ([15, 16, 60, 61] if pages_type is RowPages else [60, 61])


def test_higher_limit_makes_a_group_deliverable_that_was_locked() -> None:
    locked = PlainItem(1, "a", 0, 1, State.READY)
    owner = CheckedCoreGroupOwner({1: locked}, STRICT, 2, 9)
    owner.read_all()
    assert owner.reserve_best() == [1]
    owner.commit({1: replace(locked, state=State.LEASED, attempt=1, token=7)}, [1])
    owner.commit({2: PlainItem(2, "a", 0, 2, State.READY)})
    assert owner.heads() == []
    owner.set_limit(2)
    owner.read_all()
    assert owner.reserve_best() == [2]


@pytest.mark.parametrize("keys_max", [1, 9])
def test_returned_item_of_a_group_that_is_not_strict_waits_in_its_place(keys_max: int) -> None:
    rows = [PlainItem(number, "a", 0, number, State.READY) for number in (1, 2, 3)]
    returned = PlainItem(4, "a", 0, 4, State.READY, attempt=1, token=7)
    owner = CheckedCoreGroupOwner({row.number: row for row in (*rows, returned)}, 2, 9, keys_max)
    delivered: list[int] = []
    while owner.table:
        owner.read_all()
        taken = owner.reserve_best()
        delivered += taken
        owner.commit(dict.fromkeys(taken), taken)
    assert delivered == [1, 2, 3, 4]
