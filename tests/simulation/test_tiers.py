"""The simulation of several tiers: its seeds pass, and it finds planted bugs."""

from __future__ import annotations

import pytest

from tests.simulation import planted_tiers
from tests.simulation.planted import shows
from tests.support.forked_programs import run_program


def test_seeds_of_several_tiers_have_no_violation() -> None:
    done = run_program("tests.simulation.tier_administration", "--seeds", "20")
    assert done.returncode == 0, done.output
    assert "20 passed, 0 failed" in done.output
    assert int(done.output.split()[0]) > 200


@pytest.mark.parametrize("name", planted_tiers.BUGS)
def test_a_planted_bug_of_tiers_is_caught(name: str) -> None:
    done = run_program("tests.simulation.tier_administration", "--seeds", "20", "--plant", name)
    assert done.returncode == 1, f"{name} was not found:\n{done.output}"
    assert shows(planted_tiers.BUGS[name], done.output.splitlines()), done.output
