"""What a host can hand out of a topic, and who waits for it: for whoever chooses between hosts.

Holds `Stock`. Always true: it looks at what the shards remember anyway, and
changes nothing. Knows nothing of other hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from foqs.catalog.namespaces import Namespaces
from foqs.core.items.item import OrderKey, State, TopicName, unpack_order_key
from foqs.queue.dequeue import Dequeue
from foqs.queue.waiters import Waiters
from foqs.shard.shard import Shard


class Availability:
    """Of one host.

    Args:
        is_suspended: nothing is handed out now.
    """

    def __init__(
        self,
        shards: Mapping[int, Shard],
        namespaces: Namespaces,
        waiters: Waiters[Dequeue],
        is_suspended: Callable[[], bool],
    ) -> None:
        self._shards = shards
        self._namespaces = namespaces
        self._waiters = waiters
        self._is_suspended = is_suspended

    @property
    def is_suspended(self) -> bool:
        """Nothing is handed out now, whatever there is."""
        return self._is_suspended()

    def best_priority(self, topic: TopicName) -> int | None:
        """The priority of the best READY item, or the least that it can have where rows must be read first; None: there is none."""
        return self.best_priorities((topic,)).get(topic)

    def best_priorities(self, topics: Collection[TopicName]) -> dict[TopicName, int]:
        """`best` of each of these topics that has one."""
        best: dict[TopicName, OrderKey] = {}
        for shard in self._shards.values():
            if shard.can_deliver:
                for topic in shard.index.filter_known(topics):
                    key = shard.index.best_key_bound(topic)
                    if key is not None and (topic not in best or key < best[topic]):
                        best[topic] = key
        return {topic: unpack_order_key(key)[0] for topic, key in best.items()}

    def ready_count(self, topic: TopicName) -> int:
        """How many items are READY, as far as they are counted."""
        return max(
            0, sum([shard.counts.count(topic, State.READY) for shard in self._shards.values() if shard.can_deliver])
        )

    def is_paused(self, topic: TopicName) -> bool:
        return topic in self._namespaces.paused_topics

    def has_waiters(self, topic: TopicName) -> bool:
        """Somebody waits for it."""
        return self._waiters.first(topic) is not None

    def waiters_of(self, topic: TopicName) -> Sequence[Dequeue]:
        """Who waits for it, the longest first."""
        return self._waiters.for_topic(topic)
