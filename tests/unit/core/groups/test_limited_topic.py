"""The bounds of a limited topic: groups beyond memory, long groups, and reads beside many changes and beside a producer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Final

import pytest

from foqs.core.groups import group_page
from foqs.core.groups.group import ABOVE_ALL, KEYS_PER_UNIT, STRICT
from foqs.core.groups.group_page import PageKind
from foqs.core.groups.places import UNGROUPED, GroupPlace, place_of, placed_row
from foqs.core.items.item import State, order_key_number, pack_order_key
from tests.support.builders import row
from tests.support.core_groups import TOPIC, CheckedCoreGroupOwner, CoreGroupOwner
from tests.support.plain_groups import PlainItem, Table

UNITS_MAX: Final = 8


def ready(number: int, group: str, priority: int = 0, attempt: int = 0) -> PlainItem:
    return PlainItem(number, group, priority, number, State.READY, attempt)


def table_of(items: Iterable[PlainItem]) -> Table:
    return {item.number: item for item in items}


class CountingOwner(CoreGroupOwner):
    """An owner that counts the rows that it reads, in pages of 20."""

    page_rows = 20
    rows_read = 0

    def finish_read(self) -> None:
        assert self.read is not None
        self.rows_read += len(self.rows_of(self.read.page) if self.read.rows is None else self.read.rows)
        super().finish_read()


class PagesOfFour(CheckedCoreGroupOwner):
    page_rows = 4


def lease(owner: CoreGroupOwner, number: int) -> None:
    item = owner.table[number]
    owner.commit({number: replace(item, state=State.LEASED, attempt=item.attempt + 1)}, [number])


def deliver(owner: CoreGroupOwner) -> list[int]:
    """Deliver and settle what is offered, one by one. Return the numbers."""
    delivered: list[int] = []
    while taken := owner.reserve_best():
        lease(owner, taken[0])
        owner.commit({taken[0]: None})
        delivered += taken
    return delivered


@pytest.mark.parametrize("limit", [STRICT, 2])
def test_groups_beyond_memory_are_delivered_in_the_order_of_their_heads(limit: int) -> None:
    random = Random(5)
    numbers = random.sample(range(1, 1_000), 150)
    table = table_of(ready(number, f"group {random.randrange(60)}", random.randrange(3)) for number in numbers)
    expected = [item.number for item in sorted(table.values(), key=lambda item: item.key)]
    owner = CheckedCoreGroupOwner(table, limit, UNITS_MAX, keys_max=2)
    delivered: list[int] = []
    while table:
        owner.read_all()
        taken = owner.reserve_best()
        lease(owner, taken[0])
        owner.commit({taken[0]: None})
        delivered += taken
        assert owner.room.units <= UNITS_MAX
    assert delivered == expected


@pytest.mark.parametrize("limit", [STRICT, 2])
def test_each_waiting_row_is_read_about_once_however_many_groups_there_are(limit: int) -> None:
    table = table_of(ready(number, f"group {number}") for number in range(1, 301))
    owner = CountingOwner(table, limit, UNITS_MAX, keys_max=2)
    delivered: list[int] = []
    while table:
        owner.read_all()
        delivered += deliver(owner)
    assert delivered == [*range(1, 301)]
    # Strict order reads those that were delivered before first, and must look at all.
    assert owner.rows_read <= (600 if limit == STRICT else 300)


def test_rows_of_a_group_that_cannot_be_delivered_are_passed_over_once() -> None:
    """Its many items come before those of ten others, and it is locked."""
    locked = PlainItem(1, "locked", 0, 1, State.LEASED, 1)
    table = table_of([locked, *[ready(number, "locked") for number in range(2, 401)]])
    table |= table_of(ready(number, f"group {number % 10}") for number in range(401, 501))
    owner = CountingOwner(table, STRICT, 2 * UNITS_MAX, keys_max=4)
    delivered: list[int] = []
    while len(delivered) < 100:
        owner.read_all()
        delivered += deliver(owner)
    # Once for the items that were delivered before, once for those that wait, and some of the others again.
    assert owner.rows_read <= 2 * 500 + 200
    owner.commit({1: None})
    owner.read_all()
    assert owner.heads()[0][1] == "locked"


def test_new_item_of_a_group_that_is_not_in_memory_comes_without_a_read() -> None:
    owner = CheckedCoreGroupOwner(table_of(ready(number, f"group {number}") for number in range(10, 60)), STRICT, 8, 2)
    owner.read_all()
    assert owner.groups.boundary < ABOVE_ALL
    owner.commit({1: ready(1, "new")})
    assert owner.heads()[0] == ((0, 1, 1), "new")
    owner.commit({99: ready(99, "later")})
    assert owner.groups.get("later") is None
    assert owner.pages.next_kind is None


def test_old_items_are_delivered_beside_a_producer_of_better_ones_in_new_groups() -> None:
    """A new one comes during each read. A consumer takes all that is offered, so the window is empty at each read."""
    table = table_of(ready(number, f"old {number}", 5) for number in range(1, 41))
    owner = PagesOfFour(table, STRICT, UNITS_MAX, keys_max=2)
    old = 0
    reads = 0
    while old < 40:
        reads += 1
        assert reads <= 60, f"{old} of 40 old items were delivered"
        owner.pages.request_more()
        if owner.start_read():
            owner.commit({100 + reads: ready(100 + reads, f"new {reads}")})
            owner.finish_read()
        old += len([number for number in deliver(owner) if number <= 40])


def test_long_group_is_delivered_beside_a_producer_in_new_groups_and_leased_groups_that_fill_the_memory() -> None:
    table = table_of(ready(number, "long") for number in range(1, 101))
    table |= table_of(PlainItem(number, f"leased {number}", 0, number, State.LEASED, 1) for number in range(301, 306))
    owner = PagesOfFour(table, STRICT, UNITS_MAX, keys_max=4)
    delivered: list[int] = []
    reads = 0
    while len([number for number in delivered if number <= 100]) < 100:
        reads += 1
        assert reads <= 150, f"{len(delivered)} items were delivered"
        owner.pages.request_more()
        if owner.start_read():
            owner.commit({1_000 + reads: ready(1_000 + reads, f"new {reads}")})
            owner.finish_read()
        delivered += deliver(owner)
    assert [number for number in delivered if number <= 100] == [*range(1, 101)]


def test_refills_and_lookups_take_turns() -> None:
    table = table_of(ready(number, "long a" if number % 2 else "long b") for number in range(1, 101))
    table |= table_of(ready(number, f"group {number}") for number in range(101, 201))
    owner = CheckedCoreGroupOwner(table, 2, 200, keys_max=4)
    kinds: list[PageKind] = []
    for _ in range(20):
        owner.pages.request_more()
        owner.read_all()
    for _ in range(8):
        owner.pages.request_more()
        deliver(owner)
        if owner.start_read():
            assert owner.read is not None
            kinds.append(owner.read.page.kind)
            owner.finish_read()
    assert {PageKind.REFILL, PageKind.LOOKUP} == set(kinds)
    assert not any(one is other is PageKind.LOOKUP for one, other in pairwise(kinds))


def test_long_groups_that_come_forward_at_different_speeds_share_their_lookups() -> None:
    """Each has one lease at a time, which ends at random, and their cuts lie all over the topic."""
    random = Random(3)
    table = table_of(ready(1 + turn * 40 + group, f"group {group}") for turn in range(40) for group in range(40))
    for group in range(40):
        for turn in range(random.randrange(20)):
            del table[1 + turn * 40 + group]
    owner = CountingOwner(table, STRICT, 1_000, keys_max=8)
    while owner.groups.boundary < ABOVE_ALL:
        owner.pages.request_more()
        owner.start_read()
        owner.finish_read()
    owner.rows_read, items = 0, len(table)
    leased: list[int] = []
    while table:
        while taken := owner.reserve_best():
            lease(owner, taken[0])
            leased += taken
        for number in random.sample(leased, min(4, len(leased))):
            leased.remove(number)
            owner.commit({number: None})
        if owner.start_read():
            owner.finish_read()
    assert owner.rows_read <= 4 * items


def test_topic_whose_lookup_has_reached_its_end_reads_nothing_more() -> None:
    table = table_of(ready(number, "long") for number in range(1, 12))
    owner = CheckedCoreGroupOwner(table, STRICT, 100, keys_max=4)
    while owner.groups.boundary < ABOVE_ALL:
        owner.pages.request_more()
        owner.read_all()
    delivered: list[int] = []
    while table:
        owner.read_all()
        lease(owner, owner.reserve_best()[0])
        delivered += [number for number, item in table.items() if item.state is State.LEASED]
        owner.commit({delivered[-1]: None})
    assert delivered == [*range(1, 12)]
    owner.commit({12: ready(12, "another")})
    lease(owner, owner.reserve_best()[0])
    assert owner.pages.next_kind is None


def test_dequeue_is_not_answered_empty_while_a_lookup_may_find_items() -> None:
    table = table_of(ready(number, f"group {number % 2}") for number in range(1, 41))
    owner = CheckedCoreGroupOwner(table, STRICT, 100, keys_max=4)
    while owner.groups.boundary < ABOVE_ALL:
        owner.pages.request_more()
        owner.read_all()
    deliver(owner)
    assert owner.pages.next_kind is PageKind.LOOKUP
    assert owner.index.needs_refill(TOPIC)
    owner.read_all()
    for _ in range(2):
        lease(owner, owner.reserve_best()[0])
    assert not owner.window()
    assert not owner.index.needs_refill(TOPIC), "no read finds items that may be delivered"


def test_topic_whose_groups_are_all_under_delivery_reads_nothing_until_some_have_ended() -> None:
    table = table_of(ready(number, f"group {number}") for number in range(1, 101))
    owner = CheckedCoreGroupOwner(table, STRICT, UNITS_MAX, keys_max=2)
    leased: list[int] = []
    for _ in range(50):
        owner.read_all()
        leased += (taken := owner.reserve_best())
        if taken:
            lease(owner, taken[0])
    assert leased == [*range(1, UNITS_MAX + 1)]
    assert owner.room.is_full
    owner.pages.request_more()
    assert owner.pages.next_kind is None
    assert not owner.index.needs_refill(("namespace", "topic"))
    for number in leased:
        owner.commit({number: None})
    owner.read_all()
    assert owner.reserve_best() == [UNITS_MAX + 1]


def test_returned_items_are_delivered_again_although_their_groups_fill_the_memory() -> None:
    """All have a later place than items of other groups, which have no room."""
    table = table_of(ready(number, f"group {number}") for number in range(1, 101))
    table |= table_of(ready(number, f"returned {number}", 1, attempt=1) for number in range(101, 121))
    owner = CheckedCoreGroupOwner(table, STRICT, UNITS_MAX, keys_max=2)
    delivered: list[int] = []
    while table:
        owner.read_all()
        delivered += deliver(owner)
    assert delivered[:12] == [*range(101, 113)]
    assert sorted(delivered) == [*range(1, 121)]


@pytest.mark.parametrize("state", [State.READY, State.DEFERRED, State.LEASED])
def test_strict_topic_is_delivered_although_the_first_read_finds_far_more_groups_than_fit(state: State) -> None:
    table = table_of(PlainItem(number, f"held {number}", 0, number, state, 1) for number in range(1, 101))
    table |= table_of(ready(number, f"held {number % 100 + 1}", -1) for number in range(101, 201))
    owner = PagesOfFour(table, STRICT, UNITS_MAX)
    owner.read_all()
    if state is not State.READY:
        assert owner.window() == []
        for number in range(100, 0, -1):
            owner.commit({number: replace(table[number], state=State.READY)})  # due, or the end of its lease
    delivered: list[int] = []
    while table:
        owner.read_all()
        if state is State.READY and len(delivered) < 90:
            assert owner.room.units < UNITS_MAX + owner.page_rows, "it waits for held groups to end"
        delivered += (taken := owner.reserve_best())
        assert taken, f"stands still with {len(table)} items"
        lease(owner, taken[0])
        owner.commit({taken[0]: None})
    assert delivered[:90] == [*range(1, 91)]
    assert sorted(delivered) == [*range(1, 201)]


def test_returned_item_above_the_first_read_waits_for_those_of_its_group_below() -> None:
    """It returns while the memory is full, and its place is behind one that is not read yet."""
    table = table_of(ready(number, f"returned {number}", attempt=1) for number in range(1, 61))
    table[70] = PlainItem(70, "returned 50", 0, 70, State.LEASED, 1)
    owner = PagesOfFour(table, STRICT, UNITS_MAX)
    owner.read_all()
    owner.commit({70: replace(table[70], state=State.READY)})
    delivered: list[int] = []
    while table:
        owner.read_all()
        delivered += deliver(owner)
    assert delivered.index(50) < delivered.index(70)


def test_returned_item_that_changes_beside_the_page_that_passes_it_is_offered() -> None:
    table = table_of(ready(number, f"returned {number}", attempt=1) for number in range(1, 61))
    table[61] = PlainItem(61, "other", 0, 1, State.DEFERRED, 1)
    owner = PagesOfFour(table, STRICT, UNITS_MAX)
    while owner.groups.unread_states != [State.READY]:
        owner.pages.request_more()
        owner.start_read()
        owner.finish_read()
    assert owner.start_read()
    owner.commit({61: replace(table[61], state=State.READY)})
    owner.finish_read()
    for number in range(1, 5):
        owner.commit({number: None})
    owner.room.units_max = 1
    owner.settle()
    assert not owner.groups.is_read
    assert [order_key_number(key) for key in owner.window()] == [61]


def test_long_groups_that_back_off_do_not_fill_the_memory_with_items_that_must_wait() -> None:
    """With all waiting items that a group may keep they would take 8 x 3 units."""
    table = table_of(ready(1 + turn * 8 + group, f"long {group}") for turn in range(18) for group in range(8))
    table |= table_of(ready(number, f"group {number}") for number in range(145, 151))
    owner = CheckedCoreGroupOwner(table, STRICT, 18, keys_max=16)
    delivered: list[int] = []
    while True:
        owner.read_all()
        taken = owner.reserve_best()
        if not taken:
            break
        lease(owner, taken[0])
        owner.commit({taken[0]: replace(owner.table[taken[0]], state=State.DEFERRED)})
        delivered += taken
    assert delivered == [*range(1, 9), *range(145, 151)]
    for number in delivered:
        owner.commit({number: replace(owner.table[number], state=State.READY)})
    delivered = []
    while table:
        owner.read_all()
        [number] = owner.reserve_best()
        lease(owner, number)
        owner.commit({number: None})
        delivered.append(number)
    assert delivered == [*range(1, 151)]


def test_memory_that_is_full_of_held_groups_is_not_searched_for_room_at_each_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of(PlainItem(number, f"group {number}", 0, number, State.LEASED, 1) for number in range(1, 21))
    owner = CheckedCoreGroupOwner(table, STRICT, UNITS_MAX)
    owner.read_all()
    assert owner.room.units > UNITS_MAX
    searched: list[int] = []
    monkeypatch.setattr(owner.limited, "_make_room", lambda: searched.append(owner.room.units))
    owner.commit({1: None})
    assert not searched
    owner.groups.boundary = ABOVE_ALL  # as if the rows above it were known
    owner.groups.follow("other", None, (GroupPlace.WAITING, pack_order_key(0, 50, 50)))
    owner.limited.settle()
    assert searched == [20]


def test_items_without_a_group_have_no_limit_and_take_an_eighth_of_a_group() -> None:
    table = table_of(ready(number, UNGROUPED) for number in range(1, 201))
    owner = CountingOwner(table, STRICT, UNITS_MAX, keys_max=2)
    delivered: list[int] = []
    while table:
        owner.read_all()
        delivered += deliver(owner)
    assert delivered == [*range(1, 201)]
    owner.read_all()
    assert owner.groups.boundary == ABOVE_ALL
    owner.commit(table_of(ready(number, UNGROUPED) for number in range(2_001, 3_001)))
    assert UNITS_MAX * KEYS_PER_UNIT // 2 < len(owner.window()) <= UNITS_MAX * KEYS_PER_UNIT + KEYS_PER_UNIT
    assert owner.room.units <= UNITS_MAX


def test_higher_limit_than_the_items_that_are_kept_of_a_group_is_offered_at_once() -> None:
    table = table_of(ready(number, "a") for number in range(1, 101))
    owner = CountingOwner(table, 50, 100, keys_max=4)
    for _ in range(20):
        owner.pages.request_more()
        owner.read_all()
    assert len(owner.window()) == 50


def test_page_beside_too_many_changes_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_page, "CHANGES_MAX", 10)
    owner = CheckedCoreGroupOwner({}, STRICT, 100, keys_max=2)
    owner.read_all()
    owner.groups.boundary = owner.groups.boundary - 1  # as if rows above it were unknown
    owner.pages.request_more()
    assert owner.start_read()
    owner.commit(table_of(ready(number, f"group {number}") for number in range(1, 21)))
    owner.finish_read()
    assert owner.groups.boundary < ABOVE_ALL
    assert owner.pages.next_kind is PageKind.REFILL
    owner.start_read()
    owner.finish_read()


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
    ready_row = row(7, state=State.READY, attempt=0)
    assert placed_row(ready_row) == (GroupPlace.WAITING, ready_row.order_key)
    assert placed_row(None) is None
