"""What a relay says about rows that wait."""

from __future__ import annotations

from foqs_client.errors import RateLimited, Unavailable
from foqs_client.outbox.row_refusals import QUIET_S, RowRefusals


def test_a_problem_names_the_last_refusal_and_ends_when_none_has_come_for_a_while() -> None:
    refusals = RowRefusals()
    assert refusals.problem(0.0) is None
    refusals.add(Unavailable("no database"), 5.0)
    refusals.add(RateLimited("too fast"), 6.0)

    assert refusals.problem(6.0 + QUIET_S / 2) == (
        "2 sends of rows were refused, the last one with RATE_LIMITED: too fast"
    )
    assert refusals.problem(6.0 + QUIET_S) is None
    refusals.add(Unavailable("no database"), 30.0)
    assert (refusals.problem(30.0) or "").startswith("1 sends")
