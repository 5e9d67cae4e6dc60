"""A host's membership in its cluster: the registry, the agent, and the planner and the promoters, which may be elected.

Always true: the registry is open before the agent and the planner run, and its
session ends after the host has given up its shards. Knows nothing of sockets
and queues; `host` starts and stops it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from random import Random
from typing import Final

from foqs.catalog.document import FORMAT_MAX
from foqs.catalog.key_slot_assignment import SlotAssignment
from foqs.cluster.position_publisher import PositionPublisher, ReplicaReader
from foqs.cluster.routing.host_views import HostViews, address_of
from foqs.cluster.routing.registry_cluster import RegistryCluster
from foqs.options.config import Config
from foqs.routing.port import Address
from foqs.runtime.clock import Clock
from foqs.shard.host_shards import ShardStatus
from foqs.shard.shard import OwnedShard
from foqs.store.factories import replica_readers, servers_of_promoters
from foqs.store.mysql.mysql_migrations import MIGRATIONS
from foqs_contract.contract_version import CONTRACT_VERSION
from foqs_contract.errors import Unavailable
from shardmgr.agent import Agent, AgentPace
from shardmgr.cluster_identity import draw_identity
from shardmgr.cluster_reader import read_cluster, read_layout
from shardmgr.documents import FORMAT
from shardmgr.host_promoters import HostPromoters, PromoterPace
from shardmgr.model import ClusterView, MalformedDocument, Member
from shardmgr.ownership import OwnershipState, ownership_state_of
from shardmgr.planner import Planner, PlannerPace
from shardmgr.port import AssignmentListener
from shardmgr.registry.port import Registry, RegistryFailed
from shardmgr.server_port import DatabaseServers
from shardmgr.session_state import SessionState
from shardmgr.versions import HostVersions, hosts_without_format, read_versions

_RETRY_MS: Final = 1_000
_READ_S_MAX: Final = 5.0
_ONE_FLUSH_ITEMS: Final = 1_024


class Membership:
    """Joins a host to its cluster.

    Args:
        registry: the registry, which this object opens and closes.
        nonce: names this run of the host.
        load: returns how many items wait to be written; announced as `coarse_load`.
        shards: the shards that the host serves, by number.
        servers: by database with a server in each region, its servers as a promoter reaches them; None: by the configuration.
        replicas: by such a database and by server, what reads the owner rows there; None: by the configuration.
    """

    def __init__(
        self,
        config: Config,
        registry: Registry,
        nonce: str,
        clock: Clock,
        rng: Random,
        load: Callable[[], float],
        agent_pace: AgentPace,
        planner_pace: PlannerPace,
        shards: Mapping[int, OwnedShard],
        servers: Mapping[str, DatabaseServers] | None = None,
        replicas: Mapping[str, Mapping[str, ReplicaReader]] | None = None,
    ) -> None:
        self.registry = registry
        self.agent = Agent(
            registry,
            agent_pace,
            clock.monotonic_ms,
            rng,
            lambda: coarse_load(load()),
            own_versions(),
        )
        self.planner = Planner(registry, nonce, planner_pace, clock.monotonic_ms, rng)
        promoter_pace = PromoterPace(config.cluster.lost_primary_ms, config.cluster.session_timeout_ms)
        servers = servers_of_promoters(config) if servers is None else servers
        self.promoters = HostPromoters(registry, nonce, servers, promoter_pace, clock.monotonic_ms)
        self._config = config
        self._replicas = replicas
        self._shards = shards
        self._clock = clock
        self.positions: PositionPublisher | None = None
        """Publishes the positions of shards; None before `start`."""
        self._server = config.server
        self._databases = frozenset(config.databases)
        self.nonce = nonce
        self._had_shards = False
        """Whether the tier has had shards since this host started."""
        self.hosts = HostViews(lambda: self.agent.view, nonce, version("foqs"))
        self._unserved: Sequence[int] = ()
        self._is_fully_served = False
        self._unserved_source: ClusterView | None = None
        """The reading from which `_unserved` and `_is_fully_served` come."""
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> str:
        """Open the registry session, and return the identity of the cluster. Raises `RegistryError`."""
        await self.registry.open()
        return await draw_identity(self.registry)

    def start(
        self, listener: AssignmentListener, port: int, on_view_changed: Callable[[], None]
    ) -> asyncio.Future[None]:
        """Join the cluster. Returns a future that ends only if the membership fails, with the error.

        Args:
            port: the port of the host's RPC server.
            on_view_changed: called when the results of `tier_shards` or `closed_shards` may have changed.
        """
        server = self._server
        address = server.advertise or f"{f'[{server.host}]' if ':' in server.host else server.host}:{port}"
        member = Member(
            server.name or address, self.nonce, address, server.tier, server.region, capacity=server.capacity
        )
        self.positions = PositionPublisher(
            self.registry,
            member.name,
            self._shards,
            lambda: self.agent.view,
            replica_readers(self._config) if self._replicas is None else self._replicas,
            {name: options.max_lag_ms for name, options in self._config.databases.items()},
            self._clock,
        )
        self._tasks = [
            asyncio.ensure_future(self.agent.run(member, listener, on_view_changed)),
            asyncio.ensure_future(self.planner.run()),
            asyncio.ensure_future(self.promoters.run()),
            asyncio.ensure_future(self.positions.run()),
        ]
        return asyncio.ensure_future(_wait_for_first(self._tasks))

    def tier_shards(self) -> frozenset[int]:
        """Return all shards of this host's tier; empty before the first reading."""
        view = self.agent.view
        specs = () if view is None else view.layout.shards.values()
        return frozenset(spec.number for spec in specs if spec.tier == self._server.tier)

    def all_shards(self) -> frozenset[int]:
        """Return all shards of all tiers; empty before the first reading."""
        view = self.agent.view
        return frozenset() if view is None else frozenset(view.layout.shards)

    def running_hosts(self) -> frozenset[str] | None:
        """Return the nonces of the hosts of the cluster; None while this host does not follow the plan."""
        view = self.agent.view
        if view is None or self.agent.session_state is not SessionState.SERVING:
            return None
        return frozenset(member.nonce for member in view.members)

    def closed_shards(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the shards of this host that are draining, and those whose assignment is obsolete.

        Obsolete shards were removed, or moved to another database or tier: nothing would read their new items.
        """
        view = self.agent.view
        if view is None:
            return frozenset(), frozenset()
        shards, tier = view.layout.shards, self._server.tier
        own = {number: entry for number, entry in view.plan.assignments.items() if entry.nonce == self.nonce}
        gone = frozenset(n for n, entry in own.items() if not entry.matches(shards.get(n)) or shards[n].tier != tier)
        return frozenset(n for n in own if n not in gone and shards[n].draining), gone

    def owner_of(self, shard: int) -> Address | None:
        """Return the address of a shard's owner; None if no owner is known."""
        owner = self.agent.owner_of(shard)
        return None if owner is None else address_of(owner)

    def owners(self) -> Mapping[int, str | None]:
        """Return the nonce of the planned owner, or None, for each shard of this host's tier.

        Raises:
            Unavailable: the plan was not read yet, or the tier had shards before and has none now.
        """
        view = self.agent.view
        if view is None:
            raise Unavailable("this host has not read the cluster's plan yet; try again", retry_after_ms=_RETRY_MS)
        assignments, tier = view.plan.assignments, self._server.tier
        found = {
            number: assignments[number].nonce if number in assignments else None
            for number, spec in view.layout.shards.items()
            if spec.tier == tier
        }
        self._check_shards_left(bool(found))
        return found

    def _check_shards_left(self, has_shards: bool) -> None:
        """Raise Unavailable if the tier has no shards any more: an empty reply would say that there are no items."""
        self._had_shards = self._had_shards or has_shards
        if not has_shards and self._had_shards:
            raise Unavailable(
                f"the layout has no shard of tier {self._server.tier} any more: add them again with foqs shard add, each "
                "with its number and its database, or restore the layout",
                retry_after_ms=_RETRY_MS,
            )

    def unserved_shards(self) -> Sequence[int]:
        """Return the shards of this host's tier that no host serves, lowest first, without those of this host.

        It is computed once for each reading of the plan, because each empty dequeue asks. Raises as `owners`.
        """
        view = self.agent.view
        if view is None or view is not self._unserved_source:
            owners = self.owners()
            unserved = self._find_unserved(owners)
            self._is_fully_served = not unserved
            self._unserved = [number for number in unserved if owners[number] != self.nonce]
            self._unserved_source = view
        return self._unserved

    def _find_unserved(self, owners: Mapping[int, str | None]) -> Sequence[int]:
        view = self.agent.view
        assert view is not None
        members = {member.nonce: member for member in view.members}
        assignments = view.plan.assignments
        return sorted(
            number
            for number, nonce in owners.items()
            if ownership_state_of(number, assignments.get(number), members.get(nonce or ""))
            != OwnershipState.OWNED.value
        )

    @property
    def is_fully_served(self) -> bool:
        """Whether every shard of the tier has an owner that serves it, by the last reading."""
        try:
            self.unserved_shards()
        except Unavailable:
            return False
        return self._is_fully_served

    async def read_tier_shards(self, deadline: float) -> frozenset[int]:
        """Read all shards of this host's tier now; `deadline` is on the loop's clock. Raises Unavailable."""
        try:
            async with asyncio.timeout_at(deadline):
                versioned_layout = await read_layout(self.registry)
        except (RegistryFailed, MalformedDocument, TimeoutError) as error:
            reason = str(error) or "ZooKeeper has not answered in time"
            raise Unavailable(
                f"the list of shards cannot be read: {reason}; try again", retry_after_ms=_RETRY_MS
            ) from None
        shards = () if versioned_layout is None else versioned_layout[0].shards.values()
        found = frozenset(spec.number for spec in shards if spec.tier == self._server.tier)
        self._check_shards_left(bool(found))
        return found

    async def find_older_hosts(self, documents: int) -> Sequence[str]:
        """Return the names of the members, of all tiers, that cannot read documents of a format. Raises Unavailable."""
        try:
            async with asyncio.timeout(_READ_S_MAX):
                reading = await read_cluster(self.registry)
                return hosts_without_format(reading, await read_versions(self.registry), documents)
        except (RegistryFailed, MalformedDocument, TimeoutError) as error:
            reason = str(error) or "ZooKeeper has not answered in time"
            raise Unavailable(
                f"the versions of the hosts cannot be read: {reason}; try again", retry_after_ms=_RETRY_MS
            ) from None

    def cluster_service(
        self,
        statuses: Callable[[], Sequence[ShardStatus]],
        key_slots: Callable[[], SlotAssignment],
        live_loads: Callable[[], Mapping[str, float]],
    ) -> RegistryCluster:
        """Return the service behind the calls about hosts and shards."""
        return RegistryCluster(
            self.registry,
            lambda: self.agent.view,
            self.hosts,
            self.nonce,
            self._server.tier,
            statuses,
            key_slots,
            live_loads,
            self._databases,
        )

    @property
    def not_ready_reason(self) -> str | None:
        """Why the host does not serve as a member of its cluster; None if it does."""
        if self.agent.session_state is SessionState.SERVING:
            return None
        return f"{self.agent.session_state.value}: {self.agent.problem or 'ZooKeeper has not answered yet, or for too long'}"

    async def leave(self, deadline: float) -> None:
        """Hand all shards over to the hosts that the planner chooses, until the deadline on the loop's clock."""
        await self.agent.leave(deadline)

    async def close(self) -> None:
        """End the registry session; other hosts may then take over any remaining shards at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.registry.close()


def own_versions() -> HostVersions:
    """Return the versions that this program speaks, as a member announces them.

    One number stands for the documents of the registry and for the catalog. So the next format of either is one above both:
    a host that announces 2 reads no document of the registry of format 2.
    """
    return HostVersions(version("foqs"), MIGRATIONS[-1].number, max(FORMAT, FORMAT_MAX), CONTRACT_VERSION)


def coarse_load(items: float) -> float:
    """Round a load to a power of four, or to 0 if it fits into one flush.

    Rounded loads change rarely, which matters because each change makes every host read all members again. Hosts
    exchange exact loads by gossip.
    """
    return 0.0 if items < _ONE_FLUSH_ITEMS else float(4 ** (int(items).bit_length() // 2))


async def _wait_for_first(tasks: list[asyncio.Task[None]]) -> None:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
