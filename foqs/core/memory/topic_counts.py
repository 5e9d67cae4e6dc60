"""Counts the items of each topic of a shard, by state.

Counts committed changes. A topic exists here while it has an item. Until
`complete_initial` has added what the table held before the first change, the counts
lag: they hold the changes only and may be negative. If the state before the first
change can no longer be read, `restart_initial` starts again from a later moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from foqs.core.items.item import State, TopicName
from foqs.core.memory.sorted_names import SortedView

_STATES = max(State) + 1
_NO_TOPICS: Final[dict[str, list[int]]] = {}

ChangedTopics: TypeAlias = dict[Any, int | None]
"""An ordered set of changed topics: (namespace, topic) or (namespace, topic, state). The values have no meaning."""


class TopicCounts:
    """Items by topic and state.

    Attributes:
        is_lagging: the initial counts are not complete.
        totals: items by state, over all topics.
        begun_count, ended_count: how often a topic got its first item, and lost its last one.
        changed: the topics that changed since a subscriber last emptied it, which it must do regularly; None without one.
    """

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, list[int]]] = {}
        """The items of each state, by namespace and topic."""
        self._views: dict[str, SortedView] = {}
        """The sorted topics of namespaces that were listed lately."""
        self.totals: list[int] = [0] * _STATES
        self.is_lagging = True
        self.begun_count = 0
        self.ended_count = 0
        self.changed: ChangedTopics | None = None

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def __bool__(self) -> bool:
        return len(self) > 0

    def complete_initial(self, counts: Iterable[tuple[TopicName, State, int]]) -> None:
        """Add all, or the last part, of what the table held before the first change."""
        self.add_initial(counts)
        self.is_lagging = False

    def add_initial(self, counts: Iterable[tuple[TopicName, State, int]]) -> None:
        """Add a part of what the table held before the first change. The counts still lag."""
        for topic, state, rows in counts:
            self.add(topic, state, rows)

    def restart_initial(self) -> None:
        """Start again from the present table. Only while the counts lag."""
        self._topics.clear()
        self._views.clear()
        self.totals = [0] * _STATES

    def add(self, topic: TopicName, state: State, delta: int) -> None:
        """Add `delta` items of a state. A topic that loses its last item is forgotten."""
        self.add_all({(*topic, state): delta}, 1)

    def add_all(self, changes: Mapping[tuple[str, str, State], int], sign: int) -> None:
        """Add `sign` times the items counted by (namespace, topic, state)."""
        totals, namespaces = self.totals, self._topics
        if self.changed is not None:
            self.changed.update(changes)
        for (namespace, topic, state), items in changes.items():
            delta = sign * items
            totals[state] += delta
            topics = namespaces.get(namespace)
            if topics is None:
                topics = namespaces[namespace] = {}
            counts = topics.get(topic)
            if counts is None:
                counts = topics[topic] = [0] * _STATES
                self._on_topic_begun(namespace, topic)
            counts[state] += delta
            if not counts[state] and not any(counts):
                self._remove_topic(namespace, topic)

    def move_all(self, changes: Mapping[tuple[str, str, State], int], state: State) -> None:
        """Move the items counted by (namespace, topic, state) to another state."""
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
                self._on_topic_begun(namespace, topic)
            counts[before] -= items
            counts[state] += items
            if not any(counts):  # possible while the counts lag
                self._remove_topic(namespace, topic)

    def _on_topic_begun(self, namespace: str, topic: str) -> None:
        self.begun_count += 1
        if self._views:
            self._note_in_view(namespace, topic)

    def _remove_topic(self, namespace: str, topic: str) -> None:
        """Forget a topic without items."""
        topics = self._topics[namespace]
        del topics[topic]
        self.ended_count += 1
        if not topics:
            del self._topics[namespace]
            self._views.pop(namespace, None)
        elif self._views:
            self._note_in_view(namespace, topic)

    def _note_in_view(self, namespace: str, topic: str) -> None:
        view = self._views.get(namespace)
        if view is not None and not view.note(topic):
            del self._views[namespace]

    def emptied_topics(
        self, changes: Iterable[tuple[str, str, State]], state: State
    ) -> tuple[list[TopicName], list[TopicName]]:
        """Return (the changed topics without any item, the other changed topics without an item in this state)."""
        ended: list[TopicName] = []
        none_in_state: list[TopicName] = []
        namespaces = self._topics
        for namespace, topic, _ in changes:
            counts = namespaces.get(namespace, _NO_TOPICS).get(topic)
            if not counts:
                ended.append((namespace, topic))
            elif not counts[state]:
                none_in_state.append((namespace, topic))
        return ended, none_in_state

    def mark_changed(self, topics: Iterable[TopicName]) -> None:
        """Mark topics as changed for another reason, so that they are reported together with their counts."""
        if self.changed is not None:
            self.changed.update(dict.fromkeys(topics))

    def forget(self, topic: TopicName) -> int:
        """Forget a topic whose items are all gone. Return how many were counted, which is exact unless the counts lag."""
        counts = self._topics.get(topic[0], {}).get(topic[1])
        if counts is None:
            return 0
        self._remove_topic(*topic)
        self.mark_changed((topic,))
        self.totals = [total - items for total, items in zip(self.totals, counts, strict=True)]
        return sum(counts)

    def count(self, topic: TopicName, state: State) -> int:
        """Return the count of a topic's items in a state; 0 if there is no such topic."""
        counts = self._topics.get(topic[0], {}).get(topic[1])
        return counts[state] if counts else 0

    def counts_by_state(self, namespace: str, topic: str) -> Sequence[int]:
        """Return the counts of a topic by state; empty if there is no such topic. The caller must not keep the result."""
        return self._topics.get(namespace, _NO_TOPICS).get(topic, ())

    def __contains__(self, topic: TopicName) -> bool:
        return topic[1] in self._topics.get(topic[0], ())

    def first_topics(self, topics_max: int) -> Iterator[tuple[str, str, Sequence[int]]]:
        """Yield (namespace, topic, counts by state) of at most `topics_max` topics. Nothing may change meanwhile."""
        all_topics = (
            (namespace, topic, counts) for namespace, topics in self._topics.items() for topic, counts in topics.items()
        )
        return islice(all_topics, topics_max)

    def item_count(self, namespace: str) -> int:
        """Return the count of all items of a namespace."""
        return sum(map(sum, self._topics.get(namespace, _NO_TOPICS).values()))

    def topic_count(self, namespace: str) -> int:
        """Return how many topics of a namespace have an item."""
        return len(self._topics.get(namespace, ()))

    def sorted_topics(self, namespace: str) -> SortedView | None:
        """Return the sorted names of the topics of a namespace that have an item; None if there are none.

        The caller must not keep the result.
        """
        topics = self._topics.get(namespace)
        if topics is None:
            return None
        view = self._views.get(namespace)
        if view is None:
            view = self._views[namespace] = SortedView(topics)
        return view

    def ready_counts(self) -> list[tuple[TopicName, int]]:
        """Return each topic that has an item, with the count of its READY items."""
        return [
            ((namespace, topic), counts[State.READY])
            for namespace, topics in self._topics.items()
            for topic, counts in topics.items()
        ]

    def topic_names(self, namespace: str) -> list[str]:
        """Return the names of the topics of a namespace that have an item, in no particular order."""
        return list(self._topics.get(namespace, ()))

    def check(self) -> None:
        """Assert that the totals are the sums and, unless they lag, that each topic has items and no count is negative."""
        topics = [counts for names in self._topics.values() for counts in names.values()]
        totals = [sum(items) for items in zip(*topics, strict=True)] or [0] * _STATES
        assert self.totals == totals, f"invariant 15: the totals are {self.totals} instead of {totals}"
        if not self.is_lagging:
            for counts in topics:
                assert min(counts) >= 0 < max(counts), f"invariant 15: a topic has the counts {counts}"
