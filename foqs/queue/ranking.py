"""The displacement of a delivery on this host: the better items over which it passes.

Always true: it reads the memory of the shards and changes nothing. Knows nothing of
other hosts, nor of which deliveries are sampled.
"""

from __future__ import annotations

from collections.abc import Mapping

from foqs.catalog.namespaces import Namespaces
from foqs.core.items.item import TopicName, pack_order_key, unpack_order_key
from foqs.core.memory.order_samples import NOTHING, Displacement
from foqs.queue.suspension import Suspension
from foqs.shard.shard import OwnedShard


class Ranking:
    """Computes displacements from the memory of this host's shards."""

    def __init__(self, shards: Mapping[int, OwnedShard], namespaces: Namespaces, suspension: Suspension) -> None:
        self._shards = shards
        self._namespaces = namespaces
        self._suspension = suspension

    def is_fair(self, topic: TopicName) -> bool:
        """Return whether the groups of a topic take turns, so that its order is not that of keys."""
        return self._namespaces.fairness(topic) is not None

    def passed_over(self, topic: TopicName, priority: int, deliver_after_ms: int) -> Displacement:
        """Return the displacement of a delivery of an item with this key, among the items that this host can deliver."""
        if self._suspension.is_on or topic in self._namespaces.paused_topics or self.is_fair(topic):
            return NOTHING
        # Numbers of two shards say nothing about age: an item of the same millisecond is no better.
        key, priority_key = pack_order_key(priority, deliver_after_ms, 0), pack_order_key(priority, 0, 0)
        found = NOTHING
        for shard in self._shards.values():
            best = shard.index.best_key(topic) if shard.can_deliver else None
            if best is not None and best < key:
                age_ms = max(0, shard.now_ms() - unpack_order_key(best)[1])
                items, by_priority = shard.index.rank(topic, key)[0], shard.index.rank(topic, priority_key)[0]
                found = found.plus(Displacement(items, by_priority, age_ms))
        return found
