"""The tables that a shard with a journal would have if each flush wrote its rows: rows, with the journal over them."""

from __future__ import annotations

from dataclasses import replace

from foqs.core.flush.purge_markers import PurgeMarkers
from foqs.core.items.item import Row
from foqs.core.journal.journal_bytes import decode_events
from foqs.core.journal.journal_replay import JournalReplay
from foqs.core.timing.due_timers import timer_entry
from foqs.store.in_memory.memory_table import ShardTables


def merged_tables(tables: ShardTables) -> ShardTables:
    """Return tables of the same items, without a journal. Asserts that each row has its timer entry, and no other."""
    floor = tables.journal_floor()
    if floor is None:
        return tables
    markers = PurgeMarkers(tables.purge_markers)
    purged = {row.id for row in tables.rows.values() if markers.covers(row)}  # these have an entry or none
    entries = {entry for row in tables.rows.values() if (entry := timer_entry(row)) is not None}
    wrong = [entry for entry in entries.symmetric_difference(tables.timers) if entry[1] not in purged]
    assert not wrong, f"invariant 10: the timer table differs from the rows, the journal aside: {wrong}"
    replay = JournalReplay()
    for position, row in tables.journal.items():
        if position >= floor:
            replay.add(position, decode_events(row.events))
    dirty_items = replay.finish()
    rows: dict[int, Row] = {}
    for number, stored in tables.rows.items():
        if (overlaid := dirty_items.overlay(stored)) is not None:
            rows[number] = overlaid
    for number, item in dirty_items.items():
        if item.row is not None:
            content = tables.journal[item.first].payloads[0]
            payload = content[item.payload_offset : item.payload_offset + item.row.payload_bytes]
            rows[number] = replace(item.row, payload=payload)
    timers = sorted(entry for row in rows.values() if (entry := timer_entry(row)) is not None)
    return replace(tables, rows=rows, timers=timers, ready={}, journal={})
