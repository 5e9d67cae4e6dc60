"""Where a READY item waits in its group, what holds it back, and the age of the oldest one."""

from __future__ import annotations

from dataclasses import replace

from foqs.core.groups.group import STRICT
from foqs.core.groups.limited_topic import LimitedTopic
from foqs.core.groups.places import UNGROUPED, GroupPlace
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.groups.topic_turns import TopicTurns
from foqs.core.groups.waiting_items import find_holders, items_before, oldest_ms, place_in_turn
from foqs.core.items.item import OrderKey, State, order_key_number, pack_order_key
from tests.support.core_groups import CheckedCoreGroupOwner
from tests.support.plain_groups import PlainItem


def key(number: int) -> OrderKey:
    return pack_order_key(0, number, number)


def ready(number: int, group: str, priority: int = 0) -> PlainItem:
    return PlainItem(number, group, priority, number, State.READY)


def test_item_of_a_group_that_is_not_in_memory_is_held_back_only_if_the_memory_is_full() -> None:
    limited = LimitedTopic(STRICT, 1)
    groups = limited.groups

    def holders(name: str, number: int) -> list[int] | None:
        return find_holders(groups, name, key(number), is_full=limited.room.is_full)

    assert holders("a", 1) is None, "a read is needed, and nothing else holds it back"
    limited.purge()  # there are no rows to read
    assert holders("a", 1) is None
    groups.follow("b", None, (GroupPlace.LEASED, key(2)))
    limited.settle()
    assert holders("a", 3) == []
    assert holders("b", 4) == [2]
    assert holders(UNGROUPED, 5) == []
    groups.follow(UNGROUPED, None, (GroupPlace.WAITING, key(6)))
    limited.settle()
    assert holders(UNGROUPED, 6) is None


def test_known_ready_items_of_its_group_come_before_an_item_returned_ones_first() -> None:
    groups = TopicGroups(STRICT)
    group = groups.add("ada")
    group.waiting, group.returned = [key(2), key(4)], [key(5), key(7)]
    assert [items_before(groups, "ada", key(number)) for number in (5, 7, 2, 4, 9)] == [0, 1, 2, 3, 4]
    assert items_before(groups, "bob", key(1)) is None


def test_place_of_an_item_in_its_group_counts_returned_items_of_a_strict_group_first() -> None:
    returned = [replace(ready(number, "a"), attempt=1) for number in (4, 5, 6)]
    rows = [*returned, ready(1, "a", -1), ready(2, "a")]
    turns = TopicTurns(lambda: 0.0)
    owner = CheckedCoreGroupOwner({row.number: row for row in rows}, STRICT, 100, 9, turns)
    owner.pages.request_more()
    owner.read_all()
    keys = [*[key(number) for number in (4, 5, 6)], pack_order_key(-1, 1, 1), key(2)]
    places = [place_in_turn(owner.groups, "a", each) for each in keys]
    assert [before for _, before in places] == [0, 1, 2, 3, 4]
    assert {head for head, _ in places} == {*owner.window()}
    assert place_in_turn(owner.groups, "b", key(3)) == (None, 0)


def test_age_of_the_oldest_item_counts_those_that_are_held_back() -> None:
    rows = [PlainItem(1, "a", 0, 70, State.LEASED, 1), PlainItem(2, "a", 0, 20, State.READY)]
    rows += [PlainItem(3, "b", -1, 50, State.READY)]
    owner = CheckedCoreGroupOwner({row.number: row for row in rows}, STRICT, 8, keys_max=2)
    assert oldest_ms(owner.groups, 10) is None
    for _ in range(3):
        owner.pages.request_more()
        owner.read_all()
    assert [order_key_number(each) for each in owner.window()] == [3]
    assert oldest_ms(owner.groups, 10) == 20
