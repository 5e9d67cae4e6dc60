"""The promotion of a replica: the rules by which the primary of a database is kept, drained and replaced.

A pure function of the entry of a database, of what its servers report, and of whether its
shards are free. It returns one step: a statement for one server, the next entry, or what is
missing. A promoter carries the step out, reads everything again, and asks for the next one.
So another promoter can go on after any step. Always true: a server becomes the primary
only if it has applied the position of the fenced term; a step for a server never throws
away what it has received and not applied. Knows neither SQL nor the registry nor the time.

    serving(T) ──drain──▶ draining(T) ──shards free, primary read-only──▶ fenced(T) ──applied──▶ promoting(T+1) ──▶ serving(T+1)
        └─────────lost──▶ revoking(T) ──all ackers stopped, or the loss accepted──▶ ┘
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from shardmgr.primary import (
    LossPolicy,
    Primary,
    PrimaryState,
    ReplicationPosition,
    ServerReport,
    greatest,
)
from shardmgr.primary_changes import abort, start_revoking


class ServerCommand(enum.Enum):
    """What a promoter asks of a server. Each may be repeated."""

    REVOKE = "revoke"
    """Switch acknowledgements off, then stop the reception. So nobody who starts it again lets it acknowledge."""
    MAKE_READ_ONLY = "make read-only"
    """Refuse commits, after the commits in progress; bounded."""
    FOLLOW = "follow"
    """Receive from `source`, and acknowledge."""
    BECOME_PRIMARY = "become primary"
    """End the replication from another server for good."""
    WRITE_TERM = "write the term"
    """Commit the term to the server's own tables; with semi-sync it returns when an acker has it."""
    OPEN = "open"
    """Accept commits of hosts."""


@dataclass(slots=True, frozen=True)
class SendCommand:
    """A step: a command for one server.

    Attributes:
        source: the server to follow.
        term: the term to write.
        waits_for_acks: whether the server shall wait for acks as a primary.
    """

    server: str
    command: ServerCommand
    source: str = ""
    term: int = 0
    waits_for_acks: bool = False


@dataclass(slots=True, frozen=True)
class ReplaceEntry:
    """A step: replace the entry, if it is still the one that was read."""

    entry: Primary


@dataclass(slots=True, frozen=True)
class AwaitChange:
    """A step: nothing can be done now. `missing` says why, one reason each; empty: the database is at rest."""

    missing: tuple[str, ...] = ()


PromotionStep: TypeAlias = SendCommand | ReplaceEntry | AwaitChange


