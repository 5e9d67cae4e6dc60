"""Which rows of a read beside the flushes still count, because flushes went on while it read.

A row that was read counts only if its item is not dirty and no flush has touched its number since
the read began. Of the others the memory knows what it is, or its row is read again. Always true: a
record that has no room for all numbers is void. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from foqs.core.items.item import Row
from foqs.core.journal.dirty_items import DirtyItem, DirtyItems


@dataclass(slots=True, eq=False)
class TouchedNumbers:
    """What flushes have touched since one read began: items that they changed, and rows that they wrote or deleted."""

    numbers: set[int] = field(default_factory=set)
    is_void: bool = False


class ReadsUnderWay:
    """The records of all reads of a shard that are under way.

    Args:
        numbers_max: the numbers of one record; a read during which more are touched is void.
    """

    def __init__(self, numbers_max: int) -> None:
        self._numbers_max: Final = numbers_max
        self._records: list[TouchedNumbers] = []

    def begin_read(self) -> TouchedNumbers:
        """Return a record for a read that begins now, between two flushes or during one that is not applied yet."""
        record = TouchedNumbers()
        self._records.append(record)
        return record

    def end_read(self, record: TouchedNumbers) -> None:
        """Forget a record: its read has ended."""
        self._records.remove(record)

    def on_committed(self, numbers: Iterable[int]) -> None:
        """Note what a committed flush has touched."""
        if self._records:
            numbers = list(numbers)
            for record in self._records:
                record.numbers.update(numbers)
                if len(record.numbers) > self._numbers_max:
                    record.is_void = True
                    record.numbers.clear()


def rows_that_count(rows: Iterable[Row], touched: TouchedNumbers, dirty_items: DirtyItems) -> list[Row]:
    """Return the rows of a page that are still what their items are. `touched` must not be void."""
    return [row for row in rows if row.id not in touched.numbers and row.id not in dirty_items]


def numbers_to_read_again(
    touched: TouchedNumbers, dirty_items: DirtyItems, among: Iterable[tuple[int, DirtyItem]]
) -> list[int]:
    """Return the numbers of items that the page may lack or show as they were, and that memory does not hold.

    Rows that are read by these numbers get the changes of dirty items laid over them
    (`DirtyItems.overlay`). The read is under the same record, so what is touched meanwhile is left out.

    Args:
        among: the dirty items that may belong to the page, such as those of its topic.
    """
    changed = [number for number, item in among if item.change is not None]
    return [*changed, *[number for number in touched.numbers if number not in dirty_items]]
