"""Reads of groups by scans: what they find beside flushes, and their bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Final, TypeVar

import pytest

from foqs.core.groups import group_read, topic_groups
from foqs.core.groups.group_read import GroupRead
from foqs.core.groups.group_scan import GroupScan
from foqs.core.groups.known_keys import ABOVE_ALL, KnownKeys
from foqs.core.groups.places import GroupPlace, Placed
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.items.item import Row, State, pack_order_key
from tests.support.core_groups import CoreRead, ScanningGroupOwner
from tests.support.group_histories import play
from tests.support.plain_groups import PlainItem, Table

PLANTED_HISTORIES_MAX: Final = 4_000
"""A planted mistake must be found within this many."""


T = TypeVar("T")


def waiting(number: int, priority: int = 0) -> Placed:
    return GroupPlace.WAITING, pack_order_key(priority, number, number)


# ------------------------------------------------------------- planted mistakes


class BelievesScan(ScanningGroupOwner):
    """What a scan has found counts, although a flush has changed it since."""

    def start_read(self, *, of_all: bool) -> CoreRead | None:
        begun = super().start_read(of_all=of_all)
        if begun is not None:
            self.groups._reads.remove(begun.read)
        return begun

    def finish_read(self, begun: CoreRead) -> None:
        self.groups._reads.append(begun.read)
        super().finish_read(begun)


class TakesPassedItemsForNone(GroupScan):
    """A group with a returned item has no waiting items before it."""

    def _member(self, name: str, found: object) -> list[KnownKeys]:
        self._passed.clear()
        return super()._member(name, found)  # type: ignore[arg-type]


class TakesLeasesOfMembersForNone(GroupScan):
    """A group of the second pass has no leases."""

    def _member(self, name: str, found: object) -> list[KnownKeys]:
        self._busy.pop(name, None)
        return super()._member(name, found)  # type: ignore[arg-type]


class KeepsLockedGroups(GroupScan):
    """The second pass does not leave out groups that are locked."""

    def _is_locked(self, name: str) -> bool:
        return False

    def _member(self, name: str, found: object) -> list[KnownKeys]:
        return self._known_of(found)  # type: ignore[arg-type]


class CutsNothing(GroupScan):
    """The groups that are left out count as read."""

    def _add_member(self, members: set[str], name: str, row: Row) -> None:
        super()._add_member(members, name, row)
        if self.read.cut is not None:
            self.read.cut = ABOVE_ALL - 1


def owner_with(mistake: type[ScanningGroupOwner] | type[GroupScan]) -> type[ScanningGroupOwner]:
    if issubclass(mistake, ScanningGroupOwner):
        return mistake
    return type(mistake.__name__, (ScanningGroupOwner,), {"scan_type": mistake})


@pytest.mark.parametrize(
    "mistake",
    [BelievesScan, TakesPassedItemsForNone, TakesLeasesOfMembersForNone, KeepsLockedGroups, CutsNothing],
)
def test_planted_mistake_of_a_scan_is_found(mistake: type[ScanningGroupOwner] | type[GroupScan]) -> None:
    owner_type = owner_with(mistake)
    assert any(play(seed, owner_type) for seed in range(PLANTED_HISTORIES_MAX))


# ---------------------------------------------------------------------- bounds


def test_read_notes_the_first_new_items_of_a_group_and_counts_the_others_as_unknown() -> None:
    numbers = list(range(1, 1_000))
    Random(3).shuffle(numbers)
    read = GroupRead(frozenset({"a"}), "", 8, 8)
    for number in numbers:
        read.note("a", None, waiting(number))
    read.note("a", waiting(3), None)
    found = {"a": [KnownKeys([waiting(1_500)[1]], ABOVE_ALL), *[KnownKeys([], ABOVE_ALL) for _ in range(3)]]}
    known = read.known_of("a", found, [])[GroupPlace.WAITING]
    assert known.keys == [waiting(number)[1] for number in (1, 2, 4, 5, 6, 7, 8)]
    assert known.boundary == waiting(9)[1] - 1
    assert read.is_small


def test_lookup_of_later_items_does_not_note_what_memory_follows_itself() -> None:
    read = GroupRead(frozenset({"a"}), "", 8, 8)
    read.starts = {"a": waiting(100)[1]}
    read.note("a", waiting(5), (GroupPlace.LEASED, waiting(5)[1]))
    assert not read.touched_names()
    read.note("a", waiting(5), waiting(105))  # an update moves it
    assert read.touched_names() == {"a"}


class LongPages(ScanningGroupOwner):
    page_rows = 50


@pytest.fixture
def few_notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(group_read, "NOTES_MAX", 24)
    yield


@pytest.mark.usefixtures("few_notes")
@pytest.mark.parametrize("limit", [1, 2])
def test_walks_that_would_note_too_much_read_parts_and_all_groups_are_delivered(limit: int) -> None:
    """Fifty groups are locked or have returned items, while a walk may note 24 of them, and 8 fit into memory."""
    states = [(State.LEASED, 1), (State.READY, 1), (State.READY, 0)]
    table: Table = {
        number: PlainItem(number, f"group {number % 50}", 0, number, *states[number // 50]) for number in range(1, 150)
    }
    owner = LongPages(table, limit, 8, 2)
    order: dict[str, list[int]] = {}
    most_parts = 0
    for _ in range(4_000):
        if not table:
            break
        leased = [item for item in table.values() if item.state is State.LEASED]
        if owner.wanted:
            owner.finish_read(read_of(owner.start_read(of_all=False)))
        elif taken := owner.reserve_best():
            item = table[taken[0]]
            order.setdefault(item.group, []).append(item.number)
            owner.commit({item.number: replace(item, state=State.LEASED, attempt=1)}, taken)
            owner.commit({item.number: None})
        elif leased:
            owner.commit({leased[0].number: None})
        else:
            owner.finish_read(read_of(owner.start_read(of_all=True)))
            most_parts = max(most_parts, owner.groups.walk_parts)
        if owner.groups.boundary == 0:
            owner.finish_read(read_of(owner.start_read(of_all=True)))
            most_parts = max(most_parts, owner.groups.walk_parts)
    assert not table
    assert most_parts >= 2
    if limit == 1:
        assert all(numbers == sorted(numbers) for numbers in order.values())


@pytest.mark.usefixtures("few_notes")
def test_walk_beside_many_changes_is_made_again_in_parts_and_later_of_all() -> None:
    table: Table = {number: PlainItem(number, f"group {number}", 0, number, State.READY) for number in range(1, 11)}
    owner = ScanningGroupOwner(table, 1, 20, 2)
    begun = read_of(owner.start_read(of_all=True))
    owner.commit({number: PlainItem(number, f"group {number}", 0, number, State.READY) for number in range(11, 61)})
    owner.finish_read(begun)
    assert owner.groups.walk_parts == 2
    assert owner.heads() == []
    owner.finish_read(read_of(owner.start_read(of_all=True)))
    assert 0 < len(owner.heads()) <= 20
    assert owner.groups.walk_parts == 1
    assert owner.groups.may_have_more


def test_absent_groups_to_be_looked_up_are_bounded_and_the_others_come_with_the_next_walk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_groups, "WANTED_MAX", 3)
    groups = TopicGroups(1, groups_max=2, has_all=True)
    for number in (100, 200, 300):
        groups.follow(f"group {number}", None, waiting(number))
    groups.settle()
    for number in range(10, 20):
        groups.follow(f"group {number}", None, waiting(number))
    groups.settle()
    first, second = read_of(groups.start_lookup()), read_of(groups.start_lookup())
    assert first.names == frozenset({"group 10", "group 11"})
    assert second.names == frozenset({"group 12"})
    assert groups.start_lookup() is None
    assert groups.may_have_more


def read_of(read: T | None) -> T:
    assert read is not None
    return read
