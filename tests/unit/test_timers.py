"""The watermark rule and the moments of scans."""

from __future__ import annotations

from foqs.core.timers import Timers


def test_the_first_scan_has_no_lower_bound_and_later_ones_start_at_the_watermark() -> None:
    timers = Timers(sweep_interval_ms=1_000)
    assert timers.scan_from(100) is None
    timers.scanned(100, next_ms=None, swept=True)
    assert timers.scan_from(200) == 100


def test_the_watermark_never_goes_back() -> None:
    timers = Timers(1_000)
    timers.scanned(100, None, swept=True)
    timers.scanned(50, None, swept=False)
    assert timers.watermark_ms == 100


def test_a_due_below_the_watermark_is_lifted_to_it() -> None:
    timers = Timers(1_000)
    assert timers.lift(5) == 5
    timers.scanned(100, None, swept=True)
    assert timers.lift(5) == 100
    assert timers.lift(150) == 150


def test_the_next_scan_is_at_the_earliest_due_that_was_written() -> None:
    timers = Timers(1_000)
    timers.scanned(100, next_ms=700, swept=True)
    timers.wrote(800)
    assert timers.next_scan_ms() == 700
    timers.wrote(300)
    assert timers.next_scan_ms() == 300


def test_a_scan_that_left_something_keeps_the_watermark_and_comes_again_after_a_pause() -> None:
    timers = Timers(1_000)
    timers.scanned(100, next_ms=None, swept=True)
    timers.fell_short(350, next_ms=900, swept=False)
    assert timers.watermark_ms == 100
    assert timers.next_scan_ms() == 350
    assert timers.scan_from(350) == 100
    timers.fell_short(600, next_ms=400, swept=False)
    assert timers.next_scan_ms() == 400


def test_a_sweep_that_left_something_is_tried_again_as_a_sweep() -> None:
    timers = Timers(1_000)
    timers.scanned(100, next_ms=None, swept=True)
    timers.fell_short(1_300, next_ms=None, swept=True)
    assert timers.next_scan_ms() == 1_300
    assert timers.scan_from(1_299) == 100
    assert timers.scan_from(1_300) is None


def test_nothing_due_means_waiting_for_the_sweep() -> None:
    timers = Timers(1_000)
    timers.scanned(100, next_ms=None, swept=True)
    assert timers.next_scan_ms() == 1_100
    assert timers.scan_from(1_099) == 100
    assert timers.scan_from(1_100) is None
