"""The planner as a service: waits for its election and keeps the plan up to date.

Always true: a plan replaces only the plan from which it was made; without a valid
layout and plan nothing is written. So two planners that both believe to be elected
do no harm, and one that dies leaves a complete plan. The elected planner remembers
how long a handover takes; the next one starts to count again. Knows nothing of the
rules, which are in `plan`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from foqs_contract.backoff import Backoff
from shardmgr.cluster_reader import read_cluster
from shardmgr.documents import PLAN, render_plan
from shardmgr.model import MalformedDocument, Plan
from shardmgr.plan import next_plan
from shardmgr.primary_document import read_primaries
from shardmgr.registry.port import Registry, RegistryConflict, RegistryError

log = logging.getLogger(__name__)

ELECTION_FOLDER: Final = "planner"
LEADER_ENTRY: Final = "leader"


@dataclass(slots=True, frozen=True)
class PlannerPace:
    """The intervals of a planner, in milliseconds.

    Attributes:
        handover_timeout_ms: the time that an owner has to hand a shard over, before another host takes it over: half of the usual
            `server.stop_timeout_ms`, so that a stopping host hands over its shards in time.
        moves_max: the number of shards that may move at once for balance or region only.
        tick_ms: the planner reads again after this time without a change.
        pause_ms: the shortest time between two reads; changes meanwhile are read together.
        retry_ms_max: the longest pause after a failure of the registry; it starts with `pause_ms` and doubles.
    """

    handover_timeout_ms: int = 5_000
    moves_max: int = 1
    tick_ms: int = 10_000
    pause_ms: int = 20
    retry_ms_max: int = 2_000


class Planner:
    """The planner of one host: a candidate for the election, which writes the plan while it is elected.

    Args:
        registry: an open registry; it may have other users.
        nonce: the nonce that identifies this run of the host.
        boot_ms: the boot-time clock.
        rng: spreads the pauses after failures.
    """

    def __init__(
        self, registry: Registry, nonce: str, pace: PlannerPace, boot_ms: Callable[[], int], rng: Random
    ) -> None:
        self.problem: str | None = "it has not read the cluster yet"
        """Why nothing can be planned; None if there is no problem, or another planner is elected."""
        self._registry = registry
        self._nonce = nonce
        self._pace = pace
        self._boot_ms = boot_ms
        self._backoff = Backoff(pace.pause_ms / 1_000, pace.retry_ms_max / 1_000, rng)
        self._changed = asyncio.Event()
        self._elected_session = 0
        """The session in which this planner was elected; 0 if it is not elected."""
        self._leaving: dict[int, tuple[int, int]] = {}
        """By shard that is leaving: its epoch, and when that was first seen."""
        self._malformed: Mapping[str, str] = {}
        self._unreadable: Mapping[str, str] = {}
        registry.subscribe(self._changed.set)

    @property
    def is_elected(self) -> bool:
        """Whether this planner is elected, as far as it knows."""
        return 0 != self._elected_session == self._registry.session_number

    async def run(self) -> None:
        """Plan while elected, until cancelled. The announced candidacy ends with the registry session."""
        failures = 0
        while True:
            self._changed.clear()
            try:
                await self._run_once()
            except RegistryConflict:
                # Another planner has written, or was elected: read again.
                failures += 1
            except RegistryError as error:
                self._set_problem(f"the registry failed; trying again: {error}")
                failures += 1
            except MalformedDocument as error:
                self._set_problem(f"nothing is planned or overwritten until this is corrected: {error}")
                failures = 0
            else:
                self._set_problem(None)
                failures = 0
            await self._wait_for_change(failures)

    async def _run_once(self) -> None:
        """Read the cluster once and write the next plan if there is one."""
        if not await self._run_for_election():
            self._leaving.clear()
            return
        reading = await read_cluster(self._registry)
        self._log_malformed(reading.malformed)
        layout = reading.checked_layout()
        if layout is None:
            return
        overdue = self._overdue_shards(reading.plan)
        databases = {spec.database for spec in layout.shards.values()}
        primaries = await read_primaries(self._registry, databases)
        self._log_unreadable(primaries.malformed)
        plan = next_plan(layout, reading.plan, reading.members, overdue, self._pace.moves_max, primaries)
        if plan != reading.plan:
            await self._registry.replace(PLAN, render_plan(plan), reading.plan_version)
            self._log_plan_changes(reading.plan, plan)

    async def _run_for_election(self) -> bool:
        """Become the elected planner if none is elected, and return whether this one is elected now."""
        session = self._registry.session_number
        leader = (await self._registry.members(ELECTION_FOLDER)).get(LEADER_ENTRY)
        mine = leader == self._nonce.encode()
        if leader is not None and not mine:
            self._elected_session = 0
        elif leader is None or self._elected_session != session:
            # An entry of an earlier session of this planner is replaced without waiting for its end.
            await self._registry.announce(ELECTION_FOLDER, LEADER_ENTRY, self._nonce.encode())
            self._elected_session = session
            log.info("this host is elected to plan", extra={"nonce": self._nonce})
        return self.is_elected

    def _overdue_shards(self, plan: Plan) -> frozenset[int]:
        """Return the shards whose handover takes too long, and note when others started to leave."""
        now_ms = self._boot_ms()
        former, self._leaving = self._leaving, {}
        for number, assignment in plan.assignments.items():
            if assignment.leaving:
                epoch, since_ms = former.get(number, (0, now_ms))
                self._leaving[number] = (assignment.epoch, since_ms if epoch == assignment.epoch else now_ms)
        latest_ms = now_ms - self._pace.handover_timeout_ms
        return frozenset(number for number, (_, since_ms) in self._leaving.items() if since_ms <= latest_ms)

    async def _wait_for_change(self, failures: int) -> None:
        """Wait for a change, the next tick, or an overdue handover; after failures, only for a pause."""
        pace = self._pace
        if failures:
            await asyncio.sleep(self._backoff.pause_s(failures))
            return
        await asyncio.sleep(min(pace.retry_ms_max, pace.pause_ms) / 1000)
        until_ms = pace.tick_ms
        for _, since_ms in self._leaving.values():
            until_ms = min(until_ms, since_ms + pace.handover_timeout_ms - self._boot_ms())
        try:
            async with asyncio.timeout(max(until_ms, 0) / 1000):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _set_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            log.error("this host cannot plan: %s", problem)
        self.problem = problem

    def _log_malformed(self, malformed: Mapping[str, str]) -> None:
        for nonce, reason in malformed.items():
            if self._malformed.get(nonce) != reason:
                log.warning(
                    "the entry of a host cannot be read; that host gets no shards",
                    extra={"entry": nonce, "reason": reason},
                )
        self._malformed = malformed

    def _log_unreadable(self, unreadable: Mapping[str, str]) -> None:
        for database, reason in unreadable.items():
            if self._unreadable.get(database) != reason:
                log.error(
                    "the entry of a database's primary cannot be read; its shards stay where they are until it is corrected",
                    extra={"database": database, "reason": reason},
                )
        self._unreadable = unreadable

    def _log_plan_changes(self, before: Plan, after: Plan) -> None:
        for number in sorted(before.assignments.keys() | after.assignments.keys()):
            was, now = before.assignments.get(number), after.assignments.get(number)
            if was != now:
                change = "unassigned" if now is None else "leaving" if now.leaving else "assigned"
                host, epoch = ("", after.epochs.get(number, 0)) if now is None else (now.name, now.epoch)
                log.info(
                    "the plan of a shard has changed",
                    extra={"shard": number, "change": change, "host": host, "epoch": epoch},
                )
