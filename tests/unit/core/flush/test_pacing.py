"""The size of flushes."""

from __future__ import annotations

from foqs.core.flush.pacing import FlushPace, PaceSettings

SETTINGS = PaceSettings(items_min=10, items_max=1_000, target_s=0.020, contended_target_s=0.005)


def settle(
    pace: FlushPace,
    entry_s: float,
    *,
    shared: bool = False,
    from_s: float = 0.0,
    flushes: int = 100,
    fixed_s: float = 0.0,
) -> int:
    """Return the size that full flushes settle at if an entry takes `entry_s` and a flush `fixed_s`, every half second."""
    entries = 1_000
    for number in range(flushes):
        now_s = from_s + number * 0.5
        if shared:
            entries = pace.update(5, fixed_s + 5 * entry_s, True, now_s)
        entries = pace.update(entries, fixed_s + entries * entry_s, False, now_s)
    return entries


def test_full_flushes_settle_at_about_the_target_time() -> None:
    assert 150 <= settle(FlushPace(SETTINGS), 0.0001) <= 260


def test_flushes_are_shorter_while_a_small_backlog_waits_beside_large_ones() -> None:
    assert 35 <= settle(FlushPace(SETTINGS), 0.0001, shared=True) <= 70


def test_flushes_grow_again_after_the_last_small_flush() -> None:
    pace = FlushPace(SETTINGS)
    assert settle(pace, 0.0001, shared=True) <= 70
    assert settle(pace, 0.0001, from_s=60.0) >= 150


def test_a_slow_database_gets_the_minimum_and_a_fast_one_the_maximum() -> None:
    assert settle(FlushPace(SETTINGS), 1.0) == 10
    assert settle(FlushPace(SETTINGS), 0.000001, shared=True) == 1_000


def test_a_slow_small_flush_does_not_change_the_size() -> None:
    pace = FlushPace(SETTINGS)
    assert pace.update(5, 10.0, False, 0.0) == 1_000


def test_if_the_fixed_cost_exceeds_the_target_as_much_time_again_is_allowed_for_items() -> None:
    # With 30 ms per flush and 0.1 ms per entry, 20 ms cannot be reached.
    assert 250 <= settle(FlushPace(SETTINGS), 0.0001, fixed_s=0.030) <= 350


def test_if_the_fixed_cost_exceeds_the_shorter_target_a_quarter_of_it_is_allowed_for_items() -> None:
    assert 60 <= settle(FlushPace(SETTINGS), 0.0001, shared=True, fixed_s=0.030) <= 90


def test_the_fixed_cost_is_separated_from_the_cost_of_entries() -> None:
    assert 25 <= settle(FlushPace(SETTINGS), 0.0001, shared=True, fixed_s=0.002) <= 45


def test_one_stuck_flush_changes_the_size_little() -> None:
    pace = FlushPace(SETTINGS)
    before = settle(pace, 0.0001, shared=True, fixed_s=0.002)
    pace.update(before, 10.0, False, 50.0)
    assert settle(pace, 0.0001, shared=True, from_s=50.5, flushes=5, fixed_s=0.002) >= before * 0.8
