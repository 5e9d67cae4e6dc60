"""The tier of a host: where its shards, its catalog and its documents come from, for a host alone and in a cluster.

Holds the port `HostTier`, and its two classes: of a host alone, and of a member. Only
`host_tier` chooses, by the configuration. Always true: nothing is opened before `open`.
Knows nothing of the sockets of the host.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from foqs.catalog.file_catalog import FileCatalog
from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.catalog.port import Catalog
from foqs.catalog.registry_catalog import RegistryCatalog
from foqs.cluster.connections import peer_pool_opener
from foqs.cluster.database_states import database_states
from foqs.cluster.gossip.exchange import GossipPace
from foqs.cluster.gossip.gossip_view import GossipView
from foqs.cluster.membership import Membership
from foqs.cluster.peer_figures import PeerFigures
from foqs.cluster.peers import Peers
from foqs.cluster.tier_member import TierMember
from foqs.options.config import Config
from foqs.queue.bulk_jobs.bulk_job_store import Documents, LocalDocuments
from foqs.queue.engine import Engine
from foqs.queue.host_state import HostState
from foqs.queue.port import Queue
from foqs.queue.tier import Alone, Tier
from foqs.queue.tier_figures import OwnFigures, TierFigures
from foqs.routing.port import ClusterService, HostIdentity, StandaloneCluster
from foqs.rpc.call import Handler, Layer
from foqs.rpc.methods import unforwarded
from foqs.rpc.queue_handlers import TopicLists
from foqs.surroundings import Surroundings
from foqs.telemetry.cluster_samples import cluster_samples, tier_samples
from foqs.telemetry.metrics import Samples
from shardmgr.agent import AgentPace
from shardmgr.local_coordinator import EpochBook, FileEpochBook, LocalCoordinator
from shardmgr.planner import PlannerPace
from shardmgr.port import Coordinator

_PLAN_WAIT_S: Final = 2.0
"""A host of a cluster starts to listen after this time even if it has not read the plan."""


class HostTier(Protocol):
    """The tier of a host, as the host starts, shows and stops it.

    Attributes:
        tier: the tier for the queue.
        shards: the shards of a host alone, each with the name of its database; None: the plan assigns them.
        coordinator: assigns the shards.
        catalog: stores namespaces, grants and pauses.
        documents: the documents of the bulk jobs.
        secrets: the documents with the secret of the console.
        handlers: the handlers of the calls that only a host of a cluster serves, by name.
    """

    tier: Tier
    shards: Mapping[int, str] | None
    coordinator: Coordinator
    catalog: Catalog
    documents: Documents
    secrets: Documents
    handlers: Mapping[str, Handler]

    def layer(self, refresh: Callable[[], Awaitable[None]]) -> Layer:
        """Return the layer that serves each call together with the other hosts.

        Args:
            refresh: reads the catalog and applies it.
        """
        ...

    def cluster(self, identity: HostIdentity) -> ClusterService:
        """Return the service behind the calls about hosts and shards. `identity` is this host's."""
        ...

    def topics(self, queue: Queue) -> TopicLists:
        """Return the topics of the tier. `queue` has those of this host."""
        ...

    def figures(self, engine: Engine) -> TierFigures:
        """Return the figures of the tier for the console and for autoscalers."""
        ...

    def running_hosts(self) -> Collection[str] | None:
        """Return the nonces of the hosts that may work on bulk jobs; None while they are not known."""
        ...

    def not_ready_reasons(self) -> Mapping[str, str]:
        """Return why the host does not serve as a member of its tier, by part; empty if it does."""
        ...

    def samples(self) -> Samples:
        """Return the samples of the metrics of the tier."""
        ...

    async def open(self) -> None:
        """Open the registry session. Raises `RegistryError`."""
        ...

    async def start(self, engine: Engine, port: int) -> Sequence[asyncio.Future[None]]:
        """Start to acquire the shards of the host, and wait a limited time until it knows which they are.

        Returns futures that end only if something fails, with the error.

        Args:
            port: the host's port for Thrift calls.
        """
        ...

    async def leave(self, deadline: float) -> None:
        """Hand all shards over to other hosts, until the deadline on the loop's clock."""
        ...

    async def close(self) -> None:
        """End the registry session, and the connections to peers. It may have never been opened."""
        ...


def host_tier(config: Config, state: HostState, surroundings: Surroundings, planner_pace: PlannerPace) -> HostTier:
    """Return the tier of a host by its configuration."""
    if config.cluster.zookeeper:
        return _MemberHostTier(config, state, surroundings, planner_pace)
    return _AloneHostTier(config, state, surroundings)


