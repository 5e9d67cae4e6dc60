"""The measures of fairness, on records whose figures can be seen."""

from __future__ import annotations

import pytest

from perf.lib.fairness import Served, percentiles, spread, waits


def test_tenants_in_turn_are_not_apart_and_tenants_one_after_the_other_are() -> None:
    in_turn = [Served(name, 0.0, float(moment)) for moment in range(10) for name in "ab"]
    assert spread(in_turn) == {"head_mean_sd_s": 0, "head_p90_sd_s": 0, "mean_sd_s": 0, "p90_sd_s": 0}
    one_by_one = [Served("ab"[moment // 10], 0.0, float(moment)) for moment in range(20)]
    assert spread(one_by_one) == {"head_mean_sd_s": 5, "head_p90_sd_s": 5, "mean_sd_s": 5, "p90_sd_s": 5}


def test_the_head_of_a_tenant_is_as_long_as_the_smallest_tenant() -> None:
    served = [Served("small", 0.0, 1.0), *(Served("large", 0.0, float(moment)) for moment in range(1, 100))]
    found = spread(served)
    assert (found["head_mean_sd_s"], found["head_p90_sd_s"]) == (0, 0)
    assert found["mean_sd_s"] == pytest.approx(24.5)


def test_waits_are_in_the_order_of_delivery_whatever_the_order_of_the_records() -> None:
    assert waits([Served("a", 1.0, 5.0), Served("a", 1.0, 2.0)]) == {"a": [1.0, 4.0]}


def test_percentiles_are_milliseconds_and_missing_without_values() -> None:
    assert percentiles("quiet", [0.1] * 99 + [2.0])["quiet_p50_ms"] == pytest.approx(100)
    assert percentiles("quiet", [0.1] * 99 + [2.0])["quiet_p999_ms"] == pytest.approx(2_000)
    assert set(percentiles("quiet", []).values()) == {None}
