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
        has_freed: whether a topic has given memory back since this was last set to False.
    """

    def __init__(self, units_max: int, weight_of: Callable[[str], int]) -> None:
        self.units_max: Final = units_max
        self.units = 0
        self.has_freed = False
        self._weight_of: Final = weight_of
        self._units: dict[TopicName, int] = {}
        """Of topics that take any."""
        self._topic_counts: dict[str, int] = {}
        """How many of these each namespace has."""
        self._weights: dict[str, int] = {}
        """The weights of these namespaces."""
        self._weight_sum = 0

    def set_units(self, topic: TopicName, units: int) -> None:
        """Note what a topic takes; 0: its groups have left the memory, or it has no limit any more."""
        former = self._units.pop(topic, 0)
        self.units += units - former
        self.has_freed = self.has_freed or units < former
        if units:
            self._units[topic] = units
        if (units > 0) != (former > 0):
            self._count_topic(topic[0], 1 if units else -1)

    def _count_topic(self, namespace: str, number: int) -> None:
        count = self._topic_counts.pop(namespace, 0) + number
        self._weight_sum -= self._weights.pop(namespace, 0)
        if count:
            self._topic_counts[namespace] = count
            self._weights[namespace] = self._weight_of(namespace)
            self._weight_sum += self._weights[namespace]

    def follow_weights(self) -> None:
        """Follow the weights of namespaces, which may have changed."""
        self._weights = {namespace: self._weight_of(namespace) for namespace in self._topic_counts}
        self._weight_sum = sum(self._weights.values())

    def room(self, topic: TopicName) -> int:
        """Return how much memory the groups of a topic may take."""
        own = self._units.get(topic, 0)
        topic_count = self._topic_counts.get(topic[0], 0) + (own == 0)
        weight, weight_sum = self._weights.get(topic[0]), self._weight_sum
        if weight is None:
            weight = self._weight_of(topic[0])
            weight_sum += weight
        share = self.units_max * weight // (weight_sum * topic_count)
        return max(GROUPS_MIN, share, self.units_max - (self.units - own))

    def large_topics(self) -> list[TopicName]:
        """Return the topics that take more than they may, because another one has grown."""
        if self.units <= self.units_max:
            return []
        return [topic for topic, units in self._units.items() if units > self.room(topic)]
