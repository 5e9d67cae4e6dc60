"""A host as a member of its tier: membership, gossip, forwarding and shared limits.

Knows nothing of sockets; `host` starts and stops it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from random import Random

from foqs.catalog.namespace_deletion import ClusterDeletions
from foqs.cluster.forwarding.all_hosts import AllHosts
from foqs.cluster.forwarding.by_id_calls import ByIdCalls
from foqs.cluster.forwarding.dequeues import DequeueForwarder
from foqs.cluster.forwarding.enqueues import EnqueueForwarder
from foqs.cluster.forwarding.scatter_gather import ScatterGather
from foqs.cluster.forwarding.tier_layer import tier_layer
from foqs.cluster.gossip.exchange import GossipPace
from foqs.cluster.gossip.gossip import Gossip
from foqs.cluster.gossip.gossip_view import GossipView
from foqs.cluster.membership import Membership
from foqs.cluster.order_probe import OrderProbe
from foqs.cluster.peers import Peers
from foqs.cluster.tier_limits import TierLimits
from foqs.cluster.tier_topic_rates import TierTopicRates
from foqs.cluster.unknown_namespaces import UnknownNamespaces
from foqs.core.flush.fence import ownership_nonce
from foqs.queue.engine import Engine
from foqs.queue.host_state import HostState
from foqs.queue.placement import accepts_items
from foqs.routing.port import Address
from foqs.rpc.call import Handler, Layer
from foqs_contract.call_table import Route


class TierMember:
    """One host as a member of its tier; see `foqs.queue.tier.Tier`.

    Args:
        state: the state of this host.
        peers: the other hosts of the tier.
        view: the view that keeps the reports of the peers; empty at first.
        delivery_bytes_max: the limit of the payloads of one reply.

    Attributes:
        plan_read: set once the plan was read.
    """

    is_alone = False

    def __init__(
        self,
        pace: GossipPace,
        state: HostState,
        membership: Membership,
        peers: Peers,
        view: GossipView,
        delivery_bytes_max: int,
        rng: Random,
    ) -> None:
        self.membership = membership
        self.peers = peers
        self.ownership_nonce = membership.nonce
        self.drained_shards: Collection[int] = frozenset()
        self.removed_shards: Collection[int] = frozenset()
        self.plan_read = asyncio.Event()
        self._tasks: list[asyncio.Future[None]] = []
        self._state = state
        self._delivery_bytes_max = delivery_bytes_max
        self.deletions = ClusterDeletions(state.namespaces, state.shards.served, membership.all_shards)
        self.limits = TierLimits(
            state.backlogs,
            lambda: state.namespaces.limited_settings,
            lambda: peers.by_nonce.values(),
            state.stopwatch_s,
            pace.interval_s,
        )
        self.rates = TierTopicRates(
            state.topic_rates, lambda: peers.by_nonce.values(), state.stopwatch_s, pace.interval_s
        )
        self.order_sink = OrderProbe(state, peers)
        self.dequeue_forwarder = DequeueForwarder(peers, state.availability, view, membership)
        self.gossip = Gossip(
            pace,
            state,
            peers,
            view,
            self.limits,
            self.rates,
            self.dequeue_forwarder.on_items_available,
            lambda: accepts_items(state.shards.served, self),
            membership,
            rng,
        )
        self.cluster = membership.cluster_service(state.shard_statuses, lambda: state.slots.assignment, self._loads)

    def owner_of(self, shard: int) -> Address | None:
        return self.membership.owner_of(shard)

    def tier_shards(self) -> Collection[int]:
        return self.membership.tier_shards()

    async def find_older_hosts(self, documents: int) -> Sequence[str]:
        return await self.membership.find_older_hosts(documents)

    def _loads(self) -> Mapping[str, float]:
        """Return the loads of this host and its peers by nonce, as last reported."""
        return {
            self.membership.nonce: self._state.load(),
            **{nonce: peer.load for nonce, peer in self.peers.by_nonce.items()},
        }

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers of the calls between hosts, by name."""
        return {
            "gossip": self.gossip.exchange.handle,
            "rankItem": self.order_sink.handle,
        }

    def layer(self, refresh: Callable[[], Awaitable[None]]) -> Layer:
        """Return the layer that serves each call together with the other hosts, by its route.

        Args:
            refresh: reads the catalog and applies it.
        """
        by_id = ByIdCalls(self.peers, self.dequeue_forwarder.on_leases_ended)
        forwarding = tier_layer(
            {
                Route.PLACED: EnqueueForwarder(self.peers).layer,
                Route.BEST: self.dequeue_forwarder.layer,
                Route.BY_ID: by_id.layer,
                Route.BY_SHARD: by_id.layer,
                Route.ALL_SHARDS: ScatterGather(self.peers, self.membership, self._delivery_bytes_max).layer,
                Route.ALL_HOSTS: AllHosts(self.peers).layer,
            }
        )
        unknown_namespaces = UnknownNamespaces(self._state.namespaces, refresh)
        return lambda method: unknown_namespaces.layer(replace(method, handle=forwarding(method)))

    # ------------------------------------------------------------ start and stop

    async def open(self) -> None:
        """Open the registry session. Raises `RegistryError`."""
        identity = await self.membership.open()
        # Hosts of other clusters do not take a shard over whose ownership names this one.
        self.ownership_nonce = ownership_nonce(identity, self.membership.nonce)

    def start(self, listener: Engine, port: int) -> list[asyncio.Future[None]]:
        """Join the cluster and exchange gossip; see `join`. Returns futures that end only if something fails, with the error."""
        self._tasks = [self.join(listener, port), asyncio.ensure_future(self.gossip.exchange.run())]
        return self._tasks

    def join(self, listener: Engine, port: int) -> asyncio.Future[None]:
        """Join the cluster. Returns a future that ends only if the membership fails, with the error.

        Args:
            listener: the engine of this host.
            port: the port of the host's RPC server.
        """

        def on_view_changed() -> None:
            self.drained_shards, self.removed_shards = self.membership.closed_shards()
            self.plan_read.set()
            listener.on_view_changed()

        return self.membership.start(listener, port, on_view_changed)

    async def leave(self, deadline: float) -> None:
        """Hand all shards over to the hosts that the planner chooses, until the deadline on the loop's clock."""
        await self.membership.leave(deadline)

    async def close(self) -> None:
        """Drop what is being measured, give back what peers have leased for calls here, and end connections and session.

        It may have never been started or opened.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.order_sink.close()
        await self.dequeue_forwarder.peer_dequeues.finish()
        await self.peers.close()
        await self.membership.close()
