"""The points of the console's charts, and the forecast that follows from the rates."""

from __future__ import annotations

import pytest

from foqs.console.history import SLOT_S, SLOTS_MAX, TOPICS_MAX, CountRates, History, Point, Series, time_to_empty_s
from foqs.core.memory.topic_rates import Rates


def point(at_s: float, ready: int = 0) -> Point:
    return Point(at_s, ready, 0, 0, 0, 0.0, 0.0, 0.0)


def times(series: Series) -> list[float]:
    return [each.at_s for each in series.points]


def test_a_slot_has_its_newest_point() -> None:
    series = Series()
    for second in range(25):
        series.add(point(1_000 + second, second))
    assert times(series) == [1_009, 1_019, 1_024]
    assert series.last == point(1_024, 24)


def test_an_hour_of_points_is_kept() -> None:
    series = Series()
    for number in range(3 * SLOTS_MAX):
        series.add(point(number * SLOT_S))
    assert len(series.points) == SLOTS_MAX
    assert times(series)[0] == 2 * SLOTS_MAX * SLOT_S


def test_points_after_a_clock_that_went_back_are_dropped() -> None:
    series = Series()
    for at_s in (100, 110, 120, 130):
        series.add(point(at_s))
    series.add(point(112))
    assert times(series) == [100, 112]


def test_topics_that_were_looked_at_last_are_remembered() -> None:
    history = History()
    for number in range(TOPICS_MAX):
        history.topic(("n", f"t{number}")).add(point(number))
    history.topic(("n", "t0"))
    history.topic(("n", "new"))
    names = [name for (_, name), _ in history.topics()]
    assert len(names) == TOPICS_MAX
    assert "t0" in names
    assert "t1" not in names


def test_rates_are_those_of_the_last_seconds() -> None:
    rates = CountRates()
    assert rates.rates(500, 400, 100.0) == (0, 0)
    assert rates.rates(600, 410, 110.0) == (10, 1)
    assert rates.rates(600, 410, 115.0) == pytest.approx((100 / 15, 10 / 15))
    assert rates.rates(600, 410, 121.0) == (0, 0)
    # Two collections of one moment have no rate.
    assert CountRates().rates(1, 1, 5.0) == (0, 0)


@pytest.mark.parametrize(
    ("ready", "rates", "left_s"),
    [
        (0, Rates(5.0, 0.0), 0.0),
        (600, Rates(10.0, 20.0), 60.0),
        (600, Rates(20.0, 20.0), None),
        (600, Rates(20.0, 10.0), None),
        (10**12, Rates(0.0, 0.01), None),
    ],
)
def test_a_backlog_has_a_time_to_empty_only_if_it_shrinks(ready: int, rates: Rates, left_s: float | None) -> None:
    assert time_to_empty_s(ready, rates) == left_s
