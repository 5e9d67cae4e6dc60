"""How many items each topic of a shard has, by state.

Counted from committed changes; a topic exists here while it has an item. Until
`complete_initial` has brought what was in the table before the first change, the counts
lag: they hold the changes alone, and may be negative. Where what was there
cannot be had any more, `restart_initial` makes a later moment the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from foqs.core.items.item import State, TopicName

_STATES = max(State) + 1
_NO_TOPICS: Final[dict[str, list[int]]] = {}

ChangedTopics: TypeAlias = dict[Any, int | None]
"""(namespace, topic) or (namespace, topic, state) of what has changed, in order; the values say nothing."""


class TopicCounts:
    """Items per topic and state.

    Attributes:
        lag: the table's own counts have not come yet.
        totals: by state, over all topics.
        begun, ended: how often a topic got its first item here, and lost its last.
        touched: where somebody asks for it, what has changed since he emptied it; he must do so now and then.
    """

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, list[int]]] = {}
        """By namespace and topic, the items of each state."""
        self.totals: list[int] = [0] * _STATES
        self.is_lagging = True
        self.begun_count = 0
        self.ended_count = 0
        self.changed: ChangedTopics | None = None

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def complete_initial(self, counts: Iterable[tuple[TopicName, State, int]]) -> None:
        """What the table held before the first change was counted, or the last of it."""
        self.add_initial(counts)
        self.is_lagging = False

    def add_initial(self, counts: Iterable[tuple[TopicName, State, int]]) -> None:
        """As `complete_initial`, but there is more: the counts still lag."""
        for topic, state, rows in counts:
            self.add(topic, state, rows)

    def restart_initial(self) -> None:
        """`complete_initial` will bring what the table holds now, in place of what it held before. They lag."""
        assert self.is_lagging, "what was found is not found twice"
        self._topics.clear()
        self.totals = [0] * _STATES

    def add(self, topic: TopicName, state: State, delta: int) -> None:
        """Adds `delta` items of a state; a topic whose last item goes is forgotten."""
        self.add_all({(*topic, state): delta}, 1)

    def add_all(self, changes: Mapping[tuple[str, str, State], int], sign: int) -> None:
        """Adds `sign` times the items counted by (namespace, topic, state)."""
        totals, namespaces = self.totals, self._topics
        if self.changed is not None:
            self.changed.update(changes)
        for (namespace, topic, state), items in changes.items():
            by = sign * items
            totals[state] += by
            topics = namespaces.get(namespace)
            if topics is None:
                topics = namespaces[namespace] = {}
            counts = topics.get(topic)
            if counts is None:
                counts = topics[topic] = [0] * _STATES
                self.begun_count += 1
            counts[state] += by
            if not counts[state] and not any(counts):
                del topics[topic]
                self.ended_count += 1
                if not topics:
                    del namespaces[namespace]

    def move_all(self, changes: Mapping[tuple[str, str, State], int], state: State) -> None:
        """So many items that are counted by (namespace, topic, state) have another state now."""
        totals, namespaces = self.totals, self._topics
        if self.changed is not None:
            self.changed.update(changes)
        for (namespace, topic, before), items in changes.items():
            totals[before] -= items
            totals[state] += items
            topics = namespaces.get(namespace)
            if topics is None:
                topics = namespaces[namespace] = {}
            counts = topics.get(topic)
            if counts is None:
                counts = topics[topic] = [0] * _STATES
                self.begun_count += 1
            counts[before] -= items
            counts[state] += items
            if not any(counts):  # as they lag
                del topics[topic]
                self.ended_count += 1
                if not topics:
                    del namespaces[namespace]

    def emptied_topics(
        self, changes: Iterable[tuple[str, str, State]], state: State
    ) -> tuple[list[TopicName], list[TopicName]]:
        """Of the topics of which something has changed: those that have no item left, and those that have none in this state."""
        gone: list[TopicName] = []
        none: list[TopicName] = []
        namespaces = self._topics
        for namespace, topic, _ in changes:
            counts = namespaces.get(namespace, _NO_TOPICS).get(topic)
            if not counts:
                gone.append((namespace, topic))
            elif not counts[state]:
                none.append((namespace, topic))
        return gone, none

    def mark_changed(self, topics: Iterable[TopicName]) -> None:
        """Something else of these topics has changed, which is told together with their counts."""
        if self.changed is not None:
            self.changed.update(dict.fromkeys(topics))

    def forget(self, topic: TopicName) -> int:
        """All items of a topic are gone. Returns how many there were; while the counts lag, what had changed."""
        counts = self._topics.get(topic[0], {}).pop(topic[1], None)
        if counts is None:
            return 0
        self.ended_count += 1
        self.mark_changed((topic,))
        if not self._topics[topic[0]]:
            del self._topics[topic[0]]
        self.totals = [total - items for total, items in zip(self.totals, counts, strict=True)]
        return sum(counts)

    def count(self, topic: TopicName, state: State) -> int:
        """The items of a topic in a state; 0 where there is no such topic."""
        counts = self._topics.get(topic[0], {}).get(topic[1])
        return counts[state] if counts else 0

    def counts_by_state(self, namespace: str, topic: str) -> Sequence[int]:
        """The items of a topic by state; empty where there is no such topic. Not to be kept."""
        return self._topics.get(namespace, _NO_TOPICS).get(topic, ())

    def __contains__(self, topic: TopicName) -> bool:
        return topic[1] in self._topics.get(topic[0], ())

    def first_topics(self, topics_max: int) -> Iterator[tuple[str, str, Sequence[int]]]:
        """(namespace, topic, its items by state) of so many topics at most. Nothing may change meanwhile."""
        every = (
            (namespace, topic, found) for namespace, topics in self._topics.items() for topic, found in topics.items()
        )
        return islice(every, topics_max)

    def item_count(self, namespace: str) -> int:
        """All items of a namespace."""
        return sum(map(sum, self._topics.get(namespace, _NO_TOPICS).values()))

    def topic_count(self, namespace: str) -> int:
        """How many topics of a namespace have an item."""
        return len(self._topics.get(namespace, ()))

    def topic_names(self, namespace: str) -> list[str]:
        """The names of a namespace's topics that have an item, in no particular order."""
        return list(self._topics.get(namespace, ()))
