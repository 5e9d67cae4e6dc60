"""Tests of the samples that say how well the order was kept."""

from __future__ import annotations

import pytest

from foqs.core.memory import order_samples
from foqs.core.memory.order_samples import NOTHING, SAMPLE_AGE_S_MAX, Displacement, OrderSamples, Quantiles

T = ("n", "t")


def test_quantiles_are_of_the_recent_samples_of_the_topic() -> None:
    samples = OrderSamples()
    assert samples.quantiles(T, 0.0) is None
    for items in range(100):
        samples.add(T, Displacement(items, 0, 10 * items), 0.0)
        samples.add(("n", "u"), Displacement(1_000, 1, 0), 0.0)
    assert samples.quantiles(T, 0.0) == Quantiles(49, 98, 490, 980)
    samples.add(T, Displacement(7, 0, 0), SAMPLE_AGE_S_MAX + 1)
    assert samples.quantiles(T, SAMPLE_AGE_S_MAX + 1) == Quantiles(7, 7, 0, 0)
    assert samples.quantiles(T, 3 * SAMPLE_AGE_S_MAX) is None


def test_samples_are_counted_by_what_was_better() -> None:
    samples = OrderSamples()
    for displacement in (NOTHING, NOTHING, Displacement(3, 0, 5), Displacement(4, 2, 50), Displacement(1, 1, 1)):
        samples.add(T, displacement, 0.0)
    assert (samples.count, samples.by_age_count, samples.by_priority_count, samples.items) == (5, 1, 2, 8)


def test_places_are_added_and_the_longest_wait_counts() -> None:
    assert Displacement(3, 1, 700).plus(Displacement(4, 0, 20)) == Displacement(7, 1, 700)


def test_topic_without_a_sample_for_the_longest_time_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_samples, "TOPICS_MAX", 2)
    samples = OrderSamples()
    for at_s, topic in enumerate("abac"):
        samples.add(("n", topic), NOTHING, at_s)
    assert [samples.quantiles(("n", topic), 4.0) is not None for topic in "abc"] == [True, False, True]
    assert len(samples) == 2
