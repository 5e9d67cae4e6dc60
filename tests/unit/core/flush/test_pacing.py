"""How large flushes may be."""

from __future__ import annotations

from foqs.core.flush.pacing import FlushPace, PaceSettings

SETTINGS = PaceSettings(items_min=10, items_max=1_000, target_s=0.020, shared_target_s=0.005)


def settle(
    pace: FlushPace,
    entry_s: float,
    *,
    shared: bool = False,
    from_s: float = 0.0,
    flushes: int = 100,
    fixed_s: float = 0.0,
) -> int:
    """The size that full flushes come to when an entry takes `entry_s` and a flush `fixed_s`, half a second apart."""
    entries = 1_000
    for number in range(flushes):
        now_s = from_s + number * 0.5
        if shared:
            entries = pace.update(5, fixed_s + 5 * entry_s, True, now_s)
        entries = pace.update(entries, fixed_s + entries * entry_s, False, now_s)
    return entries


def test_full_flushes_come_to_last_about_as_long_as_they_should() -> None:
    assert 150 <= settle(FlushPace(SETTINGS), 0.0001) <= 260


def test_while_somebody_waits_with_little_beside_much_flushes_are_shorter() -> None:
    assert 35 <= settle(FlushPace(SETTINGS), 0.0001, shared=True) <= 70


def test_who_has_gone_quiet_counts_no_longer() -> None:
    pace = FlushPace(SETTINGS)
    assert settle(pace, 0.0001, shared=True) <= 70
    assert settle(pace, 0.0001, from_s=60.0) >= 150


def test_a_slow_database_leaves_the_least_and_a_quick_one_the_most() -> None:
    assert settle(FlushPace(SETTINGS), 1.0) == 10
    assert settle(FlushPace(SETTINGS), 0.000001, shared=True) == 1_000


def test_a_small_flush_that_took_long_says_nothing_about_large_ones() -> None:
    pace = FlushPace(SETTINGS)
    assert pace.update(5, 10.0, False, 0.0) == 1_000


def test_where_the_flush_itself_takes_longer_than_the_target_as_much_again_goes_into_items() -> None:
    # 30 ms of disk and 0.1 ms of each entry: 20 ms could never be reached, and the least would be all disk.
    assert 250 <= settle(FlushPace(SETTINGS), 0.0001, fixed_s=0.030) <= 350


def test_while_somebody_waits_with_little_a_quarter_as_much_goes_into_items() -> None:
    assert 60 <= settle(FlushPace(SETTINGS), 0.0001, shared=True, fixed_s=0.030) <= 90


def test_what_a_flush_costs_is_told_apart_from_what_its_entries_cost() -> None:
    assert 25 <= settle(FlushPace(SETTINGS), 0.0001, shared=True, fixed_s=0.002) <= 45


def test_one_flush_that_was_stuck_changes_little() -> None:
    pace = FlushPace(SETTINGS)
    before = settle(pace, 0.0001, shared=True, fixed_s=0.002)
    pace.update(before, 10.0, False, 50.0)
    assert settle(pace, 0.0001, shared=True, from_s=50.5, flushes=5, fixed_s=0.002) >= before * 0.8
