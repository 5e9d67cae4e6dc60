"""Puts together everything that a host does with the other hosts of its tier.

Knows nothing of sockets; `host` starts and stops it.
"""

from __future__ import annotations

from collections.abc import Callable

from foqs.cluster.forwarding.audit_calls import audit_calls
from foqs.cluster.forwarding.by_id_calls import by_id_handlers
from foqs.cluster.forwarding.dequeues import DequeueForwarder
from foqs.cluster.forwarding.enqueues import EnqueueForwarder, RestoreForwarder
from foqs.cluster.forwarding.scatter_gather import ScatterGather
from foqs.cluster.forwarding.tier_service import TierService
from foqs.cluster.gossip.gossip import Gossip
from foqs.cluster.membership import Membership
from foqs.cluster.order_probe import OrderProbe
from foqs.cluster.peers import Peers
from foqs.cluster.shared_limits import TierLimits
from foqs.cluster.shared_rates import TierRates
from foqs.cluster.unknown_namespaces import UnknownNamespaces
from foqs.options.cluster_options import ClusterOptions
from foqs.queue.engine import Engine
from foqs.rpc.queue_handlers import QueueHandlers


class TierMember:
    """One host as a member of its tier.

    Args:
        local: serves calls by this host alone.
        gossip: of this host with these peers.
        tier_shards: the owners of the tier's shards.
        stopwatch_s: returns monotonic seconds.
    """

    def __init__(
        self,
        options: ClusterOptions,
        local: QueueHandlers,
        engine: Engine,
        peers: Peers,
        gossip: Gossip,
        tier_shards: Membership,
        stopwatch_s: Callable[[], float],
    ) -> None:
        methods = local.methods
        self.peers = peers
        self.gossip = gossip
        gossip.unserved_shards = tier_shards.unserved_shards
        self.limits = TierLimits(
            engine.queue.quota,
            lambda: engine.namespaces.limited_settings,
            lambda: peers.by_nonce.values(),
            stopwatch_s,
            options.gossip_interval_ms / 1_000,
        )
        self.limits.attach(self.gossip.exchange)
        self.rates = TierRates(
            engine.topic_rates,
            lambda: peers.by_nonce.values(),
            stopwatch_s,
            options.gossip_interval_ms / 1_000,
        )
        self.rates.attach(self.gossip.exchange)
        self.order_probe = OrderProbe(engine.queue.order_meter, engine.namespaces, peers, stopwatch_s)
        self.enqueue_forwarder = EnqueueForwarder(methods[b"enqueue"].handle, peers)
        availability, view = engine.queue.availability, self.gossip.view
        self.dequeue_forwarder = DequeueForwarder(
            methods[b"dequeue"].handle,
            peers,
            availability,
            view,
            tier_shards,
        )
        handlers = {
            **{name: method.handle for name, method in methods.items()},
            b"enqueue": self.enqueue_forwarder.handle,
            b"restoreItems": RestoreForwarder(methods[b"restoreItems"].handle, peers).handle,
            b"dequeue": self.dequeue_forwarder.handle,
            b"rankItem": self.order_probe.handle,
            **self.gossip.handlers(local),
            **audit_calls(methods, peers),
            **by_id_handlers(methods, peers),
            **ScatterGather(methods, peers, tier_shards, engine.queue.limits.delivery_bytes_max).handlers,
        }
        unknown_namespaces = UnknownNamespaces(engine.namespaces, engine.admin.refresh)
        self.service = TierService(local, unknown_namespaces.delayed(methods, handlers))

    async def run(self) -> None:
        """Exchange gossip with the peers until cancelled."""
        await self.gossip.exchange.run()

    async def close(self) -> None:
        """Drop what is being measured, give back what peers have leased for calls here, and close the connections to them."""
        await self.order_probe.close()
        await self.dequeue_forwarder.peer_dequeues.finish()
        await self.peers.close()
