"""How many items each topic of a shard has, by state.

Counted from committed changes; a topic exists here while it has an item.
"""

from __future__ import annotations

from foqs.core.item import State
from foqs.core.ready import TopicName


class TopicCounts:
    """Items per topic and state."""

    def __init__(self) -> None:
        self._topics: dict[TopicName, list[int]] = {}
        self.totals: list[int] = [0] * (max(State) + 1)

    def __len__(self) -> int:
        return len(self._topics)

    def change(self, topic: TopicName, state: State, by: int) -> None:
        """Adds `by` items of a state; a topic whose last item goes is forgotten."""
        self.totals[state] += by
        counts = self._topics.get(topic)
        if counts is None:
            counts = self._topics[topic] = [0] * (max(State) + 1)
        counts[state] += by
        if by < 0 and not any(counts):
            del self._topics[topic]

    def of(self, topic: TopicName, state: State) -> int:
        counts = self._topics.get(topic)
        return counts[state] if counts else 0

    def topics(self, namespace: str) -> list[str]:
        """The names of a namespace's topics, in no particular order."""
        return [topic for owner, topic in self._topics if owner == namespace]
