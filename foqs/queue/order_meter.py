"""Samples deliveries, to measure how well the order is kept.

Holds `OrderMeter`; docs/design/order-meter.md says what is measured. Always true: at
most one sample in `SAMPLE_PAUSE_S`, and one of a topic in `TOPIC_PAUSE_S`; a delivery
that is not sampled is counted, and belongs to its topic's next sample; fair topics are
left out, because their order is not that of keys. Knows nothing of other hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from foqs.core.items.item import OrderKey, TopicName, unpack_order_key
from foqs.core.memory.order_samples import Displacement, OrderSamples
from foqs.queue.ranking import Ranking
from foqs.shard.shard import OwnedShard

SAMPLE_PAUSE_S: Final = 0.1
TOPIC_PAUSE_S: Final = 1.0
TOPICS_MAX: Final = 10_000
"""Topics that are remembered. With more, all are due again, and deliveries without a sample are forgotten."""


class OrderSink(Protocol):
    """Gets the samples of the order meter."""

    def on_sample(
        self, topic: TopicName, priority: int, deliver_after_ms: int, here: Displacement, deliveries: int
    ) -> None:
        """Add a sample, now or later.

        Args:
            here: the displacement of the delivery on this host.
            deliveries: the number of deliveries that it stands for.
        """
        ...


class OrderMeter:
    """The order meter of one host.

    Args:
        sink: gets the samples; it adds them to `samples`, now or later.

    Attributes:
        samples: the samples that were measured.
    """

    def __init__(self, ranking: Ranking, samples: OrderSamples, sink: OrderSink) -> None:
        self.samples = samples
        self._ranking = ranking
        self._sink = sink
        self._due_s = 0.0
        """The time before which no sample is taken."""
        self._topic_due_s: dict[TopicName, float] = {}
        self._unsampled: dict[TopicName, int] = {}
        """The deliveries of each topic since its last sample."""
        self._rotation = 0

    def record(
        self, topic: TopicName, parts: Sequence[tuple[OwnedShard, Sequence[OrderKey]]], count: int, now_s: float
    ) -> None:
        """Count deliveries of a topic, and sample one of them if the topic is due.

        Args:
            parts: the keys that are being delivered, by shard.
            count: the number of deliveries, at least one.
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
        unsampled.pop(topic, None)
        if self._ranking.is_fair(topic):
            return
        self._due_s = now_s + SAMPLE_PAUSE_S
        self._rotation += 1
        order_keys = [key for _, part in parts for key in part]
        priority, after_ms, _ = unpack_order_key(order_keys[self._rotation % len(order_keys)])
        here = self._ranking.passed_over(topic, priority, after_ms)
        self._sink.on_sample(topic, priority, after_ms, here, deliveries)
