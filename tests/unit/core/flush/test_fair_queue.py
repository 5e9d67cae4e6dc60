"""The fair queue: service by weight, no starvation, nothing gained by idling or trickling."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.flush.fair_queue import FairQueue, FairScheduler

NAMES = "abc"


def queue_of(**weights: int) -> FairQueue[str]:
    return FairQueue(lambda name: weights.get(name, 1))


def test_a_namespace_of_twice_the_weight_gets_twice_as_much() -> None:
    queue = queue_of(a=2)
    for name in "a" * 60 + "b" * 60:
        queue.push(name, 1, name)
    first = [queue.pop() for _ in range(60)]
    assert first.count("a") == 40


def test_the_first_entry_of_an_idle_namespace_is_the_second_next_at_most() -> None:
    queue = queue_of(a=100)
    for _ in range(1_000):
        queue.push("a", 50, "a")
    for _ in range(10):
        queue.pop()
    queue.push("b", 50, "b")
    assert "b" in [queue.pop(), queue.pop()]


def test_a_namespace_that_adds_single_entries_gets_no_more_than_its_part() -> None:
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


def test_idle_time_earns_no_credit() -> None:
    queue = queue_of()
    for _ in range(300):
        queue.push("a", 1, "a")
    for _ in range(100):
        queue.pop()
    for _ in range(100):
        queue.push("b", 1, "b")
    served = [queue.pop() for _ in range(100)]
    assert 49 <= served.count("a") <= 51


def test_service_while_alone_is_not_charged_later() -> None:
    queue = queue_of()
    queue.push("a", 1_000, "a")
    queue.push("a", 1, "a")
    queue.pop()
    for _ in range(10):
        queue.push("b", 1, "b")
    assert sorted([queue.pop(), queue.pop()]) == ["a", "b"]


def test_a_new_namespace_does_not_wait_because_another_was_served_before() -> None:
    queue = queue_of()
    for _ in range(2):
        queue.push("a", 100, "a")
    for _ in range(50):
        queue.push("b", 1, "b")
    assert queue.pop() == "a"
    queue.push("c", 1, "c")
    assert [queue.pop(), queue.pop()] == ["b", "c"]


def test_an_empty_queue_forgets_past_service() -> None:
    queue = queue_of()
    queue.push("a", 1_000, "a")
    queue.push("b", 1, "b")
    while queue:
        queue.pop()
    queue.push("a", 1, "a")
    queue.push("b", 1, "b")
    assert [queue.pop(), queue.pop()] == ["a", "b"]


def test_drain_removes_and_returns_all_entries() -> None:
    queue = queue_of()
    for name in "abcab":
        queue.push(name, 1, name)
    queue.pop()
    assert sorted(queue.remove_all()) == ["a", "b", "b", "c"]
    assert len(queue) == 0
    assert queue.remove_all() == []
    queue.push("b", 1, "again")
    assert queue.pop() == "again"


def test_a_name_without_work_is_removed_at_its_turn() -> None:
    scheduler = FairScheduler(lambda _: 1)
    for name in NAMES:
        scheduler.add(name)
        scheduler.add(name)
    assert len(scheduler) == 3
    assert scheduler.first() == "a"
    scheduler.charge(1)
    assert scheduler.first() == "b"
    scheduler.remove_first()
    assert scheduler.first() == "c"
    scheduler.remove_first()
    assert (len(scheduler), bool(scheduler), scheduler.first()) == (1, True, "a")
    scheduler.add("b")
    assert scheduler.first() == "b"
    scheduler.clear()
    assert not scheduler


def test_names_with_equal_tags_are_served_in_the_order_in_which_they_came() -> None:
    scheduler = FairScheduler(lambda _: 1)
    for name in "bca":
        scheduler.add(name)
    served = []
    for _ in range(6):
        served.append(scheduler.first())
        scheduler.charge(1)
    assert served == list("bcabca")


@given(
    st.lists(st.one_of(st.none(), st.tuples(st.sampled_from(NAMES), st.integers(1, 20))), max_size=60),
    st.tuples(*[st.integers(1, 5)] * 3),
)
def test_a_waiting_name_is_behind_another_by_at_most_one_entry_each(
    steps: list[tuple[str, int] | None], weights: tuple[int, int, int]
) -> None:
    """This is the bound of start-time fair queueing, for every interval in which the name waits.

    A step is a push, or None for a pop.
    """
    weight = dict(zip(NAMES, weights, strict=True))
    queue: FairQueue[tuple[str, int, int]] = FairQueue(weight.__getitem__)
    waiting = dict.fromkeys(NAMES, 0)
    pushed = dict.fromkeys(NAMES, 0)
    popped = dict.fromkeys(NAMES, 0)
    served = dict.fromkeys(NAMES, 0.0)
    ahead_min: dict[tuple[str, str], float] = {}
    """By (waiting name, other name): the minimum, since it waits, of the other's service minus its own."""
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
            served[name] += cost / weight[name]
        assert len(queue) == sum(waiting.values())
        for one, other in product(NAMES, NAMES):
            ahead = served[other] - served[one]
            if not waiting[one]:
                ahead_min.pop((one, other), None)
            else:
                least = ahead_min[one, other] = min(ahead_min.get((one, other), ahead), ahead)
                assert ahead - least <= 20 / weight[one] + 20 / weight[other] + 1e-9
    assert popped == pushed
