"""Comparisons between the slices of a race."""

from __future__ import annotations

import pytest

from perf.lib.beside import against
from perf.lib.contest_cells import compared


def slices(*rates: float) -> list[dict[str, float | None]]:
    return [{"items_per_s": rate, "delivery_p99_ms": 100 / rate, "database_us": 1.0} for rate in rates]


def test_the_last_slice_is_compared_with_the_one_before_and_with_the_second() -> None:
    found = compared(slices(100, 80, 50, 40), 1, "delivery_p99_ms")

    assert found["rate_against_before"] == pytest.approx(0.4)
    assert found["rate_against_second"] == pytest.approx(0.8)
    assert found["p99_against_before"] == pytest.approx(2.5)
    assert found["lowest_against_before"] == pytest.approx(0.4)


def test_a_slice_that_does_not_exist_gives_no_figure() -> None:
    assert against(slices(1.0), "items_per_s", 1, 0) is None
    assert against(slices(1.0), "host_us", 0, 0) is None


def test_a_slice_without_items_gives_no_ratio() -> None:
    assert against([{"items_per_s": 1.0}, {"items_per_s": 0.0}], "items_per_s", 0, 1) is None
