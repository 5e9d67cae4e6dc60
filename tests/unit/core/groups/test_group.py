"""One group: what it says about an item that it holds back."""

from __future__ import annotations

import pytest

from foqs.core.groups.group import STRICT, UNGROUPED, Group, no_items
from foqs.core.groups.known_keys import ABOVE_ALL, KnownKeys
from foqs.core.groups.places import GroupPlace
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.items.item import OrderKey, pack_order_key


def key(number: int) -> OrderKey:
    return pack_order_key(0, number, number)


def group_of(limit: int, reserved: tuple[int, ...] = (), **places: list[int]) -> Group:
    """Return a group with items by place, whose heads were offered before the reservations."""
    group = Group("a", no_items(limit))
    for place, numbers in places.items():
        group.known[GroupPlace[place.upper()]] = KnownKeys([key(number) for number in numbers], ABOVE_ALL)
    group.heads = group.offer(limit)
    group.reserved = reserved
    if reserved:
        group.heads = group.offer(limit)
    return group


@pytest.mark.parametrize(
    ("limit", "reserved", "places", "number", "holders"),
    [
        (STRICT, (), {"waiting": [1, 2, 3]}, 1, None),
        (STRICT, (), {"waiting": [1, 2, 3]}, 3, [1, 2]),
        (STRICT, (1,), {"waiting": [1, 2, 3]}, 1, None),
        (STRICT, (1,), {"waiting": [1, 2, 3]}, 2, [1]),
        (STRICT, (), {"waiting": [2, 3], "leased": [1]}, 2, [1]),
        (STRICT, (), {"waiting": [1], "backing_off": [9]}, 1, [9]),
        (STRICT, (), {"waiting": [1], "returned": [8, 9]}, 1, [8, 9]),
        (STRICT, (), {"waiting": [1], "returned": [8, 9]}, 9, [8]),
        (2, (), {"waiting": [1, 2, 3]}, 2, None),
        (2, (), {"waiting": [1, 2, 3]}, 3, [1, 2]),
        (2, (), {"waiting": [3, 4], "leased": [1]}, 4, [1, 3]),
        (2, (), {"waiting": [3, 4], "leased": [1, 2]}, 3, [1, 2]),
        (2, (1,), {"waiting": [3, 4], "leased": [1, 2]}, 3, [1, 2]),
    ],
)
def test_holders_of_an_item(
    limit: int, reserved: tuple[int, ...], places: dict[str, list[int]], number: int, holders: list[int] | None
) -> None:
    assert group_of(limit, reserved, **places).holders(key(number), limit) == holders


def test_item_of_an_absent_group_is_held_back_by_what_is_unknown_and_one_without_a_group_by_nothing() -> None:
    groups = TopicGroups(1, groups_max=9)
    assert groups.holders("a", key(1)) == []
    assert groups.holders(UNGROUPED, key(1)) is None
    assert TopicGroups(None, groups_max=9).holders("a", key(1)) is None
