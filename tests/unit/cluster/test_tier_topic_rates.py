"""Tests of the rates of topics over the hosts of a tier."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.cluster.tier_topic_rates import REPORTED_TOPICS_MAX, TierTopicRates
from foqs.core.items.item import State
from foqs.core.memory.topic_rates import TAU_S, TopicRates
from foqs_contract.idl import ttypes

T = ("n", "t")


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.own = TopicRates()
        self.peers: list[Any] = ["one", "two"]
        self.tier = TierTopicRates(self.own, lambda: self.peers, lambda: self.now_s, period_s=1.0)


def rate(topic: str, ready: float | None, acked: float | None = 0.0) -> Any:
    return ttypes.TopicRate("n", topic, ready, acked)


def test_rates_of_all_hosts_are_added_and_the_last_report_counts() -> None:
    world = World()
    world.own.on_items_ready({(*T, State.READY): 60}, 0.0)
    world.tier.on_report(world.peers[0], [rate("t", 7.0, 5.0), rate("u", 1.0)])
    world.tier.on_report(world.peers[0], [rate("t", 3.0, 2.0)])
    world.tier.on_report(world.peers[1], [rate("t", 10.0, 0.5)])
    assert world.tier.rates(T) == pytest.approx((1.0 + 3.0 + 10.0, 2.5))
    assert world.tier.rates(("n", "u")) == (0.0, 0.0)
    assert world.tier.rates(("other", "t")) == (0.0, 0.0)


def test_report_of_a_silent_host_fades_and_that_of_a_host_that_left_is_gone() -> None:
    world = World()
    world.tier.on_report(world.peers[0], [rate("t", 8.0)])
    world.tier.on_report(world.peers[1], [rate("t", 2.0)])
    world.now_s = TAU_S
    assert world.tier.rates(T).ready == pytest.approx(10.0 / 2.718, rel=0.001)
    del world.peers[0]
    assert world.tier.rates(T).ready == pytest.approx(2.0 / 2.718, rel=0.001)
    world.tier.on_report(world.peers[0], [])
    assert world.tier.rates(T) == (0.0, 0.0)
    assert len(world.tier._reports) == 1


def test_host_reports_its_busiest_topics_once_a_period() -> None:
    world = World()
    for number in range(REPORTED_TOPICS_MAX + 20):
        world.own.on_items_ready({("n", f"t{number}", State.READY): number + 1}, 0.0)
    report = world.tier.report()
    assert len(report) == REPORTED_TOPICS_MAX
    assert [report[0].topic, report[-1].topic] == ["t119", "t20"]
    world.own.on_items_acked({("n", "late", State.LEASED): 10_000}, 0.0)
    assert world.tier.report() is report
    world.now_s = 0.6
    assert world.tier.report()[0].topic == "late"


def test_report_of_an_erring_host_does_no_harm() -> None:
    world = World()
    world.tier.on_report(world.peers[0], [rate("t", None, None), rate("u", -5.0, -1.0), ttypes.TopicRate()])
    assert world.tier.rates(T) == world.tier.rates(("n", "u")) == (0.0, 0.0)
    world.tier.on_report(world.peers[0], [rate("t", float("inf"), float("nan"))])
    assert world.tier.rates(T) == (0.0, 0.0)
    world.tier.on_report(world.peers[0], [rate(f"t{number}", 1.0) for number in range(10_000)])
    assert len(world.tier._reports[world.peers[0]][1]) == REPORTED_TOPICS_MAX


def test_total_of_the_peers_adds_all_topics_that_they_reported() -> None:
    world = World()
    assert world.tier.peers_total() == (0.0, 0.0)
    world.tier.on_report(world.peers[0], [rate("t", 7.0, 5.0), rate("u", 1.0, 0.5)])
    world.tier.on_report(world.peers[1], [rate("t", 2.0, 1.0)])
    assert world.tier.peers_total() == pytest.approx((10.0, 6.5))
    world.now_s = TAU_S
    assert world.tier.peers_total().ready == pytest.approx(10.0 / 2.718, rel=0.001)
    del world.peers[0]
    assert world.tier.peers_total().acked == pytest.approx(1.0 / 2.718, rel=0.001)


def test_the_busiest_topics_are_those_with_the_highest_rates_over_all_hosts() -> None:
    world = World()
    world.own.on_items_ready({("n", "own", State.READY): 300, ("n", "both", State.READY): 240}, 0.0)
    world.tier.on_report(world.peers[0], [rate("both", 2.5), rate("theirs", 4.0, 4.5), rate("idle", 0.0)])
    world.tier.on_report(world.peers[1], [rate("both", 2.0), rate("theirs", 1.0)])
    found = world.tier.busiest(10)
    assert {name: rates for (_, name), rates in found} == {
        "theirs": pytest.approx((5.0, 4.5)),
        "both": pytest.approx((8.5, 0.0)),
        "own": pytest.approx((5.0, 0.0)),
    }
    assert [name for (_, name), _ in world.tier.busiest(2)] == ["theirs", "both"]
    del world.peers[:]
    assert [name for (_, name), _ in world.tier.busiest(10)] == ["own", "both"]
