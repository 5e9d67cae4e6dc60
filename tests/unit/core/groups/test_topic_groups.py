"""The bounds of `TopicGroups`: groups beyond memory, and reads beside many changes."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final, TypeVar

import pytest

from foqs.core.groups.group_read import NOTES_MAX
from foqs.core.groups.known_keys import ABOVE_ALL, NO_ITEMS, KnownKeys
from foqs.core.groups.places import GroupPlace, place_of, placed_row
from foqs.core.groups.topic_groups import GROUP_LOOKUPS, TopicGroups
from foqs.core.items.item import State, pack_order_key
from tests.support.builders import row
from tests.support.core_groups import CheckedCoreGroupOwner
from tests.support.plain_groups import PlainItem

GROUPS_MAX: Final = 8
T = TypeVar("T")


def rows_of_many_groups(random: Random) -> dict[int, PlainItem]:
    numbers = random.sample(range(1, 1_000), 150)
    return {
        number: PlainItem(
            number, f"group {random.randrange(60)}", random.randrange(3), random.randrange(50), State.READY
        )
        for number in numbers
    }


def read_of(read: T | None) -> T:
    assert read is not None
    return read


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_groups_beyond_memory_are_delivered_in_the_order_of_their_heads(limit: int | None) -> None:
    table = rows_of_many_groups(Random(5))
    expected = [item.number for item in sorted(table.values(), key=lambda item: item.key)]
    owner = CheckedCoreGroupOwner(table, limit, GROUPS_MAX, keys_max=2)
    delivered: list[int] = []
    while table:
        taken = [] if owner.wanted else owner.reserve_best()
        if taken:
            delivered += taken
            owner.commit({taken[0]: replace(table[taken[0]], state=State.LEASED, attempt=1)}, taken)
            owner.commit({taken[0]: None})
        else:
            owner.finish_read(read_of(owner.start_read(of_all=not owner.wanted)))
        assert len(owner.groups) <= GROUPS_MAX
    assert delivered == expected


def test_group_that_cannot_be_delivered_is_forgotten_before_one_with_a_head() -> None:
    groups = TopicGroups(1, groups_max=2, has_all=True)
    groups.follow("locked", None, (GroupPlace.LEASED, pack_order_key(0, 1, 1)))
    groups.follow("late", None, (GroupPlace.WAITING, pack_order_key(0, 9, 2)))
    groups.settle()
    groups.follow("early", None, (GroupPlace.WAITING, pack_order_key(0, 3, 3)))
    groups.settle()
    assert sorted(group.name for group in groups.groups()) == ["early", "late"]
    earlier = pack_order_key(0, 2, 4)
    groups.follow("earlier", None, (GroupPlace.WAITING, earlier))
    groups.settle()
    assert groups.get("earlier") is None  # it may have had other items
    read = read_of(groups.start_lookup())
    groups.finish_read(read, {"earlier": [KnownKeys([earlier], ABOVE_ALL), NO_ITEMS, NO_ITEMS, NO_ITEMS]})
    changes = groups.settle()
    assert sorted(group.name for group in groups.groups()) == ["earlier", "early"]
    assert changes.added == [earlier]
    assert changes.boundary == pack_order_key(0, 9, 2) - 1


def test_lookup_beside_too_many_changes_is_made_again() -> None:
    groups = TopicGroups(1, groups_max=9)
    groups.follow("a", (GroupPlace.LEASED, pack_order_key(0, 1, 1)), None)
    read = read_of(groups.start_lookup())
    for number in range(2, NOTES_MAX + 3):
        groups.follow("a", (GroupPlace.WAITING, pack_order_key(0, number, number)), None)
    groups.finish_read(read, {})
    assert groups.get("a") is None
    assert groups.has_wanted


def test_one_lookup_reads_a_bounded_number_of_groups() -> None:
    groups = TopicGroups(1, groups_max=GROUP_LOOKUPS)
    for number in range(1, GROUP_LOOKUPS + 2):
        groups.follow(f"group {number}", (GroupPlace.LEASED, pack_order_key(0, 1, number)), None)
    first, second = read_of(groups.start_lookup()), read_of(groups.start_lookup())
    assert groups.start_lookup() is None
    assert [len(read.names or ()) for read in (first, second)] == [GROUP_LOOKUPS, 1]
    groups.cancel_read(second)
    assert groups.start_lookup() is not None


def test_one_lookup_reads_no_more_groups_than_fit_into_memory() -> None:
    groups = TopicGroups(1, groups_max=2)
    for number in range(1, 4):
        groups.follow(f"group {number}", (GroupPlace.LEASED, pack_order_key(0, 1, number)), None)
    assert len(read_of(groups.start_lookup()).names or ()) == 2


def test_place_follows_from_state_and_attempt() -> None:
    places = {(state, attempt): place_of(state, attempt) for state in State for attempt in (0, 1)}
    assert places == {
        (State.DEFERRED, 0): None,
        (State.DEFERRED, 1): GroupPlace.BACKING_OFF,
        (State.READY, 0): GroupPlace.WAITING,
        (State.READY, 1): GroupPlace.RETURNED,
        (State.LEASED, 0): GroupPlace.LEASED,
        (State.LEASED, 1): GroupPlace.LEASED,
        (State.DEAD, 0): None,
        (State.DEAD, 1): None,
    }
    ready = row(7, state=State.READY, attempt=0)
    assert placed_row(ready) == (GroupPlace.WAITING, ready.order_key)
    assert placed_row(None) is None
