"""Tests of the rates of topics."""

from __future__ import annotations

import pytest

from foqs.core.items.item import State
from foqs.core.memory.topic_rates import NO_RATES, TAU_S, TopicRates


def test_steady_work_has_its_rates_and_they_fall_when_it_ends() -> None:
    rates = TopicRates()
    for second in range(600):
        rates.on_items_ready({("n", "t", State.READY): 30, ("n", "t", State.LEASED): 10}, second)
        rates.on_items_acked({("n", "t", State.LEASED): 20}, second)
    now = rates.rates(("n", "t"), 599.5)
    assert now.ready == pytest.approx(40, rel=0.02)
    assert now.acked == pytest.approx(20, rel=0.02)
    later = rates.rates(("n", "t"), 599.5 + TAU_S)
    assert later.ready == pytest.approx(now.ready / 2.718, rel=0.01)
    [(topic, acked)] = rates.acked_rates(599.5 + TAU_S)
    assert topic == ("n", "t")
    assert acked == pytest.approx(later.acked)


@pytest.mark.parametrize("state", [State.DEFERRED, State.DEAD])
def test_items_that_cannot_be_delivered_are_not_ready(state: State) -> None:
    rates = TopicRates()
    rates.on_items_ready({("n", "t", state): 30}, 0)
    assert rates.rates(("n", "t"), 0) == NO_RATES
    assert len(rates) == 0


def test_topic_without_a_change_for_the_longest_time_is_dropped() -> None:
    rates = TopicRates(topics_max=2)
    for second, topic in enumerate(["a", "b", "a", "c"]):
        rates.on_items_acked({("n", topic, State.LEASED): 1}, second)
    assert [rates.acked_items(("n", topic)) for topic in "abc"] == [2, 0, 1]
    assert rates.acked_count == 4
    assert len(rates) == 2


def test_counts_of_all_topics_only_grow() -> None:
    rates = TopicRates(topics_max=1)
    rates.on_items_ready({("n", "a", State.READY): 3, ("n", "a", State.DEFERRED): 9}, 0)
    rates.on_items_ready({("n", "b", State.LEASED): 4}, 1)
    rates.on_items_acked({("n", "b", State.LEASED): 2}, 1)
    assert (rates.ready_count, rates.acked_count) == (7, 2)
