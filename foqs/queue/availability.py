"""The availability of a topic: what a host could deliver now, and which dequeues wait for it.

Used to choose between hosts. Always true: it reads only the memory of shards,
and changes nothing. Knows nothing of other hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from foqs.catalog.namespaces import Namespaces
from foqs.core.items.item import OrderKey, State, TopicName, unpack_order_key
from foqs.queue.dequeue import Dequeue
from foqs.queue.waiters import Waiters
from foqs.shard.shard import Shard


class Availability:
    """The availability of one host.

    Args:
        is_suspended: returns whether nothing is delivered now.
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
        """Whether nothing is delivered now, even if there are items."""
        return self._is_suspended()

    def best_priority(self, topic: TopicName) -> int | None:
        """Return the priority of the best READY item; None if there is none.

        If rows must be read first, returns the best priority that they may have.
        """
        return self.best_priorities((topic,)).get(topic)

    def best_priorities(self, topics: Collection[TopicName]) -> dict[TopicName, int]:
        """Return `best_priority` of each of these topics that has one."""
        best: dict[TopicName, OrderKey] = {}
        for shard in self._shards.values():
            if shard.can_deliver:
                for topic in shard.index.filter_known(topics):
                    key = shard.index.best_key_bound(topic)
                    if key is not None and (topic not in best or key < best[topic]):
                        best[topic] = key
        return {topic: unpack_order_key(key)[0] for topic, key in best.items()}

    def ready_count(self, topic: TopicName) -> int:
        """Return the number of READY items, as far as they are counted."""
        return max(
            0, sum([shard.counts.count(topic, State.READY) for shard in self._shards.values() if shard.can_deliver])
        )

    def is_paused(self, topic: TopicName) -> bool:
        return topic in self._namespaces.paused_topics

    def has_waiters(self, topic: TopicName) -> bool:
        """Return whether a dequeue waits for the topic."""
        return self._waiters.first(topic) is not None

    def waiters_of(self, topic: TopicName) -> Sequence[Dequeue]:
        """Return the dequeues that wait for the topic, oldest first."""
        return self._waiters.for_topic(topic)
