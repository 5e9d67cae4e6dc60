"""Tests of the number of consumers that a topic needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.limits.scaling import HOLD_RATE, ScaleTarget, TopicWork, wanted_consumers

TARGET = ScaleTarget(items_per_s=2.0, age_s=60.0)
COUNTS = st.integers(0, 10**9)
RATES = st.floats(0, 1e6)
TARGETS = st.builds(ScaleTarget, st.floats(0.001, 1e5), st.floats(0.1, 1e6), st.integers(0, 1_000))


@pytest.mark.parametrize(
    ("ready", "leased", "ready_per_s", "wanted"),
    [
        (0, 0, 0.0, 0),
        (0, 0, HOLD_RATE, 0),
        (0, 0, 2 * HOLD_RATE, 1),
        (1, 0, 0.0, 1),
        (0, 1, 0.0, 1),
        (600, 20, 20.0, 10),  # what waits is half of what may wait: those that keep up
        (1_200, 20, 20.0, 15),  # all of it: half again as many
        (0, 20, 20.0, 5),  # nothing waits: half of those that keep up
        (1_200, 0, 0.0, 10),  # a backlog alone, within the target age
        (3, 2, 1_000.0, 5),  # no more than there are items
    ],
)
def test_number_follows_the_backlog_and_the_rate(ready: int, leased: int, ready_per_s: float, wanted: int) -> None:
    assert wanted_consumers(TopicWork(ready, leased, ready_per_s), TARGET) == wanted


def test_busy_consumers_are_kept() -> None:
    assert wanted_consumers(TopicWork(0, 95, 0.0), ScaleTarget(2.0, 60.0, in_flight=10)) == 10
    assert wanted_consumers(TopicWork(0, 95, 0.0), TARGET) == 1


def test_items_that_their_groups_hold_back_want_no_consumer() -> None:
    assert wanted_consumers(TopicWork(6_000, 3, 20.0, 2), TARGET) == 5
    assert wanted_consumers(TopicWork(6_000, 3, 20.0, 0), TARGET) == 3
    assert wanted_consumers(TopicWork(6_000, 0, 20.0, 0), TARGET) == 1, "an item waits, so its backoff may end"
    assert wanted_consumers(TopicWork(6_000, 3, 20.0, 6_000), TARGET) == wanted_consumers(
        TopicWork(6_000, 3, 20.0), TARGET
    )


@given(COUNTS, COUNTS, RATES, TARGETS, COUNTS)
def test_number_is_within_its_bounds_and_grows_with_the_backlog(
    ready: int, leased: int, rate: float, target: ScaleTarget, deliverable: int
) -> None:
    wanted = wanted_consumers(TopicWork(ready, leased, rate), target)
    limited = wanted_consumers(TopicWork(ready, leased, rate, min(ready, deliverable)), target)
    assert min(1, ready + leased) <= limited <= wanted
    assert 0 <= wanted <= max(1, ready + leased)
    assert wanted >= min(1, ready + leased)
    assert wanted_consumers(TopicWork(ready + 1, leased, rate), target) >= wanted