class _AloneHostTier:
    """A host that owns all shards of its store."""

    def __init__(self, config: Config, state: HostState, surroundings: Surroundings) -> None:
        folder = None if config.catalog_file is None else config.catalog_file.parent
        self.handlers: Mapping[str, Handler] = {}
        self.shards: Mapping[int, str] | None = dict.fromkeys(range(config.store.shards), "")
        self.tier: Tier = Alone(surroundings.nonce, self.shards, state)
        self.coordinator: Coordinator = LocalCoordinator(_make_epoch_book(config.coordinator_file))
        self.catalog: Catalog = _make_catalog(config)
        self.documents: Documents = LocalDocuments(folder)
        self.secrets: Documents = LocalDocuments(folder, is_secret=True)
        self._state = state
        self._nonce = surroundings.nonce

    def layer(self, refresh: Callable[[], Awaitable[None]]) -> Layer:
        return unforwarded

    def cluster(self, identity: HostIdentity) -> ClusterService:
        return StandaloneCluster(identity, self._state.shard_statuses)

    def topics(self, queue: Queue) -> TopicLists:
        return queue.reads

    def figures(self, engine: Engine) -> TierFigures:
        return OwnFigures(self._state, engine.queue.reads)

    def running_hosts(self) -> Collection[str] | None:
        return (self._nonce,)

    def not_ready_reasons(self) -> Mapping[str, str]:
        return {}

    def samples(self) -> Samples:
        return {}

    async def open(self) -> None:
        """Do nothing: there is no registry."""

    async def start(self, engine: Engine, port: int) -> Sequence[asyncio.Future[None]]:
        return ()

    async def leave(self, deadline: float) -> None:
        """Do nothing: there is no other host."""

    async def close(self) -> None:
        """Do nothing: nothing was opened."""


class _MemberHostTier:
    """A host that shares the shards of a tier with others."""

    def __init__(self, config: Config, state: HostState, surroundings: Surroundings, planner_pace: PlannerPace) -> None:
        registry, nonce, rng = surroundings.make_registry(), surroundings.nonce, surroundings.rng
        server = config.server
        clock, agent_pace, pace = surroundings.clock, AgentPace(), GossipPace()
        membership = Membership(
            config, registry, nonce, clock, rng, state.load, agent_pace, planner_pace, state.shards.served
        )
        peers = Peers(membership.hosts, nonce, server.tier, server.region, peer_pool_opener(config))
        view = GossipView(config.cluster.peer_topics_max, pace.interval_s)
        member = TierMember(pace, state, membership, peers, view, config.calls.delivery_bytes_max, rng)
        self.tier: Tier = member
        self.shards: Mapping[int, str] | None = None
        self.coordinator: Coordinator = membership.agent
        self.catalog: Catalog = RegistryCatalog(registry, config.catalog.bytes_max)
        self.documents: Documents = registry
        self.secrets: Documents = registry
        self.handlers: Mapping[str, Handler] = member.handlers
        self._member = member
        self._membership = membership
        self._tier_name = server.tier

    def layer(self, refresh: Callable[[], Awaitable[None]]) -> Layer:
        return self._member.layer(refresh)

    def cluster(self, identity: HostIdentity) -> ClusterService:
        return self._member.cluster

    def topics(self, queue: Queue) -> TopicLists:
        return self._member.gossip.tier_topics

    def running_hosts(self) -> Collection[str] | None:
        return self._membership.running_hosts()

    def figures(self, engine: Engine) -> TierFigures:
        member = self._member
        databases = partial(database_states, self._membership)
        return PeerFigures(member.gossip.tier_topics, member.gossip.view, member.rates, member.peers, databases)

    def not_ready_reasons(self) -> Mapping[str, str]:
        reason = self._membership.not_ready_reason
        return {} if reason is None else {"cluster": reason}

    def samples(self) -> Samples:
        return {
            **cluster_samples(self._membership, self._tier_name),
            **tier_samples(self._member.gossip, self._member.order_sink),
        }

    async def open(self) -> None:
        await self._member.open()

    async def start(self, engine: Engine, port: int) -> Sequence[asyncio.Future[None]]:
        tasks = self._member.start(engine, port)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._member.plan_read.wait(), _PLAN_WAIT_S)
        return tasks

    async def leave(self, deadline: float) -> None:
        await self._member.leave(deadline)

    async def close(self) -> None:
        await self._member.close()


class _MemoryEpochBook:
    """Epochs of a database that lives only as long as the process."""

    def load(self) -> dict[int, int]:
        return {}

    def save(self, epochs: dict[int, int]) -> None:
        pass


def _make_catalog(config: Config) -> Catalog:
    path, catalog = config.catalog_file, config.catalog
    if path is None:
        return MemoryCatalog(bytes_max=catalog.bytes_max)
    return FileCatalog(path, catalog.bytes_max)


def _make_epoch_book(path: Path | None) -> EpochBook:
    return _MemoryEpochBook() if path is None else FileEpochBook(path)
