"""How many items each topic of a shard has, by state.

Counted from committed changes; a topic exists here while it has an item. Until
`found` has brought what was in the table before the first change, the counts
lag: they hold the changes alone, and may be negative. Where what was there
cannot be had any more, `begin_anew` makes a later moment the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from foqs.core.item import State, TopicName

_STATES = max(State) + 1


class TopicCounts:
    """Items per topic and state.

    Attributes:
        lag: the table's own counts have not come yet.
        totals: by state, over all topics.
    """

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, list[int]]] = {}
        """By namespace and topic, the items of each state."""
        self.totals: list[int] = [0] * _STATES
        self.lag = True

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def found(self, counts: Iterable[tuple[TopicName, State, int]]) -> None:
        """What the table held before the first change was counted."""
        for (namespace, topic), state, rows in counts:
            self._change(namespace, topic, state, rows)
        self.lag = False

    def begin_anew(self) -> None:
        """`found` will bring what the table holds now, in place of what it held before. They lag."""
        assert self.lag, "what was found is not found twice"
        self._topics.clear()
        self.totals = [0] * _STATES

    def change(self, topic: TopicName, state: State, by: int) -> None:
        """Adds `by` items of a state; a topic whose last item goes is forgotten."""
        self._change(*topic, state, by)

    def change_all(self, changes: Mapping[tuple[str, str, State], int], sign: int) -> None:
        """Adds `sign` times the items counted by (namespace, topic, state)."""
        for (namespace, topic, state), by in changes.items():
            self._change(namespace, topic, state, sign * by)

    def _change(self, namespace: str, topic: str, state: State, by: int) -> None:
        self.totals[state] += by
        topics = self._topics.get(namespace)
        if topics is None:
            topics = self._topics[namespace] = {}
        counts = topics.get(topic)
        if counts is None:
            counts = topics[topic] = [0] * _STATES
        counts[state] += by
        if not counts[state] and not any(counts):
            del topics[topic]
            if not topics:
                del self._topics[namespace]

    def of(self, topic: TopicName, state: State) -> int:
        """The items of a topic in a state; 0 where there is no such topic."""
        counts = self._topics.get(topic[0], {}).get(topic[1])
        return counts[state] if counts else 0

    def __contains__(self, topic: TopicName) -> bool:
        return topic[1] in self._topics.get(topic[0], ())

    def topics(self, namespace: str) -> list[str]:
        """The names of a namespace's topics that have an item, in no particular order."""
        return list(self._topics.get(namespace, ()))
