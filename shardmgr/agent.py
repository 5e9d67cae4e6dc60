"""The agent of a host: announces it, follows the plan, and lets it serve only while its registry session lives.

Always true: the listener has a shard only between `on_assigned` and `on_dropped`,
and has none while the host is cut off; each epoch is issued to one supervisor only;
one write of the host's entry is in flight at a time. The agent is the `Coordinator`
of the supervisors, which report the states of their shards. Knows neither queues
nor the planner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from foqs_contract.backoff import Backoff
from foqs_contract.plurals import counted
from shardmgr.cluster_reader import read_cluster
from shardmgr.documents import MEMBERS, render_member
from shardmgr.model import Assignment, ClusterView, HeldShard, Layout, MalformedDocument, Member
from shardmgr.ownership import OwnershipState
from shardmgr.port import AssignmentListener, CoordinatorFailed
from shardmgr.primary import Primary, usable_term
from shardmgr.primary_document import read_primaries
from shardmgr.registry.port import ConnectionState, Registry, RegistryError
from shardmgr.session_state import SessionEvent, SessionState, next_session_state
from shardmgr.versions import VERSIONS, HostVersions, render_versions

log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class AgentPace:
    """The intervals of an agent, in milliseconds.

    Attributes:
        session_margin_ms: the host stops serving this long before its session can end: longer than the clocks of two machines
            drift apart in one session, and than the usual pause of a process. At most a third of what a session of three
            seconds leaves, so that a hiccup of ZooKeeper stops no host.
        tick_ms: the agent reads again after this time without a change, and reports its load.
        pause_ms: the shortest time between two reads; changes meanwhile are read together.
        retry_ms_max: the longest pause after a failure of the registry; it starts with `pause_ms` and doubles.
    """

    session_margin_ms: int = 500
    tick_ms: int = 5_000
    pause_ms: int = 10
    retry_ms_max: int = 1_000


@dataclass(slots=True)
class _AssignedShard:
    """A shard that is assigned to this host.

    Attributes:
        epoch, database, term: those of the assignment.
        state: the state that the supervisor reported, a value of `OwnershipState`.
        is_given_to_host: `on_assigned` was called.
        is_releasing: `on_release_requested` was called.
        epoch_above: the supervisor needs an epoch above this one; None if it needs none.
        new_epoch: the future on which the supervisor waits.
    """

    epoch: int
    database: str
    term: int
    state: str = OwnershipState.FREE.value
    is_given_to_host: bool = False
    is_releasing: bool = False
    epoch_above: int | None = None
    new_epoch: asyncio.Future[None] | None = None


class Agent:
    """The agent of one host. It is the `port.Coordinator` of the host's supervisors.

    Args:
        registry: an open registry; it may have other users.
        boot_ms: the boot-time clock.
        rng: spreads the pauses after failures.
        load: returns the host's load, relative to other hosts.
        versions: the versions of the host, which are announced before the member's entry; None: the host is of no version.
    """

    def __init__(
        self,
        registry: Registry,
        pace: AgentPace,
        boot_ms: Callable[[], int],
        rng: Random,
        load: Callable[[], float],
        versions: HostVersions | None = None,
    ) -> None:
        self.view: ClusterView | None = None
        """The last view of the cluster."""
        self.plan_version: int | None = None
        """The registry's version of the plan in `view`; None if there is no plan."""
        self.problem: str | None = None
        """Why the plan cannot be read or the host cannot be announced; None if there is no problem."""
        self._registry = registry
        self._pace = pace
        self._boot_ms = boot_ms
        self._backoff = Backoff(pace.pause_ms / 1_000, pace.retry_ms_max / 1_000, rng)
        self._load = load
        self._versions = versions
        self._member: Member
        self._listener: AssignmentListener
        self._on_view_changed: Callable[[], None]
        self._session_state = SessionState.CUT_OFF
        self._session = 0
        self._assigned: dict[int, _AssignedShard] = {}
        self._issued_epochs: dict[int, int] = {}
        """By shard, the last epoch that was issued to an earlier supervisor."""
        self._served_epochs: dict[int, int] = {}
        """By shard, the last epoch with which it was served here."""
        self._announced: tuple[int, bytes] | None = None
        """The session, and the entry that was announced in it."""
        self._changed = asyncio.Event()
        self._departed = asyncio.Event()

    @property
    def session_state(self) -> SessionState:
        """The session state of the host."""
        return self._session_state

    @property
    def serve_left_ms(self) -> int:
        """How long the host could serve without another reply; 0 while it serves nothing."""
        if self._session_state in (SessionState.CUT_OFF, SessionState.JOINING):
            return 0
        return max(0, self._serve_until_ms() - self._boot_ms())

    async def run(self, member: Member, listener: AssignmentListener, on_view_changed: Callable[[], None]) -> None:
        """Follow the plan until cancelled. The listener keeps its shards then.

        Args:
            member: the entry that the host announces; the agent adds the states of the shards.
            on_view_changed: called when `view` has another layout or plan, before the calls of the listener.
        """
        self._on_view_changed = on_view_changed
        self._member = member
        self._listener = listener
        self._registry.subscribe(self._on_registry_change)
        watching = asyncio.ensure_future(self._watch_clock())
        watching.add_done_callback(lambda _: self._changed.set())
        failures = 0
        try:
            while True:
                self._changed.clear()
                self._check_session()
                if self._is_registry_reachable():
                    try:
                        await self._run_once()
                        failures, self.problem = 0, None
                    except (RegistryError, MalformedDocument) as error:
                        failures += 1
                        self._set_problem(str(error))
                await self._wait_for_change(failures)
                if watching.done():
                    watching.result()  # raise its error: without it nothing ends serving in time
        finally:
            watching.cancel()

    async def leave(self, deadline: float) -> None:
        """Hand all shards over to other hosts; return when that is done, or at the deadline. `run` must be active.

        Args:
            deadline: a moment of the event loop's clock.
        """
        self._member = replace(self._member, leaving=True)
        self._changed.set()
        self._check_departed()
        try:
            async with asyncio.timeout_at(deadline):
                await self._departed.wait()
        except TimeoutError:
            if self._assigned:
                log.warning(
                    "%s not handed over in time; another host takes each over when this host's registry session ends",
                    counted(len(self._assigned), "shard was", "shards were"),
                )
            else:
                log.warning(
                    "this host could not announce in time that it is stopping; the others notice when its registry session ends"
                )

    def owner_of(self, shard: int) -> Member | None:
        """Return the member that should own the shard, by the last view; None if there is none or it is gone."""
        assignment = None if self.view is None else self.view.plan.assignments.get(shard)
        if self.view is None or assignment is None:
            return None
        return next((member for member in self.view.members if member.nonce == assignment.nonce), None)

    # --------------------------------------------------- calls of supervisors

    async def issue_epoch(self, shard: int, above: int) -> int:
        """Return the epoch of the assignment, or of the next one if it was used; see `port.Coordinator`.

        A supervisor that did not serve leaves its epoch to the next one of this host.
        Raises CoordinatorFailed if the shard is not assigned to this host.
        """
        held = self._assigned.get(shard)
        if held is None:
            raise CoordinatorFailed(f"shard {shard} is not assigned to this host any more")
        issued = self._issued_epochs.get(shard, 0)
        if held.epoch == issued > max(above, self._served_epochs.get(shard, 0)):
            return issued
        above = max(above, issued)
        try:
            while held.epoch <= above:
                held.epoch_above, held.new_epoch = above, asyncio.get_running_loop().create_future()
                self._changed.set()
                await held.new_epoch
        finally:
            held.epoch_above = held.new_epoch = None
        return held.epoch

    def report_state(self, shard: int, epoch: int, state: str) -> None:
        """See `port.Coordinator`."""
        if state == OwnershipState.OWNED.value:
            self._served_epochs[shard] = epoch
        held = self._assigned.get(shard)
        if held is not None and held.is_given_to_host and held.state != state:
            held.state = state
            self._changed.set()

    # ---------------------------------------------------------------- session

    def _on_registry_change(self) -> None:
        """Check the registry session and read again, because something in the registry may have changed."""
        self._check_session()
        self._changed.set()

    def _is_registry_reachable(self) -> bool:
        return (
            self._session_state is not SessionState.CUT_OFF
            and self._registry.connection_state is ConnectionState.CONNECTED
        )

    def _check_session(self) -> None:
        """Bring the session state up to date with the registry and the clock."""
        registry = self._registry
        alive = registry.connection_state is not ConnectionState.LOST and self._boot_ms() < self._serve_until_ms()
        if self._session_state is not SessionState.CUT_OFF and not (alive and registry.session_number == self._session):
            self._advance(SessionEvent.ENDED)
        if (
            self._session_state is SessionState.CUT_OFF
            and alive
            and registry.connection_state is ConnectionState.CONNECTED
        ):
            self._session = registry.session_number
            self._advance(SessionEvent.STARTED)
        if registry.connection_state is ConnectionState.SUSPENDED:
            self._advance(SessionEvent.UNRESPONSIVE)

    def _serve_until_ms(self) -> int:
        return self._registry.alive_until_ms - self._pace.session_margin_ms

    def _advance(self, event: SessionEvent) -> None:
        before, self._session_state = self._session_state, next_session_state(self._session_state, event)
        if before is self._session_state:
            return
        log.info("the session state of this host is now %s", self._session_state.value)
        if self._session_state is SessionState.CUT_OFF:
            self._listener.on_suspended()
            for number in list(self._assigned):
                self._drop_shard(number)
            self._check_departed()
        elif self._session_state is SessionState.SUSPENDED:
            self._listener.on_suspended()
        elif self._session_state is SessionState.SERVING:
            self._listener.on_resumed()

    async def _watch_clock(self) -> None:
        """Check the clock: there is no event for a registry session that may be over, or for a machine that slept."""
        margin_ms = max(1, self._pace.session_margin_ms // 2)
        while True:
            left_ms = margin_ms
            if self._session_state is not SessionState.CUT_OFF:
                left_ms = min(margin_ms, max(1, self._serve_until_ms() - self._boot_ms()))
            await asyncio.sleep(left_ms / 1000)
            self._check_session()

    async def _wait_for_change(self, failures: int) -> None:
        """Wait for a change or the next tick; after failures, only for a pause."""
        pace = self._pace
        if failures:
            await asyncio.sleep(self._backoff.pause_s(failures))
            return
        await asyncio.sleep(pace.pause_ms / 1000)
        try:
            async with asyncio.timeout(pace.tick_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            self._member = replace(self._member, load=self._load())

    def _set_problem(self, problem: str) -> None:
        if self.problem != problem:
            log.warning("this host cannot follow the plan; trying again: %s", problem)
        self.problem = problem

    # ------------------------------------------------------------------- plan

    async def _run_once(self) -> None:
        """Announce changes, read the cluster, and follow the plan. Raises `RegistryError`, `MalformedDocument`."""
        session = self._session
        await self._announce()
        reading = await read_cluster(self._registry)
        own = self._member.nonce
        mine = {number: each for number, each in sorted(reading.plan.assignments.items()) if each.nonce == own}
        # If a database's entry cannot be read, its served shards stay served, and no other one is opened.
        primaries = await read_primaries(self._registry, (each.database for each in mine.values() if each.term))
        self._check_session()
        if self._session != session or not self._is_registry_reachable():
            self._changed.set()
            return
        if all(member.nonce != self._member.nonce for member in reading.members):
            self._announced = None  # the entry was deleted although its session lives
            self._changed.set()
        layout = reading.checked_layout() or Layout()
        self.plan_version = reading.plan_version
        known, self.view = self.view, ClusterView(layout, reading.plan, reading.members)
        if known is None or (known.layout, known.plan) != (layout, reading.plan):
            self._on_view_changed()
        self._follow_plan(layout, mine, primaries.entries)
        self._advance(SessionEvent.PLAN_FOLLOWED)
        self._check_departed()

    async def _announce(self) -> None:
        member = replace(
            self._member,
            held_shards={number: HeldShard(held.epoch, held.state) for number, held in self._assigned.items()},
            taken_epochs={
                number: held.epoch_above for number, held in self._assigned.items() if held.epoch_above is not None
            },
        )
        entry = self._session, render_member(member)
        if entry != self._announced:
            is_new_session = self._announced is None or self._announced[0] != entry[0]
            self._announced = None
            if self._versions is not None and is_new_session:
                await self._registry.announce(VERSIONS, member.nonce, render_versions(self._versions))
            await self._registry.announce(MEMBERS, member.nonce, entry[1])
            if entry[0] == self._session:
                self._announced = entry

    def _follow_plan(self, layout: Layout, mine: Mapping[int, Assignment], primaries: Mapping[str, Primary]) -> None:
        for number in [number for number in self._assigned if number not in mine]:
            self._drop_shard(number)
        for number, assignment in mine.items():
            self._supply_epoch(number, assignment)
            held = self._assigned.get(number)
            if held is None:
                held = self._assigned[number] = _AssignedShard(assignment.epoch, assignment.database, assignment.term)
                self._changed.set()
            spec = layout.shards.get(number)
            primary = primaries.get(assignment.database)
            may_serve = assignment.matches(spec) and assignment.term == usable_term(primary)
            if not held.is_given_to_host and not assignment.leaving and may_serve:
                held.is_given_to_host, held.state = True, OwnershipState.ACQUIRING.value
                self._listener.on_assigned(number, assignment.database, primary)
            elif held.is_given_to_host and assignment.leaving and not held.is_releasing:
                held.is_releasing = True
                self._listener.on_release_requested(number)

    def _supply_epoch(self, number: int, assignment: Assignment) -> None:
        """Give a waiting supervisor its next epoch; drop the shard if none waits, as its assignment is over."""
        held = self._assigned.get(number)
        place = assignment.database, assignment.term
        if held is None or (held.epoch, (held.database, held.term)) == (assignment.epoch, place):
            return
        if held.new_epoch is not None and (held.database, held.term) == place:
            held.epoch = assignment.epoch
            self._changed.set()
            if not held.new_epoch.done():
                held.new_epoch.set_result(None)
        else:
            self._drop_shard(number)

    def _drop_shard(self, number: int) -> None:
        held = self._assigned.pop(number)
        self._changed.set()
        if held.is_given_to_host:
            self._issued_epochs[number] = max(held.epoch, self._issued_epochs.get(number, 0))
            self._listener.on_dropped(number)

    def _check_departed(self) -> None:
        """Note when a leaving host has no shard left and has announced that."""
        if self._member.leaving and not self._assigned:
            is_announced = self._announced is not None and self._announced[1] == render_member(self._member)
            if is_announced or self._session_state is SessionState.CUT_OFF:
                self._departed.set()
