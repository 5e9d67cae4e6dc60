"""Sequences of new items, and their times over several databases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import SEQUENCE_MAX
from foqs.core.timing.arrivals import Arrivals

YEAR_MS = 31_557_600_000
NOW_MS = 1_767_225_600_000 + YEAR_MS


@given(st.lists(st.tuples(st.integers(0, 1_000), st.sampled_from((0, 60, 100, 5_000)))), st.integers(0, 100))
def test_items_of_databases_whose_clocks_differ_within_the_limit_are_in_order(
    steps: list[tuple[int, int]], lead_ms_max: int
) -> None:
    arrivals = Arrivals(lead_ms_max)
    now_ms, last_ms = NOW_MS, 0
    for passed_ms, ahead_ms in steps:
        now_ms += passed_ms
        time_ms = arrivals.in_order_ms(now_ms + ahead_ms)
        assert now_ms + ahead_ms <= time_ms <= now_ms + ahead_ms + lead_ms_max
        if ahead_ms <= lead_ms_max and last_ms <= now_ms + lead_ms_max:
            assert time_ms >= last_ms
        last_ms = max(last_ms, time_ms)


@given(st.integers(0, 8_000), st.integers(1, 34 * YEAR_MS))
def test_a_restarted_host_assigns_sequences_above_those_of_its_last_run(per_second: int, run_ms: int) -> None:
    arrivals = Arrivals(0)
    arrivals.start_sequences(NOW_MS)
    arrivals.take_sequences(per_second * run_ms // 1_000)
    restarted = Arrivals(0)
    restarted.start_sequences(NOW_MS + run_ms)
    if arrivals.last_sequence <= SEQUENCE_MAX // 2:
        assert restarted.last_sequence >= arrivals.last_sequence or NOW_MS + run_ms - 1_767_225_600_000 > 17 * YEAR_MS


def test_sequences_never_fall_while_some_are_left_and_then_begin_again() -> None:
    arrivals = Arrivals(0)
    arrivals.start_sequences(NOW_MS)
    arrivals.start_sequences(0)
    arrivals.start_sequences(NOW_MS - YEAR_MS)
    assert arrivals.last_sequence == 8 * YEAR_MS
    arrivals.take_sequences(SEQUENCE_MAX - 2_000_000 - arrivals.last_sequence)
    arrivals.start_sequences(NOW_MS)
    assert arrivals.last_sequence == SEQUENCE_MAX - 2_000_000
    arrivals.take_sequences(1_000_000)
    assert arrivals.has_sequences(0)
    assert not arrivals.has_sequences(1)
    arrivals.start_sequences(NOW_MS)
    assert arrivals.last_sequence == 0
