"""What a host announces of its load: seldom another thing than before."""

from __future__ import annotations

import pytest

from foqs.membership import coarse


@pytest.mark.parametrize("items", [0, 1, 1_023])
def test_less_than_fills_a_flush_is_no_load(items: float) -> None:
    assert coarse(items) == 0.0


@pytest.mark.parametrize("items", [1_024, 1_025.5, 4_095, 4_096, 70_000, 10_000_000])
def test_a_load_is_told_within_a_factor_of_four(items: float) -> None:
    assert items / 4 < coarse(items) <= 4 * items


def test_loads_that_differ_little_are_told_alike() -> None:
    assert len({coarse(items) for items in range(0, 1_000_000, 997)}) <= 7
