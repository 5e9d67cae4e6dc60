"""The cuts of a shard: topics that were purged, and the works by which their rows go.

A cut (topic, last) says that every item of the topic up to that number is gone,
whatever rows of it the table still holds. Always true: a cut of a topic only
rises until it is over; a row that a cut covers is changed by nobody and found by
nobody but the one who deletes it. Knows nothing of flushes or tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from foqs.core.flush.work import Lane, Work
from foqs.core.items.item import Row, TopicName


class PurgeMarker(NamedTuple):
    """A topic's items up to the number `last` are purged."""

    namespace: str
    topic: str
    last_number: int


class PurgeMarkers:
    """Those that stand, by topic."""

    __slots__ = ("_last_numbers", "_topics_by_namespace")

    def __init__(self, markers: Iterable[PurgeMarker] = ()) -> None:
        self._last_numbers: dict[TopicName, int] = {}
        self._topics_by_namespace: dict[str, dict[str, None]] = {}
        """Their topics by namespace, in order; the namespace whose turn comes next is the first."""
        for cut in markers:
            self.add(cut)

    def __len__(self) -> int:
        return len(self._last_numbers)

    def __contains__(self, marker: PurgeMarker) -> bool:
        """It stands, and has not risen."""
        return self._last_numbers.get((marker.namespace, marker.topic)) == marker.last_number

    def next_to_purge(self) -> PurgeMarker | None:
        """The one that is to be worked on: namespaces in turn, of each the one that stands longest. None when there is none."""
        namespace = next(iter(self._topics_by_namespace), None)
        if namespace is None:
            return None
        names = self._topics_by_namespace[namespace] = self._topics_by_namespace.pop(namespace)
        name = next(iter(names))
        return PurgeMarker(namespace, name, self._last_numbers[namespace, name])

    def topic_count(self, namespace: str) -> int:
        """How many topics of a namespace have one."""
        return len(self._topics_by_namespace.get(namespace, ()))

    def last_number(self, topic: TopicName) -> int:
        """The highest number of the topic that is purged; 0 without a cut."""
        return self._last_numbers.get(topic, 0)

    def covers(self, row: Row) -> bool:
        """The row's item is purged."""
        return row.id <= self._last_numbers.get((row.namespace, row.topic), 0)

    def hide_purged(self, find: Callable[[int], Row | None]) -> Callable[[int], Row | None]:
        """Finds what `find` does, but for what is purged."""

        def found(number: int) -> Row | None:
            row = find(number)
            return None if row is None or self.covers(row) else row

        return found

    def add(self, marker: PurgeMarker) -> None:
        """It is committed; one that stands rises."""
        topic = (marker.namespace, marker.topic)
        self._last_numbers[topic] = max(marker.last_number, self.last_number(topic))
        self._topics_by_namespace.setdefault(marker.namespace, {})[marker.topic] = None

    def remove(self, marker: PurgeMarker) -> None:
        """Its rows have gone, and so does it, unless it has risen."""
        if marker in self:
            del self._last_numbers[marker.namespace, marker.topic]
            names = self._topics_by_namespace[marker.namespace]
            del names[marker.topic]
            if not names:
                del self._topics_by_namespace[marker.namespace]


def _topic_work_numbers(topic: TopicName) -> tuple[int]:
    """The id of a work that is about a topic: below those of items. An id stands in a flush once, so a topic's cuts come one a flush."""
    return (~crc32("\0".join(topic).encode()),)


class SetPurgeMarker(Work):
    """Purges a topic. Result: how many items that were, as far as they are counted.

    Attributes:
        cut: up to the last number that was given when its flush was sealed.
    """

    __slots__ = ("marker",)

    def __init__(self, topic: TopicName, on_finished: Callable[[], None]) -> None:
        super().__init__(Lane.PURGE, topic[0], _topic_work_numbers(topic), on_finished)
        self.marker = PurgeMarker(*topic, 0)


class ClearPurgeMarker(Work):
    """The rows of a cut have gone. Result: None."""

    __slots__ = ("marker",)

    def __init__(self, marker: PurgeMarker, on_finished: Callable[[], None]) -> None:
        super().__init__(Lane.PURGE, "", _topic_work_numbers((marker.namespace, marker.topic)), on_finished)
        self.marker = marker


class DeletePurgedRows(Work):
    """Deletes rows that a cut covers, each as it is in the table. Results: None."""

    __slots__ = ("rows",)

    def __init__(self, rows: Sequence[Row], on_finished: Callable[[], None]) -> None:
        super().__init__(Lane.PURGE, "", [row.id for row in rows], on_finished)
        self.rows = rows
