"""What flushes write while reads beside them are under way.

A row that was read counts only if no flush has written or deleted it since the read began. Of the others
the record knows what they are now. Always true: a record that has no room for all numbers is void. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from foqs.core.journal.dirty_items import DirtyItem


@dataclass(slots=True, eq=False)
class TouchedNumbers:
    """The rows that flushes have written or deleted since one read began, as they are now; None: the row is gone.

    A read that goes to the tables several times has one record, so that its result can be of one moment.

    Attributes:
        flushes: how many of these flushes there were.
    """

    numbers: dict[int, DirtyItem | None] = field(default_factory=dict)
    is_void: bool = False
    flushes: int = 0
    _last_flushes: dict[int, int] = field(default_factory=dict)
    """The last of the flushes that wrote each row."""

    def is_touched_after(self, number: int, flushes: int) -> bool:
        """Return whether a row was written after the first `flushes` of these flushes."""
        return self._last_flushes.get(number, 0) > flushes

    def on_committed(self, touched: Mapping[int, DirtyItem | None], numbers_max: int) -> None:
        """Note the rows that a committed flush has written."""
        self.flushes += 1
        self.numbers.update(touched)
        self._last_flushes.update(dict.fromkeys(touched, self.flushes))
        if len(self.numbers) > numbers_max:
            self.is_void = True
            self.numbers.clear()
            self._last_flushes.clear()


class ReadsUnderWay:
    """The records of all reads of a shard that are under way.

    Args:
        numbers_max: the numbers of one record; a read during which more are touched is void.
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
        if touched:
            for record in self._records:
                record.on_committed(touched, self._numbers_max)
