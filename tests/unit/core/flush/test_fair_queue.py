"""Whose turn it is: parts by weight, nobody starved, nothing gained by idling or trickling."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.flush.fair_queue import FairQueue, FairScheduler

NAMES = "abc"


def queue_of(**weights: int) -> FairQueue[str]:
    return FairQueue(lambda name: weights.get(name, 1))


def test_things_of_one_namespace_come_in_their_order() -> None:
    queue = queue_of()
    for thing in "xyz":
        queue.push("a", 5, thing)
    assert len(queue) == 3
    assert [queue.pop() for _ in range(3)] == ["x", "y", "z"]
    assert len(queue) == 0


def test_equal_namespaces_take_turns() -> None:
    queue = queue_of()
    for name in "aaabbb":
        queue.push(name, 1, name)
    assert [queue.pop() for _ in range(6)] == list("ababab")


def test_a_namespace_of_twice_the_weight_gets_twice_as_much() -> None:
    queue = queue_of(a=2)
    for name in "a" * 60 + "b" * 60:
        queue.push(name, 1, name)
    first = [queue.pop() for _ in range(60)]
    assert first.count("a") == 40


def test_a_namespace_whose_things_cost_more_gets_fewer() -> None:
    queue = queue_of()
    for _ in range(100):
        queue.push("a", 4, "a")
        queue.push("b", 1, "b")
    first = [queue.pop() for _ in range(100)]
    assert first.count("a") == 20


def test_the_first_thing_of_a_quiet_namespace_is_next_but_one_at_most() -> None:
    queue = queue_of(a=100)
    for _ in range(1_000):
        queue.push("a", 50, "a")
    for _ in range(10):
        queue.pop()
    queue.push("b", 50, "b")
    assert "b" in [queue.pop(), queue.pop()]


def test_one_that_comes_with_single_things_gets_no_more_than_its_part() -> None:
    queue = queue_of()
    for _ in range(100):
        queue.push("a", 1, "a")
    queue.push("b", 1, "b")
    served = []
    for _ in range(100):
        served.append(queue.pop())
        if served[-1] == "b":
            queue.push("b", 1, "b")
    assert 49 <= served.count("a") <= 51


def test_what_was_not_used_while_idle_is_not_saved_up() -> None:
    queue = queue_of()
    for _ in range(300):
        queue.push("a", 1, "a")
    for _ in range(100):
        queue.pop()
    for _ in range(100):
        queue.push("b", 1, "b")
    served = [queue.pop() for _ in range(100)]
    assert 49 <= served.count("a") <= 51


def test_what_was_taken_while_alone_is_not_owed() -> None:
    queue = queue_of()
    queue.push("a", 1_000, "a")
    queue.push("a", 1, "a")
    queue.pop()
    for _ in range(10):
        queue.push("b", 1, "b")
    assert sorted([queue.pop(), queue.pop()]) == ["a", "b"]


def test_a_newcomer_does_not_wait_for_what_another_took_before() -> None:
    queue = queue_of()
    for _ in range(2):
        queue.push("a", 100, "a")
    for _ in range(50):
        queue.push("b", 1, "b")
    assert queue.pop() == "a"
    queue.push("c", 1, "c")
    assert [queue.pop(), queue.pop()] == ["b", "c"]


def test_nothing_is_owed_after_everything_was_served() -> None:
    queue = queue_of()
    queue.push("a", 1_000, "a")
    queue.push("b", 1, "b")
    while queue:
        queue.pop()
    queue.push("a", 1, "a")
    queue.push("b", 1, "b")
    assert [queue.pop(), queue.pop()] == ["a", "b"]


def test_drain_returns_everything_and_forgets_it() -> None:
    queue = queue_of()
    for name in "abcab":
        queue.push(name, 1, name)
    queue.pop()
    assert sorted(queue.drain()) == ["a", "b", "b", "c"]
    assert len(queue) == 0
    assert queue.drain() == []
    queue.push("b", 1, "again")
    assert queue.pop() == "again"


def test_there_is_nothing_to_pop_from_an_empty_queue() -> None:
    with pytest.raises(IndexError):
        queue_of().pop()


def test_a_name_that_runs_dry_is_forgotten_when_its_turn_comes() -> None:
    turns = FairScheduler(lambda _: 1)
    for name in NAMES:
        turns.add(name)
        turns.add(name)
    assert len(turns) == 3
    assert turns.first() == "a"
    turns.charge(1)
    assert turns.first() == "b"
    turns.remove_first()
    assert turns.first() == "c"
    turns.remove_first()
    assert (len(turns), turns.first()) == (1, "a")
    turns.add("b")
    assert turns.first() == "b"
    turns.clear()
    assert len(turns) == 0


def test_a_newcomer_starts_where_the_forgotten_one_was() -> None:
    turns = FairScheduler(lambda _: 1)
    turns.add("a")
    turns.add("b")
    turns.charge(4)
    turns.charge(6)
    assert turns.first() == "a"
    turns.remove_first()
    turns.add("c")
    assert turns.first() == "c"
    turns.charge(3)
    assert turns.first() == "b"


@given(
    st.lists(st.one_of(st.none(), st.tuples(st.sampled_from(NAMES), st.integers(1, 20))), max_size=60),
    st.tuples(*[st.integers(1, 5)] * 3),
)
def test_nobody_who_waits_gets_less_than_another_by_more_than_one_thing_each(
    steps: list[tuple[str, int] | None], weights: tuple[int, int, int]
) -> None:
    """The bound of start-time fair queueing, over every interval in which the one waits, whatever the other does.

    A step is a push, or None: a pop.
    """
    weight = dict(zip(NAMES, weights, strict=True))
    queue: FairQueue[tuple[str, int, int]] = FairQueue(weight.__getitem__)
    waiting = dict.fromkeys(NAMES, 0)
    pushed = dict.fromkeys(NAMES, 0)
    popped = dict.fromkeys(NAMES, 0)
    got = dict.fromkeys(NAMES, 0.0)
    behind: dict[tuple[str, str], float] = {}
    """By (who waits, another): the least of (other's part less its own) since it waits."""
    for step in steps + [None] * len(steps):
        if step is not None:
            name, cost = step
            queue.push(name, cost, (name, cost, pushed[name]))
            pushed[name] += 1
            waiting[name] += 1
        elif queue:
            name, cost, place = queue.pop()
            assert place == popped[name]
            popped[name] += 1
            waiting[name] -= 1
            got[name] += cost / weight[name]
        assert len(queue) == sum(waiting.values())
        for one, other in product(NAMES, NAMES):
            ahead = got[other] - got[one]
            if not waiting[one]:
                behind.pop((one, other), None)
            else:
                least = behind[one, other] = min(behind.get((one, other), ahead), ahead)
                assert ahead - least <= 20 / weight[one] + 20 / weight[other] + 1e-9
    assert popped == pushed
