"""An autoscaler that follows /scale holds the target age and does not flap, in the simulation; simpler rules do not."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import pytest

from foqs.core.limits.scaling import ScaleTarget, TopicWork
from perf.scaling import DAY, TARGET, Summary, draw, simulate, summarize

PLOT = Path(__file__).parents[3] / "docs" / "diagrams" / "scaling.svg"
LOAD_TURNS = {"a wave": 4, "bursts of 1,000": 5}
"""How often the load itself goes up after down, or down after up; at most once in each other phase, where it is constant."""


def by_phase(seed: int, **options: object) -> dict[str, Summary]:
    return {one.name: one for one in summarize(list(simulate(seed, **options)))}  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(10))
def test_target_age_is_held_without_flapping(seed: int) -> None:
    phases = by_phase(seed)
    for name, one in phases.items():
        assert one.turns <= LOAD_TURNS.get(name, 1), one
        if name != "bursts of 1,000":
            assert one.late_s == 0, one
    # A burst comes without notice. Most consumers that it needs start after it.
    assert phases["bursts of 1,000"].age_max_s <= TARGET.age_s + 30
    assert phases["nothing"].consumers_last == 0
    assert phases["one a minute"].consumers_last == 1
    assert phases["one a minute"].turns == 0
    # Not more than half again as many as the work itself takes.
    assert phases["five times as much"].consumers_mean < 100 / TARGET.items_per_s * 1.5


@pytest.mark.parametrize("real_rate", [1.4, 3.0])
def test_wrong_rate_of_a_consumer_is_corrected(real_rate: float) -> None:
    phases = by_phase(1, real_rate=real_rate)
    for name in ("steady", "five times as much", "back", "a wave"):
        assert phases[name].age_max_s <= TARGET.age_s * 1.25
        assert phases[name].turns <= LOAD_TURNS.get(name, 1)


def by_backlog_alone(work: TopicWork, target: ScaleTarget) -> int:
    return ceil((work.ready + work.leased) / (target.items_per_s * target.age_s))


def eager(work: TopicWork, target: ScaleTarget) -> int:
    return ceil(work.ready / target.items_per_s / 5)


def test_simulation_distinguishes_good_rules_from_bad_ones() -> None:
    by_backlog = by_phase(1, rule=by_backlog_alone)
    for name in ("steady", "five times as much", "back", "a wave"):
        assert by_backlog[name].late_s > 0
        assert by_backlog[name].turns > LOAD_TURNS.get(name, 1)
    assert sum(one.turns for one in by_phase(1, rule=eager).values()) > 3 * sum(LOAD_TURNS.values())


def test_plot_is_of_this_simulation() -> None:
    assert PLOT.read_text() == draw(list(simulate(1)))
    assert [phase.name for phase in DAY] == list(by_phase(1))
