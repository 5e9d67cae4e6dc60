"""What a relay says about rows that wait."""

from __future__ import annotations

from foqs_client.errors import LimitExceeded, PermissionDenied, RateLimited, Unavailable
from foqs_client.outbox.row_refusals import QUIET_S, RETRY_S_MAX, RowRefusals


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


def test_rows_are_sent_again_when_a_refusal_says_so_and_all_wait_while_the_namespace_is_at_a_limit() -> None:
    refusals = RowRefusals()
    refusals.add(PermissionDenied("no grant"), 5.0)
    assert (refusals.again_s, refusals.sends_s) == (5.0, 0.0)
    refusals.add(Unavailable("no database", retry_after_ms=2_000), 5.0)
    assert (refusals.again_s, refusals.sends_s) == (7.0, 0.0)
    refusals.add(LimitExceeded("full", retry_after_ms=1_000), 5.0)
    assert (refusals.again_s, refusals.sends_s) == (7.0, 6.0)
    refusals.add(RateLimited("too fast", retry_after_ms=10**9), 6.0)
    assert (refusals.again_s, refusals.sends_s) == (6.0 + RETRY_S_MAX, 6.0 + RETRY_S_MAX)
