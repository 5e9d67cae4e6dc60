"""Rows that a shard's owner still remembers, so that a flush need not read them back.

A shard has one owner and its writer does one thing at a time, so a remembered
row is the row in the table: it is replaced when a flush that changes it is
committed, and forgotten when it is deleted. Bounded in bytes: when full, new
rows are not taken in, because the oldest are wanted soonest. Whatever is not
here is read. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from foqs.core.item import Row

ROW_BYTES: Final = 512
"""What a row costs in memory, besides payload and metadata."""


class RowCache:
    """Rows by id.

    Args:
        bytes_max: payloads, metadata and `ROW_BYTES` for each row.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rows: dict[int, Row] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, numbers: Iterable[int], found: dict[int, Row], *, payload: bool) -> list[int]:
        """Puts the rows that are here into `found`; returns the ids that must be read.

        `payload`: only rows with their payload count as being here.
        """
        missing = []
        for number in numbers:
            row = self._rows.get(number)
            if row is None or (payload and row.payload is None):
                missing.append(number)
            else:
                found[number] = row
        return missing

    def keep(self, row: Row) -> None:
        """A row as it was just committed. It must not be changed afterwards."""
        old = self._rows.get(row.id)
        if old is not None and old.payload is row.payload and old.metadata is row.metadata:
            self._rows[row.id] = row
            return
        weight = _weight(row) - (0 if old is None else _weight(old))
        if weight > 0 and self.bytes + weight > self._bytes_max:
            self.drop(row.id)
        else:
            self.bytes += weight
            self._rows[row.id] = row

    def drop(self, number: int) -> None:
        """The row is gone, or no longer known."""
        row = self._rows.pop(number, None)
        if row is not None:
            self.bytes -= _weight(row)


def _weight(row: Row) -> int:
    return ROW_BYTES + len(row.metadata) + (0 if row.payload is None else len(row.payload))
