"""Which deliveries are sampled to measure how well the order is kept, and what they pass over on this host.

Holds `OrderMeter`; docs/design/order-meter.md says what is measured. Always true: at
most one sample in `SAMPLE_PAUSE_S`, and one of a topic in `TOPIC_PAUSE_S`; a delivery
that is not sampled costs a comparison. Knows nothing of other hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from foqs.catalog.namespaces import Namespaces
from foqs.core.items.item import OrderKey, TopicName, pack_order_key, unpack_order_key
from foqs.core.memory.order_samples import NOTHING, Displacement, OrderSamples
from foqs.shard.shard import Shard

SAMPLE_PAUSE_S: Final = 0.1
TOPIC_PAUSE_S: Final = 1.0
TOPICS_MAX: Final = 10_000
"""Topics whose last sample is remembered; with more, all are due again."""


class OrderMeter:
    """The order meter of one host.

    Args:
        is_suspended: returns whether nothing is delivered now.

    Attributes:
        samples: the measured ones.
        on_sample: called with (topic, priority, deliver_after_ms, what it passes over here); it must add the sample to
            `samples`, now or later. A host with peers replaces it.
    """

    def __init__(
        self,
        shards: Mapping[int, Shard],
        namespaces: Namespaces,
        is_suspended: Callable[[], bool],
        stopwatch_s: Callable[[], float],
    ) -> None:
        self.samples = OrderSamples()
        self.on_sample: Callable[[TopicName, int, int, Displacement], None] = self._add_alone
        self.due_s = 0.0
        """The time before which no sample is taken."""
        self._shards = shards
        self._namespaces = namespaces
        self._is_suspended = is_suspended
        self._stopwatch_s = stopwatch_s
        self._topic_due_s: dict[TopicName, float] = {}
        self._rotation = 0

    def sample(self, topic: TopicName, parts: Iterable[Sequence[OrderKey]], now_s: float) -> None:
        """Sample one of the keys in these parts, at least one, which are being delivered, if the topic is due.

        Call it from `due_s` on.
        """
        if self._topic_due_s.get(topic, 0.0) > now_s:
            return
        if len(self._topic_due_s) >= TOPICS_MAX:
            self._topic_due_s.clear()
        self._topic_due_s[topic] = now_s + TOPIC_PAUSE_S
        self.due_s = now_s + SAMPLE_PAUSE_S
        self._rotation += 1
        keys = [key for part in parts for key in part]
        priority, after_ms, _ = unpack_order_key(keys[self._rotation % len(keys)])
        self.on_sample(topic, priority, after_ms, self.passed_over(topic, priority, after_ms))

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

    def _add_alone(self, topic: TopicName, priority: int, deliver_after_ms: int, here: Displacement) -> None:
        self.samples.add(topic, here, self._stopwatch_s())
