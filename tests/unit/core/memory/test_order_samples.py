"""Tests of the samples that say how well the order was kept."""

from __future__ import annotations

import pytest

from foqs.core.memory import order_samples
from foqs.core.memory.order_samples import NOTHING, SAMPLE_AGE_S_MAX, Displacement, OrderSamples, TopicOrder

T = ("n", "t")


def test_quantiles_are_of_the_recent_samples_of_the_topic() -> None:
    samples = OrderSamples()
    assert samples.of_topic(T, 0.0) is None
    for items in range(100):
        samples.add(T, Displacement(items, 0, 10 * items), 1, 0.0)
        samples.add(("n", "u"), Displacement(1_000, 1, 0), 1, 0.0)
    assert samples.of_topic(T, 0.0) == TopicOrder(49, 98, 490, 980, 0.99)
    samples.add(T, Displacement(7, 0, 0), 1, SAMPLE_AGE_S_MAX + 1)
    assert samples.of_topic(T, SAMPLE_AGE_S_MAX + 1) == TopicOrder(7, 7, 0, 0, 1.0)
    assert samples.of_topic(T, 3 * SAMPLE_AGE_S_MAX) is None


def test_sample_counts_for_the_deliveries_since_the_last_one() -> None:
    samples = OrderSamples()
    samples.add(T, NOTHING, 90, 0.0)
    samples.add(T, Displacement(3, 0, 5), 8, 0.0)
    samples.add(T, Displacement(4, 2, 50), 2, 0.0)
    assert (samples.count, samples.deliveries, samples.by_age, samples.by_priority) == (3, 100, 8, 2)
    assert (samples.items, samples.passed_over_ms) == (8 * 3 + 2 * 4, 8 * 5 + 2 * 50)
    assert samples.of_topic(T, 0.0) == TopicOrder(0, 4, 0, 50, 0.1)


def test_samples_are_counted_by_what_was_better() -> None:
    samples = OrderSamples()
    for displacement in (NOTHING, NOTHING, Displacement(3, 0, 5), Displacement(4, 2, 50), Displacement(1, 1, 1)):
        samples.add(T, displacement, 1, 0.0)
    assert (samples.count, samples.by_age, samples.by_priority, samples.items) == (5, 1, 2, 8)


def test_places_are_added_and_the_longest_wait_counts() -> None:
    assert Displacement(3, 1, 700).plus(Displacement(4, 0, 20)) == Displacement(7, 1, 700)


def test_topic_without_a_sample_for_the_longest_time_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_samples, "TOPICS_MAX", 2)
    samples = OrderSamples()
    for at_s, topic in enumerate("abac"):
        samples.add(("n", topic), NOTHING, 1, at_s)
    assert [samples.of_topic(("n", topic), 4.0) is not None for topic in "abc"] == [True, False, True]
    assert len(samples) == 2
