"""The turns of the groups of a fair topic: the rules of docs/design/groups.md, without memory and rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heappop, heappush
from random import Random
from typing import Final

import pytest

from foqs.core.groups.group import Group
from foqs.core.groups.group_debts import DEBTS_MAX, GroupDebts
from foqs.core.groups.host_turns import HostTurns
from foqs.core.groups.topic_turns import DEBT_TURNS_MAX, TURN, WEIGHT_MAX, TopicTurns
from foqs.core.items.item import TURN_MAX, pack_order_key, unpack_order_key, with_turn
from tests.support.plain_turns import PlainTurns, TurnAccount

EQUAL: Final = dict.fromkeys("abcdefgh", 1)
WEIGHTED: Final = {"a": 4, "b": 1, "c": 2, "d": 1}
STEPS: Final = 400


class PlainHost:
    """Groups whose items come and go at random, on shards that cannot always deliver. Items have one of two priorities."""

    def __init__(self, turns: PlainTurns, weights: Mapping[str, int], seed: int) -> None:
        self.turns = turns
        self.random = Random(seed)
        self.names = sorted(weights)
        self.account = TurnAccount(weights)
        self.waiting: dict[str, list[int]] = {name: [] for name in self.names}
        self.sizes = self.random.choice(((1,), (1, 1, 50)))
        self.blocked_shard = 0

    def available(self) -> dict[str, int]:
        """Return the groups that can be delivered from now, with the priority of their first item."""
        return {
            name: self.waiting[name][0]
            for at, name in enumerate(self.names)
            if self.waiting[name] and at % 3 != self.blocked_shard
        }

    def step(self) -> None:
        if self.random.random() < 0.05:
            self.blocked_shard = self.random.randrange(6)
        for _ in range(self.random.choice((0, 1, 1, 2))):
            name = self.random.choice(self.names)
            if not self.waiting[name]:
                self.turns.begin(name)
            self.waiting[name] += [self.random.choice((0, 0, 0, 0, -1))] * self.random.choice(self.sizes)
            self.waiting[name].sort()
        available = self.available()
        if available:
            best = min(available.values())
            name = self.turns.serve([each for each, priority in available.items() if priority == best])
            self.account.deliver(name, best, available)
            del self.waiting[name][0]
            if not self.waiting[name]:
                self.turns.end(name)
        self.account.follow(self.available())


def worst(make_turns: Callable[[Mapping[str, int]], PlainTurns], weights: Mapping[str, int], seed: int) -> float:
    host = PlainHost(make_turns(weights), weights, seed)
    for _ in range(STEPS):
        host.step()
    return float(host.account.most)


@pytest.mark.parametrize("weights", [EQUAL, WEIGHTED])
def test_each_other_group_is_delivered_from_at_most_twice_by_weight(weights: Mapping[str, int]) -> None:
    for seed in range(20):
        assert worst(PlainTurns, weights, seed) <= 1


class SavesTurns(PlainTurns):
    """The next turn follows the last one of the group, also if it was not served for long."""

    def begin(self, group: str) -> None:
        last = self.turn.get(group)
        super().begin(group)
        if last is not None:
            self.turn[group] = last + self.turn[group] - self.served


class BeginsFirst(PlainTurns):
    """A group that begins to wait comes before all others."""

    def serve(self, groups: Iterable[str]) -> str:
        group = super().serve(groups)
        self.turn[group] += 1
        return group

    def begin(self, group: str) -> None:
        self.turn[group] = self.served


class ServesByWait(PlainTurns):
    """The group that has waited longest is next, and weights are forgotten."""

    def begin(self, group: str) -> None:
        self.turn[group] = self.served + 1


@pytest.mark.parametrize(("mistake", "weights"), [(SavesTurns, EQUAL), (BeginsFirst, EQUAL), (ServesByWait, WEIGHTED)])
def test_planted_mistake_breaks_the_bound(mistake: type[PlainTurns], weights: Mapping[str, int]) -> None:
    assert any(worst(mistake, weights, seed) > 1 for seed in range(20))


def test_each_weight_is_met_within_one_percent() -> None:
    for weight in range(1, WEIGHT_MAX + 1):
        turns = TopicTurns(lambda: 0.0, {"a": weight})
        assert 1 <= TURN / turns.cost("a") / weight < 1.01


# ---------------------------------------------------------------------- by time


class Consumers:
    """Consumers that work on items of groups which always have some, one batch after the other."""

    def __init__(self, costs: Mapping[str, float], turns_type: type[TopicTurns] = TopicTurns, *, by_time: bool) -> None:
        self.now_s = 0.0
        self.turns = turns_type(lambda: self.now_s, {"heavy": 3}, by_time=by_time)
        self.costs = costs
        self.groups = {name: Group(name) for name in costs}
        self.held = dict.fromkeys(costs, 0.0)
        self.ends: list[tuple[float, int, str]] = []
        self.next_number = 0
        for group in self.groups.values():
            self.turns.add(group)
            self.turns.begin_wait(group)

    def deliver(self, names: Collection[str]) -> str:
        """Lease an item of one of these groups."""
        name = min(names, key=lambda each: (self.groups[each].turn, each))
        group = self.groups[name]
        self.turns.serve(group)
        self.next_number += 1
        group.leased.append(self.next_number)
        self.turns.account(group)
        return name

    def end(self, name: str, lease_s: float) -> None:
        self.held[name] += lease_s
        self.groups[name].leased.pop()
        self.turns.account(self.groups[name])

    def work(self, until_s: float, consumers: int = 4, batch: int = 1) -> dict[str, float]:
        """Return how long each group has held leases."""
        idle = consumers
        while self.now_s < until_s:
            for _ in range(idle):
                taken = [self.deliver(self.costs) for _ in range(batch)]
                at_s = self.now_s
                for place, name in enumerate(taken):
                    at_s += self.costs[name]
                    heappush(self.ends, (at_s, (place - batch + 1) * 10**9 + self.next_number, name))
            began_s = self.now_s
            self.now_s, order, name = heappop(self.ends)
            idle = 1 if order > 0 else 0
            self.end(name, self.costs[name])
            assert self.now_s >= began_s
        return self.held


COSTS: Final = {"slow": 10.0, "quick": 1.0, "quicker": 0.5}


def spread(held: Mapping[str, float]) -> float:
    return max(held.values()) / min(held.values())


@pytest.mark.parametrize("consumers", [1, 4])
def test_groups_hold_leases_for_equal_times(consumers: int) -> None:
    assert spread(Consumers(COSTS, by_time=True).work(1_500.0, consumers)) < 1.35


@pytest.mark.parametrize("lease_s", [0.01, 1.0, 60.0, 600.0])
@pytest.mark.parametrize(("groups", "consumers"), [(20, 10), (5, 10), (2, 10)])
def test_equal_leases_give_equal_turns_from_the_first_one_on(lease_s: float, groups: int, consumers: int) -> None:
    held = Consumers({f"g{n}": lease_s for n in range(groups)}, by_time=True).work(
        lease_s * 40 * groups / consumers, consumers
    )
    counts = [round(each / lease_s) for each in held.values()]
    assert max(counts) - min(counts) <= 8, counts


@pytest.mark.parametrize("lease_s", [30.0, 100.0])
def test_group_whose_leases_take_a_hundred_times_longer_has_no_more_of_the_time(lease_s: float) -> None:
    held = Consumers({"long": lease_s, "a": 1.0, "b": 1.0, "c": 1.0}, by_time=True).work(10_000.0)
    assert 0.22 < held["long"] / sum(held.values()) < 0.28


@pytest.mark.parametrize("lease_s", [0.005, 0.01, 0.1])
def test_group_that_comes_when_the_first_leases_were_short_waits_for_few_of_them(lease_s: float) -> None:
    consumers = Consumers({"first": lease_s, "late": lease_s}, by_time=True)
    taken = 0
    while consumers.deliver(consumers.costs) == "first":
        taken += 1
        consumers.now_s += lease_s
        consumers.end("first", lease_s)
    assert taken <= 8


def test_turns_by_items_give_a_slow_group_most_of_the_time() -> None:
    held = Consumers(COSTS, by_time=False).work(1_000.0)
    assert held["slow"] / held["quick"] > 5


def test_weight_counts_by_time() -> None:
    held = Consumers({"heavy": 2.0, "light": 1.0}, by_time=True).work(1_000.0)
    assert 2.5 < held["heavy"] / held["light"] < 3.5


class ChargesNothingAhead(TopicTurns):
    """A lease is charged when it has ended, so a group may take all consumers first."""

    def cost(self, name: str) -> int:
        return 0


def test_group_that_has_just_begun_does_not_take_all_consumers() -> None:
    """All others have charged no lease yet, too: 40 consumers come at once."""
    for turns_type, most in ((TopicTurns, 20), (ChargesNothingAhead, 40)):
        consumers = Consumers({"a": 10.0, "b": 10.0}, turns_type, by_time=True)
        assert max([consumers.deliver(consumers.costs) for _ in range(40)].count(name) for name in "ab") == most


def test_group_in_debt_waits_for_a_bounded_number_of_turns() -> None:
    consumers = Consumers({"hour": 3_600.0, "other": 1.0}, by_time=True)
    assert consumers.deliver(["hour"]) == "hour"
    consumers.now_s = 3_600.0
    consumers.end("hour", 3_600.0)
    consumers.turns._leased_s, consumers.turns._ended_leases = 1.0, 1.0
    turns = consumers.turns
    assert consumers.groups["hour"].turn <= turns.served + DEBT_TURNS_MAX * TURN
    waited = 0
    while consumers.deliver(consumers.costs) == "other":
        waited += 1
        consumers.now_s += 1.0
        consumers.end("other", 1.0)
    assert 0 < waited <= 2 * DEBT_TURNS_MAX + 2


def test_end_of_a_lease_that_was_no_delivery_gives_no_turn_back() -> None:
    """It was read after a takeover, or extended when it had ended."""
    consumers = Consumers({"a": 1.0, "b": 1.0}, by_time=True)
    turns, group = consumers.turns, consumers.groups["a"]
    before = group.turn
    group.leased += range(100, 120)
    turns.account(group)
    group.leased.clear()
    turns.account(group)
    assert group.turn == before
    assert consumers.deliver(["a"]) == "a"
    ahead = group.turn
    group.leased += range(100, 120)
    turns.account(group)
    group.leased.clear()
    turns.account(group)
    assert group.turn == ahead - TURN, "one of them was delivered"


def test_debt_of_a_group_without_items_is_remembered_while_it_is_one() -> None:
    consumers = Consumers({"a": 1.0, "b": 1.0}, by_time=True)
    turns, group = consumers.turns, consumers.groups["a"]
    group.turn = turns.served + 9 * TURN
    turns.remove(group)
    again = Group("a")
    turns.add(again)
    turns.begin_wait(again)
    assert again.turn == 9 * TURN
    turns.remove(again)
    turns.served = 20 * TURN
    last = Group("a")
    turns.add(last)
    turns.begin_wait(last)
    assert last.turn == 21 * TURN


def leave_in_debt(turns: TopicTurns, name: str) -> None:
    group = Group(name)
    group.turn = turns.served + 9 * TURN
    turns.remove(group)


def turn_of_new(turns: TopicTurns, name: str) -> int:
    group = Group(name)
    turns.add(group)
    return group.turn


def test_debts_that_a_host_remembers_are_bounded() -> None:
    host = HostTurns(lambda: 0.0, lambda _: 1)
    one, two = [host.of(("n", name), {}, by_time=True) for name in ("one", "two")]
    for number in range(DEBTS_MAX + 4):
        leave_in_debt((one, two)[number % 2], f"group {number}")
    assert len(host._debts) == DEBTS_MAX
    assert turn_of_new(one, "group 0") == 0, "the oldest is forgotten"
    assert turn_of_new(one, "group 5") == 0, "it is a group of the other topic"
    assert turn_of_new(two, "group 5") == 9 * TURN


def test_debts_that_are_over_are_forgotten() -> None:
    debts = GroupDebts(lambda _: 1)
    turns = TopicTurns(lambda: 0.0, by_time=True, debts=debts.of_topic("n"))
    for number in range(5):
        leave_in_debt(turns, f"group {number}")
    turns.served += (DEBT_TURNS_MAX + 1) * TURN
    turns.remove(Group("another"))
    assert not debts
    leave_in_debt(turns, "late")
    turns.served += TURN
    turns.remove(Group("another"))
    assert turn_of_new(turns, "late") == turns.served + 8 * TURN


def test_turns_that_are_counted_again_know_no_former_debt() -> None:
    host = HostTurns(lambda: 0.0, lambda _: 1)
    for by_time in (True, False, True):
        turns = host.of(("n", "t"), {}, by_time=by_time)
        assert turn_of_new(turns, "a") == 0
        leave_in_debt(turns, "a")


def test_clock_that_stands_still_or_jumps_ahead_moves_a_turn_by_its_bound_at_most() -> None:
    consumers = Consumers({"a": 1.0, "b": 1.0}, by_time=True)
    consumers.deliver(["a"])
    consumers.now_s = 1e9  # the machine was suspended
    consumers.turns.account(consumers.groups["a"])
    assert consumers.groups["a"].turn <= consumers.turns.served + DEBT_TURNS_MAX * TURN


# -------------------------------------------------------------------------- keys


@pytest.mark.parametrize("turn", [0, 1, 5 * TURN, TURN_MAX])
def test_turn_in_a_key_leaves_priority_and_number(turn: int) -> None:
    for priority in (-(1 << 31), -1, 0, (1 << 31) - 1):
        key = with_turn(pack_order_key(priority, 1_700_000_000_000, 77), turn)
        assert unpack_order_key(key) == (priority, turn, 77)


def test_turns_end_at_the_highest_that_a_key_holds() -> None:
    turns, group = TopicTurns(lambda: 0.0), Group("a")
    turns.served = group.turn = TURN_MAX
    turns.serve(group)
    turns.begin_wait(group)
    assert group.turn == TURN_MAX