class Promotion:
    """The next step for one database.

    Args:
        entry: as it was read, after the connections to the servers were made.
        reports: by name, the servers that were reached, as they were after the entry was read. The replicas' standings
            were read before the primary, and everything else of them after it.
        shards_free: no owner holds a shard of the database in this term, or could still serve it.
        failing: the servers that lately did not carry out what they were asked. Nothing waits for them that can do without.
    """

    def __init__(
        self, entry: Primary, reports: Mapping[str, ServerReport], *, shards_free: bool, failing: Collection[str] = ()
    ) -> None:
        self._entry = entry
        self._reports = reports
        self._shards_free = shards_free
        self._failing = failing

    def next_step(self) -> PromotionStep:
        """Return the step that brings the database nearer to the next state, or to rest."""
        if self._must_void_for_strangers():
            return ReplaceEntry(self._without_standings())
        steps: dict[PrimaryState, Callable[[], PromotionStep]] = {
            PrimaryState.SERVING: self._keep_serving,
            PrimaryState.DRAINING: self._drain,
            PrimaryState.REVOKING: self._revoke,
            PrimaryState.FENCED: self._prepare,
            PrimaryState.PROMOTING: self._promote,
            PrimaryState.RELEASING: self._release,
            PrimaryState.RELEASED: AwaitChange,
        }
        return steps[self._entry.state]()

    # ------------------------------------------------------------------- rules

    def is_proven(self, server: str) -> bool:
        """Return whether an acker has all that it ever acknowledged in this term: its reception never lost anything.

        A replica of an async primary has acknowledged nothing, and proves nothing. Neither does an acker without a
        standing, in the entry or in its report.
        """
        report = self._reports.get(server)
        if report is None or report.received is None or self._entry.policy is LossPolicy.ASYNC:
            return False
        return report.standing != "" and self._entry.ackers[server] == report.standing

    def proven_ackers(self) -> list[str]:
        """Return the ackers that are proven. If these are all, the position of a lost primary would be known."""
        return [server for server in self._entry.ackers if self.is_proven(server)]

    def is_weakened(self) -> bool:
        """Return whether hosts commit at a primary that does not wait for acks as it must."""
        primary = self._reports.get(self._entry.server)
        return self._entry.is_in_use and primary is not None and not primary.is_read_only and self._lacks_acks(primary)

    def has_position(self, report: ServerReport) -> bool:
        """Return whether a server may become the primary: it has applied all that the term acknowledged."""
        position = self._entry.position
        return position is not None and report.applied.covers(position) and report.has_applied_all

    def may_start(self, report: ServerReport) -> bool:
        """Return whether a server may be started to follow the primary: what it throws away then, the primary has."""
        primary = self._reports[self._entry.server]
        return report.received is None or primary.applied.covers(report.received) or report.has_applied_all

    def may_be_qualified(self, report: ServerReport, primary: ServerReport) -> bool:
        """Return whether a replica has all that it acknowledged before the present start of its reception."""
        receives = report.is_receiving and report.acknowledges and report.source == self._entry.server
        return receives and report.standing != "" and report.applied.covers(primary.applied)

    def may_be_opened(self, primary: ServerReport) -> bool:
        """Return whether a primary that was restarted has lost nothing."""
        return self._lacks_nothing(primary)

    def fenced_position(self, primary: ServerReport) -> ReplicationPosition | None:
        """Return all that a read-only primary has acknowledged; None if it may have lost some of it."""
        return primary.applied if self._lacks_nothing(primary) else None

    def revoked_position(self) -> ReplicationPosition | None:
        """Return all that the term has acknowledged, or what is left if the loss is accepted; None if it is not known."""
        entry = self._entry
        if not entry.has_served and not entry.loss_accepted:
            return entry.position
        if not entry.loss_accepted and not all(map(self.is_proven, entry.ackers)):
            return None
        if entry.loss_accepted and entry.target:
            return self._held_by(entry.target) if entry.target in self._candidates() else None
        return greatest(self._held_by(server) for server in self._candidates())

    # ------------------------------------------------------------------- states

    def _keep_serving(self) -> PromotionStep:
        """Serving: open a primary that was restarted, let its ackers follow it, and record their standings."""
        entry, primary = self._entry, self._reports.get(self._entry.server)
        if primary is None:
            return AwaitChange((f"{entry.server} is not reached",))
        if self.is_weakened() and any(entry.ackers.values()):
            # Somebody weakened its settings, so an acker can lack acknowledged commits. Each must catch up again.
            return ReplaceEntry(self._without_standings())
        if primary.is_read_only or self._lacks_acks(primary):
            if self._is_open_in_term(primary) or self.may_be_opened(primary):
                return self._command_primary(ServerCommand.OPEN)
            return AwaitChange((self._unopened(primary),))
        if (step := self._stop_strangers(primary)) is not None:
            return step
        for server, standing in entry.ackers.items():
            report = self._reports.get(server)
            if report is not None and report.standing != standing and self.may_be_qualified(report, primary):
                return ReplaceEntry(replace(entry, ackers={**entry.ackers, server: report.standing}))
        return self._follow() or AwaitChange()

    def _drain(self) -> PromotionStep:
        """Draining: make the primary read-only when its shards are free, and take its position."""
        entry, primary = self._entry, self._reports.get(self._entry.server)
        if primary is not None and not primary.is_read_only and self._loses_proof(primary):
            return ReplaceEntry(self._without_standings())
        if not self._shards_free:
            return AwaitChange(("shards of the database are still owned",))
        if primary is None:
            return AwaitChange((f"{entry.server} is not reached",))
        if not entry.has_served:
            return self._adopt(primary)
        if not primary.is_read_only:
            # It waits for commits in progress, and these for an acker.
            return self._follow_if_needed() or SendCommand(entry.server, ServerCommand.MAKE_READ_ONLY)
        position = self.fenced_position(primary)
        if position is None:
            return ReplaceEntry(replace(entry, state=PrimaryState.REVOKING))
        return ReplaceEntry(replace(entry, state=PrimaryState.FENCED, position=position))

    def _adopt(self, primary: ServerReport) -> PromotionStep:
        """Draining before the first term: its server becomes read-only, and its position is what hosts have written."""
        entry = self._entry
        if not primary.is_read_only:
            return SendCommand(entry.server, ServerCommand.MAKE_READ_ONLY)
        # It was asked before the entry was written, and somebody may have changed a server since.
        problems = unfit_for_adoption(entry.server, self._reports)
        if problems:
            return AwaitChange(problems)
        return ReplaceEntry(replace(entry, state=PrimaryState.PROMOTING, position=primary.applied))

    def _revoke(self) -> PromotionStep:
        """Revoking: stop the ackers, and find what the term has acknowledged."""
        entry = self._entry
        if (step := self._stop_ackers()) is not None:
            return step
        if entry.loss_accepted and not self._shards_free:
            return AwaitChange(("a host may still acknowledge: its session is not over",))
        if entry.policy is LossPolicy.ASYNC and entry.has_served and not entry.loss_accepted:
            return AwaitChange(("an administrator must accept the loss",))
        position = self.revoked_position()
        if position is None and self._may_go_on():
            # Nobody else can take its place without a loss, and it is there again.
            return ReplaceEntry(abort(entry))
        if position is None and entry.policy is LossPolicy.SEMI_SYNC and not entry.loss_accepted:
            for server in self._strangers():
                return SendCommand(server, ServerCommand.REVOKE)
        if position is None:
            return AwaitChange(self.unproven() or ("no server has all that the others have; name the one to promote",))
        return ReplaceEntry(
            replace(entry, state=PrimaryState.FENCED, position=position, target=self._holder_of(position))
        )

    def _prepare(self) -> PromotionStep:
        """Fenced: begin the next term when the target has applied the position."""
        entry, target = self._entry, self._reports.get(self._entry.target)
        if target is not None and self.has_position(target):
            ackers = {server: "" for server in (*self._remaining(), *self._drained()) if server != entry.target}
            following = replace(entry, state=PrimaryState.PROMOTING, term=entry.term + 1, server=entry.target)
            return ReplaceEntry(replace(following, target="", ackers=ackers, has_served=False))
        if entry.position is not None and (target is None or not self._can_be_aborted()):
            holder = self._holder_of(entry.position)
            if holder != entry.target and (target is None or self.has_position(self._reports[holder])):
                return ReplaceEntry(replace(entry, target=holder))
        return AwaitChange((self._unapplied(),))

    def _promote(self) -> PromotionStep:
        """Promoting: make the target the primary, and serve when its term is written and acknowledged.

        One that has lost the position is replaced, as if it were not reached.
        """
        entry, report = self._entry, self._reports.get(self._entry.server)
        if report is None:
            return AwaitChange((f"{entry.server} is not reached",))
        if entry.position is not None and not report.applied.covers(entry.position):
            # It had the position when the term began, and its start has cut it off. Nobody has used the term.
            return ReplaceEntry(start_revoking(entry))
        if not self.has_position(report):
            return AwaitChange((f"{entry.server} has not applied what it has received of the former term",))
        if report.source or self._lacks_acks(report):
            return self._command_primary(ServerCommand.BECOME_PRIMARY)
        if (step := self._admit_contained(report) or self._follow_if_needed()) is not None:
            return step
        if entry.policy is LossPolicy.SEMI_SYNC and not any(map(self._is_connected, entry.ackers)):
            # Also if its term is written: a connection that ended has freed it, and commits of hosts would wait.
            return AwaitChange(
                (
                    f"no acker is connected to {entry.server}, so its term cannot be acknowledged; let one rejoin"
                    + self._unlock_hint(),
                )
            )
        if report.term < entry.term:
            return SendCommand(entry.server, ServerCommand.WRITE_TERM, term=entry.term)
        if report.is_read_only:
            return self._command_primary(ServerCommand.OPEN)
        serving = replace(entry, state=PrimaryState.SERVING, position=None, loss_accepted=False, has_served=True)
        return ReplaceEntry(serving)

    def _release(self) -> PromotionStep:
        """Releasing: let the server accept commits without acks; then there is no entry."""
        entry, report = self._entry, self._reports.get(self._entry.server)
        if report is None:
            return AwaitChange((f"{entry.server} is not reached",))
        if entry.position is not None and not self.has_position(report):
            return AwaitChange((f"{entry.server} lacks what the former term has acknowledged",))
        if report.source:
            return SendCommand(entry.server, ServerCommand.BECOME_PRIMARY)
        if report.is_read_only or report.waits_for_acks:
            return SendCommand(entry.server, ServerCommand.OPEN)
        return ReplaceEntry(replace(entry, state=PrimaryState.RELEASED))

    # ----------------------------------------------------------------- helpers

    def _strangers(self) -> list[str]:
        """Return the servers that are reached, acknowledge to the primary, or did so until their reception ended, and are no ackers."""
        others = self._reports.keys() - {self._entry.server, *self._entry.ackers}
        reports = {server: self._reports[server] for server in sorted(others)}
        return [name for name, each in reports.items() if each.acknowledges and each.source == self._entry.server]

    def _is_proof(self) -> bool:
        """Return whether an acker has a standing that counts."""
        return self._entry.policy is LossPolicy.SEMI_SYNC and any(self._entry.ackers.values())

    def _must_void_for_strangers(self) -> bool:
        """Return whether the standings are to be void as a server acknowledges that is no acker of the entry.

        A commit that only such a server has was acknowledged, and no acker has it. It is stopped only when nobody is proven: it
        may have what the primary loses before an acker gets it.
        """
        in_use = self._entry.state in (PrimaryState.SERVING, PrimaryState.DRAINING, PrimaryState.REVOKING)
        return in_use and not self._entry.loss_accepted and self._is_proof() and bool(self._strangers())

    def _stop_strangers(self, primary: ServerReport) -> PromotionStep | None:
        """Return what is done about a server that acknowledges and is no acker of the entry; None if there is none."""
        entry = self._entry
        for server in self._strangers():
            # One that cannot be stopped must not keep the ackers from following: commits wait for these.
            return self._follow_if_needed() or SendCommand(server, ServerCommand.REVOKE)
        known = sum(map(self._may_acknowledge, entry.ackers))
        if entry.policy is LossPolicy.ASYNC or primary.acknowledgers <= known:
            return None
        if self._is_proof():
            return ReplaceEntry(self._without_standings())
        stranger = (
            f"{primary.acknowledgers} replicas acknowledge to {entry.server}, of which the entry names {known}: switch semi-sync "
            "off at the others, and start their reception again; until then no acker is proven"
        )
        return self._follow() or AwaitChange((stranger,))

    def _loses_proof(self, primary: ServerReport) -> bool:
        """Return whether the ackers of a primary that is drained are proven no more: hosts commit there until their shards are free."""
        stops = self._stop_strangers(primary)
        return any(self._entry.ackers.values()) and (self.is_weakened() or isinstance(stops, ReplaceEntry))

    def _without_standings(self) -> Primary:
        return replace(self._entry, ackers=dict.fromkeys(self._entry.ackers, ""))

    def _may_acknowledge(self, acker: str) -> bool:
        """Return whether an acker may be one of those that the primary counts."""
        report = self._reports.get(acker)
        return report is None or (report.is_receiving and report.source == self._entry.server)

    def _admit_contained(self, primary: ServerReport) -> ReplaceEntry | None:
        """Return the entry with another acker if none can connect: a closed server that has nothing of its own.

        So a former primary that was not reached when the term began acknowledges for the next one all the same.
        """
        entry = self._entry
        if entry.policy is LossPolicy.ASYNC or any(map(self._may_connect, entry.ackers)):
            return None
        for server in sorted(self._reports.keys() - {entry.server, *entry.ackers}):
            if self._could_acknowledge(server, primary.applied):
                return ReplaceEntry(replace(entry, ackers={**entry.ackers, server: ""}))
        return None

    def _stop_ackers(self) -> PromotionStep | None:
        """Return a step that stops an acker; None if all are stopped, or the rest cannot be, and need not as the loss is accepted."""
        entry = self._entry
        reached = [(server, self._reports[server]) for server in entry.ackers if server in self._reports]
        going = [server for server, report in reached if report.is_receiving or report.acknowledges]
        for server in sorted(going, key=self._is_failing):
            if self._is_failing(server) and entry.loss_accepted:
                return None
            if self._is_failing(server) and self._may_go_on():
                return ReplaceEntry(abort(entry))
            return SendCommand(server, ServerCommand.REVOKE)
        return None

    def _follow(self) -> SendCommand | None:
        """Return a step that lets an acker follow the primary; None if all that can follow it.

        One that was refused comes last, and so does one that did not do what it was asked.
        """
        able = [server for server in self._entry.ackers if not self._follows(server) and self._can_follow(server)]
        for server in sorted(able, key=lambda server: (self._is_failing(server), self._was_refused(server))):
            return SendCommand(server, ServerCommand.FOLLOW, self._entry.server)
        return None

    def _follow_if_needed(self) -> SendCommand | None:
        """Return such a step, but none for an acker that comes last while another one acknowledges, or is about to."""
        step = self._follow()
        if step is None or not (self._is_failing(step.server) or self._was_refused(step.server)):
            return step
        return None if any(self._follows(each) and self._may_connect(each) for each in self._entry.ackers) else step

    def _is_failing(self, server: str) -> bool:
        return server in self._failing

    def _can_follow(self, server: str) -> bool:
        report = self._reports.get(server)
        return report is not None and report.is_read_only and self.may_start(report)

    def _follows(self, server: str) -> bool:
        report = self._reports.get(server)
        return report is not None and self._is_told_to_follow(report) and report.is_receiving

    def _is_connected(self, server: str) -> bool:
        """Return whether an acker follows the primary and is connected: one whose login is refused tries again and again."""
        return self._follows(server) and self._reports[server].heard != ""

    def _may_connect(self, server: str) -> bool:
        """Return whether an acker is connected, or may be soon: not if it is not reached, or complains of its login."""
        report = self._reports.get(server)
        if report is None:
            return False
        if not self._is_told_to_follow(report):
            return self._can_follow(server)
        return report.heard != "" or not report.complaint

    def _was_refused(self, server: str) -> bool:
        """Return whether an acker should follow the primary and receives nothing, for example after error 1236."""
        report = self._reports[server]
        return self._is_told_to_follow(report) and not report.is_receiving

    def _is_told_to_follow(self, report: ServerReport) -> bool:
        return report.source == self._entry.server and report.acknowledges

    def _command_primary(self, command: ServerCommand) -> SendCommand:
        waits = self._entry.policy is LossPolicy.SEMI_SYNC
        return SendCommand(self._entry.server, command, waits_for_acks=waits)

    def _lacks_acks(self, primary: ServerReport) -> bool:
        return self._entry.policy is LossPolicy.SEMI_SYNC and not primary.waits_for_acks

    def _is_open_in_term(self, primary: ServerReport) -> bool:
        """Return whether hosts commit at the primary already: then its ackers have received more since it was read."""
        return not primary.is_read_only and primary.kept_log and primary.term == self._entry.term

    def _drained(self) -> tuple[str, ...]:
        """Return the former primary if it can follow the next one at once: it is read-only, and has nothing of its own."""
        former, position = self._reports.get(self._entry.server), self._entry.position
        clean = former is not None and former.is_read_only and position is not None and position.covers(former.applied)
        return (self._entry.server,) if clean and self._entry.has_served else ()

    def _remaining(self) -> list[str]:
        """Return the ackers that can follow the next primary. After an accepted loss, one that is not reached may have more."""
        entry, position = self._entry, self._entry.position
        if not entry.loss_accepted or position is None:
            return list(entry.ackers)
        return [server for server in entry.ackers if server in self._reports and position.covers(self._held_by(server))]

    def _lacks_nothing(self, primary: ServerReport) -> bool:
        """Return whether a primary has all of its term: no acker has more, and it kept its log, or its ackers prove it."""
        held = [self._held_by(server) for server in self._entry.ackers if server in self._reports]
        has_all = primary.term == self._entry.term and all(primary.applied.covers(each) for each in held)
        return has_all and (primary.kept_log or self._has_all_of_ackers(primary))

    def _has_all_of_ackers(self, primary: ServerReport) -> bool:
        ackers = self._entry.ackers
        return all(self.is_proven(server) and primary.applied.covers(self._held_by(server)) for server in ackers)

    def _candidates(self) -> list[str]:
        """Return the servers that may be promoted: ackers; and the server of the entry if it is closed, or was never used."""
        entry, server = self._entry, self._reports.get(self._entry.server)
        closed = server is not None and entry.loss_accepted and server.is_read_only
        own = [entry.server] if closed or not entry.has_served else []
        return [each for each in (*entry.ackers, *own) if each in self._reports]

    def _held_by(self, server: str) -> ReplicationPosition:
        report = self._reports[server]
        return report.applied if report.received is None else report.received

    def unproven(self) -> tuple[str, ...]:
        """Return why the position of a primary that may be lost is not known, one sentence for each acker."""
        entry = self._entry
        if entry.loss_accepted:
            is_awaited = entry.target and entry.target not in self._candidates()
            return (
                (f"{entry.target} is not reached, or not closed; wait, or name another server",) if is_awaited else ()
            )
        unproven = tuple(self._why_unproven(server) for server in entry.ackers if not self.is_proven(server))
        return unproven or tuple(
            f"{server} acknowledges and is no acker, so it may have what no acker has; bring {entry.server} back, or accept the loss"
            for server in self._strangers()
        )

    def _why_unproven(self, server: str) -> str:
        """Return why an acker does not prove what it acknowledged."""
        entry = self._entry
        if server not in self._reports:
            return f"{server} is not reached"
        if entry.ackers[server]:
            return f"{server} may have lost what it acknowledged: its reception was started again"
        return (
            f"{server} may lack what was acknowledged: it has not caught up since it was admitted, or since commits of "
            f"{entry.server} could return without an ack"
        )

    def unacknowledged(self) -> tuple[str, ...]:
        """Return why nobody would acknowledge for the next primary, although all ackers are reached; empty if a server would."""
        entry = self._entry
        if len(entry.ackers) != 1:
            return ()
        [acker] = entry.ackers
        if any(self._could_acknowledge(server, self._held_by(acker)) for server in self._reports.keys() - {acker}):
            return ()
        return (
            f"no other server that is reached could acknowledge for {acker}; bring one back that has nothing of its own"
            + self._unlock_hint(),
        )

    def _could_acknowledge(self, server: str, position: ReplicationPosition) -> bool:
        """Return whether a server may log in, is closed, and has nothing that a primary with this position lacks."""
        report = self._reports[server]
        is_contained = report.has_applied_all and position.covers(self._held_by(server))
        return server not in self._entry.shut_out and report.is_read_only and is_contained

    def _unlock_hint(self) -> str:
        names = ", ".join(self._entry.shut_out)
        # What is written into the log waits for an ack, as everything there.
        return (
            f"; unlock the replication account of {names}, after SET SESSION sql_log_bin = 0, before foqs database rejoin"
            if names
            else ""
        )

    def _may_go_on(self) -> bool:
        """Return whether a primary that was believed lost is there with all of its term, and no loss was accepted."""
        return not self._entry.loss_accepted and self._can_be_aborted()

    def _can_be_aborted(self) -> bool:
        """Return whether the primary could go on in its term: then the target that was chosen is waited for."""
        primary = self._reports.get(self._entry.server)
        return self._entry.has_served and primary is not None and self._lacks_nothing(primary)

    def _holder_of(self, position: ReplicationPosition) -> str:
        """Return the server to promote, of those that have the position: the chosen one, or rather one that has applied it."""
        holders = [server for server in self._candidates() if self._held_by(server).covers(position)]
        applied = [server for server in holders if self._reports[server].applied.covers(position)]
        best = applied or holders
        return self._entry.target if self._entry.target in best or not best else best[0]

    def _unopened(self, primary: ServerReport) -> str:
        """Return why a primary is not opened."""
        entry = self._entry
        if primary.term != entry.term:
            return f"{entry.server} has term {primary.term} in its tables, not {entry.term}; promote one of its ackers"
        if not primary.kept_log:
            return f"{entry.server} was restarted with a shorter log; promote one of its ackers"
        return f"{entry.server} lacks what an acker has received from it; promote one of its ackers"

    def _unapplied(self) -> str:
        """Return why the next term does not begin yet."""
        target, position = self._entry.target, self._entry.position
        report = self._reports.get(target)
        if report is None or position is None:
            return "no server that is reached has received the position of the term"
        last = report.applied.last
        lag = sum(max(0, number - last.get(origin, 0)) for origin, number in position.last.items())
        complaint = f"; {report.complaint}" if report.complaint else ""
        return f"{target} has not applied the position of the term: it lacks {lag} transactions{complaint}"


def unfit_for_adoption(server: str, reports: Mapping[str, ServerReport]) -> tuple[str, ...]:
    """Return why a server cannot become the first primary of a database, one sentence each.

    Its report must be the newest: a replica receives all the time.
    """
    primary = reports[server]
    found = []
    if primary.source:
        found.append(f"{server} is a replica, it receives from {primary.source}; name the server that hosts use")
    for name, report in sorted(reports.items()):
        if name == server:
            continue
        held = report.applied if report.received is None else report.received
        if not report.is_read_only:
            found.append(f"{name} accepts commits, which only the primary may; set read_only = 1 there")
        if report.source not in ("", server):
            found.append(f"{name} receives from {report.source}, not from {server}; let it follow {server}")
        if not primary.applied.covers(held):
            found.append(
                f"{name} has transactions that {server} lacks; name the server that hosts use, or rebuild {name}"
            )
    return tuple(found)
