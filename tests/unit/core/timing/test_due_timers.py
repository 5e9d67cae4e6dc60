"""The watermark of due timers, and the times of scans."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.timing.due_timers import DueTimers

HOUR_MS = 3_600_000


def walked(scan_interval_ms: int) -> DueTimers:
    """Return timers of an owner that has read all leases: there were none."""
    timers = DueTimers(scan_interval_ms)
    timers.leases.begin_lease_walk()
    timers.leases.end_lease_walk(complete=True)
    return timers


def test_the_first_scan_has_no_lower_bound_and_counts_as_a_sweep() -> None:
    timers = walked(1_000)
    timers.on_scan_completed(100, 1_100)
    timers.on_scan_completed(200, 1_200)
    assert (timers.watermark_ms, timers.last_sweep_ms) == (200, 100)
    timers.on_sweep_completed(250)
    assert timers.last_sweep_ms == 250


def test_the_watermark_never_goes_back() -> None:
    timers = walked(1_000)
    timers.on_scan_completed(100, 1_100)
    timers.on_scan_completed(50, 1_050)
    assert timers.watermark_ms == 100


def test_a_due_below_the_watermark_is_raised_to_it() -> None:
    timers = walked(1_000)
    assert timers.raise_to_watermark(5) == 5
    timers.on_scan_completed(100, 1_100)
    assert timers.raise_to_watermark(5) == 100
    assert timers.raise_to_watermark(150) == 150


def test_the_next_scan_is_at_the_earliest_due_that_was_written() -> None:
    timers = walked(1_000)
    timers.on_scan_completed(100, 700)
    timers.on_dues_written({800, 900})
    assert timers.next_scan_ms() == 700
    timers.on_dues_written({750, 300})
    assert timers.next_scan_ms() == 300


def test_an_incomplete_scan_keeps_the_watermark_and_is_repeated() -> None:
    timers = walked(1_000)
    timers.on_scan_completed(100, 1_100)
    timers.on_scan_incomplete(350)
    assert (timers.watermark_ms, timers.next_scan_ms()) == (100, 350)


def test_the_earliest_due_of_each_second_is_remembered_until_a_scan_has_passed_it() -> None:
    timers = walked(60_000)
    timers.on_scan_completed(100, 60_100)
    timers.on_dues_written({1_200, 1_100, 30_500})
    timers.on_dues_written({30_400, 1_150})
    assert timers.search_end_ms(100) == 1_100
    assert timers.search_end_ms(1_100) == 30_400
    assert timers.search_end_ms(30_400) == 90_400


def test_dues_beyond_an_hour_and_before_the_first_scan_are_left_to_the_table() -> None:
    timers = walked(2 * HOUR_MS)
    timers.on_dues_written({500})
    timers.on_scan_completed(100, 500)
    timers.on_dues_written({100 + HOUR_MS})
    assert timers.search_end_ms(100) == 100 + 2 * HOUR_MS
    timers.on_dues_written({99 + HOUR_MS})
    assert timers.search_end_ms(100) == 99 + HOUR_MS


def test_no_search_goes_beyond_the_next_scan_in_any_case() -> None:
    """The entries of acked items may lie behind it: of long leases, and of TTLs."""
    timers = walked(1_000)
    assert timers.search_end_ms(100) == 1_100
    timers.on_scan_completed(100, 1_100)
    timers.on_dues_written({5_000})
    assert timers.search_end_ms(100) == 1_100


_DELAYS = st.one_of(st.integers(1, 5_000), st.integers(1, 3 * HOUR_MS))
_STEPS = st.one_of(
    st.tuples(st.just("write"), st.lists(_DELAYS, min_size=1, max_size=5)),
    st.tuples(st.just("settle"), st.integers(0, 99)),
    st.tuples(st.just("change"), st.tuples(st.integers(0, 99), _DELAYS)),
    st.tuples(st.just("pass"), _DELAYS),
    st.tuples(st.just("scan"), st.booleans()),
)


@given(st.lists(_STEPS, max_size=80), st.sampled_from((2_000, 300_000, 10 * HOUR_MS)))
def test_no_row_is_due_below_the_watermark_or_before_the_next_scan(steps: list[tuple[str, Any]], interval: int) -> None:
    """Rows are written, changed and deleted, and time passes, in any order."""
    timers = walked(interval)
    table: dict[int, int] = {}
    """The due of each row."""
    now_ms, retry_ms, number = 1_000_000, 0, 0
    for kind, value in steps:
        if kind == "write":
            dues = [timers.raise_to_watermark(now_ms + delay) for delay in value]
            table |= dict(enumerate(dues, number))
            number += len(dues)
            timers.on_dues_written(set(dues))
        elif kind == "settle":
            table.pop(value, None)
        elif kind == "change" and value[0] in table:
            table[value[0]] = timers.raise_to_watermark(now_ms + value[1])
            timers.on_dues_written({table[value[0]]})
        elif kind == "pass":
            now_ms += value
        elif kind == "scan" and timers.next_scan_ms() <= now_ms:
            low_ms, is_complete = timers.watermark_ms or 0, value
            if is_complete:
                table = {row: due_ms for row, due_ms in table.items() if not low_ms <= due_ms <= now_ms}
            end_ms = timers.search_end_ms(now_ms)
            assert now_ms < end_ms <= now_ms + interval
            next_ms = min([end_ms, *(due_ms for due_ms in table.values() if now_ms < due_ms < end_ms)])
            if is_complete:
                timers.on_scan_completed(now_ms, next_ms)
            else:
                retry_ms = min(now_ms + 500, next_ms)
                timers.on_scan_incomplete(retry_ms)
        timers.check()
        assert all(due_ms >= (timers.watermark_ms or 0) for due_ms in table.values())
        assert timers.next_scan_ms() <= max(now_ms, retry_ms, min([*table.values(), now_ms + interval]))
