"""The shares of topics in the memory for groups."""

from __future__ import annotations

import pytest

from foqs.core.groups.group_shares import GROUPS_MIN, GroupShares

WEIGHTS = {"heavy": 3}


def shares_of(units: dict[tuple[str, str], int], units_max: int = 120) -> GroupShares:
    shares = GroupShares(units_max, lambda namespace: WEIGHTS.get(namespace, 1))
    for topic, each in units.items():
        shares.set_units(topic, each)
    return shares


def test_topic_that_is_alone_may_take_all() -> None:
    shares = shares_of({("a", "t"): 100})
    assert shares.room(("a", "t")) == 120
    assert shares.large_topics() == []


def test_namespace_with_many_topics_takes_nothing_of_the_share_of_another() -> None:
    shares = shares_of({("greedy", f"t{number}"): 2 for number in range(60)})
    assert shares.room(("a", "t")) == 60
    shares.set_units(("a", "t"), 60)
    assert shares.room(("a", "t")) == 60
    assert shares.room(("greedy", "t0")) == GROUPS_MIN


def test_topics_of_a_namespace_have_equal_shares() -> None:
    shares = shares_of({("a", "t"): 110, ("a", "u"): 20})
    assert shares.room(("a", "u")) == 60
    assert shares.large_topics() == [("a", "t")]


def test_share_follows_the_weight_of_the_namespace() -> None:
    shares = shares_of({("heavy", "t"): 70, ("a", "t"): 70})
    assert shares.room(("heavy", "t")) == 90
    assert shares.room(("a", "t")) == 50
    assert shares.large_topics() == [("a", "t")]


def test_changed_weight_counts_when_it_is_followed() -> None:
    weights = {"a": 1, "b": 1}
    shares = GroupShares(120, weights.__getitem__)
    shares.set_units(("a", "t"), 70)
    shares.set_units(("b", "t"), 70)
    assert shares.room(("a", "t")) == 60
    weights["b"] = 2
    shares.follow_weights()
    assert shares.room(("a", "t")) == 50  # what the other one leaves
    shares.set_units(("b", "t"), 100)
    assert shares.room(("a", "t")) == 40


@pytest.mark.parametrize(("units", "has_freed"), [(0, True), (9, True), (10, False), (11, False)])
def test_memory_that_a_topic_gives_back_is_noted(units: int, has_freed: bool) -> None:
    shares = shares_of({("a", "t"): 10, ("b", "t"): 10})
    assert not shares.has_freed
    shares.set_units(("a", "t"), units)
    shares.set_units(("b", "t"), 12)
    assert shares.has_freed == has_freed


def test_topics_without_groups_in_memory_take_no_share() -> None:
    shares = shares_of({("a", "t"): 100, ("b", "t"): 30, ("c", "t"): 5})
    shares.set_units(("b", "t"), 0)
    shares.set_units(("c", "t"), 0)
    assert shares.room(("a", "t")) == 120
    assert shares.units == 100
