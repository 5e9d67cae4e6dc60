"""A primary is replaced without an administrator only if nobody hears from it for long enough, and if that loses nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest

from shardmgr.primary import LossPolicy, Primary, PrimaryState, ReplicationPosition, ServerReport
from shardmgr.primary_changes import first_entry, start_drain, start_revoking
from shardmgr.suspicion import Suspicion, missing_to_promote
from tests.unit.shardmgr import test_promotion
from tests.unit.shardmgr.test_promotion import ENTRY, FENCED, PRIMARY, PROMOTING, SERVERS

GRACE_MS: Final = 5_000
ACKER: Final = replace(test_promotion.ACKER, heard="")
"""One that is not connected to the primary."""
SILENT: Final = {"r2": ACKER, "r3": ACKER}
"""Both ackers are reached, are not connected to the primary, and have their standings."""

ALONE: Final = replace(ENTRY, ackers={"r2": ENTRY.ackers["r2"]})
"""As after a first loss, while the former primary has not rejoined."""
CONTAINED: Final = replace(ACKER, acknowledges=False)
AHEAD: Final = ReplicationPosition({"r1": 10})


def verdicts(entry: Primary, rounds: Mapping[int, Mapping[str, ServerReport]]) -> list[int]:
    """Return the moments at which the primary is to be replaced, of rounds by their moments."""
    suspicion = Suspicion(GRACE_MS)
    return [now_ms for now_ms, reports in rounds.items() if suspicion.is_lost(entry, reports, now_ms)]


def hearing(text: str) -> dict[str, ServerReport]:
    return {**SILENT, "r3": replace(ACKER, heard=text)}


def test_primary_that_nobody_hears_from_is_replaced_after_the_grace_period() -> None:
    assert verdicts(ENTRY, dict.fromkeys((0, 4_999, 5_000, 6_000), SILENT)) == [5_000, 6_000]


def test_primary_that_the_promoter_reaches_is_not_replaced() -> None:
    reached = {**SILENT, "r1": PRIMARY}
    assert verdicts(ENTRY, {0: SILENT, 3_000: reached, 6_000: SILENT, 10_000: SILENT, 11_000: SILENT}) == [11_000]


def test_primary_that_an_acker_hears_is_not_replaced() -> None:
    assert verdicts(ENTRY, {second * 1_000: hearing(f"{second}") for second in range(20)}) == []


def test_acker_that_is_connected_and_hears_nothing_new_does_not_count() -> None:
    """The network between them drops everything: the connection stays for a minute."""
    assert verdicts(ENTRY, {second * 1_000: hearing("the same") for second in range(8)}) == [6_000, 7_000]


def test_next_primary_gets_its_own_grace_period() -> None:
    suspicion = Suspicion(GRACE_MS)
    other = replace(ENTRY, term=2)
    assert not suspicion.is_lost(ENTRY, SILENT, 0)
    assert not suspicion.is_lost(other, SILENT, 5_000)
    assert suspicion.is_lost(other, SILENT, 10_000)


def test_what_was_seen_before_another_promoter_watched_the_primary_does_not_count() -> None:
    suspicion = Suspicion(GRACE_MS)
    assert not suspicion.is_lost(ENTRY, SILENT, 0)
    suspicion.forget()
    assert not suspicion.is_lost(ENTRY, SILENT, 60_000)
    assert suspicion.is_lost(ENTRY, SILENT, 65_000)


@pytest.mark.parametrize(
    ("entry", "reports", "reason"),
    [
        (ENTRY, {"r2": ACKER}, "r3 is not reached"),
        (ENTRY, {**SILENT, "r2": replace(ACKER, standing="9")}, "r2 may have lost what it acknowledged"),
        (replace(ENTRY, policy=LossPolicy.ASYNC), SILENT, "its policy is async"),
        (replace(ENTRY, ackers={}), SILENT, "the entry has no acker"),
        (ALONE, {"r2": ACKER}, "no other server that is reached could acknowledge for r2"),
        (ALONE, {"r2": ACKER, "r3": PRIMARY}, "no other server"),
        (ALONE, {"r2": ACKER, "r3": replace(CONTAINED, received=AHEAD, applied=AHEAD)}, "no other server"),
        (ALONE, SILENT, "r3 acknowledges and is no acker"),
        (
            replace(ALONE, shut_out=("r3",)),
            {"r2": ACKER, "r3": CONTAINED},
            "no other server that is reached could acknowledge for r2; bring one back that has nothing of its own; unlock the "
            "replication account of r3",
        ),
        (start_revoking(ENTRY), SILENT, "the database is revoking"),
        (FENCED, SILENT, "the database is fenced"),
        (first_entry("r1", LossPolicy.SEMI_SYNC, SERVERS), SILENT, "the database is draining"),
    ],
)
def test_primary_is_not_replaced_if_an_administrator_would_be_needed(
    entry: Primary, reports: Mapping[str, ServerReport], reason: str
) -> None:
    [found, *_] = missing_to_promote(entry, reports)
    assert found.startswith(reason)
    assert verdicts(entry, dict.fromkeys((0, 9_000), reports)) == []


@pytest.mark.parametrize("entry", [start_drain(ENTRY, "r2"), replace(PROMOTING, servers=SERVERS)])
def test_primary_that_is_drained_or_was_never_used_is_replaced_too(entry: Primary) -> None:
    assert entry.state in (PrimaryState.DRAINING, PrimaryState.PROMOTING)
    assert verdicts(entry, dict.fromkeys((0, 9_000), {"r2": ACKER, "r3": ACKER} if entry.server == "r1" else {})) == [
        9_000
    ]


def test_primary_with_one_acker_is_replaced_if_another_server_could_acknowledge_for_the_next_one() -> None:
    reached = {"r2": ACKER, "r3": CONTAINED}
    assert verdicts(ALONE, dict.fromkeys((0, 9_000), reached)) == [9_000]
