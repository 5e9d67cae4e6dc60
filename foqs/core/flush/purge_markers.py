"""The purge markers of a shard, and the operations that set, clear and apply them.

A purge marker (topic, last number) says that every item of the topic up to that
number is gone, even if the table still holds its row. Always true: the last number
of a marker only rises until the marker is cleared; only the purge worker finds the
rows that a marker covers, and it only deletes them. Knows nothing of flushes or tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from foqs.core.flush.operation import Lane, Operation, OperationCaller
from foqs.core.items.item import Row, TopicName


class PurgeMarker(NamedTuple):
    """Marks the items of a topic up to `last_number` as purged."""

    namespace: str
    topic: str
    last_number: int


class PurgeMarkers:
    """The purge markers that are set, by topic."""

    __slots__ = ("_last_numbers", "_topics_by_namespace")

    def __init__(self, markers: Iterable[PurgeMarker] = ()) -> None:
        self._last_numbers: dict[TopicName, int] = {}
        self._topics_by_namespace: dict[str, dict[str, None]] = {}
        """The topics with a marker, by namespace, oldest first. The next namespace to work on is first."""
        for marker in markers:
            self.add(marker)

    def __len__(self) -> int:
        return len(self._last_numbers)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __contains__(self, marker: PurgeMarker) -> bool:
        """Return whether the marker is set and has not risen."""
        return self._last_numbers.get((marker.namespace, marker.topic)) == marker.last_number

    def copy(self) -> PurgeMarkers:
        """Return the markers as of now."""
        return PurgeMarkers([PurgeMarker(*topic, last_number) for topic, last_number in self._last_numbers.items()])

    def next_to_purge(self) -> PurgeMarker | None:
        """Return the marker to work on next, or None: namespaces take turns, and each offers its oldest marker."""
        namespace = next(iter(self._topics_by_namespace), None)
        if namespace is None:
            return None
        topics = self._topics_by_namespace[namespace] = self._topics_by_namespace.pop(namespace)
        topic = next(iter(topics))
        return PurgeMarker(namespace, topic, self._last_numbers[namespace, topic])

    def topics(self) -> list[TopicName]:
        """Return the topics with a marker."""
        return list(self._last_numbers)

    def topic_count(self, namespace: str) -> int:
        """Return how many topics of a namespace have a marker."""
        return len(self._topics_by_namespace.get(namespace, ()))

    def last_number(self, topic: TopicName) -> int:
        """Return the highest purged number of a topic; 0 without a marker."""
        return self._last_numbers.get(topic, 0)

    def covers(self, row: Row) -> bool:
        """Return whether the row's item is purged."""
        return row.id <= self._last_numbers.get((row.namespace, row.topic), 0)

    def hide_purged(self, find: Callable[[int], Row | None]) -> Callable[[int], Row | None]:
        """Return a function that finds what `find` does, without purged rows."""

        def find_unpurged(number: int) -> Row | None:
            row = find(number)
            return None if row is None or self.covers(row) else row

        return find_unpurged

    def add(self, marker: PurgeMarker) -> None:
        """Add a committed marker, or raise the one of its topic."""
        topic = (marker.namespace, marker.topic)
        self._last_numbers[topic] = max(marker.last_number, self.last_number(topic))
        self._topics_by_namespace.setdefault(marker.namespace, {})[marker.topic] = None

    def remove(self, marker: PurgeMarker) -> None:
        """Remove a marker whose rows are deleted, unless it has risen since."""
        if marker in self:
            del self._last_numbers[marker.namespace, marker.topic]
            topics = self._topics_by_namespace[marker.namespace]
            del topics[marker.topic]
            if not topics:
                del self._topics_by_namespace[marker.namespace]


def _topic_numbers(topic: TopicName) -> tuple[int]:
    """Return the number for an operation on a topic, alone in a tuple. It is negative, so no item has it.

    A number occurs in a flush once, so a flush sets or clears at most one marker of a topic.
    """
    return (~crc32("\0".join(topic).encode()),)


class SetPurgeMarker(Operation):
    """Purges a topic. Result: how many items were purged, as far as they are counted.

    Attributes:
        marker: covers the numbers up to the last one that was assigned when the flush was sealed.
    """

    __slots__ = ("marker",)

    def __init__(self, topic: TopicName, caller: OperationCaller | None) -> None:
        super().__init__(Lane.PURGE, topic[0], _topic_numbers(topic), caller)
        self.marker = PurgeMarker(*topic, 0)


class ClearPurgeMarker(Operation):
    """Clears a purge marker whose rows are deleted. Result: None."""

    __slots__ = ("marker",)

    def __init__(self, marker: PurgeMarker, caller: OperationCaller | None) -> None:
        super().__init__(Lane.PURGE, "", _topic_numbers((marker.namespace, marker.topic)), caller)
        self.marker = marker


class DeletePurgedRows(Operation):
    """Deletes purged rows, each as it is in the table. Results: None."""

    __slots__ = ("rows",)

    def __init__(self, rows: Sequence[Row], caller: OperationCaller | None) -> None:
        super().__init__(Lane.PURGE, "", [row.id for row in rows], caller)
        self.rows = rows
