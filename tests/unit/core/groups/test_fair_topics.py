"""The groups of a fair topic, on several shards: histories with planted mistakes, what is read, and what is in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Final

import pytest

from foqs.core.groups.group import ABOVE_ALL, NO_LIMIT, Group
from foqs.core.groups.group_room import FAIR_KEYS_MAX
from foqs.core.groups.places import UNGROUPED
from foqs.core.groups.row_pages import RowPages
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.groups.topic_heads import TopicHeads
from foqs.core.groups.topic_turns import TURN, TopicTurns
from foqs.core.items.item import OrderKey, State, order_key_number, unpack_order_key
from foqs.core.memory.best_items import reserve_best
from tests.support.core_groups import TOPIC, CheckedCoreGroupOwner, CoreGroupOwner, owner_with
from tests.support.example_counts import examples
from tests.support.fair_histories import play
from tests.support.plain_groups import PlainItem, Table

HISTORIES: Final = examples(200)
PLANTED_HISTORIES_MAX: Final = 400


def test_deliveries_of_a_fair_topic_follow_from_its_rows() -> None:
    for seed in range(HISTORIES):
        difference = play(seed)
        assert difference is None, difference


def test_fair_topic_by_time_leaves_nothing_behind_and_keeps_priorities_and_limits() -> None:
    for seed in range(HISTORIES // 4):
        difference = play(seed, by_time=True)
        assert difference is None, difference


# ------------------------------------------------------------- planted mistakes


class SavesTurns(TopicTurns):
    """The next turn follows the last one of the group, also if it was not served for long."""

    def serve(self, group: Group, items: int = 1) -> None:
        before = group.turn
        super().serve(group, items)
        group.turn = before + self.cost(group.name)


class BeginsFirst(TopicTurns):
    """A group that begins to wait comes before the others."""

    def begin_wait(self, group: Group) -> None:
        super().begin_wait(group)
        group.turn = self.served


class ForgetsWeights(TopicTurns):
    def cost(self, name: str) -> int:
        return TURN


class CountsForEver(TopicTurns):
    """A group that begins again goes on with the turns that it has had."""

    def begin_wait(self, group: Group) -> None:
        super().begin_wait(group)
        group.turn = self._debts.take_turn(group.name) + self.cost(group.name)

    def remove(self, group: Group) -> None:
        self._debts.remember(group.name, group.turn)


@pytest.mark.parametrize("mistake", [SavesTurns, BeginsFirst, ForgetsWeights, CountsForEver])
def test_planted_mistake_in_turns_is_found(mistake: type[TopicTurns]) -> None:
    assert any(play(seed, CoreGroupOwner, mistake) for seed in range(PLANTED_HISTORIES_MAX))


def test_turns_that_shards_count_apart_are_found() -> None:
    assert any(play(seed, CoreGroupOwner, has_own_turns=True) for seed in range(PLANTED_HISTORIES_MAX))


class OffersByTime(TopicHeads):
    """The heads of groups are in the order of their items."""

    def _fair_heads(self, group: Group) -> list[OrderKey]:
        return [group.first] if super()._fair_heads(group) else []


class OffersNextHeadLater(TopicHeads):
    """The next head of a group comes with the next flush, and not in the step of the reservation."""

    def _take_turn(self, group: Group, turns: TopicTurns, items: int = 1) -> list[OrderKey]:
        for key in super()._take_turn(group, turns, items):
            self._changes[key] = True
        return []


class OneGroupOfItemsWithoutOne(TopicGroups):
    """All items without a group are one group."""

    def own_name(self, name: str, key: OrderKey) -> str:
        return f"{UNGROUPED}all" if name == UNGROUPED else name


class ReadsOnDemandOnly(RowPages):
    """The boundary is raised only if no head is known."""

    @property
    def _is_eager(self) -> bool:
        return False


class LosesTurnAtLookup(TopicHeads):
    """A long group whose next items must be read begins again."""

    def update(self, group: Group) -> None:
        super().update(group)
        group.is_waiting = bool(group.heads)


@pytest.mark.parametrize("mistake", [OffersByTime, OffersNextHeadLater, OneGroupOfItemsWithoutOne, ReadsOnDemandOnly])
def test_planted_mistake_in_groups_is_found(mistake: type) -> None:
    owner_type = owner_with(mistake)
    assert any(play(seed, owner_type) for seed in range(PLANTED_HISTORIES_MAX))


# --------------------------------------------------------------- single stories


class CountingOwner(CoreGroupOwner):
    """An owner that counts the rows that it reads."""

    page_rows = 20
    rows_read = 0

    def finish_read(self) -> None:
        assert self.read is not None
        self.rows_read += len(self.rows_of(self.read.page) if self.read.rows is None else self.read.rows)
        super().finish_read()


def ready(number: int, group: str, priority: int = 0) -> PlainItem:
    return PlainItem(number, group, priority, number, State.READY)


def table_of(items: Iterable[PlainItem]) -> Table:
    return {item.number: item for item in items}


def turns(*, by_time: bool = False) -> TopicTurns:
    return TopicTurns(lambda: 0.0, by_time=by_time)


def deliver(owner: CoreGroupOwner) -> int:
    """Deliver and settle one item. Return its number."""
    [number] = owner.reserve_best()
    owner.commit({number: None}, [number])
    return number


def test_group_with_very_many_items_costs_a_new_group_nothing() -> None:
    owner = CountingOwner(table_of(ready(number, "large") for number in range(1, 1_001)), NO_LIMIT, 1_000, 40, turns())
    owner.pages.request_more()
    owner.read_all()
    assert owner.groups.boundary == ABOVE_ALL
    deliver(owner)
    owner.read_all()
    owner.rows_read = 0
    owner.commit({2_000: ready(2_000, "small")})
    assert owner.pages.next_kind is None
    assert 2_000 in {deliver(owner) for _ in range(3)}
    assert owner.rows_read == 0


@pytest.mark.parametrize("count", [1, 7])
def test_group_that_is_alone_is_delivered_in_order_and_reads_each_row_about_once(count: int) -> None:
    owner = CountingOwner(table_of(ready(number, "alone") for number in range(1, 601)), NO_LIMIT, 1_000, 40, turns())
    owner.pages.request_more()
    owner.read_all()
    owner.rows_read = 0
    delivered: list[int] = []
    while owner.table:
        owner.read_all()
        keys = owner.index.reserve(("namespace", "topic"), count)
        assert keys
        numbers = [order_key_number(key) for key in keys]
        owner.commit(dict.fromkeys(numbers), numbers)
        delivered += numbers
    assert delivered == [*range(1, 601)]
    assert owner.rows_read <= 600 * 1.7


@pytest.mark.parametrize("heads_type", [TopicHeads, LosesTurnAtLookup])
def test_long_group_keeps_its_turn_while_its_next_items_are_read(heads_type: type[TopicHeads]) -> None:
    lines = {"long": (1, 2, 30), "b": (4, 5), "c": (6, 7)}
    table = table_of(ready(number, name) for name, numbers in lines.items() for number in numbers)
    owner = owner_with(heads_type)(table, NO_LIMIT, 100, 2, turns())
    owner.pages.request_more()
    owner.read_all()
    assert [deliver(owner) for _ in range(6)] == [1, 4, 6, 2, 5, 7]
    owner.commit({8: ready(8, "d")})
    assert deliver(owner) == 8, "the next item of the long group is not known yet"
    owner.commit({9: ready(9, "e")})
    owner.read_all()
    assert deliver(owner) == (30 if heads_type is TopicHeads else 9)


@pytest.mark.parametrize("limit", [1, 2])
def test_locked_group_keeps_its_turn_whether_it_is_long_or_short(limit: int) -> None:
    """The long group has a cut: it knows two of its items."""
    lines = {"long": range(1, 31), "short": range(31, 31 + limit + 1), "other": range(41, 81)}
    table = table_of(ready(number, name) for name, numbers in lines.items() for number in numbers)
    owner = CheckedCoreGroupOwner(table, limit, 1_000, limit + 1, turns())
    owner.pages.request_more()
    owner.read_all()
    held: list[int] = []
    while len(held) < 2 * limit:
        [number] = owner.reserve_best()
        if table[number].group == "other":
            owner.commit({number: None}, [number])
        else:
            owner.commit({number: replace(table[number], state=State.LEASED, attempt=1)}, [number])
            held.append(number)
    for _ in range(20):
        owner.read_all()
        assert 41 <= deliver(owner) <= 80, "the other groups are locked"
    long, short = owner.groups.get("long"), owner.groups.get("short")
    assert long is not None
    assert short is not None
    assert long.cut < ABOVE_ALL == short.cut
    owner.commit(dict.fromkeys(held))
    assert (long.is_waiting, short.is_waiting) == (True, True)
    owner.read_all()
    assert {table[number].group for number in [*owner.reserve_best(), *owner.reserve_best()]} == {"long", "short"}
    served = turns_of(owner).served
    assert min(long.turn, short.turn) > served, "it was served once, and has saved nothing"


def turns_of(owner: CoreGroupOwner) -> TopicTurns:
    found = owner.groups.turns
    assert found is not None
    return found


def test_more_groups_than_fit_into_memory_are_all_delivered() -> None:
    table = table_of(ready(number, f"group {number % 60}") for number in range(1, 301))
    owner = type("Owner", (CheckedCoreGroupOwner,), {"page_rows": 20})(table, NO_LIMIT, 16, 9, turns())
    delivered: list[int] = []
    owner.pages.request_more()
    while table:
        owner.read_all()
        assert owner.room.units <= 16
        delivered.append(deliver(owner))
    assert sorted(delivered) == [*range(1, 301)]


def test_full_memory_of_a_fair_topic_is_not_read_without_end() -> None:
    table = table_of(ready(number, f"group {number}") for number in range(1, 101))
    owner = CountingOwner(table, NO_LIMIT, 16, 9, turns())
    owner.pages.request_more()
    owner.read_all()
    assert owner.pages.next_kind is None
    assert owner.room.units >= 12
    owner.rows_read = 0
    for number in range(200, 260):
        owner.commit({number: ready(number, f"new {number}")})
        owner.read_all()
    assert owner.rows_read == 0


def test_few_groups_know_many_items_and_many_groups_know_few() -> None:
    for groups, most in ((1, 1_000), (10, 400), (1_000, 7)):
        owner = CoreGroupOwner({}, NO_LIMIT, 1_000, FAIR_KEYS_MAX, turns())
        for number in range(groups):
            owner.groups.add(f"group {number}")
        assert owner.room.group_keys_max == most


def test_long_groups_give_room_to_new_ones_before_the_boundary_falls() -> None:
    table = table_of(ready(number, f"long {number % 4}") for number in range(1, 241))
    owner = type("Owner", (CheckedCoreGroupOwner,), {"page_rows": 50})(table, NO_LIMIT, 40, 100, turns())
    owner.pages.request_more()
    owner.read_all()
    assert owner.groups.boundary == ABOVE_ALL
    for number in range(300, 325):
        owner.commit({number: ready(number, f"new {number}")})
    assert owner.groups.boundary == ABOVE_ALL
    assert len(owner.window()) == 29


def test_items_without_a_group_take_turns_with_groups() -> None:
    table = table_of(
        [*[ready(number, "a") for number in range(1, 6)], *[ready(number, UNGROUPED) for number in (6, 7)]]
    )
    owner = CheckedCoreGroupOwner(table, NO_LIMIT, 100, 9, turns())
    owner.pages.request_more()
    owner.read_all()
    delivered = [deliver(owner) for _ in range(7)]
    assert set(delivered[:3]) == {1, 6, 7}


def test_leased_items_are_remembered_only_if_something_counts_them() -> None:
    leased = PlainItem(1, "a", 0, 1, State.LEASED, 1)
    for limit, by_time, is_known in ((NO_LIMIT, False, False), (NO_LIMIT, True, True), (2, False, True)):
        owner = CheckedCoreGroupOwner(table_of([leased]), limit, 100, 9, turns(by_time=by_time))
        owner.pages.request_more()
        owner.read_all()
        assert (owner.groups.get("a") is not None) == is_known
        owner.commit({2: ready(2, "b")})
        owner.commit({2: replace(ready(2, "b"), state=State.LEASED, attempt=1)})
        assert (owner.groups.get("b") is not None) == is_known


def test_head_whose_group_gets_a_better_item_keeps_its_turn() -> None:
    owner = CheckedCoreGroupOwner(table_of([ready(5, "a"), ready(6, "b")]), NO_LIMIT, 100, 9, turns())
    owner.pages.request_more()
    owner.read_all()
    group = owner.groups.get("a")
    assert group is not None
    turn = group.turn
    owner.commit({7: ready(7, "a", -1)})
    assert group.turn == turn
    assert [deliver(owner) for _ in range(3)] == [7, 6, 5]


@pytest.mark.parametrize("by_time", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_dequeue_of_many_items_takes_the_same_as_dequeues_of_one(shards: int, *, by_time: bool) -> None:
    """Of equal turns, any shard may come first."""

    def takes(counts: Iterable[int]) -> list[list[tuple[int, int]]]:
        own_turns = turns(by_time=by_time)
        own_turns.weights = {"a": 3, "d": 2}
        items = [ready(number, "abcdefg"[number * 5 % 7], priority=number * 3 % 2) for number in range(1, 140)]
        tables = [table_of(item for item in items if ord(item.group) % shards == shard) for shard in range(shards)]
        owners = [CoreGroupOwner(table, NO_LIMIT, 1_000, 100, own_turns) for table in tables]
        for owner in owners:
            owner.pages.request_more()
            owner.read_all()
        found = []
        for count in counts:
            reserved = reserve_best([owner.index for owner in owners], TOPIC, count, [1_000] * shards)
            found.append(sorted([unpack_order_key(key)[:2] for keys in reserved for key in keys]))
        return found

    singly = takes([1] * 120)
    assert takes([40] * 3) == [sorted(chain(*singly[start : start + 40])) for start in (0, 40, 80)]


@pytest.mark.parametrize("limit", [NO_LIMIT, 1, 2])
def test_items_that_come_next_are_known_in_their_order_without_reserving_them(limit: int) -> None:
    items = [ready(number, "abcde"[number * 7 % 5], priority=number * 3 % 2) for number in range(1, 60)]
    owner = CheckedCoreGroupOwner(table_of(items), limit, 1_000, 100, turns())
    owner.groups.turns.weights = {"a": 3, "d": 2}  # type: ignore[union-attr]
    owner.read_all()
    upcoming = [order_key_number(key) for _, key in owner.limited.heads.upcoming(owner.window())]
    assert owner.limited.heads.prefetched_left == 0
    owner.limited.heads.prefetched_left = 5
    delivered: list[int] = []
    while len(delivered) < len(upcoming):
        reserved = owner.reserve_best()
        if not reserved:
            break
        delivered += reserved
    assert upcoming == delivered
    assert len(upcoming) == (59 if limit == NO_LIMIT else 5 * limit)
    assert owner.limited.heads.prefetched_left == 0
