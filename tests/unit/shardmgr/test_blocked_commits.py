"""Writes count as blocked if commits of a primary got no ack for a second, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from shardmgr.blocked_commits import BlockedCommits
from shardmgr.primary import LossPolicy, Primary, ServerReport
from shardmgr.primary_changes import first_entry, start_drain
from tests.unit.shardmgr.test_promotion import ENTRY, FENCED, PRIMARY, SERVERS

WAITING = replace(PRIMARY, acknowledgers=2, acknowledged=7, waiting_commits=1)
ALONE = replace(PRIMARY, acknowledgers=0, acknowledged=7)
FIRST = first_entry("r1", LossPolicy.SEMI_SYNC, SERVERS)
"""Hosts do not use its primary by this entry yet."""


def said(*rounds: ServerReport | None, entry: Primary = ENTRY) -> Sequence[bool]:
    """Return of each round, which are a second apart, whether writes are blocked."""
    blocked = BlockedCommits()
    moments_ms = (1_000 * number for number in range(len(rounds)))
    return [
        bool(blocked.problem(entry, primary, now_ms, now_ms))
        for now_ms, primary in zip(moments_ms, rounds, strict=True)
    ]


def text(entry: Primary) -> str:
    """Return what is said of a primary to which no replica is connected."""
    blocked = BlockedCommits()
    blocked.problem(entry, ALONE, 0, 0)
    return blocked.problem(entry, ALONE, 1_000, 1_000)


def test_primary_is_blocked_if_the_same_commits_wait_for_a_second() -> None:
    assert said(WAITING, WAITING, WAITING) == [False, True, True]
    assert said(WAITING, replace(WAITING, acknowledged=8), replace(WAITING, acknowledged=9)) == [False] * 3
    assert said(WAITING, replace(WAITING, waiting_commits=0), WAITING) == [False] * 3


def test_primary_is_blocked_if_no_replica_is_connected_although_nobody_writes() -> None:
    assert said(ALONE, ALONE) == [False, True]
    assert "commits of r1 need an ack of r2 or r3, and none comes; bring" in text(ENTRY)


def test_primary_without_any_replica_in_its_entry_needs_one_that_rejoins() -> None:
    assert text(replace(ENTRY, ackers={})) == (
        "writes wait: commits of r1 need an ack, and the entry names no replica; let one rejoin: foqs database rejoin"
    )


def test_primary_that_is_drained_is_blocked_while_owners_write_there() -> None:
    assert said(WAITING, WAITING, entry=start_drain(ENTRY, "r2")) == [False, True]
    assert "need an ack of r2 or r3" in text(start_drain(ENTRY, "r2"))


def test_commits_wait_since_the_first_answer_until_the_next_question() -> None:
    """A slow read is no wait."""
    blocked = BlockedCommits()
    assert blocked.problem(ENTRY, WAITING, 0, 5_000) == ""
    assert blocked.problem(ENTRY, WAITING, 5_000, 10_000) == ""
    assert blocked.problem(ENTRY, WAITING, 10_000, 10_000) != ""


def test_primary_that_is_not_reached_for_a_moment_is_judged_again() -> None:
    assert said(ALONE, None, ALONE, ALONE) == [False, False, False, True]


@pytest.mark.parametrize(
    ("entry", "primary"),
    [
        (replace(ENTRY, policy=LossPolicy.ASYNC), ALONE),
        (FENCED, ALONE),
        (FIRST, ALONE),
        (ENTRY, replace(ALONE, is_read_only=True)),
        (ENTRY, replace(WAITING, waits_for_acks=False)),
    ],
)
def test_primary_that_needs_no_ack_now_is_not_blocked(entry: Primary, primary: ServerReport) -> None:
    assert said(primary, primary, entry=entry) == [False, False]
