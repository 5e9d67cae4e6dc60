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

from foqs.core.item import Row, TopicName
from foqs.core.work import Lane, Work


class Cut(NamedTuple):
    """A topic's items up to the number `last` are purged."""

    namespace: str
    topic: str
    last: int


class Cuts:
    """Those that stand, by topic."""

    __slots__ = ("_last", "_turns")

    def __init__(self, cuts: Iterable[Cut] = ()) -> None:
        self._last: dict[TopicName, int] = {}
        self._turns: dict[str, dict[str, None]] = {}
        """Their topics by namespace, in order; the namespace whose turn comes next is the first."""
        for cut in cuts:
            self.make(cut)

    def __len__(self) -> int:
        return len(self._last)

    def __contains__(self, cut: Cut) -> bool:
        """It stands, and has not risen."""
        return self._last.get((cut.namespace, cut.topic)) == cut.last

    def next(self) -> Cut | None:
        """The one that is to be worked on: namespaces in turn, of each the one that stands longest. None when there is none."""
        namespace = next(iter(self._turns), None)
        if namespace is None:
            return None
        names = self._turns[namespace] = self._turns.pop(namespace)
        name = next(iter(names))
        return Cut(namespace, name, self._last[namespace, name])

    def count(self, namespace: str) -> int:
        """How many topics of a namespace have one."""
        return len(self._turns.get(namespace, ()))

    def last(self, topic: TopicName) -> int:
        """The highest number of the topic that is purged; 0 without a cut."""
        return self._last.get(topic, 0)

    def covers(self, row: Row) -> bool:
        """The row's item is purged."""
        return row.id <= self._last.get((row.namespace, row.topic), 0)

    def hide(self, find: Callable[[int], Row | None]) -> Callable[[int], Row | None]:
        """Finds what `find` does, but for what is purged."""

        def found(number: int) -> Row | None:
            row = find(number)
            return None if row is None or self.covers(row) else row

        return found

    def make(self, cut: Cut) -> None:
        """It is committed; one that stands rises."""
        topic = (cut.namespace, cut.topic)
        self._last[topic] = max(cut.last, self.last(topic))
        self._turns.setdefault(cut.namespace, {})[cut.topic] = None

    def end(self, cut: Cut) -> None:
        """Its rows have gone, and so does it, unless it has risen."""
        if cut in self:
            del self._last[cut.namespace, cut.topic]
            names = self._turns[cut.namespace]
            del names[cut.topic]
            if not names:
                del self._turns[cut.namespace]


def _place_of(topic: TopicName) -> tuple[int]:
    """The id of a work that is about a topic: below those of items. An id stands in a flush once, so a topic's cuts come one a flush."""
    return (~crc32("\0".join(topic).encode()),)


class MakeCut(Work):
    """Purges a topic. Result: how many items that were, as far as they are counted.

    Attributes:
        cut: up to the last number that was given when its flush was sealed.
    """

    __slots__ = ("cut",)

    def __init__(self, topic: TopicName, finished: Callable[[], None]) -> None:
        super().__init__(Lane.PURGE, topic[0], _place_of(topic), finished)
        self.cut = Cut(*topic, 0)


class EndCut(Work):
    """The rows of a cut have gone. Result: None."""

    __slots__ = ("cut",)

    def __init__(self, cut: Cut, finished: Callable[[], None]) -> None:
        super().__init__(Lane.PURGE, "", _place_of((cut.namespace, cut.topic)), finished)
        self.cut = cut


class PurgeRows(Work):
    """Deletes rows that a cut covers, each as it is in the table. Results: None."""

    __slots__ = ("rows",)

    def __init__(self, rows: Sequence[Row], finished: Callable[[], None]) -> None:
        super().__init__(Lane.PURGE, "", [row.id for row in rows], finished)
        self.rows = rows
