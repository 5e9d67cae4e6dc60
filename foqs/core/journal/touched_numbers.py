"""What flushes write while reads beside them are under way.

A row that was read counts only if no flush has written or deleted it since the read began. Of the others
the record knows what reads need of them now, and no payload. Always true: all records together have at most
as many numbers as they may; a record that has no room for all of its numbers is void. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from foqs.core.items.item import OrderKey, State, TopicName
from foqs.core.journal.dirty_items import DirtyItem


class TouchedRow(NamedTuple):
    """A row that a flush has written, as far as reads need it. `due_ms` may be the end of a lease."""

    topic: TopicName
    state: State
    order_key: OrderKey
    due_ms: int | None

    @property
    def timer_due_ms(self) -> int | None:
        """When the time must change the item, if that is not the end of a lease."""
        return None if self.state is State.LEASED else self.due_ms


@dataclass(slots=True, eq=False)
class TouchedNumbers:
    """The rows that flushes have written or deleted since one read began, as they are now; None: the row is gone.

    A read that goes to the tables several times has one record, so that its result can be of one moment.

    Attributes:
        flushes: how many of these flushes there were.
    """

    numbers: dict[int, TouchedRow | None] = field(default_factory=dict)
    is_void: bool = False
    flushes: int = 0
    _topics: dict[TopicName, dict[int, TouchedRow]] = field(default_factory=dict)
    """The rows that are there, by topic."""
    _last_flushes: dict[int, int] = field(default_factory=dict)
    """The last of the flushes that wrote each row."""

    def in_topic(self, topic: TopicName) -> Mapping[int, TouchedRow]:
        """Return the rows of a topic by number."""
        return self._topics.get(topic, {})

    def is_touched_after(self, number: int, flushes: int) -> bool:
        """Return whether a row was written after the first `flushes` of these flushes."""
        return self._last_flushes.get(number, 0) > flushes

    def on_committed(self, touched: Mapping[int, TouchedRow | None]) -> None:
        """Note the rows that a committed flush has written."""
        self.flushes += 1
        if self.is_void:
            return
        for number, row in touched.items():
            former = self.numbers.get(number)
            if former is not None:
                del self._topics[former.topic][number]
            if row is not None:
                self._topics.setdefault(row.topic, {})[number] = row
        self.numbers.update(touched)
        self._last_flushes.update(dict.fromkeys(touched, self.flushes))

    def make_void(self) -> None:
        """Forget the rows: there is no room for them, so the read cannot know what its pages lack."""
        self.is_void = True
        self.numbers.clear()
        self._topics.clear()
        self._last_flushes.clear()


class ReadsUnderWay:
    """The records of all reads of a shard that are under way.

    Args:
        numbers_max: the numbers of all records. If flushes touch more, the longest record becomes void.
    """

    def __init__(self, numbers_max: int) -> None:
        self._numbers_max: Final = numbers_max
        self._records: list[TouchedNumbers] = []

    @contextmanager
    def record(self) -> Iterator[TouchedNumbers]:
        """Record the rows that flushes write while a read is under way."""
        record = self.begin_read()
        try:
            yield record
        finally:
            self.end_read(record)

    def begin_read(self) -> TouchedNumbers:
        """Return a record for a read that begins now, between two flushes or during one that is not applied yet."""
        record = TouchedNumbers()
        self._records.append(record)
        return record

    def end_read(self, record: TouchedNumbers) -> None:
        """Forget a record: its read has ended."""
        self._records.remove(record)

    def on_committed(self, touched: Mapping[int, DirtyItem | None]) -> None:
        """Note the rows that a committed flush has written."""
        if not touched or not self._records:
            return
        rows = {number: None if item is None else _row_of(number, item) for number, item in touched.items()}
        for record in self._records:
            record.on_committed(rows)
        while _numbers_of(self._records) > self._numbers_max:
            max(self._records, key=lambda record: len(record.numbers)).make_void()


def _row_of(number: int, item: DirtyItem) -> TouchedRow:
    state = item.state
    assert state is not None
    return TouchedRow(item.topic, state, item.order_key(number), item.due_ms)


def _numbers_of(records: Collection[TouchedNumbers]) -> int:
    return sum([len(record.numbers) for record in records])
