"""How many items to prefetch, by recent demand."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.memory.demand import Demand, DemandSettings

TOPIC = ("ns", "t")
SETTINGS = DemandSettings(tau_s=2.0, horizon_s=0.5, idle_s=10.0, items_max=1_000, topics_max=3)


def after_calls(*calls: tuple[float, int], settings: DemandSettings = SETTINGS) -> Demand:
    demand = Demand(settings)
    for at_s, count in calls:
        demand.record_dequeue(TOPIC, count, at_s)
    return demand


def test_a_topic_without_dequeues_is_not_prefetched() -> None:
    assert Demand(SETTINGS).prefetch_target(TOPIC, 5.0) == 0


def test_a_topic_is_prefetched_until_it_is_idle() -> None:
    demand = after_calls((0.0, 10))
    assert demand.prefetch_target(TOPIC, 10.0) > 0
    assert demand.prefetch_target(TOPIC, 10.1) == 0


def test_at_a_steady_rate_the_items_of_the_horizon_and_of_one_call_are_prefetched() -> None:
    demand = after_calls(*((step / 100, 4) for step in range(2_000)))
    assert 195 <= demand.prefetch_target(TOPIC, 20.0) - 4 <= 205


def test_the_target_falls_with_time_without_a_call() -> None:
    demand = after_calls(*((step / 100, 4) for step in range(2_000)))
    targets = [demand.prefetch_target(TOPIC, 20.0 + later) for later in (0.0, 1.0, 2.0, 5.0)]
    assert targets == sorted(targets, reverse=True)
    assert abs((targets[2] - 4) / (targets[0] - 4) - 0.37) < 0.03


def test_old_calls_weigh_less_than_recent_ones() -> None:
    slower = after_calls(*((step / 100, 4) for step in range(2_000)), *((20 + step / 10, 4) for step in range(200)))
    assert slower.prefetch_target(TOPIC, 40.0) < 30


def test_a_call_larger_than_the_average_is_expected_again() -> None:
    demand = after_calls(*((step, 1) for step in range(9)), (9, 50))
    assert demand.prefetch_target(TOPIC, 9.0) >= 50
    assert demand.prefetch_target(TOPIC, 18.0) == 50


def test_a_small_call_does_not_hide_the_size_of_many_large_ones() -> None:
    demand = after_calls(*((float(step), 100) for step in range(50)), (50.0, 1))
    assert demand.prefetch_target(TOPIC, 59.0) >= 60


def test_a_small_call_does_not_hide_the_size_of_two_large_ones() -> None:
    assert after_calls((0.0, 100), (0.1, 100), (0.2, 1)).prefetch_target(TOPIC, 9.0) >= 60


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 10_000)), max_size=20), st.floats(0, 20))
def test_the_target_stays_within_its_limits(steps: list[tuple[float, int]], later_s: float) -> None:
    demand, now_s = Demand(SETTINGS), 0.0
    for step_s, count in steps:
        now_s += step_s
        demand.record_dequeue(TOPIC, count, now_s)
    target = demand.prefetch_target(TOPIC, now_s + later_s)
    assert 0 <= target <= SETTINGS.items_max
    if steps and now_s + later_s - now_s <= SETTINGS.idle_s:
        assert target >= min(steps[-1][1], SETTINGS.items_max)


def test_the_least_recently_dequeued_topic_is_dropped_when_there_are_too_many() -> None:
    demand = Demand(replace(SETTINGS, topics_max=3))
    for at_s, name in enumerate("abcad"):
        demand.record_dequeue(("ns", name), 5, float(at_s))
    assert len(demand) == 3
    assert [bool(demand.prefetch_target(("ns", name), 4.0)) for name in "abcd"] == [True, False, True, True]


def test_a_check_is_due_when_a_part_of_the_target_was_dequeued() -> None:
    demand = Demand(SETTINGS)
    assert demand.record_dequeue(TOPIC, 80, 0.0)
    assert demand.prefetch_target(TOPIC, 0.0) == 100
    assert [demand.record_dequeue(TOPIC, 4, 0.0) for _ in range(4)] == [False, False, False, True]
    demand.prefetch_target(TOPIC, 0.0)
    assert not demand.record_dequeue(TOPIC, 4, 0.0)


def test_a_check_is_due_after_some_time_however_little_was_dequeued() -> None:
    demand = after_calls((0.0, 80))
    demand.prefetch_target(TOPIC, 0.0)
    assert not demand.record_dequeue(TOPIC, 1, 0.24)
    assert demand.record_dequeue(TOPIC, 1, 0.25)
