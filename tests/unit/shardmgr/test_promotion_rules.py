"""No promotion loses what was acknowledged, and no two primaries acknowledge.

The rules of docs/design/regions.md, over random histories of three regions that `shardmgr.promotion` steers. Planted
mistakes break one rule each, and each mistake must be found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import pytest

from shardmgr.primary import LossPolicy, Primary, PrimaryState, ReplicationPosition, ServerReport, greatest
from shardmgr.primary_changes import start_drain, start_revoking, without_acker
from shardmgr.promotion import Promotion, PromotionStep, ReplaceEntry, SendCommand, ServerCommand
from tests.support.example_counts import examples
from tests.support.plain_regions import PlainHost, PlainPromoter, PlainServer
from tests.support.region_histories import ExistingDatabase, PromiseBroken, RegionHistory, play

HISTORIES: Final = examples(60)
FOUND_HISTORIES: Final = (303, 953, 1868, 2927)
"""Histories that have shown mistakes: an acker without a standing was started again while it was read; hosts began a session
with what they had read in the one before; a primary without ackers was never aborted."""
PLANTED_HISTORIES_MAX: Final = 2_000
"""A planted mistake must be found within this many, if not by the history that is known to show it."""


def test_no_promotion_loses_what_was_acknowledged() -> None:
    broken = [problem for seed in (*range(HISTORIES), *FOUND_HISTORIES) if (problem := play(seed))]
    assert broken == []


def test_no_promotion_loses_what_only_a_server_has_that_the_entry_does_not_name() -> None:
    broken = [problem for seed in range(HISTORIES) if (problem := play(seed, UnlistedAcker))]
    assert broken == []


def test_first_primary_of_an_existing_database_has_what_was_there_before() -> None:
    broken = [problem for seed in range(HISTORIES) if (problem := play(seed, ExistingDatabase))]
    assert broken == []


def test_statement_of_a_frozen_promoter_fails_when_another_one_has_connected() -> None:
    world = RegionHistory(0).world
    primary = world.servers["r1"]
    primary.kill9()
    primary.start()
    frozen = PlainPromoter(world, "r1", lambda: True)
    run = frozen.round()
    while not isinstance(frozen.waits_for, SendCommand):
        next(run)
    PlainPromoter(world, "r2", lambda: True).connect("r1")
    assert list(run) == []
    assert primary.is_read_only


# ------------------------------------------------------------- planted mistakes


class PromotesWithoutAllAckers(Promotion):
    """The ackers that are reached prove what was acknowledged."""

    def revoked_position(self) -> ReplicationPosition | None:
        reached = [server for server in self._entry.ackers if server in self._reports]
        return greatest(self._held_by(server) for server in reached) if all(map(self.is_proven, reached)) else None


class IgnoresStandings(Promotion):
    """An acker that is reached, and says what it received, counts: its reception may have been started again."""

    def is_proven(self, server: str) -> bool:
        report = self._reports.get(server)
        proves = self._entry.policy is LossPolicy.SEMI_SYNC
        return proves and report is not None and report.received is not None


class QualifiesEarly(Promotion):
    """The standing of a replica counts before it has what it may have thrown away."""

    def may_be_qualified(self, report: ServerReport, primary: ServerReport) -> bool:
        return report.is_receiving and report.acknowledges and report.source == self._entry.server


class ChoosesByApplied(Promotion):
    """The most advanced acker is the one that has applied most."""

    def revoked_position(self) -> ReplicationPosition | None:
        if super().revoked_position() is None:
            return None
        return greatest(self._reports[server].applied for server in self._entry.ackers if server in self._reports)


class PassesNamedOver(Promotion):
    """If the server that an administrator has named is not reached, the most advanced one that is reached takes its place."""

    def revoked_position(self) -> ReplicationPosition | None:
        entry = self._entry
        if entry.loss_accepted and entry.target not in self._candidates():
            return greatest(self._held_by(server) for server in self._candidates())
        return super().revoked_position()


class PromotesBeforeApplied(Promotion):
    """A server that has received the position becomes the primary."""

    def has_position(self, report: ServerReport) -> bool:
        return True


class OpensWithoutComparing(Promotion):
    """A primary that was restarted is opened, whatever its start has cut off."""

    def may_be_opened(self, primary: ServerReport) -> bool:
        return True


class DrainsCutPrimary(Promotion):
    """The position of a read-only primary is all that it has acknowledged, whatever its start has cut off."""

    def fenced_position(self, primary: ServerReport) -> ReplicationPosition | None:
        return primary.applied


class BelievesKeptLog(Promotion):
    """A primary whose last start cut nothing is drained, although an acker that is reached has more."""

    def fenced_position(self, primary: ServerReport) -> ReplicationPosition | None:
        return primary.applied if primary.kept_log or self._has_all_of_ackers(primary) else None


class AcceptsLossAtOnce(Promotion):
    """An accepted loss need not wait for the sessions of the old hosts."""

    def __init__(self, entry: Primary, reports: Mapping[str, ServerReport], *, shards_free: bool) -> None:
        super().__init__(entry, reports, shards_free=shards_free or entry.loss_accepted)


class ForgetsAcks(Promotion):
    """A server becomes the primary, and is opened, without waiting for acks."""

    def next_step(self) -> PromotionStep:
        step = super().next_step()
        return replace(step, waits_for_acks=False) if isinstance(step, SendCommand) else step

    def _lacks_acks(self, primary: ServerReport) -> bool:
        return False


class BelievesWhatItReads(PlainHost):
    """No barrier: an outcome is told as soon as it is read."""

    def may_believe(self, server: PlainServer) -> bool:
        return True


class IgnoresSettings(PlainHost):
    """The identity is checked without the settings of semi-sync."""

    def accepts(self, server: PlainServer) -> bool:
        return (server.name, server.term) == (self.entry.server, self.entry.term)


class ServesWithoutSession(PlainHost):
    """The host goes on when its session is over."""

    def end_session(self) -> None:
        self.in_session = False


class EmptyFirstPosition(Promotion):
    """The first term of a database does not know what its server has."""

    def next_step(self) -> PromotionStep:
        step = super().next_step()
        if isinstance(step, ReplaceEntry) and self._entry.state is PrimaryState.DRAINING and not self._entry.has_served:
            return ReplaceEntry(replace(step.entry, position=ReplicationPosition()))
        return step


class IgnoresStrangers(Promotion):
    """Nobody counts the replicas that acknowledge at the primary."""

    def _stop_strangers(self, primary: ServerReport) -> None:
        return None

    def _strangers(self) -> list[str]:
        return []


class StopsStrangersOnly(Promotion):
    """A server that acknowledges and is no acker is stopped, and the others stay proven."""

    def _must_void_for_strangers(self) -> bool:
        return False

    def _stop_strangers(self, primary: ServerReport) -> PromotionStep | None:
        for server in self._strangers():
            return SendCommand(server, ServerCommand.REVOKE)
        return None


class UnlistedAcker(RegionHistory):
    """A server that the entry does not name as an acker acknowledges, too."""

    policies = (LossPolicy.SEMI_SYNC,)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.world.entry = replace(self.world.entry, ackers={"r2": ""})


def history_with(
    rules: type[Promotion] = Promotion,
    *,
    host: type[PlainHost] = PlainHost,
    policy: LossPolicy = LossPolicy.SEMI_SYNC,
    base: type[RegionHistory] = RegionHistory,
) -> type[RegionHistory]:
    class Promoter(PlainPromoter):
        def rules(self, entry: Primary, reports: Mapping[str, ServerReport], *, shards_free: bool) -> Promotion:
            return rules(entry, reports, shards_free=shards_free)

    class History(base):  # type: ignore[misc, valid-type]
        policies = (policy,)
        host_type = host
        promoter_type = Promoter

    return History


class TakesAnyServer(PlainHost):
    """No identity: the host uses the server to which the name of the primary leads."""

    def accepts(self, server: PlainServer) -> bool:
        return True


class SkipsFence(Promotion):
    """A drain takes the position of a primary that still commits."""

    def next_step(self) -> PromotionStep:
        step = super().next_step()
        if isinstance(step, SendCommand) and step.command is ServerCommand.MAKE_READ_ONLY:
            report = replace(self._reports[step.server], is_read_only=True)
            self._reports = {**self._reports, step.server: report}
            return super().next_step()
        return step


def acknowledge_at_former_primary(history: RegionHistory) -> None:
    """A host that has read the entry of the second term is led to the server of the first one, which is still open."""
    world = history.world
    world.servers["r2"].append(term=2)
    world.servers["r2"].is_read_only = False
    world.entry = Primary(2, "r2", LossPolicy.ASYNC, {"r3": ""})
    host = history.hosts[2]
    host.follow_entry()
    host.connect("r1")
    for step in (host.poll, host.begin_flush, host.poll):
        step()
    history.check_no_late_ack(set())


def drain_beside_frozen_owner(history: RegionHistory) -> None:
    """The owner does not give its shard back: its hand-over is overdue, and it goes on with the former entry."""
    world, host = history.world, history.hosts[0]
    host.connect("r1")
    host.poll()
    world.entry = start_drain(world.entry, "r2")
    promoter = history.promoters[1]
    promoter.shards_free = lambda: True
    run = promoter.run()
    for _ in range(600):
        next(run)
        host.begin_flush()
        host.poll()
        world.receive("r2")
        world.servers["r2"].apply_next()
        history.check()
    assert world.entry.term == 2
    assert world.acknowledged


def drain_primary_whose_second_start_hides_a_cut(history: RegionHistory) -> None:
    """The target has less than the other acker, and the primary too, since a start has cut its log."""
    world, host, promoter = history.world, history.hosts[0], history.promoters[1]
    promoter.shards_free = lambda: True
    run = promoter.run()
    while not all(world.entry.ackers.values()):
        next(run)
        replicate(history, "r2", "r3")
    host.connect("r1")
    for _ in range(5):
        host.poll()
        host.begin_flush()
        replicate(history, "r3")
    host.poll()
    primary = world.servers["r1"]
    for cuts in (True, False):
        primary.kill9()
        primary.start(cuts=cuts)
    primary.kept_log = True
    assert world.acknowledged - primary.flushes
    world.entry = start_drain(world.entry, "r2")
    for _ in range(600):
        next(run)
        replicate(history, "r2", "r3")
        history.check()
    assert world.entry.term == 2


def lose_primary_after_removal(history: RegionHistory, without: Callable[[Primary, str], Primary]) -> None:
    """The acker that is removed is the only one that has the last commits; then it is lost, and the primary too."""
    world, host, promoter = history.world, history.hosts[0], history.promoters[1]
    promoter.shards_free = lambda: True
    run = promoter.run()
    while not all(world.entry.ackers.values()):
        next(run)
        replicate(history, "r2", "r3")
    host.connect("r1")
    for _ in range(5):
        host.poll()
        host.begin_flush()
        replicate(history, "r3")
    host.poll()
    assert world.acknowledged - world.servers["r2"].flushes
    world.locked.add("r3")
    assert world.replace_entry(without(world.entry, "r3"), world.version)
    for name in ("r1", "r3"):
        world.servers[name].kill9()
    assert world.replace_entry(start_revoking(world.entry), world.version)
    for _ in range(300):
        next(run)
        replicate(history, "r2")
        history.check()


def lose_primary_beside_stranger(history: RegionHistory, *, receives: bool) -> None:
    """A server of the entry that is no acker has the last commits alone. It is stopped, and is lost with the primary.

    Args:
        receives: its reception goes on until it is stopped; otherwise it ends before a promoter looks at it.
    """
    world, host, promoter = history.world, history.hosts[0], history.promoters[1]
    promoter.shards_free = lambda: True
    run = promoter.run()
    while not all(world.entry.ackers.values()):
        next(run)
        replicate(history, "r2")
    host.connect("r1")
    world.servers["r3"].acknowledges = True
    world.servers["r3"].start_receiving("r1")
    for _ in range(5):
        host.poll()
        host.begin_flush()
        replicate(history, "r3")
    host.poll()
    assert world.acknowledged - world.servers["r2"].flushes
    world.servers["r3"].is_receiving = receives
    while world.servers["r3"].acknowledges:
        next(run)
    for name in ("r1", "r3"):
        world.servers[name].kill9()
    assert world.replace_entry(start_revoking(world.entry), world.version)
    for _ in range(300):
        next(run)
        replicate(history, "r2")
        history.check()


def replicate(history: RegionHistory, *names: str) -> None:
    for name in names:
        history.world.receive(name)
        history.world.servers[name].apply_next()
    for ack in list(history.world.acks):
        history.world.deliver(ack)


def test_host_does_not_use_the_server_of_another_term() -> None:
    acknowledge_at_former_primary(history_with(policy=LossPolicy.ASYNC)(0))
    with pytest.raises(PromiseBroken):
        acknowledge_at_former_primary(history_with(host=TakesAnyServer, policy=LossPolicy.ASYNC)(0))


def test_drain_loses_nothing_beside_an_owner_that_goes_on() -> None:
    drain_beside_frozen_owner(history_with(policy=LossPolicy.ASYNC)(0))
    with pytest.raises(PromiseBroken):
        drain_beside_frozen_owner(history_with(SkipsFence, policy=LossPolicy.ASYNC)(0))


def test_drain_loses_nothing_of_a_primary_whose_second_start_hides_a_cut() -> None:
    drain_primary_whose_second_start_hides_a_cut(history_with()(0))
    with pytest.raises(PromiseBroken):
        drain_primary_whose_second_start_hides_a_cut(history_with(BelievesKeptLog)(0))


def test_removed_acker_takes_no_proof_with_it_that_the_others_lack() -> None:
    history = history_with()(0)
    lose_primary_after_removal(history, without_acker)
    assert history.world.entry.state is PrimaryState.REVOKING
    with pytest.raises(PromiseBroken):
        lose_primary_after_removal(
            history_with()(0), lambda entry, name: replace(entry, ackers={"r2": entry.ackers["r2"]})
        )


@pytest.mark.parametrize("receives", [True, False])
def test_stranger_that_is_stopped_takes_no_proof_with_it(receives: bool) -> None:
    history = history_with(base=UnlistedAcker)(0)
    lose_primary_beside_stranger(history, receives=receives)
    assert history.world.entry.state is PrimaryState.REVOKING
    with pytest.raises(PromiseBroken):
        lose_primary_beside_stranger(history_with(StopsStrangersOnly, base=UnlistedAcker)(0), receives=receives)


PLANTED: Final[Mapping[str, tuple[type[RegionHistory], int]]] = {
    "not all ackers": (history_with(PromotesWithoutAllAckers), 619),
    "no standings": (history_with(IgnoresStandings), 156),
    "an early standing": (history_with(QualifiesEarly), 263),
    "the target by what it has applied": (history_with(ChoosesByApplied), 974),
    "promoted before it has applied": (history_with(PromotesBeforeApplied), 13),
    "a cut log is opened": (history_with(OpensWithoutComparing), 50),
    "a cut log is drained": (history_with(DrainsCutPrimary), 1559),
    "an accepted loss that does not wait for sessions": (history_with(AcceptsLossAtOnce, policy=LossPolicy.ASYNC), 63),
    "no barrier": (history_with(host=BelievesWhatItReads), 456),
    "no end of the session": (history_with(host=ServesWithoutSession, policy=LossPolicy.ASYNC), 106),
    "no acks, and nobody looks": (history_with(ForgetsAcks, host=IgnoresSettings), 865),
    "an acker that the entry does not name": (history_with(IgnoresStrangers, base=UnlistedAcker), 20),
    "a named server that is not awaited": (history_with(PassesNamedOver, policy=LossPolicy.ASYNC), 3),
    "a first term without a position": (history_with(EmptyFirstPosition, base=ExistingDatabase), 3),
    "a first position of an open server": (history_with(SkipsFence, base=ExistingDatabase), 158),
}
"""By what is missing: the histories with the mistake, and one that is known to show it."""


@pytest.mark.parametrize("mistake", PLANTED)
def test_planted_mistake_is_found(mistake: str) -> None:
    history_type, known = PLANTED[mistake]
    seeds = (known, *range(PLANTED_HISTORIES_MAX))
    assert any(play(seed, history_type, rests=False) for seed in seeds)
