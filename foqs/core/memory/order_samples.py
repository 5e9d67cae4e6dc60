"""Samples of deliveries by topic, with the better items that each passed over: they show how well the order is kept.

Holds `OrderSamples`. Bounded: the last samples of each topic, and the topics that were
sampled last. A sample counts for all deliveries of its topic since the last one. Times
are seconds of any clock that does not go back. Knows nothing of how a sample is measured.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from foqs.core.items.item import TopicName

SAMPLES_PER_TOPIC: Final = 200
SAMPLE_AGE_S_MAX: Final = 600.0
TOPICS_MAX: Final = 1_000


class Displacement(NamedTuple):
    """The better items over which one delivery passed.

    Attributes:
        items: how many READY items had a better key.
        by_priority: how many of them had a better priority.
        ready_age_ms: for how long the best of them had been READY; 0 without one.
    """

    items: int
    by_priority: int
    ready_age_ms: int

    def plus(self, other: Displacement) -> Displacement:
        """Return the sum of the displacements of one delivery at two places, such as two shards."""
        return Displacement(
            self.items + other.items,
            self.by_priority + other.by_priority,
            max(self.ready_age_ms, other.ready_age_ms),
        )


NOTHING: Final = Displacement(0, 0, 0)


class TopicOrder(NamedTuple):
    """The figures that say how well the order of a topic was kept.

    Attributes:
        items_p50: the displacement, in items, that half of the deliveries do not exceed.
        items_p99: the one that 99 in 100 do not exceed.
        age_ms_p50: the same for `ready_age_ms`.
        age_ms_p99: the same for `ready_age_ms`.
        passed_over_fraction: the fraction of the deliveries that passed over an item.
    """

    items_p50: int
    items_p99: int
    age_ms_p50: int
    age_ms_p99: int
    passed_over_fraction: float


class OrderSamples:
    """The samples of displacements that one host has taken lately.

    Attributes:
        count: all samples.
        deliveries: the deliveries for which the samples count. The other figures are estimates of what they passed over.
        by_age: deliveries that passed over an item of the same priority, and none of a better one.
        by_priority: deliveries that passed over an item of a better priority.
        passed_over_ms: the sum of `Displacement.ready_age_ms`.
        items: the sum of the displacements.
    """

    def __init__(self) -> None:
        self.count = 0
        self.deliveries = 0
        self.by_age = 0
        self.by_priority = 0
        self.passed_over_ms = 0
        self.items = 0
        self._topics: OrderedDict[TopicName, deque[tuple[float, Displacement, int]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._topics)

    def add(self, topic: TopicName, displacement: Displacement, deliveries: int, now_s: float) -> None:
        """Add a sample that counts for some deliveries, at least one."""
        self.count += 1
        self.deliveries += deliveries
        if displacement.by_priority:
            self.by_priority += deliveries
        elif displacement.items:
            self.by_age += deliveries
        self.passed_over_ms += displacement.ready_age_ms * deliveries
        self.items += displacement.items * deliveries
        samples = self._topics.get(topic)
        if samples is None:
            samples = self._topics[topic] = deque(maxlen=SAMPLES_PER_TOPIC)
            if len(self._topics) > TOPICS_MAX:
                self._topics.popitem(last=False)
        else:
            self._topics.move_to_end(topic)
        samples.append((now_s, displacement, deliveries))

    def of_topic(self, topic: TopicName, now_s: float) -> TopicOrder | None:
        """Return how well the order of a topic was kept recently; None without samples."""
        recent = [
            (found, deliveries)
            for at_s, found, deliveries in self._topics.get(topic, ())
            if now_s - at_s <= SAMPLE_AGE_S_MAX
        ]
        if not recent:
            return None
        items = sorted((found.items, deliveries) for found, deliveries in recent)
        ages_ms = sorted((found.ready_age_ms, deliveries) for found, deliveries in recent)
        total = sum(deliveries for _, deliveries in recent)
        passed_over = sum(deliveries for found, deliveries in recent if found.items)
        return TopicOrder(
            _percentile(items, total, 50),
            _percentile(items, total, 99),
            _percentile(ages_ms, total, 50),
            _percentile(ages_ms, total, 99),
            passed_over / total,
        )


def _percentile(ordered: Sequence[tuple[int, int]], total: int, percent: int) -> int:
    """Return the percentile: the value that `percent` of the deliveries do not exceed.

    Args:
        ordered: (value, deliveries), the least value first.
        total: the sum of the deliveries, at least one.
    """
    left = -(-total * percent // 100)
    for value, deliveries in ordered:
        left -= deliveries
        if left <= 0:
            return value
    raise ValueError(f"the samples have fewer deliveries than {total}")
