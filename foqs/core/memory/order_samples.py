"""How well the order was kept: samples of deliveries by topic, with what each passed over.

Holds `OrderSamples`. Bounded: the last samples of each topic, and the topics that were
sampled last. Times are seconds of any clock that does not go back. Knows nothing of how
a sample is measured.
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
    """What one delivery passed over.

    Attributes:
        items: READY items with a better key.
        by_priority: those of them with a better priority.
        ready_age_ms: for how long the best of them had been READY; 0 without one.
    """

    items: int
    by_priority: int
    ready_age_ms: int

    def plus(self, other: Displacement) -> Displacement:
        """Return what the delivery passed over at two places."""
        return Displacement(
            self.items + other.items,
            self.by_priority + other.by_priority,
            max(self.ready_age_ms, other.ready_age_ms),
        )


NOTHING: Final = Displacement(0, 0, 0)


class Quantiles(NamedTuple):
    """The displacements, in items, and the `ready_age_ms` that half of the samples, and 99 in 100, do not exceed."""

    items_p50: int
    items_p99: int
    age_ms_p50: int
    age_ms_p99: int


class OrderSamples:
    """The samples of one host.

    Attributes:
        count: all samples.
        by_age_count: samples that passed over an item of the same priority, and none of a better one.
        by_priority_count: samples that passed over an item of a better priority.
        passed_over_ms: the sum of `Displacement.ready_age_ms`.
        items: the sum of the displacements.
    """

    def __init__(self) -> None:
        self.count = 0
        self.by_age_count = 0
        self.by_priority_count = 0
        self.passed_over_ms = 0
        self.items = 0
        self._topics: OrderedDict[TopicName, deque[tuple[float, Displacement]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._topics)

    def add(self, topic: TopicName, displacement: Displacement, now_s: float) -> None:
        """Add a sample."""
        self.count += 1
        self.by_priority_count += displacement.by_priority > 0
        self.by_age_count += displacement.items > 0 and not displacement.by_priority
        self.passed_over_ms += displacement.ready_age_ms
        self.items += displacement.items
        samples = self._topics.get(topic)
        if samples is None:
            samples = self._topics[topic] = deque(maxlen=SAMPLES_PER_TOPIC)
            if len(self._topics) > TOPICS_MAX:
                self._topics.popitem(last=False)
        else:
            self._topics.move_to_end(topic)
        samples.append((now_s, displacement))

    def quantiles(self, topic: TopicName, now_s: float) -> Quantiles | None:
        """Return the quantiles of a topic's recent samples; None without samples."""
        recent = [found for at_s, found in self._topics.get(topic, ()) if now_s - at_s <= SAMPLE_AGE_S_MAX]
        if not recent:
            return None
        items, ages_ms = sorted(found.items for found in recent), sorted(found.ready_age_ms for found in recent)
        return Quantiles(_of_100(items, 50), _of_100(items, 99), _of_100(ages_ms, 50), _of_100(ages_ms, 99))


def _of_100(ordered: Sequence[int], percent: int) -> int:
    """Return the value that this share of the values, at least one, does not exceed."""
    return ordered[-(-len(ordered) * percent // 100) - 1]
