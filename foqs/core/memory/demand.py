"""How much each topic was asked for lately, and so how much of it to have loaded ahead.

Averages that decay with time, brought up to date only when their topic is
touched. Bounded in topics: the one that was asked for longest ago leaves.
Times are seconds of any clock that does not go back.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil, exp
from typing import Final

from foqs.core.items.item import TopicName

_CHECK_FRACTION: Final = 8
"""What is loaded is looked at again when one in so many of what was wanted is gone."""


@dataclass(slots=True, frozen=True)
class DemandSettings:
    """How far ahead to load.

    Attributes:
        tau_s: the time in which a past call's weight falls to 1/e.
        horizon_s: how long what is loaded should last.
        quiet_s: a topic that nobody asked for since is wanted no longer.
        items_max: wanted of one topic at most.
        topics_max: topics remembered.
    """

    tau_s: float = 2.0
    horizon_s: float = 0.5
    idle_s: float = 10.0
    items_max: int = 2_000
    topics_max: int = 10_000


class _TopicDemand:
    """Sums over a topic's calls, each weighted by its age at `at_s`; and when to look at it again."""

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
        """The one that was asked for longest ago first."""

    def __len__(self) -> int:
        return len(self._topics)

    def record_dequeue(self, topic: TopicName, count: int, now_s: float) -> bool:
        """A call took `count` items of a topic. Returns whether it is time to see how much of it is loaded.

        It is when a part of what was wanted then was taken since `want` was
        asked, or half of what it was to last for has passed.
        """
        asked = self._topics.get(topic)
        if asked is None:
            asked = self._topics[topic] = _TopicDemand(now_s)
            if len(self._topics) > self._settings.topics_max:
                self._topics.popitem(last=False)
        else:
            self._topics.move_to_end(topic)
        left = exp((asked.at_s - now_s) / self._settings.tau_s)
        asked.calls = asked.calls * left + 1
        asked.items = asked.items * left + count
        asked.at_s = now_s
        asked.last_count = count
        asked.items_until_check -= count
        return asked.items_until_check < 0 or now_s >= asked.next_check_s

    def last_dequeue_s_ago(self, topic: TopicName, now_s: float) -> float | None:
        """Since the last call that took some of a topic; None where that is not remembered."""
        asked = self._topics.get(topic)
        return None if asked is None else now_s - asked.at_s

    def prefetch_target(self, topic: TopicName, now_s: float) -> int:
        """Items to have loaded ahead: what the horizon needs and one call's more; 0 for a topic nobody asks for."""
        settings = self._settings
        asked = self._topics.get(topic)
        if asked is None or now_s - asked.at_s > settings.idle_s:
            return 0
        rate = asked.items * exp((asked.at_s - now_s) / settings.tau_s) / settings.tau_s
        call = asked.items / asked.calls
        want = min(max(ceil(rate * settings.horizon_s + call), asked.last_count), settings.items_max)
        asked.items_until_check = want // _CHECK_FRACTION
        asked.next_check_s = now_s + settings.horizon_s / 2
        return want
