"""The state and the figures of a group, by the places of its items."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foqs.core.groups.group import NO_LIMIT, STRICT, Group
from foqs.core.groups.group_stats import (
    BLOCKERS_MAX,
    GroupOrder,
    GroupState,
    figures_of,
    rank_function,
    state_of,
)
from foqs.core.groups.limited_topic import LimitedTopic
from foqs.core.groups.topic_turns import TopicTurns
from foqs.core.items.item import OrderKey, pack_order_key

Place = Callable[[Group], None]


def key(number: int) -> OrderKey:
    return pack_order_key(0, 1_000 + number, number)


def waits(*numbers: int) -> Place:
    return lambda group: group.waiting.extend(map(key, numbers))


def returned(*numbers: int) -> Place:
    return lambda group: group.returned.extend(map(key, numbers))


def backs_off(*numbers: int) -> Place:
    return lambda group: group.backing_off.extend(map(key, numbers))


def leased(*numbers: int) -> Place:
    return lambda group: group.leased.extend(map(key, numbers))


def reserved(number: int) -> Place:
    return lambda group: group.reserve(key(number))


def cut_at(number: int) -> Place:
    def cut(group: Group) -> None:
        group.cut = key(number)

    return cut


def group_of(limited: LimitedTopic, *places: Place) -> Group:
    """Return a group with items in these places, and what it offers."""
    group = Group("ada")
    for place in places:
        place(group)
    group.heads = limited.groups.offer(group)
    return group


def read_groups(limit: int, turns: TopicTurns | None = None) -> LimitedTopic:
    limited = LimitedTopic(limit, 100, turns=turns)
    limited.groups.is_read = True
    return limited


@pytest.mark.parametrize(
    ("limit", "places", "state", "blockers"),
    [
        (STRICT, [waits(1, 2)], GroupState.ELIGIBLE, []),
        (STRICT, [waits(1, 2), reserved(1)], GroupState.LEASED, [1]),
        (STRICT, [waits(2), leased(1)], GroupState.LEASED, [1]),
        (STRICT, [waits(2), leased(1), backs_off(3)], GroupState.LEASED, [1]),
        (STRICT, [leased(1)], GroupState.LEASED, [1]),
        (STRICT, [waits(2), backs_off(3, 4)], GroupState.BACKING_OFF, [3]),
        (STRICT, [waits(2), backs_off(3), returned(4)], GroupState.BACKING_OFF, [3]),
        (STRICT, [waits(2), backs_off(4), returned(3)], GroupState.ELIGIBLE, []),
        (STRICT, [cut_at(9)], GroupState.UNREAD, []),
        (3, [waits(3), leased(1, 2)], GroupState.ELIGIBLE, []),
        (3, [waits(4), leased(1, 2, 3)], GroupState.LEASED, [1, 2, 3]),
        (3, [waits(3, 4), leased(1, 2), reserved(3)], GroupState.LEASED, [1, 2, 3]),
        (3, [leased(1, 2)], GroupState.IDLE, []),
        (NO_LIMIT, [waits(1)], GroupState.ELIGIBLE, []),
        (NO_LIMIT, [leased(1, 2)], GroupState.IDLE, []),
        (NO_LIMIT, [cut_at(9)], GroupState.UNREAD, []),
    ],
)
def test_state_of_a_group_and_what_holds_it_back(
    limit: int, places: list[Place], state: GroupState, blockers: list[int]
) -> None:
    limited = read_groups(limit)
    group = group_of(limited, *places)
    assert state_of(group, limit) is state
    figures = figures_of(group, limited)
    assert (figures.state, list(figures.blockers)) == (state, blockers)
    assert figures.ready == len(group.waiting) + len(group.returned)
    assert figures.has_more is (group.cut == key(9))
    assert (figures.resumes_at_ms is not None) is (state is GroupState.BACKING_OFF)


def test_an_item_that_is_leased_and_still_reserved_counts_once() -> None:
    limited = read_groups(3)
    figures = figures_of(group_of(limited, waits(1, 2), reserved(1), leased(1)), limited)
    assert (figures.leased, figures.state) == (1, GroupState.ELIGIBLE)


def test_a_group_whose_delivered_items_were_not_read_is_unread() -> None:
    limited = LimitedTopic(STRICT, 100)
    assert figures_of(group_of(limited, waits(1)), limited).state is GroupState.UNREAD


def test_first_item_is_the_returned_one_and_a_backoff_names_its_end() -> None:
    limited = read_groups(STRICT)
    figures = figures_of(group_of(limited, waits(1), returned(7), backs_off(5)), limited)
    assert figures.first == key(7)
    assert figures.resumes_at_ms == 1_005
    assert figures_of(group_of(limited, waits(1)), limited).first == key(1)
    assert figures_of(group_of(limited, leased(1)), limited).first is None


def test_as_many_blockers_are_named_as_the_bound_says() -> None:
    limited = read_groups(2 * BLOCKERS_MAX)
    figures = figures_of(group_of(limited, leased(*range(1, 2 * BLOCKERS_MAX + 1))), limited)
    assert figures.blockers == tuple(range(1, BLOCKERS_MAX + 1))
    assert figures.leased == 2 * BLOCKERS_MAX


@pytest.mark.parametrize(
    ("limit", "by_time", "counted"), [(STRICT, False, 1), (NO_LIMIT, True, 1), (NO_LIMIT, False, None)]
)
def test_leases_of_a_group_are_unknown_where_nothing_depends_on_them(
    limit: int, by_time: bool, counted: int | None
) -> None:
    limited = read_groups(limit, TopicTurns(lambda: 0.0, {"ada": 5}, by_time=by_time))
    group = group_of(limited, leased(1))
    figures = figures_of(group, limited)
    assert (figures.leased, figures.weight, figures.head) == (counted, 5, None)
    group.heads = [key(2)]
    assert figures_of(group, limited).head == key(2)


def test_ranks_put_the_largest_or_the_oldest_first() -> None:
    by_size, by_age = map(rank_function, GroupOrder)
    groups = [(20, True, 6), (64, True, 5), (64, False, 9), (63, False, None), (1, False, 10)]
    assert sorted(groups, key=lambda each: by_size(*each), reverse=True) == groups
    assert sorted(groups, key=lambda each: by_age(*each), reverse=True) == [groups[at] for at in (4, 2, 0, 1, 3)]
