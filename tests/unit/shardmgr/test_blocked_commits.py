"""Writes count as blocked if commits of a primary got no ack for a second, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from shardmgr.blocked_commits import BlockedCommits
from shardmgr.primary import LossPolicy, Primary, PrimaryState, ServerReport
from tests.unit.shardmgr.test_promotion import ENTRY, PRIMARY

WAITING = replace(PRIMARY, acknowledgers=2, acknowledged=7, waiting_commits=1)
ALONE = replace(PRIMARY, acknowledgers=0, acknowledged=7)


def said(*rounds: ServerReport | None, entry: Primary = ENTRY) -> Sequence[bool]:
    """Return of each round, which are a second apart, whether writes are blocked."""
    blocked = BlockedCommits()
    return [bool(blocked.problem(entry, primary, 1_000 * number)) for number, primary in enumerate(rounds)]


def test_primary_is_blocked_if_the_same_commits_wait_for_a_second() -> None:
    assert said(WAITING, WAITING, WAITING) == [False, True, True]
    assert said(WAITING, replace(WAITING, acknowledged=8), replace(WAITING, acknowledged=9)) == [False] * 3
    assert said(WAITING, replace(WAITING, waiting_commits=0), WAITING) == [False] * 3


def test_primary_is_blocked_if_no_replica_is_connected_although_nobody_writes() -> None:
    assert said(ALONE, ALONE) == [False, True]
    assert "commits of r1 need an ack of r2 or r3, and none comes; bring" in _last(ENTRY)
    assert "need an ack of a replica, of which the entry names none" in _last(replace(ENTRY, ackers={}))


def test_primary_that_is_not_reached_for_a_moment_is_judged_again() -> None:
    assert said(ALONE, None, ALONE, ALONE) == [False, False, False, True]


@pytest.mark.parametrize(
    ("entry", "primary"),
    [
        (replace(ENTRY, policy=LossPolicy.ASYNC), ALONE),
        (replace(ENTRY, state=PrimaryState.DRAINING), ALONE),
        (ENTRY, replace(ALONE, is_read_only=True)),
        (ENTRY, replace(WAITING, waits_for_acks=False)),
    ],
)
def test_primary_that_needs_no_ack_now_is_not_blocked(entry: Primary, primary: ServerReport) -> None:
    assert said(primary, primary, entry=entry) == [False, False]


def _last(entry: Primary) -> str:
    blocked = BlockedCommits()
    blocked.problem(entry, ALONE, 0)
    return blocked.problem(entry, ALONE, 1_000)
