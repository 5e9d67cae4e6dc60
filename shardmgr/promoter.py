"""The promoter of one database: asks for one step of its promotion, carries it out, and reads everything again.

Always true: it connects to the servers before it reads the entry, so whatever it sends
follows from an entry that is younger than its connections; it replaces only the entry
that it has read. So it may stop after any step, and another one goes on. A server that
names itself by another number than the entry counts as not reached. Knows nothing of
the rules, which are in `promotion`, nor of SQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, TypeVar

from shardmgr.blocked_commits import BlockedCommits
from shardmgr.cluster_reader import ClusterReading, read_cluster, read_layout
from shardmgr.loss_report import LastFlush, LossReport, write_loss_report
from shardmgr.ownership import OwnershipState
from shardmgr.plan import has_no_owner
from shardmgr.positions import ShardPosition, lost_range, read_all_positions
from shardmgr.primary import LossPolicy, Primary, PrimaryState, ServerReport
from shardmgr.primary_changes import start_revoking
from shardmgr.primary_document import read_primary, replace_primary
from shardmgr.promotion import AwaitChange, Promotion, PromotionStep, ReplaceEntry, SendCommand
from shardmgr.registry.port import Registry, RegistryConflict
from shardmgr.server_port import DatabaseServers, ServerConnection, ServerFailed
from shardmgr.suspicion import Suspicion, missing_to_promote

_T = TypeVar("_T")

_SHARDS_SHOWN: Final = 5
"""The most shards, or documents, that a sentence names."""
_REFUSED_MS: Final = 30_000
"""What the owners published is read again after this time if it refused a promotion: nothing but an administrator ends that, and
the reads of all documents watch them."""

_UNREAD_MS: Final = 10_000
"""An accepted loss waits this long for owner rows that cannot be read: the next owners change them, so the report lacks them for good."""

_FAILING_MS: Final = 30_000
"""For how long a server that did not do what it was asked comes last: a statement there that goes on, as a change of tables does,
costs each round seconds."""

AreShardsFree: TypeAlias = Callable[[Primary], Awaitable[bool]]
"""Returns whether no owner holds a shard of the database in the entry's term, or could still serve it."""


@dataclass(slots=True, frozen=True)
class ElectedPromoter:
    """What the elected promoter of a database publishes.

    Attributes:
        nonce: identifies its run.
        version: the entry's, as it was read in the last round.
        is_at_rest: further rounds change nothing while the entry has this version.
        text: what it did in the last round, and what it waits for.
        proven, lacks_if_lost, reached, blocked: see `PromoterRound`; None: it has run no round yet, or its version does not
            publish this.
    """

    nonce: str
    version: int = 0
    is_at_rest: bool = False
    text: str = ""
    proven: tuple[str, ...] | None = None
    lacks_if_lost: tuple[str, ...] | None = None
    reached: tuple[str, ...] | None = None
    blocked: str | None = None


