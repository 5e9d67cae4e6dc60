"""The watermark of due timers, and the times of scans."""

from __future__ import annotations

from foqs.core.timing.due_timers import DueTimers


def test_the_first_scan_has_no_lower_bound_and_later_ones_start_at_the_watermark() -> None:
    timers = DueTimers(sweep_interval_ms=1_000)
    assert timers.scan_lower_bound_ms(100) is None
    timers.on_scan_completed(100, next_due_ms=None, swept=True)
    assert timers.scan_lower_bound_ms(200) == 100


def test_the_watermark_never_goes_back() -> None:
    timers = DueTimers(1_000)
    timers.on_scan_completed(100, None, swept=True)
    timers.on_scan_completed(50, None, swept=False)
    assert timers.watermark_ms == 100


def test_a_due_below_the_watermark_is_raised_to_it() -> None:
    timers = DueTimers(1_000)
    assert timers.raise_to_watermark(5) == 5
    timers.on_scan_completed(100, None, swept=True)
    assert timers.raise_to_watermark(5) == 100
    assert timers.raise_to_watermark(150) == 150


def test_the_next_scan_is_at_the_earliest_due_that_was_written() -> None:
    timers = DueTimers(1_000)
    timers.on_scan_completed(100, next_due_ms=700, swept=True)
    timers.on_due_written(800)
    assert timers.next_scan_ms() == 700
    timers.on_due_written(300)
    assert timers.next_scan_ms() == 300


def test_an_incomplete_scan_keeps_the_watermark_and_is_repeated_after_a_pause() -> None:
    timers = DueTimers(1_000)
    timers.on_scan_completed(100, next_due_ms=None, swept=True)
    timers.on_scan_incomplete(350, next_due_ms=900, swept=False)
    assert timers.watermark_ms == 100
    assert timers.next_scan_ms() == 350
    assert timers.scan_lower_bound_ms(350) == 100
    timers.on_scan_incomplete(600, next_due_ms=400, swept=False)
    assert timers.next_scan_ms() == 400


def test_an_incomplete_sweep_is_repeated_as_a_sweep() -> None:
    timers = DueTimers(1_000)
    timers.on_scan_completed(100, next_due_ms=None, swept=True)
    timers.on_scan_incomplete(1_300, next_due_ms=None, swept=True)
    assert timers.next_scan_ms() == 1_300
    assert timers.scan_lower_bound_ms(1_299) == 100
    assert timers.scan_lower_bound_ms(1_300) is None


def test_without_due_rows_the_next_scan_is_the_sweep() -> None:
    timers = DueTimers(1_000)
    timers.on_scan_completed(100, next_due_ms=None, swept=True)
    assert timers.next_scan_ms() == 1_100
    assert timers.scan_lower_bound_ms(1_099) == 100
    assert timers.scan_lower_bound_ms(1_100) is None
