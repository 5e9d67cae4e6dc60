"""The rolling window over a shard's flushes."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.limits.breaker_window import SPAN_COUNT, BreakerSettings, FlushWindow
from tests.support.plain_breaker import PlainWindow

SETTINGS = BreakerSettings(window_s=10.0, latency_s_max=0.5, error_percent=50, flushes_min=5, reset_s=2.0)


def filled(times: list[float], failures: int = 0) -> FlushWindow:
    """Return a window at 100 s with flushes of these durations, of which the first `failures` failed."""
    window = FlushWindow(SETTINGS)
    for number, seconds in enumerate(times):
        window.add(100.0, seconds, failed=number < failures)
    return window


def test_slow_flushes_trip_and_fast_ones_do_not() -> None:
    assert filled([0.4] * 20).trip_reason(100.0) is None
    assert filled([0.6] * 20).trip_reason(100.0) == "the last 20 transactions took 600 ms each"


def test_failures_of_half_of_the_flushes_trip() -> None:
    assert filled([0.01] * 10, failures=4).trip_reason(100.0) is None
    assert filled([0.01] * 10, failures=5).trip_reason(100.0) == "5 of the last 10 transactions failed"


def test_fewer_flushes_than_the_minimum_do_not_trip() -> None:
    assert filled([0.6] * 4, failures=4).trip_reason(100.0) is None
    assert filled([0.6] * 5, failures=0).trip_reason(100.0) is not None
    assert filled([0.01] * 5, failures=5).trip_reason(100.0) is not None


def test_a_flush_in_progress_counts_with_its_time_so_far() -> None:
    window = filled([0.1] * 4)
    assert window.trip_reason(100.0, waiting_s=2.0) is None
    assert window.trip_reason(100.0, waiting_s=2.2) is not None


def test_a_stalled_flush_trips_alone() -> None:
    for window in (FlushWindow(SETTINGS), filled([0.001] * 1_000)):
        assert window.trip_reason(100.0, waiting_s=2.4) is None
        assert window.trip_reason(100.0, waiting_s=2.5) == "a transaction has had no answer for 2500 ms"


def test_flushes_older_than_the_window_are_forgotten() -> None:
    window = filled([0.6] * 20)
    assert window.trip_reason(108.9) is not None
    assert window.trip_reason(110.0) is None


def test_a_cleared_window_does_not_trip() -> None:
    window = filled([0.6] * 20, failures=20)
    window.clear()
    assert window.trip_reason(100.0) is None


def test_memory_does_not_grow_with_flushes() -> None:
    window = FlushWindow(SETTINGS)
    for number in range(10_000):
        window.add(number * 0.05, 0.01, failed=False)
    counts = window._flushes
    assert sum(counts) <= 10.0 / 0.05
    assert len(counts) == SPAN_COUNT


# Durations that floats add exactly, in any order.
STEP = st.tuples(
    st.floats(0.0, 3.0),
    st.sampled_from([0.0, 0.25, 0.5, 0.75, 3.0, 12.0]),
    st.booleans(),
    st.sampled_from([None, None, 0.0, 0.625, 5.0]),
    st.sampled_from([False] * 9 + [True]),
)


@given(
    st.lists(STEP, max_size=60),
    st.builds(
        BreakerSettings,
        window_s=st.sampled_from([1.0, 4.0, 10.0]),
        latency_s_max=st.sampled_from([0.25, 0.5, 1.0]),
        error_percent=st.integers(1, 100),
        flushes_min=st.integers(1, 6),
        reset_s=st.just(1.0),
    ),
)
def test_the_window_agrees_with_a_plain_one_that_keeps_every_flush(
    steps: list[tuple[float, float, bool, float | None, bool]], settings: BreakerSettings
) -> None:
    window, plain = FlushWindow(settings), PlainWindow(settings)
    now_s = 50.0
    for pause_s, seconds, failed, waiting_s, clear in steps:
        now_s += pause_s
        if clear:
            window.clear()
            plain.clear()
        window.add(now_s, seconds, failed=failed)
        plain.add(now_s, seconds, failed=failed)
        assert (window.trip_reason(now_s, waiting_s) is not None) == plain.opens(now_s, waiting_s)
        for later_s in (0.0, settings.window_s / 3, settings.window_s * 1.01):
            # A copy, because a window that was asked for a later moment does not go back.
            reason = deepcopy(window).trip_reason(now_s + later_s, waiting_s)
            assert (reason is not None) == plain.opens(now_s + later_s, waiting_s)
