"""The watermark of due timers, and the times of scans."""

from __future__ import annotations

from foqs.core.timing.due_timers import DueTimers


def test_the_first_scan_has_no_lower_bound_and_counts_as_a_sweep() -> None:
    timers = DueTimers(scan_interval_ms=1_000)
    timers.on_scan_completed(100, next_due_ms=None)
    timers.on_scan_completed(200, next_due_ms=None)
    assert (timers.watermark_ms, timers.last_sweep_ms) == (200, 100)
    timers.on_sweep_completed(250)
    assert timers.last_sweep_ms == 250


def test_the_watermark_never_goes_back() -> None:
    timers = DueTimers(1_000)
    timers.on_scan_completed(100, None)
    timers.on_scan_completed(50, None)
    assert timers.watermark_ms == 100


def test_a_due_below_the_watermark_is_raised_to_it() -> None:
    timers = DueTimers(1_000)
    assert timers.raise_to_watermark(5) == 5
    timers.on_scan_completed(100, None)
    assert timers.raise_to_watermark(5) == 100
    assert timers.raise_to_watermark(150) == 150


def test_the_next_scan_is_at_the_earliest_due_that_was_written() -> None:
    timers = DueTimers(1_000)
    timers.on_scan_completed(100, next_due_ms=700)
    timers.on_dues_written({800, 900})
    assert timers.next_scan_ms() == 700
    timers.on_dues_written({750, 300})
    assert timers.next_scan_ms() == 300


def test_an_incomplete_scan_keeps_the_watermark_and_is_repeated_after_a_pause() -> None:
    timers = DueTimers(1_000)
    timers.on_scan_completed(100, next_due_ms=None)
    timers.on_scan_incomplete(350, next_due_ms=900)
    assert timers.watermark_ms == 100
    assert timers.next_scan_ms() == 350
    timers.on_scan_incomplete(600, next_due_ms=400)
    assert timers.next_scan_ms() == 400


def test_an_incomplete_first_scan_is_repeated_without_a_lower_bound() -> None:
    timers = DueTimers(1_000)
    timers.on_scan_incomplete(1_300, next_due_ms=None)
    assert timers.next_scan_ms() == 1_300
    assert (timers.watermark_ms, timers.last_sweep_ms) == (None, None)


def test_the_earliest_due_of_each_second_is_remembered_until_a_scan_has_passed_it() -> None:
    timers = DueTimers(1_000)
    timers.on_scan_completed(100, None)
    timers.on_dues_written({1_200, 1_100, 30_500})
    timers.on_dues_written({30_400, 1_150})
    assert timers.next_written_ms(100) == 1_100
    assert timers.next_written_ms(1_100) == 30_400
    assert timers.next_written_ms(30_400) is None


def test_dues_beyond_an_hour_and_before_the_first_scan_are_left_to_the_table() -> None:
    timers = DueTimers(1_000)
    timers.on_dues_written({500})
    timers.on_scan_completed(100, None)
    timers.on_dues_written({100 + 3_600_000})
    assert timers.next_written_ms(100) is None
    timers.on_dues_written({99 + 3_600_000})
    assert timers.next_written_ms(100) == 99 + 3_600_000


def test_without_due_rows_the_next_scan_comes_after_the_interval() -> None:
    timers = DueTimers(1_000)
    timers.on_scan_completed(100, next_due_ms=None)
    assert timers.next_scan_ms() == 1_100
