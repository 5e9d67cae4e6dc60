"""A run of a fleet in three regions, with the loss of regions and the moves of primaries.

Holds `RegionsRun`. Its clients are those of `fleet_run`. Always true: everything follows from the seed; after the work all
servers are back, and every database serves with proven ackers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Final

from foqs_client import FoqsError, Item
from shardmgr.primary import LossPolicy
from shardmgr.primary_changes import abort, replace_lost
from shardmgr.primary_moves import move_to
from tests.simulation.administrator import Administrator
from tests.simulation.cluster import PORT, Incarnation
from tests.simulation.fleet_run import FleetRun, Unsettled
from tests.simulation.principals import PRODUCER
from tests.simulation.regional_database import DATABASES, RegionalDatabase
from tests.simulation.regions import SimulatedRegions
from tests.simulation.workload import TOPICS, Plan
from tests.support.plain_regions import REGIONS

REGIONS_PLAN: Final = Plan(items=200, calls=1_200, crashes=2)
WORK_S_MAX: Final = 25.0
"""A run works until a primary was replaced, and one was moved, at most this long."""
REST_S_MAX: Final = 30.0
"""The time until every database is at rest after `healed`."""
_WEAK_S: Final = 0.25
"""How long one acker alone acknowledges. Owners publish what they have inserted once a second, and that is compared as well."""
_PASSED_OVER_S: Final = 1.2
"""How long an owner does not learn that a primary is changed. Its session lives longer."""
_PATIENCE_S: Final = 3.0
"""After this time without a change an administrator helps a database that does not serve."""


class RegionsRun(FleetRun):
    """One seeded run."""

    cluster: SimulatedRegions
    steps_between_troubles: ClassVar[tuple[int, int]] = (1_500, 7_000)

    def __init__(self, fleet: SimulatedRegions, seed: int, plan: Plan) -> None:
        super().__init__(fleet, seed, plan)
        self._regions = Random(f"{seed}/regions")
        self._passed_over = 0
        """How often a primary was changed while an owner of its shards did not learn of it."""

    def _more(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield from super()._more()
        yield self._administer()
        yield self._pass_owners_over()

    def _is_enough(self) -> bool:
        counts = self.cluster.counts
        has_moved = counts["primaries replaced"] > 0 and counts["primaries moved"] > 0 and self._passed_over > 2
        return self.cluster.loop.time() >= WORK_S_MAX or (super()._is_enough() and has_moved)

    # ------------------------------------------------------------ administration

    async def _administer(self) -> None:
        """Move primaries, replace some that live, abort, and let servers rejoin."""
        rng, cluster = self._regions, self.cluster
        while self._working:
            await asyncio.sleep(rng.expovariate(3))
            database = cluster.databases[rng.choice(list(DATABASES))]
            kind = rng.random()
            if kind < 0.2:
                await self._move_primary(database)
            elif kind < 0.23:
                await self._replace_primary(database)
            elif kind < 0.24:
                await cluster.change(database, abort)
            elif kind < 0.4 and self._may_accept_loss(database):
                await self._accept_loss(database)
            elif 0.4 <= kind < 0.44 and database.entry.is_serving and database.primary.is_read_only:
                await self._help(database)
            else:
                await cluster.let_rejoin(database)

    def _may_accept_loss(self, database: RegionalDatabase) -> bool:
        """Return whether an administrator accepts a loss: the primary of an async database is dead or cut off, or seems so."""
        is_away = not database.primary.alive or any(database.entry.server in link for link in database.world.cut)
        return database.entry.policy is LossPolicy.ASYNC and (is_away or self._regions.random() < 0.05)

    async def _move_primary(self, database: RegionalDatabase) -> None:
        region = self._regions.choice(sorted(database.entry.ackers) or REGIONS)
        await self.cluster.change(database, lambda entry: move_to(entry, region))

    async def _replace_primary(self, database: RegionalDatabase) -> None:
        """Replace a primary as if it were lost."""
        await self.cluster.change(database, lambda entry: replace_lost(entry, entry.server))

    async def _pass_owners_over(self) -> None:
        """Move primaries, or replace them although they live, while an owner of their shards does not learn of it, and goes on."""
        rng, cluster = self._regions, self.cluster
        while self._working:
            await asyncio.sleep(rng.uniform(0.3, 1.5))
            fitting = [each for each in cluster.databases.values() if each.is_replaceable]
            owners = [(each, owner) for each in fitting if (owner := cluster.mere_owner_of(each)) is not None]
            if not owners or not self._working:
                continue
            database, owner = rng.choice(owners)
            self._passed_over += 1
            cluster.cut_off(owner, _PASSED_OVER_S)
            if rng.random() < 0.4:
                change = self._move_primary
            else:
                # A move waits until the handover is overdue, and the owner's session lives hardly longer than that.
                cluster.slow_down(database, 2.0)
                is_async = database.entry.policy is LossPolicy.ASYNC
                change = self._accept_loss if is_async else self._replace_primary
            await asyncio.gather(
                change(database), self._enqueue_at(owner.address, cluster.loop.time() + _PASSED_OVER_S)
            )

    async def _enqueue_at(self, address: str, until_s: float) -> None:
        """Enqueue at one host, as clients do that know no other."""
        client = self._recording(f"neighbour-{self._passed_over}", "default", PRODUCER, f"{address}:{PORT}")
        number = 0
        while self._working and self.cluster.loop.time() < until_s:
            number += 1
            payload = f"neighbour-{self._passed_over}/{number}"
            self._sent(1)
            with contextlib.suppress(FoqsError):
                await client.enqueue([Item(TOPICS[0], payload.encode(), lease_ms=400)], timeout_ms=400)
            await asyncio.sleep(0.02)
        await client.client.close()

    async def _recover(self) -> None:
        await self._rest()
        await super()._recover()
        await self._rest()

    async def _rest(self) -> None:
        """Wait until every database is at rest, and do what its promoter needs an administrator for. Raises `Unsettled`."""
        cluster, loop = self.cluster, self.cluster.loop
        until_s, seen_s = loop.time() + REST_S_MAX, dict.fromkeys(DATABASES, loop.time())
        seen = {name: each.entry for name, each in cluster.databases.items()}
        while trouble := cluster.restless():
            if loop.time() > until_s:
                raise Unsettled(f"invariant 11: {trouble}, {REST_S_MAX} s after everything healed")
            if not cluster.running():
                cluster.start(cluster.absent()[0])
            for name, database in cluster.databases.items():
                if database.entry is not seen[name]:
                    seen[name], seen_s[name] = database.entry, loop.time()
                elif loop.time() - seen_s[name] > _PATIENCE_S:
                    await self._help(database)
                await cluster.let_rejoin(database)
            await asyncio.sleep(0.2)

    async def _help(self, database: RegionalDatabase) -> None:
        """Do what an administrator does if the promoter waits: go on with the primary, or replace one that is not opened.

        If the start of the primary has cut its log, and the ackers prove nothing, nobody knows what is lost.
        """
        if database.entry.is_serving:
            if database.primary.is_read_only:
                await self._replace_primary(database)
        elif database.primary.kept_log:
            await self.cluster.change(database, abort)
        else:
            await self._accept_loss(database)

    async def _accept_loss(self, database: RegionalDatabase) -> None:
        await self.cluster.change(database, lambda entry: replace_lost(entry, entry.server, accepts_loss=True))

    async def _compare(self, administrators: Mapping[str, Administrator]) -> None:
        await super()._compare(administrators)
        self.differences += self.cluster.copy_differences()

    # ------------------------------------------------------------------ troubles

    def _troubles(self, host: Incarnation, seconds: float) -> Sequence[tuple[float, Callable[[], object]]]:
        cluster, rng = self.cluster, self._regions
        database = cluster.databases[rng.choice(list(DATABASES))]
        region = rng.choice(REGIONS)
        away_s = rng.uniform(2.0, 7.0)
        return (
            *super()._troubles(host, seconds),
            (30, lambda: self._lose_region(region, away_s)),
            (12, lambda: cluster.cut_region_off(region, away_s)),
            (20, lambda: self._lose_primary(database, away_s)),
            (6, lambda: cluster.lose_server(database, region, away_s)),
            (6, lambda: self._cut_a_link(database, away_s)),
            (8, lambda: cluster.touch_replication(database, region, "slow", away_s)),
            (6, lambda: cluster.touch_replication(database, region, "restart")),
            (16, lambda: self._lose_with_weak_ackers(away_s)),
            (12, lambda: cluster.mislead(host, database, region, away_s)),
        )

    def _cut_a_link(self, database: RegionalDatabase, seconds: float) -> None:
        one, other = self._regions.sample(REGIONS, 2)
        self.cluster.cut_link(database, one, other, seconds)

    def _lose_region(self, region: str, seconds: float) -> None:
        """Let a region die, unless another one is away."""
        if not self.cluster.down:
            self.crashes += 1
            self.cluster.lose_region(region, seconds)
            self._later(seconds + 0.2, self._start_absent)

    def _lose_primary(self, database: RegionalDatabase, seconds: float) -> None:
        """Kill a primary. A quick start of it may cut its log, as if it had been replaced."""
        is_quick = self._regions.random() < 0.5 and database.entry.policy is LossPolicy.SEMI_SYNC
        seconds = 0.3 if is_quick else seconds
        self.cluster.lose_server(database, database.entry.server, seconds, cuts=is_quick)

    def _lose_with_weak_ackers(self, seconds: float) -> None:
        """Let one acker alone acknowledge for a while without applying; then it is started again, and the primary dies."""
        cluster, rng = self.cluster, self._regions
        fitting = [each for each in cluster.databases.values() if each.is_replaceable and len(each.entry.ackers) > 1]
        if not fitting:
            return
        database = rng.choice(fitting)
        entry = database.entry
        weak, other = rng.sample(sorted(entry.ackers), 2)
        cluster.touch_replication(database, weak, "slow", seconds)
        cluster.cut_link(database, entry.server, other, _WEAK_S + 0.05)

        def lose() -> None:
            if database.entry.server == entry.server:
                cluster.touch_replication(database, weak, "restart")
                cluster.lose_server(database, entry.server, seconds + 2.0)

        self._later(_WEAK_S, lose)
