"""The topics table of a shard, as its owner knows it, and since when each empty topic of it has been empty.

A topic enters the table with its first item, in the same flush. It leaves it in a flush
some time after its last item. Always true between two flushes: this holds the topics of
the table, and only such topics are empty. `to_add` and `to_remove` plan a flush and
change nothing; `apply` follows the commit. Reads no clock and no table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from foqs.core.items.item import TopicName

TOPICS_REMOVED_PER_FLUSH: Final = 100
"""The empty topics that a flush removes beyond those that it adds."""


class TopicTable:
    """The topics in one shard's topics table.

    Args:
        linger_ms: how long a topic stays in the table after it became empty.
    """

    def __init__(self, linger_ms: int) -> None:
        self._linger_ms = linger_ms
        self._names: dict[str, dict[str, None]] = {}
        """The topics, by namespace, in the order in which they entered: walks have one order in every process."""
        self._empty_since_ms: dict[TopicName, int] = {}
        """Topics without items, and when they became empty, the oldest first."""

    def __contains__(self, topic: TopicName) -> bool:
        return topic[1] in self._names.get(topic[0], ())

    def names(self, namespace: str) -> list[str]:
        """Return the names of a namespace's topics, in the order in which they entered the table."""
        return list(self._names.get(namespace, ()))

    def names_by_namespace(self) -> list[tuple[str, list[str]]]:
        """Return all topics: the names of each namespace, in the order in which they entered the table."""
        return [(namespace, list(names)) for namespace, names in self._names.items()]

    def pages(self, topics_max: int) -> Iterator[list[TopicName]]:
        """Yield the topics in pages, those of a namespace in the order in which they entered the table.

        The table may change between two pages: a topic that is added may be left out.
        """
        page: list[TopicName] = []
        for namespace in list(self._names):
            for name in list(self._names.get(namespace, ())):
                if len(page) == topics_max:
                    yield page
                    page = []
                if name in self._names.get(namespace, ()):
                    page.append((namespace, name))
        yield page

    def add(self, topic: TopicName) -> None:
        """Add a topic that is in the table."""
        self._names.setdefault(topic[0], {})[topic[1]] = None

    # ---------------------------------------------------------- before a flush

    def to_add(self, topics: Mapping[str, set[str]]) -> list[TopicName]:
        """Return which of these topics, which get items, are not in the table yet. May run again and in another thread."""
        return [
            (namespace, name)
            for namespace, names in topics.items()
            for name in sorted(names.difference(self._names.get(namespace, ())))
        ]

    def to_remove(self, topics: Mapping[str, set[str]], added: int, now_ms: int) -> list[TopicName]:
        """Return topics that have been empty for `linger_ms` and are not in `topics`. May run as `to_add`.

        They are the oldest ones, more of them than the flush adds, so they never pile up.
        """
        latest_ms = now_ms - self._linger_ms
        return [
            (namespace, name)
            for (namespace, name), since_ms in islice(self._empty_since_ms.items(), added + TOPICS_REMOVED_PER_FLUSH)
            if since_ms <= latest_ms and name not in topics.get(namespace, ())
        ]

    # ----------------------------------------------------------- after a flush

    def apply(self, added: Iterable[TopicName], removed: Iterable[TopicName], filled: Mapping[str, set[str]]) -> None:
        """Apply a committed flush. `filled` has the topics that got items."""
        for topic in added:
            self.add(topic)
        for topic in removed:
            del self._empty_since_ms[topic]
            names = self._names[topic[0]]
            names.pop(topic[1], None)
            if not names:
                del self._names[topic[0]]
        if self._empty_since_ms:
            for namespace, filled_names in filled.items():
                for name in filled_names:
                    self._empty_since_ms.pop((namespace, name), None)

    @property
    def has_empty_topics(self) -> bool:
        return bool(self._empty_since_ms)

    @property
    def oldest_empty_since_ms(self) -> int | None:
        """The moment at which the first of the empty topics became empty; None if there are none."""
        return next(iter(self._empty_since_ms.values()), None)

    def is_empty(self, topic: TopicName) -> bool:
        """Return whether the topic is known to have no items."""
        return topic in self._empty_since_ms

    def note_empty(self, topics: Iterable[TopicName], now_ms: int) -> None:
        """Note that these topics have no items."""
        for topic in topics:
            self._empty_since_ms.setdefault(topic, now_ms)

    def check(self) -> None:
        """Assert that the empty topics are in the table, and that no namespace is without topics."""
        for topic in self._empty_since_ms:
            assert topic in self, f"{topic} is empty and not in the topics table"
        assert all(self._names.values()), "a namespace without topics is in the topics table"
