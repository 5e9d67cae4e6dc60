"""How the topics with a limit of a shard share its memory for groups.

Always true: a topic may take what others do not use, and its share in any case. Namespaces have shares by their weights, and
the topics of a namespace have equal parts of its share. Topics without groups in memory count nothing, so neither a namespace
with many policies nor policies without items lessen the share of another namespace. Knows no group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from foqs.core.items.item import TopicName

GROUPS_MIN: Final = 2
"""The least memory for the groups of a topic with a limit, in units: `Group.count_units`."""


class GroupShares:
    """What each topic takes, and what it may take.

    Args:
        units_max: the memory for the groups of all topics, in units.
        weight_of: returns the weight of a namespace, at least 1.

    Attributes:
        units: what all topics take. Groups that are held may exceed `units_max`.
    """

    def __init__(self, units_max: int, weight_of: Callable[[str], int]) -> None:
        self.units_max: Final = units_max
        self.units = 0
        self._weight_of: Final = weight_of
        self._units: dict[TopicName, int] = {}
        """Of topics that take any."""
        self._topic_counts: dict[str, int] = {}
        """How many of these each namespace has."""

    def set_units(self, topic: TopicName, units: int) -> None:
        """Note what a topic takes; 0: its groups have left the memory, or it has no limit any more."""
        former = self._units.pop(topic, 0)
        self.units += units - former
        count = self._topic_counts.pop(topic[0], 0) + (units > 0) - (former > 0)
        if units:
            self._units[topic] = units
        if count:
            self._topic_counts[topic[0]] = count

    def room(self, topic: TopicName) -> int:
        """Return how much memory the groups of a topic may take."""
        return self._room(topic, sum(map(self._weight_of, {*self._topic_counts, topic[0]})))

    def large_topics(self) -> list[TopicName]:
        """Return the topics that take more than they may, because another one has grown."""
        if self.units <= self.units_max:
            return []
        weights = sum(map(self._weight_of, self._topic_counts))
        return [topic for topic, units in self._units.items() if units > self._room(topic, weights)]

    def _room(self, topic: TopicName, weights: int) -> int:
        own = self._units.get(topic, 0)
        topic_count = self._topic_counts.get(topic[0], 0) + (own == 0)
        share = self.units_max * self._weight_of(topic[0]) // (weights * topic_count)
        return max(GROUPS_MIN, share, self.units_max - (self.units - own))
