"""One group: what it says about an item that it holds back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foqs.core.groups.group import KEYS_PER_UNIT, STRICT, Group
from foqs.core.groups.places import GroupPlace
from foqs.core.items.item import OrderKey, pack_order_key


def key(number: int) -> OrderKey:
    return pack_order_key(0, number, number)


def group_of(limit: int, reserved: tuple[int, ...] = (), /, **places: list[int]) -> Group:
    """Return a group with items by place, whose heads were offered before the reservations."""
    group = Group("a")
    for place, numbers in places.items():
        for number in numbers:
            group.add((GroupPlace[place.upper()], key(number)))
    group.heads = group.offer(limit)
    for number in reserved:
        group.reserve(key(number))
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


class Uncopied(list[OrderKey]):
    """Keys that may be changed in place, and never be gone through."""

    def __iter__(self) -> Iterator[OrderKey]:
        raise AssertionError("all keys were gone through")


@pytest.mark.parametrize("place", ["returned", "backing_off", "leased"])
@pytest.mark.parametrize("limit", [STRICT, 2])
def test_item_of_a_group_with_many_changes_its_place_without_a_copy_of_the_others(place: str, limit: int) -> None:
    group = group_of(STRICT, **{place: [*range(1, 100)]})
    keys = Uncopied(getattr(group, place))
    setattr(group, place, keys)
    if place == "leased":
        group.reserve(key(200))
    group.add((GroupPlace[place.upper()], key(200)))
    assert len(keys) == 100
    assert group.offer(limit) == ([key(1)] if (place, limit) == ("returned", STRICT) else [])
    group.discard((GroupPlace[place.upper()], key(200)))
    assert len(keys) == 99
    assert getattr(group, place) is keys


@pytest.mark.parametrize("place", ["waiting", "returned", "backing_off", "leased"])
def test_each_known_item_counts_in_the_memory_of_its_group(place: str) -> None:
    units, loose = group_of(STRICT, **{place: [*range(1, 1 + 3 * KEYS_PER_UNIT)]}).count_units()
    assert units == 4
    assert loose == (4 if place == "waiting" else 0)
