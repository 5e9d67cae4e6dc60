"""The steps of a promotion, one by one: what is asked of which server, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from shardmgr.primary import (
    DatabaseServer,
    LossPolicy,
    Primary,
    PrimaryState,
    ReplicationPosition,
    ServerReport,
    greatest,
)
from shardmgr.primary_changes import (
    PromotionRefused,
    abort,
    accept_loss,
    admit_acker,
    first_entry,
    replace_lost,
    start_drain,
    start_release,
    start_revoking,
    without_acker,
)
from shardmgr.promotion import (
    AwaitChange,
    Promotion,
    PromotionStep,
    ReplaceEntry,
    SendCommand,
    ServerCommand,
    unfit_for_adoption,
)


def position(number: int, origin: str = "r1") -> ReplicationPosition:
    return ReplicationPosition({origin: number})


PRIMARY = ServerReport(
    term=1,
    is_read_only=False,
    waits_for_acks=True,
    kept_log=True,
    source="",
    is_receiving=False,
    acknowledges=False,
    standing="",
    received=position(9),
    applied=position(9),
    complaint="",
)
ACKER = replace(PRIMARY, is_read_only=True, waits_for_acks=False, source="r1", is_receiving=True, acknowledges=True)
STANDING = "2"
ACKER = replace(ACKER, standing=STANDING, heard="at 9")
STOPPED = replace(ACKER, is_receiving=False, acknowledges=False)
SERVERS = {name: DatabaseServer(name, number) for number, name in enumerate(("r1", "r2", "r3", "r4"), 1)}
ENTRY = Primary(1, "r1", LossPolicy.SEMI_SYNC, {"r2": STANDING, "r3": STANDING}, servers=SERVERS)
REVOKING = start_revoking(ENTRY)
FENCED = replace(ENTRY, state=PrimaryState.FENCED, target="r2", position=position(9))
PROMOTING = Primary(
    2, "r2", LossPolicy.SEMI_SYNC, {"r3": ""}, PrimaryState.PROMOTING, position=position(9), has_served=False
)


def step(entry: Primary, shards_free: bool = True, /, **reports: ServerReport) -> PromotionStep:
    return Promotion(entry, reports, shards_free=shards_free).next_step()


def next_entry(entry: Primary, shards_free: bool = True, /, **reports: ServerReport) -> Primary:
    found = step(entry, shards_free, **reports)
    assert isinstance(found, ReplaceEntry), found
    return found.entry


def missing(entry: Primary, shards_free: bool = True, /, **reports: ServerReport) -> tuple[str, ...]:
    found = step(entry, shards_free, **reports)
    assert isinstance(found, AwaitChange), found
    return found.missing


# -------------------------------------------------------------------- serving


def test_database_whose_ackers_are_proven_is_at_rest() -> None:
    assert missing(ENTRY, r1=PRIMARY, r2=ACKER, r3=ACKER) == ()


def test_acker_that_was_restarted_follows_and_gets_a_standing_when_it_has_all() -> None:
    restarted = replace(ACKER, source="r1", is_receiving=False, acknowledges=False, standing="", received=None)
    assert step(ENTRY, r1=PRIMARY, r2=restarted, r3=ACKER) == SendCommand("r2", ServerCommand.FOLLOW, "r1")
    lagging = replace(ACKER, standing="5", applied=position(8))
    assert missing(ENTRY, r1=PRIMARY, r2=lagging, r3=ACKER) == ()
    caught_up = replace(lagging, applied=position(9))
    assert next_entry(ENTRY, r1=PRIMARY, r2=caught_up, r3=ACKER).ackers == {"r2": "5", "r3": STANDING}


def test_primary_that_was_weakened_proves_nothing_until_its_ackers_have_caught_up_again() -> None:
    weak = replace(PRIMARY, waits_for_acks=False)
    void = next_entry(ENTRY, r1=weak, r2=ACKER, r3=ACKER)
    assert void.ackers == {"r2": "", "r3": ""}
    assert step(void, r1=weak, r2=ACKER, r3=ACKER) == SendCommand("r1", ServerCommand.OPEN, waits_for_acks=True)
    lagging = replace(ACKER, applied=position(8))
    assert missing(void, r1=PRIMARY, r2=lagging, r3=lagging) == ()
    assert next_entry(void, r1=PRIMARY, r2=ACKER, r3=lagging).ackers == {"r2": STANDING, "r3": ""}
    restarted = replace(weak, is_read_only=True)
    assert step(ENTRY, r1=restarted, r2=ACKER, r3=ACKER) == SendCommand("r1", ServerCommand.OPEN, waits_for_acks=True)


@pytest.mark.parametrize(
    ("entry", "primary", "is_weakened"),
    [
        (ENTRY, PRIMARY, False),
        (ENTRY, replace(PRIMARY, waits_for_acks=False), True),
        (ENTRY, replace(PRIMARY, waits_for_acks=False, is_read_only=True), False),
        (replace(ENTRY, policy=LossPolicy.ASYNC), replace(PRIMARY, waits_for_acks=False), False),
        (replace(ENTRY, state=PrimaryState.PROMOTING), replace(PRIMARY, waits_for_acks=False), False),
        (start_drain(ENTRY, "r2"), replace(PRIMARY, waits_for_acks=False), True),
        (replace(start_drain(ENTRY, "r2"), has_served=False), replace(PRIMARY, waits_for_acks=False), False),
    ],
)
def test_primary_is_weakened_if_hosts_commit_there_without_acks(
    entry: Primary, primary: ServerReport, is_weakened: bool
) -> None:
    assert Promotion(entry, {"r1": primary}, shards_free=False).is_weakened() is is_weakened
    assert not Promotion(entry, {}, shards_free=False).is_weakened()


def test_nobody_is_proven_while_a_server_acknowledges_that_the_entry_does_not_name() -> None:
    busy = replace(PRIMARY, acknowledgers=3)
    void = next_entry(ENTRY, r1=busy, r2=ACKER, r3=ACKER)
    assert void.ackers == {"r2": "", "r3": ""}
    [reason] = missing(void, r1=busy, r2=ACKER, r3=ACKER)
    assert "3 replicas acknowledge to r1, of which the entry names 2" in reason
    # An acker that is not reached may be connected; one that is and does not receive is not.
    assert missing(ENTRY, r1=replace(PRIMARY, acknowledgers=2), r2=ACKER) == ()
    stands = replace(ACKER, is_receiving=False, acknowledges=False)
    assert next_entry(ENTRY, r1=replace(PRIMARY, acknowledgers=2), r2=ACKER, r3=stands).ackers == void.ackers
    assert next_entry(void, r1=replace(PRIMARY, acknowledgers=2), r2=ACKER, r3=ACKER).ackers["r2"] == STANDING
    anyone = replace(ENTRY, policy=LossPolicy.ASYNC)
    assert missing(anyone, r1=busy, r2=ACKER, r3=ACKER) == ()


def test_server_that_left_the_entry_is_stopped_when_it_acknowledges_and_nobody_is_proven_before() -> None:
    busy = replace(PRIMARY, acknowledgers=3)
    void = next_entry(ENTRY, r1=busy, r2=ACKER, r3=ACKER, r4=ACKER)
    assert void.ackers == {"r2": "", "r3": ""}
    revoked = SendCommand("r4", ServerCommand.REVOKE)
    assert step(void, r1=busy, r2=ACKER, r3=ACKER, r4=ACKER) == revoked
    # One that receives no more has acknowledged before, perhaps.
    ended = replace(ACKER, is_receiving=False)
    assert next_entry(ENTRY, r1=PRIMARY, r2=ACKER, r3=ACKER, r4=ended).ackers == void.ackers
    assert step(void, r1=PRIMARY, r2=ACKER, r3=ACKER, r4=ended) == revoked
    follows = SendCommand("r2", ServerCommand.FOLLOW, "r1")
    assert step(void, r1=busy, r2=replace(STOPPED, source=""), r3=ACKER, r4=ACKER) == follows
    assert step(replace(ENTRY, policy=LossPolicy.ASYNC), r1=busy, r2=ACKER, r3=ACKER, r4=ACKER) == revoked
    assert missing(ENTRY, r1=PRIMARY, r2=ACKER, r3=ACKER, r4=replace(ACKER, acknowledges=False)) == ()


def test_ackers_of_a_primary_that_is_drained_prove_nothing_if_it_is_weakened_or_somebody_else_acknowledges() -> None:
    draining = start_drain(ENTRY, "r2")
    weak, busy = replace(PRIMARY, waits_for_acks=False), replace(PRIMARY, acknowledgers=3)
    ackers = {"r2": ACKER, "r3": ACKER}
    for reports in ({**ackers, "r1": weak}, {**ackers, "r1": busy}, {**ackers, "r1": PRIMARY, "r4": ACKER}):
        void = next_entry(draining, False, **reports)
        assert void == replace(draining, ackers={"r2": "", "r3": ""})
        assert missing(void, False, **reports) == ("shards of the database are still owned",)
        assert step(void, **reports) == SendCommand("r1", ServerCommand.MAKE_READ_ONLY)
    assert next_entry(draining, r1=replace(weak, is_read_only=True), r2=ACKER, r3=ACKER).state is PrimaryState.FENCED


def test_nobody_is_proven_beside_a_stranger_although_the_primary_is_not_reached() -> None:
    reports = {"r2": ACKER, "r3": ACKER, "r4": ACKER}
    [reason] = Promotion(ENTRY, reports, shards_free=False).unproven()
    assert reason.startswith("r4 acknowledges and is no acker, so it may have what no acker has; bring r1 back")
    void = replace(ENTRY, ackers={"r2": "", "r3": ""})
    assert next_entry(ENTRY, **reports) == void
    assert missing(void, **reports) == ("r1 is not reached",)
    draining = start_drain(ENTRY, "r2")
    assert next_entry(draining, False, **reports) == replace(draining, ackers=void.ackers)
    assert next_entry(REVOKING, **reports) == replace(REVOKING, ackers=void.ackers)


def test_stranger_is_stopped_while_the_primary_is_revoked_and_nobody_is_proven_after_that() -> None:
    reports = {"r2": STOPPED, "r3": STOPPED}
    void = next_entry(REVOKING, **reports, r4=ACKER)
    assert void == replace(REVOKING, ackers={"r2": "", "r3": ""})
    assert step(void, **reports, r4=ACKER) == SendCommand("r4", ServerCommand.REVOKE)
    assert len(missing(void, **reports, r4=STOPPED)) == 2
    for r4 in (STOPPED, ACKER):
        assert next_entry(void, **reports, r1=PRIMARY, r4=r4).is_serving  # it goes on
    # A server that left the entry in an earlier term receives nothing, and may have what nobody needs.
    assert next_entry(REVOKING, **reports, r4=replace(STOPPED, received=position(12))).state is PrimaryState.FENCED
    assert next_entry(replace(REVOKING, loss_accepted=True), **reports, r4=ACKER).state is PrimaryState.FENCED


def test_primary_that_was_weakened_waits_for_acks_again_although_its_ackers_received_more_since_it_was_read() -> None:
    void, weak = replace(ENTRY, ackers={"r2": "", "r3": ""}), replace(PRIMARY, waits_for_acks=False)
    ahead = replace(ACKER, received=position(12))
    opened = SendCommand("r1", ServerCommand.OPEN, waits_for_acks=True)
    assert step(void, r1=weak, r2=ahead, r3=ahead) == opened
    for unfit in (replace(weak, is_read_only=True), replace(weak, kept_log=False), replace(weak, term=0)):
        assert missing(void, r1=unfit, r2=ahead, r3=ahead) != ()


def test_reception_is_not_started_while_it_would_throw_away_what_the_primary_lacks() -> None:
    ahead = replace(STOPPED, applied=position(5), received=position(10))
    assert missing(ENTRY, r1=PRIMARY, r2=ahead, r3=ACKER) == ()
    behind = replace(ahead, received=position(9))
    assert step(ENTRY, r1=PRIMARY, r2=behind, r3=ACKER) == SendCommand("r2", ServerCommand.FOLLOW, "r1")


def test_acker_that_the_primary_refuses_delays_neither_the_standing_of_another_one_nor_the_next_term() -> None:
    refused = replace(ACKER, is_receiving=False, applied=position(8), received=position(8))
    entry = replace(ENTRY, ackers={"r2": STANDING, "r3": ""})
    assert next_entry(entry, r1=PRIMARY, r2=refused, r3=ACKER).ackers["r3"] == STANDING
    follow = SendCommand("r2", ServerCommand.FOLLOW, "r1")
    assert step(ENTRY, r1=PRIMARY, r2=refused, r3=ACKER) == follow
    assert step(ENTRY, r1=PRIMARY, r2=refused, r3=STOPPED) == replace(follow, server="r3")
    draining = start_drain(ENTRY, "r3")
    assert step(draining, r1=PRIMARY, r2=refused, r3=ACKER) == SendCommand("r1", ServerCommand.MAKE_READ_ONLY)
    promoting = replace(PROMOTING, ackers={"r1": "", "r3": ""})
    r1, r2, r3 = (replace(report, source="r2") for report in (refused, STOPPED, ACKER))
    target = replace(r2, source="", waits_for_acks=True)
    assert step(promoting, r1=r1, r2=target, r3=r3) == SendCommand("r2", ServerCommand.WRITE_TERM, term=2)
    assert step(promoting, r1=r1, r2=target) == SendCommand("r1", ServerCommand.FOLLOW, "r2")


def test_restarted_primary_is_opened_with_its_whole_log_although_all_ackers_were_restarted_too() -> None:
    restarted = replace(PRIMARY, is_read_only=True, waits_for_acks=False)
    acker = replace(STOPPED, acknowledges=False, standing="", received=None)
    opened = SendCommand("r1", ServerCommand.OPEN, waits_for_acks=True)
    assert step(ENTRY, r1=restarted, r2=acker, r3=acker) == opened


def test_restarted_primary_with_a_cut_log_is_opened_only_if_all_ackers_prove_that_nothing_is_lost() -> None:
    cut = replace(PRIMARY, is_read_only=True, waits_for_acks=False, kept_log=False)
    assert step(ENTRY, r1=cut, r2=ACKER, r3=ACKER) == SendCommand("r1", ServerCommand.OPEN, waits_for_acks=True)
    ahead = replace(ACKER, received=position(10))
    for reports in ({"r2": ACKER}, {"r2": ACKER, "r3": ahead}, {"r2": ACKER, "r3": replace(ACKER, standing="3")}):
        assert missing(ENTRY, r1=cut, **reports) == ("r1 was restarted with a shorter log; promote one of its ackers",)


def test_primary_of_another_term_is_not_opened() -> None:
    (found,) = missing(ENTRY, r1=replace(PRIMARY, is_read_only=True, term=0))
    assert found == "r1 has term 0 in its tables, not 1; promote one of its ackers"


def test_primary_that_lacks_what_an_acker_has_is_not_opened() -> None:
    (found,) = missing(ENTRY, r1=replace(PRIMARY, is_read_only=True, applied=position(8)), r2=ACKER)
    assert found == "r1 lacks what an acker has received from it; promote one of its ackers"


def test_async_primary_is_opened_without_acks() -> None:
    entry = replace(ENTRY, policy=LossPolicy.ASYNC)
    closed = replace(PRIMARY, is_read_only=True, waits_for_acks=False)
    assert step(entry, r1=closed) == SendCommand("r1", ServerCommand.OPEN, waits_for_acks=False)


# ------------------------------------------------------------------- draining


def test_drain_waits_for_shards_then_makes_the_primary_read_only_then_takes_its_position() -> None:
    entry = start_drain(ENTRY, "r3")
    assert missing(entry, False, r1=PRIMARY) == ("shards of the database are still owned",)
    assert missing(entry, r2=ACKER) == ("r1 is not reached",)
    assert step(entry, r1=PRIMARY, r2=ACKER, r3=ACKER) == SendCommand("r1", ServerCommand.MAKE_READ_ONLY)
    fenced = next_entry(entry, r1=replace(PRIMARY, is_read_only=True), r2=ACKER, r3=ACKER)
    assert (fenced.state, fenced.position, fenced.target, fenced.term) == (PrimaryState.FENCED, position(9), "r3", 1)


def test_acker_follows_in_a_drain_because_read_only_waits_for_commits_and_these_for_it() -> None:
    entry = start_drain(ENTRY, "r2")
    stopped = replace(STOPPED, acknowledges=False, standing="", received=None)
    assert step(entry, r1=PRIMARY, r2=stopped, r3=stopped) == SendCommand("r2", ServerCommand.FOLLOW, "r1")


def test_drain_of_a_primary_that_has_less_than_an_acker_revokes() -> None:
    cut = replace(PRIMARY, is_read_only=True, kept_log=False, applied=position(8))
    assert next_entry(start_drain(ENTRY, "r2"), r1=cut, r2=ACKER, r3=ACKER).state is PrimaryState.REVOKING


@pytest.mark.parametrize("lost", [{"applied": position(8)}, {"term": 0}])
def test_drain_does_not_believe_a_primary_that_kept_its_log_and_lacks_what_its_acker_or_its_term_has(
    lost: Mapping[str, Any],
) -> None:
    """It was restored from a copy, or its log was cut by an earlier start."""
    restored = replace(PRIMARY, is_read_only=True, **lost)
    assert next_entry(start_drain(ENTRY, "r2"), r1=restored, r2=ACKER).state is PrimaryState.REVOKING


# ------------------------------------------------------------------- revoking


def test_each_acker_is_stopped_before_anything_is_proven() -> None:
    assert step(REVOKING, r2=STOPPED, r3=ACKER) == SendCommand("r3", ServerCommand.REVOKE)
    may_acknowledge = replace(STOPPED, acknowledges=True)
    assert step(REVOKING, r2=STOPPED, r3=may_acknowledge) == SendCommand("r3", ServerCommand.REVOKE)


def test_position_is_the_greatest_that_was_received_and_its_holder_the_target() -> None:
    behind = replace(STOPPED, received=position(7), applied=position(7))
    ahead = replace(STOPPED, received=position(9), applied=position(2))
    fenced = next_entry(REVOKING, False, r2=behind, r3=ahead)
    assert (fenced.position, fenced.target) == (position(9), "r3")


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        ({"r2": STOPPED}, "r3 is not reached"),
        ({"r2": STOPPED, "r3": replace(STOPPED, standing="3")}, "r3 may have lost what it acknowledged"),
        ({"r2": STOPPED, "r3": replace(STOPPED, standing="", received=None)}, "r3 may have lost what it acknowledged"),
        (
            {"r2": replace(STOPPED, received=position(9)), "r3": replace(STOPPED, received=position(9, "x"))},
            "no server has all that the others have",
        ),
    ],
)
def test_without_a_proof_nothing_is_promoted_and_what_is_missing_is_said(
    reports: Mapping[str, ServerReport], reason: str
) -> None:
    (found,) = missing(REVOKING, **reports)
    assert found.startswith(reason)


def test_acker_without_a_standing_in_entry_and_report_proves_nothing() -> None:
    """Its reception was started while it was read, before it ever had all."""
    entry = replace(REVOKING, ackers={"r2": STANDING, "r3": ""})
    (found,) = missing(entry, r2=STOPPED, r3=replace(STOPPED, standing=""))
    assert found.startswith("r3 may lack what was acknowledged")


EMPTY = replace(STOPPED, source="", term=0, received=ReplicationPosition(), applied=ReplicationPosition())
FIRST = first_entry("r1", LossPolicy.SEMI_SYNC, SERVERS)


def test_first_entry_gets_its_position_when_the_shards_are_free_and_its_server_is_read_only() -> None:
    used = replace(PRIMARY, term=0, waits_for_acks=False)
    assert missing(FIRST, False, r1=used) == ("shards of the database are still owned",)
    assert step(FIRST, r1=used) == SendCommand("r1", ServerCommand.MAKE_READ_ONLY)
    begun = next_entry(FIRST, r1=replace(used, is_read_only=True), r2=EMPTY)
    assert (begun.state, begun.term, begun.position) == (PrimaryState.PROMOTING, 1, used.applied)
    assert missing(FIRST, r2=EMPTY) == ("r1 is not reached",)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"r2": {"is_read_only": False}}, "r2 accepts commits, which only the primary may"),
        ({"r2": {"source": "r3"}}, "r2 receives from r3, not from r1"),
        ({"r2": {"applied": position(1, "r2"), "received": position(1, "r2")}}, "r2 has transactions that r1 lacks"),
        ({"r2": {"received": position(99)}}, "r2 has transactions that r1 lacks"),
        ({"r1": {"source": "r9"}}, "r1 is a replica, it receives from r9"),
    ],
)
def test_server_is_no_first_primary_beside_a_server_with_its_own_data(
    change: Mapping[str, Mapping[str, Any]], reason: str
) -> None:
    reports = {"r1": replace(PRIMARY, term=0, is_read_only=True), "r2": EMPTY}
    changed = {name: replace(report, **change.get(name, {})) for name, report in reports.items()}
    assert unfit_for_adoption("r1", reports) == ()
    [found] = missing(FIRST, **changed)
    assert found.startswith(reason)


def test_first_entry_makes_its_server_the_primary_of_term_one_and_the_others_its_ackers() -> None:
    entry = replace(FIRST, state=PrimaryState.PROMOTING, position=position(9))
    fresh = replace(PRIMARY, term=0, is_read_only=True, waits_for_acks=False)
    assert step(entry, r1=fresh) == SendCommand("r1", ServerCommand.BECOME_PRIMARY, waits_for_acks=True)
    served = next_entry(entry, r1=PRIMARY, r2=ACKER)
    assert (served.term, served.state, served.ackers) == (1, PrimaryState.SERVING, {"r2": "", "r3": "", "r4": ""})
    assert served.has_served


def test_only_a_server_that_has_what_was_there_before_becomes_the_first_primary_of_an_existing_database() -> None:
    entry = start_revoking(replace(FIRST, state=PrimaryState.PROMOTING, position=position(9)))
    empty = replace(STOPPED, received=position(0), applied=position(0))
    fenced = next_entry(entry, r2=empty, r3=empty)
    assert missing(fenced, r2=empty, r3=empty) == ("no server that is reached has received the position of the term",)
    assert next_entry(fenced, r2=empty, r3=STOPPED).target == "r3"


def test_accepted_loss_waits_for_the_sessions_of_the_old_hosts_and_promotes_the_most_advanced_server() -> None:
    entry = accept_loss(REVOKING)
    assert missing(entry, False, r3=STOPPED) != ()
    fenced = next_entry(entry, r3=replace(STOPPED, standing="7", received=position(4)))
    assert (fenced.position, fenced.target, fenced.loss_accepted) == (position(4), "r3", True)


def test_administrator_names_the_server_if_none_has_all_that_the_others_have() -> None:
    reports = {"r2": STOPPED, "r3": replace(STOPPED, received=position(9, "x"))}
    (found,) = missing(accept_loss(REVOKING), **reports)
    assert found.endswith("name the one to promote")
    fenced = next_entry(accept_loss(REVOKING, "r3"), **reports)
    assert (fenced.position, fenced.target) == (position(9, "x"), "r3")


def test_server_that_an_administrator_has_named_is_waited_for_although_another_one_is_reached() -> None:
    entry = accept_loss(REVOKING, "r3")
    (found,) = missing(entry, r2=replace(STOPPED, received=position(2)))
    assert found == "r3 is not reached, or not closed; wait, or name another server"


def test_loss_that_was_accepted_is_asked_for_again_when_the_target_is_lost_while_promoting() -> None:
    entry = start_revoking(replace(PROMOTING, loss_accepted=True))
    fenced = next_entry(entry, r3=replace(STOPPED, received=position(4), applied=position(4)))
    assert (fenced.position, fenced.loss_accepted) == (position(9), False)
    assert missing(fenced, r3=replace(STOPPED, received=position(4), applied=position(4))) != ()


def test_replicas_of_an_async_primary_prove_nothing() -> None:
    cut = replace(PRIMARY, is_read_only=True, kept_log=False)
    assert missing(replace(ENTRY, policy=LossPolicy.ASYNC), r1=cut, r2=ACKER, r3=ACKER) != ()


def test_primary_that_is_back_and_closed_counts_when_a_loss_is_accepted() -> None:
    back = replace(PRIMARY, is_read_only=True, received=position(12), applied=position(12))
    fenced = next_entry(accept_loss(REVOKING), r1=back, r3=STOPPED)
    assert (fenced.position, fenced.target) == (position(12), "r1")


def test_async_database_waits_for_an_administrator() -> None:
    entry = replace(REVOKING, policy=LossPolicy.ASYNC)
    assert missing(entry, r2=STOPPED, r3=STOPPED) == ("an administrator must accept the loss",)


# -------------------------------------------------------- fenced and promoting


def test_next_term_begins_when_the_target_has_applied_the_position() -> None:
    unapplied = replace(STOPPED, applied=position(7))
    sentence = "r2 has not applied the position of the term: it lacks 2 transactions"
    assert missing(FENCED, r2=unapplied, r3=unapplied) == (sentence,)
    stands = replace(unapplied, complaint="its SQL thread stands")
    assert missing(FENCED, r2=stands, r3=unapplied) == (f"{sentence}; its SQL thread stands",)
    promoting = next_entry(FENCED, r2=STOPPED, r3=STOPPED)
    assert (promoting.state, promoting.term, promoting.server) == (PrimaryState.PROMOTING, 2, "r2")
    assert promoting.ackers == {"r3": ""}
    assert promoting.position == position(9)
    assert not promoting.has_served


def test_drained_primary_becomes_an_acker_of_the_next_one_and_a_lost_one_does_not() -> None:
    drained = replace(PRIMARY, is_read_only=True)
    assert next_entry(FENCED, r1=drained, r2=STOPPED, r3=STOPPED).ackers == {"r3": "", "r1": ""}
    tail = replace(drained, applied=position(10))
    assert next_entry(FENCED, r1=tail, r2=STOPPED, r3=STOPPED).ackers == {"r3": ""}


def test_drained_primary_that_was_not_reached_when_the_term_began_becomes_the_acker_that_is_missing() -> None:
    alone = next_entry(replace(FENCED, ackers={"r2": STANDING}), r2=STOPPED)
    assert alone.ackers == {}
    r2, drained = replace(STOPPED, source="", waits_for_acks=True), replace(PRIMARY, is_read_only=True)
    sentence = "no acker is connected to r2, so its term cannot be acknowledged; let one rejoin"
    for unfit in ({}, {"r1": PRIMARY}, {"r1": replace(drained, received=position(10), applied=position(10))}):
        assert missing(alone, r2=r2, **unfit) == (sentence,)
    admitted = next_entry(alone, r1=drained, r2=r2)
    assert admitted.ackers == {"r1": ""}
    assert step(admitted, r1=drained, r2=r2) == SendCommand("r1", ServerCommand.FOLLOW, "r2")


def test_former_primary_that_is_back_acknowledges_for_the_next_one_whose_ackers_are_lost() -> None:
    r2, former = replace(STOPPED, source="", waits_for_acks=True), replace(PRIMARY, is_read_only=True)
    ahead = replace(former, received=position(10), applied=position(10))
    assert missing(PROMOTING, r1=ahead, r2=r2) == (
        "no acker is connected to r2, so its term cannot be acknowledged; let one rejoin",
    )
    admitted = next_entry(PROMOTING, r1=former, r2=r2)
    assert admitted.ackers == {"r1": "", "r3": ""}
    assert step(admitted, r1=former, r2=r2) == SendCommand("r1", ServerCommand.FOLLOW, "r2")
    assert step(PROMOTING, r1=former, r2=r2, r3=STOPPED) == SendCommand("r3", ServerCommand.FOLLOW, "r2")


def test_former_primary_that_is_back_acknowledges_for_the_next_one_whose_acker_is_refused() -> None:
    r2, former = replace(STOPPED, source="", waits_for_acks=True), replace(PRIMARY, is_read_only=True)
    r3 = replace(ACKER, source="r2", heard="")
    sentence = "no acker is connected to r2, so its term cannot be acknowledged; let one rejoin"
    assert missing(PROMOTING, r1=former, r2=r2, r3=r3) == (sentence,)  # it may connect soon
    refused = replace(r3, complaint="its reception ended: its account is locked")
    assert next_entry(PROMOTING, r1=former, r2=r2, r3=refused).ackers == {"r1": "", "r3": ""}
    stands = replace(STOPPED, received=position(12), acknowledges=False)
    assert next_entry(PROMOTING, r1=former, r2=r2, r3=stands).ackers == {"r1": "", "r3": ""}


def test_server_whose_account_is_locked_does_not_become_the_acker_that_is_missing() -> None:
    r2, removed = replace(STOPPED, source="", waits_for_acks=True), replace(PRIMARY, is_read_only=True)
    entry = replace(PROMOTING, ackers={}, shut_out=("r3",))
    assert missing(entry, r2=r2, r3=removed) == (
        "no acker is connected to r2, so its term cannot be acknowledged; let one rejoin; unlock the replication account of "
        "r3, after SET SESSION sql_log_bin = 0, before foqs database rejoin",
    )
    assert next_entry(entry, r1=removed, r2=r2, r3=removed).ackers == {"r1": ""}


def test_another_holder_of_the_position_replaces_a_target_that_is_not_reached() -> None:
    assert next_entry(FENCED, r3=STOPPED).target == "r3"
    (found,) = missing(FENCED, r3=replace(STOPPED, received=position(8)))
    assert found == "no server that is reached has received the position of the term"


def test_acker_that_has_applied_the_position_is_promoted_instead_of_one_whose_sql_thread_stands() -> None:
    stands = replace(STOPPED, applied=position(8))
    assert next_entry(REVOKING, r2=stands, r3=STOPPED).target == "r3"
    assert next_entry(FENCED, r2=stands, r3=STOPPED).target == "r3"


def test_target_of_a_drain_is_waited_for_while_the_primary_could_go_on() -> None:
    behind, drained = replace(STOPPED, applied=position(8)), replace(PRIMARY, is_read_only=True)
    assert missing(FENCED, r1=drained, r2=behind, r3=STOPPED) != ()
    assert next_entry(FENCED, r1=replace(drained, applied=position(8)), r2=behind, r3=STOPPED).target == "r3"


def test_promotion_ends_the_replication_lets_the_others_follow_writes_the_term_opens_and_serves() -> None:
    r2 = STOPPED
    become = SendCommand("r2", ServerCommand.BECOME_PRIMARY, waits_for_acks=True)
    assert step(PROMOTING, r2=r2, r3=STOPPED) == become
    r2 = replace(r2, source="", waits_for_acks=True, acknowledges=False, standing="")
    assert step(PROMOTING, r2=r2, r3=STOPPED) == SendCommand("r3", ServerCommand.FOLLOW, "r2")
    r3 = replace(ACKER, source="r2")
    assert step(PROMOTING, r2=r2, r3=r3) == SendCommand("r2", ServerCommand.WRITE_TERM, term=2)
    r2 = replace(r2, term=2)
    assert step(PROMOTING, r2=r2, r3=r3) == SendCommand("r2", ServerCommand.OPEN, waits_for_acks=True)
    serving = next_entry(PROMOTING, r2=replace(r2, is_read_only=False), r3=r3)
    assert serving == Primary(2, "r2", LossPolicy.SEMI_SYNC, {"r3": ""})


def test_target_that_has_lost_the_position_is_replaced_by_a_server_that_has_it() -> None:
    cut = replace(STOPPED, received=None, applied=position(8), kept_log=False)
    revoking = next_entry(PROMOTING, r2=cut, r3=STOPPED)
    assert (revoking.state, revoking.position) == (PrimaryState.REVOKING, position(9))
    fenced = next_entry(revoking, r2=cut, r3=STOPPED)
    assert (fenced.position, fenced.target) == (position(9), "r3")
    following = next_entry(fenced, r2=cut, r3=STOPPED)
    assert (following.term, following.server, following.state) == (3, "r3", PrimaryState.PROMOTING)


def test_target_that_alone_had_the_position_and_lost_it_waits_for_an_accepted_loss() -> None:
    cut, behind = (replace(STOPPED, received=None, applied=position(number)) for number in (8, 7))
    fenced = next_entry(next_entry(PROMOTING, r2=cut, r3=behind), r2=cut, r3=behind)
    assert missing(fenced, r2=cut, r3=behind) == ("no server that is reached has received the position of the term",)
    accepted = next_entry(accept_loss(fenced), r2=cut, r3=behind)
    assert (accepted.position, accepted.target) == (position(8), "r2")


def test_target_that_received_more_than_the_position_applies_it_first() -> None:
    more = replace(STOPPED, received=position(10))
    assert missing(PROMOTING, r2=more, r3=STOPPED) == ("r2 has not applied what it has received of the former term",)


@pytest.mark.parametrize("policy", LossPolicy)
def test_lost_target_is_replaced_by_a_server_that_has_the_position_in_another_term(policy: LossPolicy) -> None:
    """Nobody has used its term, so nothing is lost with any policy."""
    entry = start_revoking(replace(PROMOTING, policy=policy))
    fenced = next_entry(entry, r3=STOPPED)
    assert (fenced.position, fenced.target) == (position(9), "r3")
    assert next_entry(fenced, r3=STOPPED).term == 3


# -------------------------------------------------------------- administrators


@pytest.mark.parametrize(
    "change",
    [
        lambda: start_drain(REVOKING, "r2"),
        lambda: start_drain(ENTRY, "r9"),
        lambda: start_revoking(REVOKING),
        lambda: accept_loss(ENTRY),
        lambda: abort(PROMOTING),
        lambda: abort(start_revoking(PROMOTING)),
        lambda: admit_acker(ENTRY, "r1"),
        lambda: admit_acker(REVOKING, "r1"),
        lambda: admit_acker(ENTRY, "r9"),
        lambda: accept_loss(REVOKING, "r4"),
        lambda: first_entry("r9", LossPolicy.SEMI_SYNC, SERVERS),
    ],
)
def test_change_that_does_not_fit_the_state_is_refused(change: Callable[[], Primary]) -> None:
    with pytest.raises(PromotionRefused):
        change()


@pytest.mark.parametrize("entry", [start_drain(ENTRY, "r2"), REVOKING, accept_loss(REVOKING), FENCED])
def test_aborted_change_leaves_the_primary_in_its_term(entry: Primary) -> None:
    assert abort(entry) == ENTRY


def test_admitted_acker_has_no_standing_yet() -> None:
    assert admit_acker(ENTRY, "r4").ackers == {"r2": STANDING, "r3": STANDING, "r4": ""}


@pytest.mark.parametrize(("policy", "shut_out"), [(LossPolicy.SEMI_SYNC, ("r2", "r3")), (LossPolicy.ASYNC, ("r2",))])
def test_removed_acker_is_shut_out_until_it_rejoins_if_its_account_is_locked(
    policy: LossPolicy, shut_out: tuple[str, ...]
) -> None:
    entry = replace(ENTRY, policy=policy, ackers={"r3": STANDING, "r4": STANDING}, shut_out=("r2",))
    removed = without_acker(entry, "r3")
    assert (removed.ackers, removed.shut_out) == ({"r4": ""}, shut_out)
    back = admit_acker(removed, "r3")
    assert (back.ackers, back.shut_out) == ({"r3": "", "r4": ""}, ("r2",))


def test_greatest_position_covers_all_others_and_diverged_ones_have_none() -> None:
    assert greatest([position(1), position(3), position(2)]) == position(3)
    assert greatest([position(1), position(1, "x")]) is None
    assert greatest([]) is None


def test_administrator_replaces_a_lost_primary_and_may_repeat_that() -> None:
    lost = replace_lost(ENTRY, "r1")
    assert lost == REVOKING
    for begun in (REVOKING, FENCED):
        assert replace_lost(begun, "r1") is begun
    accepted = replace_lost(ENTRY, "r1", target="r3", accepts_loss=True)
    assert (accepted.state, accepted.target, accepted.loss_accepted) == (PrimaryState.REVOKING, "r3", True)
    assert replace_lost(accepted, "r1", target="r3", accepts_loss=True) == accepted


@pytest.mark.parametrize(
    ("entry", "options", "reason"),
    [
        (ENTRY, {"lost": "r2"}, "r1 is the primary in term 1"),
        (replace(ENTRY, server="r2", term=2, ackers={}), {"lost": "r1"}, "r2 is the primary in term 2"),
        (PROMOTING, {"lost": "r2"}, "r2 is the primary in term 2"),
        (ENTRY, {"lost": "r1", "target": "r2"}, "leave the region out"),
        (replace(ENTRY, policy=LossPolicy.ASYNC), {"lost": "r1"}, "repeat with the loss accepted"),
        (ENTRY, {"lost": "r1", "target": "r4", "accepts_loss": True}, "r4 is no acker"),
    ],
)
def test_replacement_that_would_lose_by_mistake_is_refused(
    entry: Primary, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PromotionRefused, match=reason):
        replace_lost(entry, **options)


def test_primary_that_is_back_goes_on_if_its_ackers_cannot_prove_what_it_acknowledged() -> None:
    restarted = replace(STOPPED, standing="7", received=position(7), applied=position(7))
    back = replace(PRIMARY, is_read_only=True)
    serving = next_entry(REVOKING, r1=back, r2=STOPPED, r3=restarted)
    assert (serving.state, serving.term, serving.ackers) == (PrimaryState.SERVING, 1, ENTRY.ackers)
    assert next_entry(REVOKING, r1=back, r2=STOPPED).state is PrimaryState.SERVING
    # If they can, the promotion goes on; if it has lost something or a loss was accepted, it does not go on.
    assert next_entry(REVOKING, r1=back, r2=STOPPED, r3=STOPPED).state is PrimaryState.FENCED
    for cut in (replace(back, kept_log=False), replace(back, applied=position(8)), replace(back, term=0)):
        assert missing(REVOKING, r1=cut, r2=STOPPED, r3=restarted)
    accepted = accept_loss(REVOKING)
    assert next_entry(accepted, r1=back, r2=STOPPED, r3=restarted).state is PrimaryState.FENCED


# ------------------------------------------------------------------ releasing


def test_database_that_is_released_waits_for_no_acks_and_has_no_entry_then() -> None:
    releasing = start_release(ENTRY)
    assert releasing.ackers == {"r2": "", "r3": ""}
    assert start_release(releasing) is releasing
    assert missing(releasing, r2=ACKER) == ("r1 is not reached",)
    assert step(releasing, r1=PRIMARY, r2=ACKER) == SendCommand("r1", ServerCommand.OPEN)
    alone = replace(PRIMARY, waits_for_acks=False)
    assert step(releasing, r1=replace(alone, is_read_only=True)) == SendCommand("r1", ServerCommand.OPEN)
    assert next_entry(releasing, r1=alone).state is PrimaryState.RELEASED
    assert missing(replace(releasing, state=PrimaryState.RELEASED), r1=alone) == ()
    assert abort(releasing) == replace(ENTRY, ackers={"r2": "", "r3": ""})


def test_first_term_that_cannot_begin_is_released() -> None:
    first = first_entry("r1", LossPolicy.SEMI_SYNC, SERVERS)
    for entry in (first, replace(first, state=PrimaryState.PROMOTING, position=position(9))):
        with pytest.raises(PromotionRefused, match="foqs database forget"):
            abort(entry)
        assert (
            next_entry(start_release(entry), r1=replace(PRIMARY, waits_for_acks=False)).state is PrimaryState.RELEASED
        )
    for entry in (REVOKING, FENCED, start_drain(ENTRY, "r2")):
        with pytest.raises(PromotionRefused, match="abort that first"):
            start_release(entry)


def test_next_primary_that_is_released_first_ends_its_replication_and_has_the_position() -> None:
    releasing = start_release(PROMOTING)
    assert step(releasing, r2=ACKER) == SendCommand("r2", ServerCommand.BECOME_PRIMARY)
    lacking = replace(ACKER, applied=position(8))
    assert missing(releasing, r2=lacking) == ("r2 lacks what the former term has acknowledged",)
