"""Budgets of peers: whose holding is taken away, and that nothing is counted twice or left."""

from __future__ import annotations

from random import Random

from foqs.runtime.peer_budget import PeerBudget


class Held:
    """A holding that records its eviction, and gives itself up once more, as a transport does when it is aborted."""

    def __init__(self, peer: str, budget: PeerBudget, evicted: list[Held] | None = None) -> None:
        self.peer = peer
        self.is_evicted = False
        self._budget = budget
        self._evicted = [] if evicted is None else evicted

    def on_evicted(self) -> None:
        self.is_evicted = True
        self._evicted.append(self)
        self._budget.hold(self, 0)


def test_the_peer_that_holds_most_loses_its_oldest_holding() -> None:
    budget = PeerBudget(100)
    greedy = [Held("greedy", budget) for _ in range(6)]
    modest = [Held("modest", budget) for _ in range(3)]
    for held in (modest[0], *greedy[:5], modest[1]):
        budget.hold(held, 14)
    assert budget.amount == 98
    budget.hold(modest[2], 14)
    budget.hold(greedy[5], 14)
    assert [held.is_evicted for held in greedy] == [True, True, False, False, False, False]
    assert not any(held.is_evicted for held in modest)
    assert budget.amount == 98


def test_a_holding_that_grows_keeps_its_age() -> None:
    budget = PeerBudget(100)
    old, new = Held("a", budget), Held("a", budget)
    budget.hold(old, 10)
    budget.hold(new, 10)
    budget.hold(old, 95)
    assert (old.is_evicted, new.is_evicted, budget.amount) == (True, False, 10)


def test_a_holding_above_the_limit_is_evicted_itself() -> None:
    budget = PeerBudget(100)
    huge = Held("a", budget)
    budget.hold(huge, 101)
    assert (huge.is_evicted, budget.amount) == (True, 0)


def test_a_large_holding_evicts_thousands_of_small_ones_oldest_first() -> None:
    budget = PeerBudget(2_000)
    evicted: list[Held] = []
    small = [Held("a", budget, evicted) for _ in range(2_000)]
    for held in small:
        budget.hold(held, 1)
    large = Held("a", budget)
    budget.hold(large, 2_000)
    assert evicted == small
    assert (large.is_evicted, budget.amount) == (False, 2_000)


def test_what_is_held_never_exceeds_the_limit_and_ends_at_nothing() -> None:
    rng = Random(2)
    budget = PeerBudget(1_000)
    amounts: dict[Held, int] = {}
    for _ in range(5_000):
        held = rng.choice([Held(rng.choice("abcd"), budget), *amounts])
        amounts[held] = rng.choice((0, rng.randrange(300)))
        budget.hold(held, amounts[held])
        amounts = {held: amount for held, amount in amounts.items() if amount and not held.is_evicted}
        assert budget.amount == sum(amounts.values()) <= 1_000
    for held in amounts:
        budget.hold(held, 0)
    assert budget.amount == 0
