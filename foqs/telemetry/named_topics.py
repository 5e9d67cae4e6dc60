"""Chooses the topics of a host that have series of their own; all others are `other`.

Holds `NamedTopics`. Always true: the topics with the most items and those with the most
acks are named; a named topic stays named while it is among twice as many, so that
topics of about the same size do not change places at each scrape; the number of
names is bounded. An acked item counts for its topic, if that was named at the scrape
before the ack, else for `other`, and never changes sides, so no counter goes back.
Knows nothing of shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from operator import itemgetter
from typing import Final

from foqs.core.items.item import TopicName
from foqs.core.memory.topic_rates import TopicRates

OTHER: Final = "other"
"""The label of all names without a series of their own."""
OTHER_TOPICS: Final[TopicName] = (OTHER, OTHER)

LEADERS: Final = 25
"""The number of topics that are named for their items, and of those that are named for their acks. At most 4 times as many are named."""


class NamedTopics:
    """The named topics of one host, as of the last update."""

    def __init__(self, rates: TopicRates) -> None:
        self._rates = rates
        self._acked: dict[TopicName, tuple[int, int]] = {}
        """By named topic: its acked items at the last update, and those that count for it."""
        self._ended_count = 0
        """Acked items of topics that were named earlier and are no more."""

    def update(self, items: Mapping[TopicName, int], now_s: float) -> list[TopicName]:
        """Choose the topics again, and return them in order.

        Args:
            items: the items of each topic, in all states.
        """
        self._count_acks()
        by_items = _leaders(items.items())
        by_acks = _leaders(self._rates.acked_rates(now_s))
        leaders = {*by_items[:LEADERS], *by_acks[:LEADERS]}
        kept = self._acked.keys() & {*by_items, *by_acks}
        for topic in self._acked.keys() - leaders - kept:
            self._ended_count += self._acked.pop(topic)[1]
        for topic in leaders - kept:
            self._acked[topic] = (self._rates.acked_items(topic), 0)
        return sorted(self._acked)

    def _count_acks(self) -> None:
        """Count the acks since the last update for the topics that were named then."""
        for topic, (seen, counted) in self._acked.items():
            acked = self._rates.acked_items(topic)
            # A topic that was dropped from the rates, and came back, counts from 0 again.
            self._acked[topic] = (acked, counted + (acked - seen if acked >= seen else acked))

    def acked_items(self) -> tuple[dict[TopicName, int], int]:
        """Return the acked items that count for each named topic, and those that count for `other`."""
        named = {topic: counted for topic, (_, counted) in self._acked.items()}
        return named, self._rates.acked_count - self._ended_count - sum(named.values())


def _leaders(sizes: Iterable[tuple[TopicName, float]]) -> list[TopicName]:
    """Return the largest topics, largest first: up to twice as many as are named, without empty ones.

    A topic that is named `other` counts among the others: no two series may have the same labels.
    """
    largest = nlargest(2 * LEADERS, sizes, key=itemgetter(1))
    return [topic for topic, size in largest if size > 0 and topic != OTHER_TOPICS]
