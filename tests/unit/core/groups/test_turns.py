"""Groups of a fair topic take turns, over shards and hosts, by items or by the time of their leases.

The rule of docs/design/groups.md in its plainest form. A turn is a moment: the group that waited longest since its last
turn is next. So turns of shards and hosts compare without a clock of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from random import Random
from typing import Final

import pytest

DEBT_TURNS_MAX: Final = 16
"""A group waits for at most this many of its turns because of the time that it took."""
TICK: Final = 1 / 64


class Turns:
    """The turns of the groups of one topic. `cost` is what a delivery is expected to take of a group's credit."""

    def __init__(self, weights: Mapping[str, int], quantum: float = 1.0) -> None:
        self.weights = weights
        self.quantum = quantum
        self.turn: dict[str, float] = {}
        self.credit: dict[str, float] = {}
        self.last_turn = 0.0

    def begin(self, group: str, now: float) -> None:
        """A group gets its first waiting item."""
        self.turn[group] = now
        self.credit[group] = self.quantum * self.weights[group]

    def next_group(self, now: float) -> str:
        """Return the group whose turn it is. One that is in debt passes its turn."""
        while True:
            group = min(self.turn, key=lambda each: (self.turn[each], each))
            if self.credit[group] > 0:
                return group
            self.end_turn(group, now)

    def deliver(self, group: str, cost: float, now: float) -> None:
        self.charge(group, cost)
        if self.credit[group] <= 0:
            self.end_turn(group, now)

    def charge(self, group: str, cost: float) -> None:
        share = self.quantum * self.weights[group]
        self.credit[group] = min(share, max(self.credit[group] - cost, -DEBT_TURNS_MAX * share))

    def end_turn(self, group: str, now: float) -> None:
        """Go behind all others, also behind those whose turns ended at the same moment."""
        self.turn[group] = self.last_turn = max(now, self.last_turn + TICK)
        self.credit[group] += self.quantum * self.weights[group]


def waits(choose: Callable[[Random, float, dict[str, int]], str], weights: Mapping[str, int], seed: int) -> float:
    """Deliver from groups that fill at random. Return the most deliveries of one other group in a wait, by its weight."""
    random, waiting, worst = Random(seed), dict.fromkeys(weights, 0), 0.0
    since: dict[str, Counter[str]] = {}
    for step in range(2_000):
        for _ in range(random.choice((0, 1, 1, 2))):
            group = random.choice(sorted(weights))
            waiting[group] += random.choice((1, 1, 50))
        if any(waiting.values()):
            for group, count in waiting.items():
                if count and group not in since:
                    since[group] = Counter()
            group = choose(random, float(step), waiting)
            waiting[group] -= 1
            since.pop(group)
            for others in since.values():
                others[group] += 1
            worst = max([worst, *(others[group] / weights[group] for others in since.values())])
    return worst


def one_line(weights: Mapping[str, int], clock_difference: float) -> Callable[[Random, float, dict[str, int]], str]:
    """Half of the groups are on each of two hosts, whose clocks differ. The older turn is next."""
    hosts = (Turns(weights), Turns(weights))
    home = {group: at % 2 for at, group in enumerate(sorted(weights))}

    def choose(random: Random, now: float, waiting: dict[str, int]) -> str:
        clocks = (now, now + clock_difference)
        for group, count in waiting.items():
            if count and group not in hosts[home[group]].turn:
                hosts[home[group]].begin(group, clocks[home[group]])
        best = [(host, host.next_group(clock)) for host, clock in zip(hosts, clocks, strict=True) if host.turn]
        host, group = min(best, key=lambda each: each[0].turn[each[1]])
        host.deliver(group, 1, clocks[home[group]])
        if waiting[group] == 1:
            del host.turn[group]
        return group

    return choose


def by_count(weights: Mapping[str, int]) -> Callable[[Random, float, dict[str, int]], str]:
    """Planted: the turn of a group is the number of its deliveries, which shards do not share."""
    served = Counter(dict.fromkeys(weights, 0))

    def choose(random: Random, now: float, waiting: dict[str, int]) -> str:
        group = min((each for each, count in waiting.items() if count), key=lambda each: (served[each], each))
        served[group] += 1
        return group

    return choose


EQUAL = dict.fromkeys("abcdefgh", 1)
WEIGHTED = {"a": 4, "b": 1, "c": 2, "d": 1}


@pytest.mark.parametrize("weights", [EQUAL, WEIGHTED])
@pytest.mark.parametrize("clock_difference", [0.0, 0.5])
def test_each_other_group_is_delivered_from_at_most_twice_by_weight(
    weights: Mapping[str, int], clock_difference: float
) -> None:
    for seed in range(20):
        assert waits(one_line(weights, clock_difference), weights, seed) <= 2


def test_counted_turns_let_a_group_that_begins_again_starve_others() -> None:
    assert any(waits(by_count(EQUAL), EQUAL, seed) > 2 for seed in range(20))


def held_time(quantum: float, costs: Mapping[str, float], *, by_time: bool) -> dict[str, float]:
    """Let four consumers work on groups with much to do. Return the time that each group held leases."""
    turns = Turns(dict.fromkeys(costs, 1), quantum)
    mean, held = dict.fromkeys(costs, quantum), dict.fromkeys(costs, 0.0)
    ends: list[tuple[float, str, float]] = []
    now = 0.0
    for group in costs:
        turns.begin(group, now)
    while now < 5_000:
        while len(ends) < 4:
            group = turns.next_group(now)
            expected = mean[group] if by_time else quantum
            turns.deliver(group, expected, now)
            heappush(ends, (now + costs[group], group, expected))
        now, group, expected = heappop(ends)
        held[group] += costs[group]
        mean[group] += (costs[group] - mean[group]) / 8
        if by_time:
            turns.charge(group, costs[group] - expected)
    return held


def test_groups_hold_leases_for_equal_times() -> None:
    held = held_time(2.0, {"slow": 10.0, "quick": 1.0, "quicker": 0.5}, by_time=True)
    assert max(held.values()) / min(held.values()) < 1.1


def test_turns_by_items_give_a_slow_group_most_of_the_time() -> None:
    held = held_time(2.0, {"slow": 10.0, "quick": 1.0, "quicker": 0.5}, by_time=False)
    assert held["slow"] / held["quick"] > 5
