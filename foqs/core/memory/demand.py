"""The recent demand for each topic, which decides how much of it to prefetch.

Holds averages that decay with time and are updated only when their topic is used.
Bounded in topics: the least recently dequeued topic is dropped. Times are seconds of
any clock that does not go back.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil, exp
from typing import Final

from foqs.core.items.item import TopicName

_CHECK_FRACTION: Final = 8
"""The prefetched items are checked again when 1 in this many of the target was dequeued."""


@dataclass(slots=True, frozen=True)
class DemandSettings:
    """The settings of how far ahead to prefetch.

    The defaults are the constants of a host.
    """

    tau_s: float = 2.0
    """The time in which a past call's weight falls to 1/e: a topic that gets busy is prefetched within a second or two."""
    horizon_s: float = 0.25
    """How long the prefetched items should last: ten times a read of a busy database."""
    idle_s: float = 10.0
    """A topic without a dequeue for this time is not prefetched: its consumers have probably left."""
    items_max: int = 4_000
    """The maximum of prefetched items of one topic, so that one topic cannot take the room of all."""
    topics_max: int = 10_000
    """The maximum of remembered topics, which take some MiB."""


class _TopicDemand:
    """Sums over the calls for a topic, weighted by their age at `at_s`, and when to check its prefetched items again."""

    __slots__ = ("at_s", "calls", "items", "items_until_check", "last_count", "next_check_s")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self.calls = 0.0
        self.items = 0.0
        self.last_count = 0
        self.items_until_check = 0
        self.next_check_s = at_s


class Demand:
    """Recent dequeues by topic."""

    def __init__(self, settings: DemandSettings) -> None:
        self._settings: Final = settings
        self._topics: OrderedDict[TopicName, _TopicDemand] = OrderedDict()
        """The least recently dequeued topic comes first."""

    def __len__(self) -> int:
        return len(self._topics)

    def record_dequeue(self, topic: TopicName, count: int, now_s: float) -> bool:
        """Record a call that took `count` items of a topic. Return whether to check how many of its items are prefetched.

        That is so if a part of the last `prefetch_target` was dequeued since, or if
        half of its horizon has passed.
        """
        demand = self._topics.get(topic)
        if demand is None:
            demand = self._topics[topic] = _TopicDemand(now_s)
            if len(self._topics) > self._settings.topics_max:
                self._topics.popitem(last=False)
        else:
            self._topics.move_to_end(topic)
        decay = exp((demand.at_s - now_s) / self._settings.tau_s)
        demand.calls = demand.calls * decay + 1
        demand.items = demand.items * decay + count
        demand.at_s = now_s
        demand.last_count = count
        demand.items_until_check -= count
        return demand.items_until_check < 0 or now_s >= demand.next_check_s

    def last_dequeue_s_ago(self, topic: TopicName, now_s: float) -> float | None:
        """Return the time since the last call that took items of a topic; None if none is remembered."""
        demand = self._topics.get(topic)
        return None if demand is None else now_s - demand.at_s

    def prefetch_target(self, topic: TopicName, now_s: float) -> int:
        """Return how many items to prefetch: those for the horizon and for one more call; 0 for an idle topic."""
        settings = self._settings
        demand = self._topics.get(topic)
        if demand is None or now_s - demand.at_s > settings.idle_s:
            return 0
        per_second = demand.items * exp((demand.at_s - now_s) / settings.tau_s) / settings.tau_s
        per_call = demand.items / demand.calls
        target = min(max(ceil(per_second * settings.horizon_s + per_call), demand.last_count), settings.items_max)
        demand.items_until_check = target // _CHECK_FRACTION
        demand.next_check_s = now_s + settings.horizon_s / 2
        return target
