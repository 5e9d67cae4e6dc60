"""The rates at which the topics of a host get and lose work: their ready rates, ack rates and acked items.

Holds `TopicRates`. Rates are averages that decay with time; they are updated only when
a flush changed their topic, so a quiet topic costs nothing. Bounded in topics: the
topic without a change for the longest time is dropped, and starts again at 0. Times
are seconds of any clock that does not go back. Knows nothing of shards and metrics.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest
from itertools import islice
from math import exp
from typing import Final, NamedTuple

from foqs.core.items.item import State, TopicName

TAU_S: Final = 60.0
"""The time in which an item's weight in a rate falls to 1/e."""
TOPICS_MAX: Final = 10_000
RECENT_TOPICS_MAX: Final = 2_000
"""The topics among which the busiest are searched: about a millisecond."""
RATE_MIN: Final = 0.001
"""A topic with fewer items per second is not busy."""


class Rates(NamedTuple):
    """The ready rate and the ack rate of a topic, in items per second.

    Attributes:
        ready: items that became READY: enqueued without a delay, due, or given back.
        acked: items that were acked.
    """

    ready: float
    acked: float


NO_RATES: Final = Rates(0.0, 0.0)


class _TopicRate:
    """Sums over the items of a topic, weighted by their age at `at_s`, and the count of its acked items."""

    __slots__ = ("acked", "acked_count", "at_s", "ready")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self.ready = 0.0
        self.acked = 0.0
        self.acked_count = 0

    def decay(self, now_s: float) -> None:
        factor = exp((self.at_s - now_s) / TAU_S)
        self.ready *= factor
        self.acked *= factor
        self.at_s = now_s


class TopicRates:
    """The rates of one host's topics, over all its shards.

    Attributes:
        acked_count: the acked items of all topics.
        ready_count: the items of all topics that became READY.
    """

    def __init__(self, topics_max: int = TOPICS_MAX) -> None:
        self._topics_max = topics_max
        self._topics: OrderedDict[TopicName, _TopicRate] = OrderedDict()
        """The topic without a change for the longest time comes first."""
        self.acked_count = 0
        self.ready_count = 0

    def __len__(self) -> int:
        return len(self._topics)

    def on_items_ready(self, counts: Mapping[tuple[str, str, State], int], now_s: float) -> None:
        """Record items that became READY, or LEASED at once, by their state.

        DEFERRED and DEAD ones are ignored.
        """
        for (namespace, topic, state), items in counts.items():
            if state is State.READY or state is State.LEASED:
                self._rate_now((namespace, topic), now_s).ready += items
                self.ready_count += items

    def on_items_acked(self, counts: Mapping[tuple[str, str, State], int], now_s: float) -> None:
        """Record acked items, by the state that they had."""
        for (namespace, topic, _), items in counts.items():
            rate = self._rate_now((namespace, topic), now_s)
            rate.acked += items
            rate.acked_count += items
            self.acked_count += items

    def _rate_now(self, topic: TopicName, now_s: float) -> _TopicRate:
        """Return the sums of a topic, decayed until now, to be changed; new ones if the topic is not remembered."""
        rate = self._topics.get(topic)
        if rate is None:
            rate = self._topics[topic] = _TopicRate(now_s)
            if len(self._topics) > self._topics_max:
                self._topics.popitem(last=False)
        else:
            self._topics.move_to_end(topic)
            rate.decay(now_s)
        return rate

    def rates(self, topic: TopicName, now_s: float) -> Rates:
        """Return the rates of a topic; zeros if nothing is remembered of it."""
        rate = self._topics.get(topic)
        if rate is None:
            return NO_RATES
        rate.decay(now_s)
        return Rates(rate.ready / TAU_S, rate.acked / TAU_S)

    def busiest(self, topics_max: int, now_s: float) -> list[tuple[TopicName, Rates]]:
        """Return the topics with the highest rates, among those that changed last."""
        recent = islice(reversed(self._topics.items()), RECENT_TOPICS_MAX)
        rates = [(topic, self.rates(topic, now_s)) for topic, _ in recent]
        return busiest_of(rates, topics_max)

    def acked_items(self, topic: TopicName) -> int:
        """Return how many items of a topic were acked since it is remembered."""
        rate = self._topics.get(topic)
        return 0 if rate is None else rate.acked_count

    def acked_rates(self, now_s: float) -> Iterator[tuple[TopicName, float]]:
        """Yield (topic, acked items per second) of all topics with a rate above 0. Nothing may change meanwhile."""
        for topic, rate in self._topics.items():
            if rate.acked:
                yield topic, rate.acked * exp((rate.at_s - now_s) / TAU_S) / TAU_S


def busiest_of(rates: Iterable[tuple[TopicName, Rates]], topics_max: int) -> list[tuple[TopicName, Rates]]:
    """Return the topics with the highest rates, the highest first."""
    return nlargest(topics_max, (each for each in rates if sum(each[1]) >= RATE_MIN), key=lambda each: sum(each[1]))
