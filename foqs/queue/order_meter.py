"""Which deliveries are sampled to measure how well the order is kept, and what they pass over on this host.

Holds `OrderMeter`; docs/design/order-meter.md says what is measured. Always true: at
most one sample in `SAMPLE_PAUSE_S`, and one of a topic in `TOPIC_PAUSE_S`; a delivery
that is not sampled is counted, and belongs to its topic's next sample. Knows nothing of
other hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from foqs.catalog.namespaces import Namespaces
from foqs.core.items.item import OrderKey, TopicName, pack_order_key, unpack_order_key
from foqs.core.memory.order_samples import NOTHING, Displacement, OrderSamples
from foqs.shard.shard import Shard

SAMPLE_PAUSE_S: Final = 0.1
TOPIC_PAUSE_S: Final = 1.0
TOPICS_MAX: Final = 10_000
"""Topics that are remembered. With more, all are due again, and deliveries without a sample are forgotten."""


class OrderMeter:
    """The order meter of one host.

    Args:
        is_suspended: returns whether nothing is delivered now.

    Attributes:
        samples: the measured ones.
        on_sample: called with (topic, priority, deliver_after_ms, what it passes over here, deliveries for which it
            counts); it must add the sample to `samples`, now or later. A host with peers replaces it.
    """

    def __init__(
        self,
        shards: Mapping[int, Shard],
        namespaces: Namespaces,
        is_suspended: Callable[[], bool],
        stopwatch_s: Callable[[], float],
    ) -> None:
        self.samples = OrderSamples()
        self.on_sample: Callable[[TopicName, int, int, Displacement, int], None] = self._add_alone
        self._shards = shards
        self._namespaces = namespaces
        self._is_suspended = is_suspended
        self._stopwatch_s = stopwatch_s
        self._due_s = 0.0
        """The time before which no sample is taken."""
        self._topic_due_s: dict[TopicName, float] = {}
        self._unsampled: dict[TopicName, int] = {}
        """The deliveries of each topic since its last sample."""
        self._rotation = 0

    def record(
        self, topic: TopicName, parts: Sequence[tuple[Shard, Sequence[OrderKey]]], count: int, now_s: float
    ) -> None:
        """Count deliveries of a topic, and sample one of them if the topic is due.

        Args:
            parts: the keys that are being delivered, by shard.
            count: their number, at least one.
        """
        unsampled = self._unsampled
        deliveries = unsampled.get(topic, 0) + count
        if now_s < self._due_s or self._topic_due_s.get(topic, 0.0) > now_s:
            if len(unsampled) >= TOPICS_MAX and topic not in unsampled:
                unsampled.clear()
            unsampled[topic] = deliveries
            return
        if len(self._topic_due_s) >= TOPICS_MAX:
            self._topic_due_s.clear()
        self._topic_due_s[topic] = now_s + TOPIC_PAUSE_S
        self._due_s = now_s + SAMPLE_PAUSE_S
        unsampled.pop(topic, None)
        self._rotation += 1
        keys = [key for _, part in parts for key in part]
        priority, after_ms, _ = unpack_order_key(keys[self._rotation % len(keys)])
        self.on_sample(topic, priority, after_ms, self.passed_over(topic, priority, after_ms), deliveries)

    def passed_over(self, topic: TopicName, priority: int, deliver_after_ms: int) -> Displacement:
        """Return over what a delivery of an item with this key passes on this host: READY items that could be delivered."""
        if self._is_suspended() or topic in self._namespaces.paused_topics:
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

    def _add_alone(
        self, topic: TopicName, priority: int, deliver_after_ms: int, here: Displacement, deliveries: int
    ) -> None:
        self.samples.add(topic, here, deliveries, self._stopwatch_s())
