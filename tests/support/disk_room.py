"""The room that a shard's tables take on a disk, and how a flush changes it: what a full disk refuses.

As SQLite does, a transaction may use the room that it frees itself. Changes in place take none.
"""

from __future__ import annotations

from collections.abc import Iterable

from foqs.core.flush.journal_rows import JournalRow
from foqs.core.flush.writes import Writes
from foqs.core.items.item import Row
from foqs.store.in_memory.memory_table import ShardTables

_ROW_BYTES = 200


def bytes_used(tables: ShardTables) -> int:
    """Return the room that rows and journal take."""
    return (
        _bytes_of_rows(tables.rows.values()) + _bytes_of_journal(tables.journal.values()) + tables.journal_reserve_bytes
    )


def growth(tables: ShardTables, writes: Writes) -> int:
    """Return how much more room the tables take after a flush."""
    deleted = [tables.rows[number] for number in writes.deletes if number in tables.rows]
    bytes_more = _bytes_of_rows(writes.inserts) - _bytes_of_rows(deleted)
    if writes.journal_row is not None:
        bytes_more += _bytes_of_journal([writes.journal_row])
    trimmed = writes.journal_trimmed
    if trimmed is not None:
        first, end = trimmed
        bytes_more -= _bytes_of_journal([row for position, row in tables.journal.items() if first <= position < end])
    for position in writes.journal_emptied:
        if position in tables.journal and (trimmed is None or position >= trimmed.end):
            bytes_more -= sum(map(len, tables.journal[position].payloads))
    if writes.journal_reserve_bytes is not None:
        bytes_more += writes.journal_reserve_bytes - tables.journal_reserve_bytes
    return bytes_more


def _bytes_of_rows(rows: Iterable[Row]) -> int:
    return sum(_ROW_BYTES + row.payload_bytes + len(row.metadata) for row in rows)


def _bytes_of_journal(rows: Iterable[JournalRow]) -> int:
    return sum(len(row.events) + sum(map(len, row.payloads)) for row in rows)
