"""The availability of a topic: what a host could deliver now, and which dequeues wait for it.

Used to choose between hosts. Always true: it reads only the memory of shards,
and changes nothing. Knows nothing of other hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from foqs.catalog.namespaces import Namespaces
from foqs.core.items.item import OrderKey, TopicName, unpack_order_key
from foqs.queue.dequeue import Dequeue
from foqs.queue.outage import Outage
from foqs.queue.suspension import Suspension
from foqs.queue.turn_ages import turn_age_ms
from foqs.queue.waiters import Waiters
from foqs.shard.host_shards import HostShards
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import HANDOVER_RETRY_MS


class Availability:
    """The availability of each topic on one host."""

    def __init__(
        self,
        shards: HostShards,
        namespaces: Namespaces,
        waiters: Waiters[Dequeue],
        suspension: Suspension,
    ) -> None:
        self._shards: Mapping[int, OwnedShard] = shards.served
        self._statuses = shards.statuses
        self._namespaces = namespaces
        self._waiters = waiters
        self._suspension = suspension

    @property
    def is_suspended(self) -> bool:
        """Whether nothing is delivered now, even if there are items."""
        return self._suspension.is_on

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

    def outage(self, topics: Collection[TopicName], late_shards: Collection[OwnedShard] = ()) -> Outage | None:
        """Return the shards that may hold items of these topics and cannot deliver them now; None if there are none.

        Items that may come due count. Items of paused topics do not. A shard that is not served may hold anything.

        Args:
            late_shards: shards that have not committed a lease in the time of its dequeue.
        """
        topics = [topic for topic in topics if not self.is_paused(topic)]
        if not topics:
            return None
        cause = self._suspension.cause
        if cause is not None:
            return Outage(max(1, len(self._statuses)), True, cause.reason)
        reasons: list[str] = []
        retry_ms, is_whole = HANDOVER_RETRY_MS, True
        delivering: list[OwnedShard] = []
        for number, status in self._statuses.items():
            shard = self._shards.get(number)
            if shard is None or not shard.is_serving:
                reasons.append(f"shard {number} is not served now: {status.reason or status.state}")
                continue
            trouble = shard.undeliverable_reason or (
                "it did not write a lease in time" if shard in late_shards else None
            )
            if trouble is None:
                delivering.append(shard)
                if any(map(shard.index.needs_refill, shard.index.filter_known(topics))):
                    reasons.append(f"shard {number} has not read its best items yet")
                    is_whole = False  # it delivers as soon as it has read them
            elif any(map(shard.may_deliver, topics)):
                reasons.append(f"shard {number}: {trouble}")
                retry_ms = max(retry_ms, shard.retry_after_ms)
        if not reasons:
            return None
        is_whole = is_whole and not any(shard.may_deliver(topic) for shard in delivering for topic in topics)
        return Outage(len(reasons), is_whole, reasons[0], retry_ms)

    def unavailable_shards(self) -> int:
        """Return how many of the shards that this host serves cannot deliver."""
        serving = [shard for shard in self._shards.values() if shard.is_serving]
        return sum(self.is_suspended or shard.undeliverable_reason is not None for shard in serving)

    def unserved_shards(self) -> int:
        """Return how many of the shards that this host should own are not served."""
        return sum((shard := self._shards.get(number)) is None or not shard.is_serving for number in self._statuses)

    def may_deliver(self, topics: Collection[TopicName]) -> bool:
        """Return whether a shard that can deliver has items of these topics, or may have them when they come due."""
        return any(
            shard.undeliverable_reason is None and any(map(shard.may_deliver, topics))
            for shard in self._shards.values()
        )

    def ready_count(self, topic: TopicName) -> int:
        """Return the number of READY items in shards that can deliver, as far as they are counted, without those that groups hold back."""
        return max(
            0, sum([shard.memory.deliverable_count(topic) for shard in self._shards.values() if shard.can_deliver])
        )

    def turn_age_ms(self, topic: TopicName) -> int | None:
        """Return how long the next group of a fair topic has waited here; None if the topic is not fair, or no group waits."""
        if self._namespaces.fairness(topic) is None:
            return None
        return turn_age_ms(topic, [shard for shard in self._shards.values() if shard.can_deliver])

    def is_paused(self, topic: TopicName) -> bool:
        return topic in self._namespaces.paused_topics

    def is_relaxed(self, topic: TopicName) -> bool:
        """Return whether the policy of the topic lets a host deliver its own items though a peer has better ones."""
        return topic in self._namespaces.relaxed_topics

    def has_group_limit(self, topic: TopicName) -> bool:
        """Return whether the policy of the topic limits the leases of a group."""
        return self._namespaces.group_leases_max(topic) is not None

    def has_waiters(self, topic: TopicName) -> bool:
        """Return whether a dequeue waits for the topic."""
        return self._waiters.first(topic) is not None

    def waiters_of(self, topic: TopicName) -> Sequence[Dequeue]:
        """Return the dequeues that wait for the topic, oldest first."""
        return self._waiters.for_topic(topic)
