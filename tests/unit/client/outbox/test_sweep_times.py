"""When the whole outbox is read again."""

from __future__ import annotations

from foqs_client.outbox.sweep_times import SweepTimes


def swept(took_s: float) -> SweepTimes:
    times = SweepTimes(1.0, 300.0)
    times.begin_sweep(50.0)
    times.end_sweep(50.0 + took_s)
    return times


def test_the_first_sweep_is_due_at_once() -> None:
    assert SweepTimes(1.0, 300.0).is_due(0.0, is_wanted=False)


def test_a_quick_sweep_is_repeated_after_a_second_if_rows_were_forgotten_and_after_minutes_else() -> None:
    times = swept(0.1)
    assert [times.is_due(at, is_wanted=True) for at in (51.0, 51.2)] == [False, True]
    assert [times.is_due(at, is_wanted=False) for at in (350.0, 350.2)] == [False, True]


def test_a_long_sweep_is_repeated_only_after_as_long_or_a_hundred_times_as_long() -> None:
    times = swept(10.0)
    assert [times.is_due(at, is_wanted=True) for at in (69.0, 70.0)] == [False, True]
    assert [times.is_due(at, is_wanted=False) for at in (1_059.0, 1_060.0)] == [False, True]
