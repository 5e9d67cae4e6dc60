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


def test_sweeps_may_end_early_for_ten_durations_of_the_last_whole_one_and_go_on_when_their_rows_are_sent() -> None:
    times = swept(10.0)
    assert [times.may_end_early(at) for at in (61.0, 159.0, 160.0)] == [True, True, False]
    times.begin_sweep(80.0)
    times.end_early(80.2)
    assert [times.is_due(at, is_wanted=True, has_drained=True) for at in (80.3, 80.4)] == [False, True]
    assert [times.is_due(at, is_wanted=True) for at in (81.1, 81.2)] == [False, True]


def test_no_sweep_ends_early_before_a_whole_one() -> None:
    assert not SweepTimes(1.0, 300.0).may_end_early(0.0)


def test_a_long_sweep_is_repeated_only_after_as_long_or_a_hundred_times_as_long() -> None:
    times = swept(10.0)
    assert [times.is_due(at, is_wanted=True) for at in (69.0, 70.0)] == [False, True]
    assert [times.is_due(at, is_wanted=False) for at in (1_059.0, 1_060.0)] == [False, True]
