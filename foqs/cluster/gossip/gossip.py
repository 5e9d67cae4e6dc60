"""Builds the gossip of one host.

Holds `Gossip`: the change log of this host's topics, the view of its peers'
topics, the exchange with them, and the list of the tier's topics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any, Final

from foqs.cluster.gossip.change_log import ChangeLog
from foqs.cluster.gossip.exchange import Exchange
from foqs.cluster.gossip.gossip_view import GossipView
from foqs.cluster.gossip.local_topics import LocalTopics
from foqs.cluster.gossip.tier_topics import TierTopics
from foqs.cluster.peers import Peers
from foqs.options.cluster_options import ClusterOptions
from foqs.queue.engine import Engine
from foqs.rpc.methods import MethodHandler, task_handler
from foqs.rpc.queue_handlers import QueueHandlers

_VERSION_BITS: Final = 62


class Gossip:
    """The parts of gossip.

    Args:
        load: returns how many items wait here to be written.
        is_fully_served: see `TierTopics`.
    """

    def __init__(
        self,
        options: ClusterOptions,
        engine: Engine,
        peers: Peers,
        load: Callable[[], float],
        is_fully_served: Callable[[], bool],
        rng: Random,
    ) -> None:
        self.view = GossipView(options.peer_topics_max, options.gossip_interval_ms / 1_000)
        self.local_topics = LocalTopics(
            engine.shards, ChangeLog(rng.getrandbits(_VERSION_BITS), options.topic_tombstones_max)
        )
        placement, availability = engine.queue.placement, engine.queue.availability
        self.exchange = Exchange(
            options,
            peers,
            self.local_topics,
            self.view,
            load,
            lambda: placement.accepts_items,
            availability.unavailable_shards,
            rng,
        )
        self._queue = engine.queue
        self.unserved_shards: Callable[[], Collection[int]] = tuple
        """Returns the shards of the tier that no host serves, without this host's own. Raises Unavailable."""
        self.tier_topics = TierTopics(engine, peers, self.local_topics, self.view, is_fully_served)

    def _unavailable_shards(self) -> int:
        """Return how many shards of the tier are not served, or cannot deliver. Raises Unavailable."""
        own = self._queue.unavailable_shards()
        return own + self.view.all_unavailable_shards() + len(self.unserved_shards())

    def handlers(self, local: QueueHandlers) -> Mapping[bytes, MethodHandler]:
        """Return the handlers of `exchange` and `getActiveTopics`; `local` serves requests with `local_only`."""

        async def get_active_topics(request: Any, deadline: float) -> Any:
            if request.filter is not None and request.filter.local_only:
                return await local.get_active_topics(request, deadline)
            return await local.list_topics(request, self.tier_topics.list_topics, self._unavailable_shards)

        return {b"gossip": self.exchange.handle, b"getActiveTopics": task_handler(get_active_topics)}
