"""The debts of groups that a host remembers: their bound, and the share of each namespace."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final

import pytest

from foqs.core.groups import group_debts
from foqs.core.groups.group_debts import GroupDebts, TopicDebts

MAX: Final = 12


@pytest.fixture(autouse=True)
def few_debts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_debts, "DEBTS_MAX", MAX)


def weighted(weights: Mapping[str, int]) -> GroupDebts:
    return GroupDebts(lambda name: weights.get(name, 1))


def add(topic: TopicDebts, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        topic.remember(f"group {number}", number + 1)


def left(topic: TopicDebts, count: int = 100) -> list[int]:
    """Return which of the first groups still have a debt, and forget these."""
    return [number for number in range(count) if topic.take_turn(f"group {number}") == number + 1]


def test_namespace_alone_uses_what_there_is_and_forgets_its_oldest() -> None:
    debts = weighted({})
    one, two = debts.of_topic("a"), debts.of_topic("a")
    add(one, 5)
    add(two, 9)
    assert len(debts) == MAX
    assert left(one) == [2, 3, 4]
    assert left(two) == [*range(9)]
    assert not debts


def test_namespace_with_many_debts_pushes_out_none_of_another() -> None:
    debts = weighted({})
    small, large = debts.of_topic("small"), debts.of_topic("large")
    add(small, 6)
    add(large, 50)
    assert left(small) == [*range(6)]
    assert left(large) == [*range(44, 50)]


def test_namespace_gets_its_share_of_one_that_took_all() -> None:
    debts = weighted({})
    large, small, third = (debts.of_topic(name) for name in ("large", "small", "third"))
    add(large, 12)
    add(small, 4)
    add(third, 4)
    assert [len(left(topic)) for topic in (small, third)] == [4, 4]
    assert left(large) == [8, 9, 10, 11]


def test_shares_follow_the_weights() -> None:
    weights = {"a": 1, "b": 3}
    debts = weighted(weights)
    one, two = debts.of_topic("a"), debts.of_topic("b")
    add(one, 20)
    add(two, 20)
    weights["a"] = 3
    add(one, 3, first=20)
    assert (left(one), left(two)) == ([17, 18, 19, 20, 21, 22], [*range(14, 20)])


def test_namespace_whose_debts_are_over_counts_no_more() -> None:
    debts = weighted({})
    one, two, three = (debts.of_topic(name) for name in ("a", "b", "c"))
    add(one, 3)
    one.forget_passed(2)
    assert left(one) == [2]
    add(two, 4)
    two.forget_passed(3)
    assert len(debts) == 1
    add(three, 40)
    assert left(two) == [3]
    add(three, 40)
    assert len(left(three)) == MAX, "the others have none any more"


@pytest.mark.parametrize("seed", range(20))
def test_namespace_within_its_share_loses_nothing(seed: int) -> None:
    random = Random(seed)
    weights = {name: random.randint(1, 4) for name in "abc"}
    debts = weighted(weights)
    topics = {name: [debts.of_topic(name), debts.of_topic(name)] for name in weights}
    own: dict[str, int] = dict.fromkeys(weights, 0)
    share = {name: MAX * weight // sum(weights.values()) for name, weight in weights.items()}
    careful = random.choice("abc")
    held: list[tuple[TopicDebts, str, int]] = []
    for step in range(1, 400):
        name = random.choice("abc")
        topic = random.choice(topics[name])
        if name == careful and held and (len(held) == share[name] or random.random() < 0.3):
            found, group, turn = held.pop(random.randrange(len(held)))
            assert found.take_turn(group) == turn
        elif name != careful or share[name]:
            topic.remember(f"group {step}", step)
            own[name] += 1
            if name == careful:
                held.append((topic, f"group {step}", step))
        assert len(debts) <= MAX
    assert all(topic.take_turn(group) == turn for topic, group, turn in held)
