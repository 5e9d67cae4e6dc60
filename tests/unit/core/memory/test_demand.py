"""How many items to have loaded ahead, by what was asked for."""

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


def test_a_topic_nobody_asked_for_is_not_wanted() -> None:
    assert Demand(SETTINGS).prefetch_target(TOPIC, 5.0) == 0


def test_a_topic_is_wanted_until_it_was_quiet_for_long() -> None:
    demand = after_calls((0.0, 10))
    assert demand.prefetch_target(TOPIC, 10.0) > 0
    assert demand.prefetch_target(TOPIC, 10.1) == 0


def test_a_steady_rate_wants_what_the_horizon_needs_and_one_call_more() -> None:
    demand = after_calls(*((step / 100, 4) for step in range(2_000)))
    assert 195 <= demand.prefetch_target(TOPIC, 20.0) - 4 <= 205


def test_what_is_wanted_falls_as_time_passes_without_a_call() -> None:
    demand = after_calls(*((step / 100, 4) for step in range(2_000)))
    wants = [demand.prefetch_target(TOPIC, 20.0 + later) for later in (0.0, 1.0, 2.0, 5.0)]
    assert wants == sorted(wants, reverse=True)
    assert abs((wants[2] - 4) / (wants[0] - 4) - 0.37) < 0.03


def test_calls_of_long_ago_weigh_less_than_recent_ones() -> None:
    slower = after_calls(*((step / 100, 4) for step in range(2_000)), *((20 + step / 10, 4) for step in range(200)))
    assert slower.prefetch_target(TOPIC, 40.0) < 30


def test_a_call_larger_than_the_average_is_expected_again() -> None:
    demand = after_calls(*((step, 1) for step in range(9)), (9, 50))
    assert demand.prefetch_target(TOPIC, 9.0) >= 50
    assert demand.prefetch_target(TOPIC, 18.0) == 50


def test_small_calls_in_between_do_not_hide_how_large_the_others_are() -> None:
    demand = after_calls(*((float(step), 100) for step in range(50)), (50.0, 1))
    assert demand.prefetch_target(TOPIC, 59.0) >= 60


def test_a_small_call_after_large_ones_does_not_make_their_size_forgotten() -> None:
    assert after_calls((0.0, 100), (0.1, 100), (0.2, 1)).prefetch_target(TOPIC, 9.0) >= 60


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 10_000)), max_size=20), st.floats(0, 20))
def test_what_is_wanted_stays_within_its_limits(steps: list[tuple[float, int]], later_s: float) -> None:
    demand, now_s = Demand(SETTINGS), 0.0
    for step_s, count in steps:
        now_s += step_s
        demand.record_dequeue(TOPIC, count, now_s)
    want = demand.prefetch_target(TOPIC, now_s + later_s)
    assert 0 <= want <= SETTINGS.items_max
    if steps and now_s + later_s - now_s <= SETTINGS.idle_s:
        assert want >= min(steps[-1][1], SETTINGS.items_max)


def test_the_topic_asked_for_longest_ago_leaves_when_there_are_too_many() -> None:
    demand = Demand(replace(SETTINGS, topics_max=3))
    for at_s, name in enumerate("abcad"):
        demand.record_dequeue(("ns", name), 5, float(at_s))
    assert len(demand) == 3
    assert [bool(demand.prefetch_target(("ns", name), 4.0)) for name in "abcd"] == [True, False, True, True]


def test_it_is_time_to_look_when_a_part_of_what_was_wanted_is_gone() -> None:
    demand = Demand(SETTINGS)
    assert demand.record_dequeue(TOPIC, 80, 0.0)
    want = demand.prefetch_target(TOPIC, 0.0)
    assert want == 100
    assert [demand.record_dequeue(TOPIC, 4, 0.0) for _ in range(4)] == [False, False, False, True]
    demand.prefetch_target(TOPIC, 0.0)
    assert not demand.record_dequeue(TOPIC, 4, 0.0)


def test_it_is_time_to_look_when_time_has_passed_however_little_was_taken() -> None:
    demand = after_calls((0.0, 80))
    demand.prefetch_target(TOPIC, 0.0)
    assert not demand.record_dequeue(TOPIC, 1, 0.24)
    assert demand.record_dequeue(TOPIC, 1, 0.25)
