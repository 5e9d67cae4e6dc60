"""A host's place in a cluster: its registry, its agent, and its planner, which may be elected.

Always true: the registry is open before the agent and the planner run, and its
session ends after the host has given up what it had. Knows nothing of sockets
and queues; `host` starts and stops it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from random import Random
from typing import Final

from foqs.catalog.key_slot_assignment import SlotAssignment
from foqs.cluster.routing.port import Address
from foqs.cluster.routing.registry_cluster import RegistryCluster, address_of
from foqs.core.errors import Unavailable
from foqs.options.config import Config
from foqs.runtime.clock import Clock
from foqs.shard.status import ShardStatus
from shardmgr.agent import Agent, AgentPace
from shardmgr.cluster_reader import read_layout
from shardmgr.model import MalformedDocument, Member
from shardmgr.planner import Planner, PlannerPace
from shardmgr.port import AssignmentListener
from shardmgr.registry.port import Registry, RegistryFailed
from shardmgr.session_state import SessionState

_RETRY_MS: Final = 1_000
_ONE_FLUSH_ITEMS: Final = 1_024


class Membership:
    """Args:
    registry: not open yet; this object opens and closes it.
    nonce: of this incarnation of the host.
    load: what waits at the host to be written, in items; announced coarsely.
    """

    def __init__(
        self, config: Config, registry: Registry, nonce: str, clock: Clock, rng: Random, load: Callable[[], float]
    ) -> None:
        cluster = config.cluster
        self.registry = registry
        self.agent = Agent(
            registry,
            AgentPace(session_margin_ms=cluster.session_margin_ms),
            clock.monotonic_ms,
            rng,
            lambda: coarse_load(load()),
        )
        self.planner = Planner(
            registry, nonce, PlannerPace(handover_timeout_ms=cluster.handover_timeout_ms), clock.monotonic_ms, rng
        )
        self._server = config.server
        self._databases = frozenset(config.databases)
        self.nonce = nonce
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Begins the session. Raises `RegistryFailed`."""
        await self.registry.open()

    def start(
        self, listener: AssignmentListener, port: int, on_view_changed: Callable[[], None]
    ) -> asyncio.Future[None]:
        """Joins the cluster; what it returns ends only with the reason why that cannot go on.

        Args:
            port: at which the host listens.
            on_view_changed: called when `tier_shards` or `closed` may say another thing than before.
        """
        server = self._server
        address = server.advertise or f"{f'[{server.host}]' if ':' in server.host else server.host}:{port}"
        member = Member(
            server.name or address, self.nonce, address, server.tier, server.region, capacity=server.capacity
        )
        self._tasks = [
            asyncio.ensure_future(self.agent.run(member, listener, on_view_changed)),
            asyncio.ensure_future(self.planner.run()),
        ]
        return asyncio.ensure_future(_wait_for_first(self._tasks))

    def tier_shards(self) -> frozenset[int]:
        """All shards of this host's tier; none while that is not known."""
        view = self.agent.view
        specs = () if view is None else view.layout.shards.values()
        return frozenset(spec.number for spec in specs if spec.tier == self._server.tier)

    def all_shards(self) -> frozenset[int]:
        """All shards of every tier; none while that is not known."""
        view = self.agent.view
        return frozenset() if view is None else frozenset(view.layout.shards)

    def closed_shards(self) -> tuple[frozenset[int], frozenset[int]]:
        """Shards of this host that are drained, and others that are not what was assigned any more.

        Those were removed, or are of another database or tier by now: what came into them nobody would read.
        """
        view = self.agent.view
        if view is None:
            return frozenset(), frozenset()
        shards, tier = view.layout.shards, self._server.tier
        mine = {number: each for number, each in view.plan.assignments.items() if each.nonce == self.nonce}
        gone = frozenset(n for n, each in mine.items() if not each.matches(shards.get(n)) or shards[n].tier != tier)
        return frozenset(n for n in mine if n not in gone and shards[n].draining), gone

    def owner_of(self, shard: int) -> Address | None:
        """Where a shard's owner is reached; None where nobody is known to own it."""
        owner = self.agent.owner_of(shard)
        return None if owner is None else address_of(owner)

    def owners(self) -> Mapping[int, str | None]:
        """Of each shard of this host's tier the nonce of who should own it; None: nobody. Raises Unavailable."""
        view = self.agent.view
        if view is None:
            raise Unavailable("this host has not read the cluster's plan yet; try again", retry_after_ms=_RETRY_MS)
        assignments, tier = view.plan.assignments, self._server.tier
        return {
            number: assignments[number].nonce if number in assignments else None
            for number, spec in view.layout.shards.items()
            if spec.tier == tier
        }

    async def read_tier_shards(self, deadline: float) -> frozenset[int]:
        """All shards of this host's tier, read now, by a deadline on the loop's clock. Raises Unavailable."""
        try:
            async with asyncio.timeout_at(deadline):
                found = await read_layout(self.registry)
        except (RegistryFailed, MalformedDocument, TimeoutError) as error:
            why = str(error) or "ZooKeeper has not answered in time"
            raise Unavailable(f"the list of shards cannot be read: {why}", retry_after_ms=_RETRY_MS) from None
        shards = () if found is None else found[0].shards.values()
        return frozenset(spec.number for spec in shards if spec.tier == self._server.tier)

    def cluster_service(
        self, statuses: Callable[[], Sequence[ShardStatus]], key_slots: Callable[[], SlotAssignment]
    ) -> RegistryCluster:
        """What the wire is told of the cluster, and may ask of it."""
        tier, program = self._server.tier, version("foqs")
        return RegistryCluster(
            self.registry, lambda: self.agent.view, self.nonce, tier, statuses, key_slots, program, self._databases
        )

    @property
    def not_ready_reason(self) -> str | None:
        """Why the host does not serve as a member of its cluster; None when it does."""
        if self.agent.session_state is SessionState.SERVING:
            return None
        return f"{self.agent.session_state.value}: {self.agent.problem or 'ZooKeeper has not answered for too long, or not yet'}"

    async def leave(self, deadline: float) -> None:
        """Gives all shards back, to those that the planner finds, at most until the deadline by the loop's clock."""
        await self.agent.leave(deadline)

    async def close(self) -> None:
        """Ends the session: what was not given back by now is taken over at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.registry.close()


def coarse_load(items: float) -> float:
    """A power of four, or 0 for what one flush takes: every host reads all members anew whenever one of them changes.

    How busy hosts are from second to second they tell each other themselves.
    """
    return 0.0 if items < _ONE_FLUSH_ITEMS else float(4 ** (int(items).bit_length() // 2))


async def _wait_for_first(tasks: list[asyncio.Task[None]]) -> None:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
