"""Sequences of new items, and their times over several databases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import SEQUENCE_MAX
from foqs.core.timing.arrivals import Arrivals

YEAR_MS = 31_557_600_000
NOW_MS = 1_767_225_600_000 + YEAR_MS


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3))),
    st.lists(st.sampled_from((0, 60, 100, 5_000)), min_size=4, max_size=4),
    st.integers(0, 100),
)
def test_items_are_in_order_over_databases_unless_one_is_ahead_by_more_than_the_limit(
    steps: list[tuple[int, int]], ahead_ms: list[int], lead_ms_max: int
) -> None:
    arrivals = Arrivals(lead_ms_max)
    databases = [arrivals.add_database() for _ in ahead_ms]
    last_ms = dict.fromkeys(databases, 0)
    now_ms = NOW_MS
    for passed_ms, database in steps:
        now_ms += passed_ms
        first_ms = max(last_ms[database], now_ms + ahead_ms[database])
        time_ms = arrivals.next_ms(database, now_ms + ahead_ms[database])
        assert first_ms <= time_ms <= first_ms + lead_ms_max
        assert all(time_ms >= other_ms for other_ms in last_ms.values() if other_ms <= first_ms + lead_ms_max)
        last_ms[database] = time_ms
        assert [*map(arrivals.last_ms, databases)] == [*last_ms.values()]


@given(st.integers(0, 8_000), st.integers(1, 29 * YEAR_MS))
def test_a_restarted_host_assigns_sequences_above_those_of_its_last_run(per_second: int, run_ms: int) -> None:
    arrivals = Arrivals(0)
    arrivals.start_sequences(NOW_MS)
    arrivals.take_sequences(per_second * run_ms // 1_000)
    restarted = Arrivals(0)
    restarted.start_sequences(NOW_MS + run_ms)
    assert restarted.last_sequence >= arrivals.last_sequence
    assert restarted.has_sequences(YEAR_MS)


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