@dataclass(slots=True, frozen=True)
class PromoterRound:
    """What one round of a promoter has done.

    Attributes:
        entry: as it was read.
        problems: by server, why it was not reached, or did not do what it was asked.
        complaints: by server, what it says of its own replication; it does not change what is done.
        version: that of the entry.
        is_reached: the primary was reached.
        reached: the servers that were reached.
        proven: the ackers that were reached and have all that they acknowledged. With the policy async none.
        lacks_if_lost: while the database serves, why hosts would not replace the primary by themselves if it were lost now, one
            sentence each; empty: they would.
        blocked: why commits of hosts wait for an ack that nobody sends, and what to do; empty: they do not, as far as is known.
        unacknowledged: see `ServerReport`, of the primary; 0 if it was not reached.
        is_weakened: see `Promotion`.
        elected: what the elected promoter has published; None: this one is elected.
    """

    entry: Primary
    step: PromotionStep
    problems: Mapping[str, str] = field(default_factory=dict)
    complaints: Mapping[str, str] = field(default_factory=dict)
    version: int = 0
    is_reached: bool = False
    reached: Collection[str] = ()
    proven: Collection[str] = ()
    lacks_if_lost: Sequence[str] = ()
    blocked: str = ""
    unacknowledged: int = 0
    is_weakened: bool = False
    elected: ElectedPromoter | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether another round would do the same until something else changes."""
        step = self.step
        return isinstance(step, AwaitChange) or (isinstance(step, SendCommand) and step.server in self.problems)

    @property
    def can_go_on(self) -> bool:
        """Whether the servers were reached that the state needs. If not, another host may reach them."""
        entry, reached = self.entry, self.reached
        if entry.state is PrimaryState.REVOKING:
            if entry.has_served and not entry.loss_accepted:
                return all(acker in reached for acker in entry.ackers)
            return entry.target in reached if entry.target else bool(reached)
        if entry.state is PrimaryState.FENCED:
            return entry.target in reached
        needs_acker = entry.state is PrimaryState.PROMOTING and entry.policy is LossPolicy.SEMI_SYNC
        return entry.server in reached and (not needs_acker or len(reached) > 1)


class ShardsFree:
    """Implements `AreShardsFree` by the plan, and after an accepted loss by the sessions of hosts.

    By the plan shards are free if the owners have handed them over, or if their handover is overdue. This suffices for a
    drain: an owner that goes on is stopped when the primary is read-only. After an accepted loss nothing stops it but the
    end of its session. Then no member may announce that it holds a shard, and a host that has not read the plan, nor
    announced what it holds, must be cut off: that is so a session's timeout after the plan has no owner any more.

    Args:
        session_ms: the session timeout of hosts.
        boot_ms: the boot-time clock.
    """

    def __init__(self, registry: Registry, database: str, session_ms: int, boot_ms: Callable[[], int]) -> None:
        self._registry = registry
        self._database = database
        self._session_ms = session_ms
        self._boot_ms = boot_ms
        self._term = 0
        self._since_ms: int | None = None
        """When no member held a shard first, in this term after an accepted loss; None: one does."""

    async def __call__(self, entry: Primary) -> bool:
        reading = await read_cluster(self._registry)
        free = has_no_owner(reading.plan, self._database)
        if not entry.loss_accepted or entry.term != self._term:
            self._term, self._since_ms = entry.term, None
        if not entry.loss_accepted:
            return free
        if not free or reading.malformed or self._is_held(reading):
            self._since_ms = None
            return False
        if self._since_ms is None:
            self._since_ms = self._boot_ms()
        return self._boot_ms() - self._since_ms >= self._session_ms

    def _is_held(self, reading: ClusterReading) -> bool:
        shards = {} if reading.layout is None else reading.layout.shards
        return any(
            held.state != OwnershipState.FREE.value and number in shards and shards[number].database == self._database
            for member in reading.members
            for number, held in member.held_shards.items()
        )


@dataclass(slots=True, frozen=True)
class _RefusedPromotion:
    """Why a server does not become the next primary, for an entry of this version."""

    version: int
    server: str
    since_ms: int
    step: AwaitChange


class Promoter:
    """Runs rounds, one at a time.

    Args:
        registry: an open registry; it may have other users.
        servers: the servers of the database.
        are_shards_free: asked in each round in which the entry does not serve, after it was read.
        suspicion: begins to replace a primary that is lost; None: only an administrator does.
        boot_ms: the boot-time clock.
    """

    def __init__(
        self,
        registry: Registry,
        database: str,
        servers: DatabaseServers,
        are_shards_free: AreShardsFree,
        suspicion: Suspicion | None = None,
        boot_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._registry = registry
        self._database = database
        self._servers = servers
        self._are_shards_free = are_shards_free
        self._suspicion = suspicion
        self._boot_ms = boot_ms
        self._connections: dict[str, ServerConnection] = {}
        self._attempts: dict[str, asyncio.Task[ServerConnection]] = {}
        """The connects in progress."""
        self._problems: dict[str, str] = {}
        """By server, why its last connect, or what it was asked in this round, has failed."""
        self._failed_ms: dict[str, int] = {}
        """When servers did not carry out their last command."""
        self._unreached: set[str] = set()
        """The servers whose last connect has failed."""
        self._refusal: _RefusedPromotion | None = None
        self._blocked_commits = BlockedCommits()
        self._unread_since_ms: int | None = None
        """Since when owner rows for the report of a loss cannot be read; None: they can."""

    async def run_round(self) -> PromoterRound | None:
        """Carry one step out; return None if the database has no entry.

        Raises:
            RegistryError: the entry was not read or not written; a later round may succeed.
            MalformedDocument: nothing is done until the entry is corrected.
        """
        self._problems = {name: self._problems[name] for name in self._servers.names if name in self._unreached}
        await self._connect()
        found = await read_primary(self._registry, self._database)
        if found is None:
            return None
        entry = found.entry
        reports, blocked = await self._observe(entry)
        free = not entry.is_serving and await self._are_shards_free(entry)
        step = self._next_step(entry, reports, shards_free=free)
        if isinstance(step, ReplaceEntry) and self._needs_published(entry, step.entry):
            step = await self._check_published(entry, found.version, step)
        if isinstance(step, ReplaceEntry):
            after = step.entry
            try:
                begins = entry.loss_accepted and after.state is PrimaryState.PROMOTING
                if begins and (unread := await self._report_loss(after)):
                    step = AwaitChange((f"{after.server}: {unread}; this is tried again for a while",))
                else:
                    await replace_primary(self._registry, self._database, after, found.version)
            except RegistryConflict:
                self._problems["registry"] = "the entry was changed meanwhile; it is read again"
            except ServerFailed as error:
                self._problems[after.server] = str(error)
        elif isinstance(step, SendCommand):
            await self._carry_out(step)
        judged = Promotion(entry, reports, shards_free=free)
        complaints = {name: report.complaint for name, report in reports.items() if report.complaint}
        others = {name: report for name, report in reports.items() if name != entry.server}
        return PromoterRound(
            entry,
            step,
            dict(self._problems),
            complaints,
            found.version,
            is_reached=entry.server in reports,
            reached=tuple(reports),
            proven=judged.proven_ackers(),
            lacks_if_lost=missing_to_promote(entry, others),
            blocked=blocked,
            is_weakened=judged.is_weakened(),
            unacknowledged=reports[entry.server].unacknowledged if entry.server in reports else 0,
        )

    def _next_step(self, entry: Primary, reports: Mapping[str, ServerReport], *, shards_free: bool) -> PromotionStep:
        """Return the step by the rules, or that the primary is lost, or also why it is not replaced although it may be."""
        now_ms = self._boot_ms()
        failing = {name for name, since_ms in self._failed_ms.items() if now_ms - since_ms < _FAILING_MS}
        promotion = Promotion(entry, reports, shards_free=shards_free, failing=failing)
        if self._suspicion is None:
            return promotion.next_step()
        if self._suspicion.is_lost(entry, reports, now_ms):
            return ReplaceEntry(start_revoking(entry))
        step = promotion.next_step()
        if entry.state is PrimaryState.SERVING and entry.server not in reports and isinstance(step, AwaitChange):
            return AwaitChange((*step.missing, *missing_to_promote(entry, reports)))
        return step

    async def _carry_out(self, step: SendCommand) -> None:
        self._failed_ms.pop(step.server, None)
        try:
            await self._connections[step.server].carry_out(step)
        except ServerFailed as error:
            self._problems[step.server] = str(error)
            self._failed_ms[step.server] = self._boot_ms()

    async def _report_loss(self, after: Primary) -> str:
        """Write what an accepted loss has left, before the next term begins: its first owners change the owner rows.

        Return which rows cannot be read and may be soon, as those of a table that somebody holds; then nothing was written.
        """
        flushes, published, is_complete = await self._read_flushes(after.server)
        unread, now_ms = {each.shard: each.problem for each in flushes if each.problem}, self._boot_ms()
        if not unread or self._unread_since_ms is None:
            self._unread_since_ms = now_ms if unread else None
        if self._unread_since_ms is not None and now_ms - self._unread_since_ms < _UNREAD_MS:
            return _shown(unread)
        there = {each.shard for each in flushes}
        # The tables of a shard that was added last may not be there.
        flushes = [*flushes, *(LastFlush(number, 0, 0, 0) for number in sorted(published.keys() - there))]
        left: list[LastFlush] = []
        for each in flushes:
            lost = lost_range(published.get(each.shard), each.epoch, each.flush, is_complete=is_complete)
            left.append(each if each.problem else replace(each, lost=lost))
        await write_loss_report(self._registry, self._database, LossReport(after.term, after.server, left))
        self._unread_since_ms = None
        return ""

    @staticmethod
    def _needs_published(entry: Primary, after: Primary) -> bool:
        """Return whether a term begins that must have what owners published in the one that ends."""
        begins = entry.state is PrimaryState.FENCED and after.state is PrimaryState.PROMOTING
        return begins and entry.has_served and not entry.loss_accepted

    async def _check_published(self, entry: Primary, version: int, step: ReplaceEntry) -> PromotionStep:
        """Return the step, or what the next primary lacks of what owners published.

        Then the position was not all that was acknowledged: somebody has weakened a server. A row or a document that cannot be
        read refuses nothing.
        """
        server, now_ms, before = step.entry.server, self._boot_ms(), self._refusal
        is_judged = before is not None and (before.version, before.server) == (version, server)
        if before is not None and is_judged and now_ms - before.since_ms < _REFUSED_MS:
            return before.step
        try:
            flushes, published, _ = await self._read_flushes(server)
        except ServerFailed as error:
            self._problems[server] = str(error)
            return AwaitChange((f"{server} was not asked for its last flushes",))
        found = {each.shard: (each.epoch, each.flush) for each in flushes if not each.problem}
        unread = {each.shard: each.problem for each in flushes if each.problem}
        if unread:
            self._problems[server] = f"{server}: {_shown(unread)}, so these shards are not compared"
        lacking = [
            f"{each.shard} (flush {each.last[1]} of epoch {each.last[0]}; there: {_flush_text(found.get(each.shard))})"
            for each in published.values()
            if each.term == entry.term and each.shard not in unread and found.get(each.shard, (0, 0)) < each.last
        ]
        if not lacking:
            return step
        shown = ", ".join(lacking[:_SHARDS_SHOWN]) + (" and others" if len(lacking) > _SHARDS_SHOWN else "")
        refused = AwaitChange(
            (
                f"{server} lacks what owners of these shards published: {shown}; so commits of {entry.server} returned without "
                f"an ack. If {entry.server} is there, use foqs database abort; otherwise accept the loss with foqs database promote",
            )
        )
        self._refusal = _RefusedPromotion(version, server, now_ms, refused)
        return refused

    async def _read_flushes(self, server: str) -> tuple[Sequence[LastFlush], Mapping[int, ShardPosition], bool]:
        """Return the last flushes of the database's shards at a server, what was published of them, and whether all of it was read.

        Raises `ServerFailed`, `RegistryError`, `MalformedDocument`.
        """
        layout = await read_layout(self._registry)
        shards = {} if layout is None else layout[0].shards
        numbers = [number for number, spec in shards.items() if spec.database == self._database]
        flushes = await self._connections[server].last_flushes(numbers)
        published, problems = await read_all_positions(self._registry)
        if problems:
            self._problems["registry"] = "; ".join(problems[:_SHARDS_SHOWN])
        own = {number: published[number] for number in numbers if number in published}
        return flushes, {n: each for n, each in own.items() if each.database == self._database}, not problems

    async def close(self) -> None:
        """End all connections, and forget what earlier rounds saw of the primary: another promoter may be elected. Safe to repeat."""
        self._blocked_commits = BlockedCommits()
        if self._suspicion is not None:
            self._suspicion.forget()
        attempts, self._attempts = self._attempts, {}
        for attempt in attempts.values():
            attempt.cancel()
        for result in await asyncio.gather(*attempts.values(), return_exceptions=True):
            if not isinstance(result, BaseException):
                result.close()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # ------------------------------------------------------------- connections

    async def _connect(self) -> None:
        """Connect to the servers without a usable connection. A server that was not reached last time is not waited for."""
        for name in self._servers.names:
            connection = self._connections.get(name)
            if connection is not None and not connection.is_usable:
                del self._connections[name]
            if name not in self._connections and name not in self._attempts:
                self._attempts[name] = asyncio.ensure_future(self._servers.connect(name))
        awaited = [attempt for name, attempt in self._attempts.items() if name not in self._unreached]
        if awaited:
            await asyncio.wait(awaited)
        for name, attempt in list(self._attempts.items()):
            if attempt.done():
                del self._attempts[name]
                self._keep_result(name, attempt)

    def _keep_result(self, name: str, attempt: asyncio.Task[ServerConnection]) -> None:
        try:
            self._connections[name] = attempt.result()
        except ServerFailed as error:
            self._unreached.add(name)
            self._problems[name] = str(error)
        else:
            self._unreached.discard(name)
            self._problems.pop(name, None)

    # ------------------------------------------------------------------ reports

    async def _observe(self, entry: Primary) -> tuple[dict[str, ServerReport], str]:
        """Read the standings of all servers, then the primary, then the others. Return the reports, and `PromoterRound.blocked`."""
        reached = [name for name in entry.servers if self._is_right(name, entry)]
        standings = await self._gather({name: self._connections[name].standing() for name in reached})

        async def read(names: Iterable[str]) -> dict[str, ServerReport]:
            return await self._gather({name: self._connections[name].report(standings[name]) for name in names})

        asked_ms = self._boot_ms()
        reports = await read(standings.keys() & {entry.server})
        # Judged before the others are read, and before the step is carried out: both may take seconds.
        blocked = self._blocked_commits.problem(entry, reports.get(entry.server), asked_ms, self._boot_ms())
        reports |= await read(name for name in standings if name != entry.server)
        return reports, blocked

    def _is_right(self, name: str, entry: Primary) -> bool:
        """Return whether there is a connection to the server that the entry names."""
        if name not in self._servers.names:
            self._problems[name] = f"{name}: the configuration of this host has no address of this server; add it"
        connection = self._connections.get(name)
        if connection is None:
            return False
        expected = entry.servers[name].server_id
        if connection.server_id != expected:
            self._problems[name] = (
                f"{name}: its address leads to the server with server_id {connection.server_id}, not to {expected}; "
                "correct the address, or the server's configuration"
            )
        return connection.server_id == expected

    async def _gather(self, calls: Mapping[str, Awaitable[_T]]) -> dict[str, _T]:
        """Return the results by server, without those that have failed."""
        results = await asyncio.gather(*(self._guarded(name, call) for name, call in calls.items()))
        return {name: result for name, result in zip(calls, results, strict=True) if result is not None}

    async def _guarded(self, name: str, call: Awaitable[_T]) -> _T | None:
        try:
            return await call
        except ServerFailed as error:
            self._problems[name] = str(error)
            return None


def _shown(problems: Mapping[int, str]) -> str:
    """Return which shards have problems, and the first of these."""
    shards = sorted(problems)
    named = ", ".join(map(str, shards[:_SHARDS_SHOWN])) + (" and others" if len(shards) > _SHARDS_SHOWN else "")
    return f"the owner rows of shards {named} cannot be read ({problems[shards[0]]})"


def _flush_text(found: tuple[int, int] | None) -> str:
    return "none" if found is None else f"flush {found[1]} of epoch {found[0]}"
