"""Budgets of peers: whose holding is taken away, and that nothing is counted twice or left."""

from __future__ import annotations

from random import Random

from foqs.runtime.peer_budget import PeerBudget


class Held:
    """A holding that records its eviction."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.is_evicted = False

    def on_evicted(self) -> None:
        self.is_evicted = True


def test_the_peer_that_holds_most_loses_its_oldest_holding() -> None:
    budget = PeerBudget(100)
    greedy = [Held("greedy") for _ in range(6)]
    modest = [Held("modest") for _ in range(3)]
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
    old, new = Held("a"), Held("a")
    budget.hold(old, 10)
    budget.hold(new, 10)
    budget.hold(old, 95)
    assert (old.is_evicted, new.is_evicted, budget.amount) == (True, False, 10)


def test_a_holding_above_the_limit_is_evicted_itself() -> None:
    budget = PeerBudget(100)
    huge = Held("a")
    budget.hold(huge, 101)
    assert (huge.is_evicted, budget.amount) == (True, 0)


def test_what_is_held_never_exceeds_the_limit_and_ends_at_nothing() -> None:
    rng = Random(2)
    budget = PeerBudget(1_000)
    amounts: dict[Held, int] = {}
    for _ in range(5_000):
        held = rng.choice([Held(rng.choice("abcd")), *amounts])
        amounts[held] = rng.choice((0, rng.randrange(300)))
        budget.hold(held, amounts[held])
        amounts = {held: amount for held, amount in amounts.items() if amount and not held.is_evicted}
        assert budget.amount == sum(amounts.values()) <= 1_000
    for held in amounts:
        budget.hold(held, 0)
    assert budget.amount == 0
