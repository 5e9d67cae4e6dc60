"""The journal's part of a planned flush: the changes of items as events, and the rows that are written in their place.

Pure. `plan_flush` decides what happens to items; this decides where that is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.flush.journal_rows import JournalRow
from foqs.core.flush.writes import RowChanges, Writes
from foqs.core.items.item import DeliveryPolicy, Row
from foqs.core.journal.dirty_items import DirtyItems
from foqs.core.journal.journal_bytes import encode_events
from foqs.core.journal.journal_events import ItemChange, apply_change
from foqs.core.journal.journal_plan import JournalPlan, JournalPlanner
from foqs.core.journal.journal_positions import JournalPositions
from foqs.core.timing.due_timers import TimerEntry

_NO_NUMBERS: Final[tuple[int, ...]] = ()
_NO_PAYLOADS: Final[Mapping[int, bytes]] = {}


def plan_journal(
    changes: RowChanges,
    dirty_items: DirtyItems,
    position: Position,
    write_back: Iterable[int],
    carried: Iterable[int] = _NO_NUMBERS,
    payloads: Mapping[int, bytes] = _NO_PAYLOADS,
    *,
    writes_through: bool = False,
) -> JournalPlan:
    """Return what a flush journals.

    Args:
        position: the place of the flush.
        write_back: items whose rows are written, as they are after the flush.
        carried: items whose rows are refused, and whose events would hold the floor.
        payloads: those of young items among these two, if the memory does not have them.
        writes_through: see `JournalPlanner`.
    """
    planner = JournalPlanner(dirty_items, position, payloads, writes_through=writes_through)
    for old, new in zip(*changes.leased, strict=True):
        planner.change(old, new)
    for _, old, new in changes.changed:
        planner.change(old, new)
    for rows in changes.deleted.values():
        for row in rows:
            planner.end(row)
    for row in changes.inserted:
        planner.add(row)
    for old, new in changes.moved:
        planner.move(old, new)
    for row in changes.purged:
        planner.purge(row)
    planner.carry_forward(carried)
    planner.write_back(write_back)
    return planner.finish()


def write_journal(journal: JournalPlan, positions: JournalPositions, writes: Writes) -> None:
    """Add the journal row of a flush to `writes`, and what it trims.

    A flush without events has neither, unless it can trim all but the newest row.
    """
    trimmed = positions.range_to_trim(journal.floor)
    if journal.events or (trimmed is not None and len(positions) > 1):
        payloads = [row.payload for row in journal.events.added if row.payload is not None]
        assert len(payloads) == len(journal.events.added), "a young item is journaled without its payload"
        writes.journal_row = JournalRow(encode_events(journal.events), payloads, journal.floor)
        writes.journal_trimmed = trimmed


def write_rows(journal: JournalPlan, dirty_items: DirtyItems, writes: Writes) -> None:
    """Replace the changes of items and timers in `writes` by those that the journal plan writes."""
    writes.deletes = journal.deletes
    writes.updates = [_row_of(change) for change in journal.rewrites]
    writes.leases = journal.leases
    writes.moves = journal.moves
    writes.inserts = journal.inserts
    writes.timers_added = journal.timers_added
    writes.timers_removed = [*journal.timers_removed, *_stale_timers(dirty_items, writes)]


def _stale_timers(dirty_items: DirtyItems, writes: Writes) -> list[TimerEntry]:
    """Return entries that a scan found and that no row has. They belong to no item that the journal knows."""
    known = writes.changes.numbers() if writes.timers_removed else ()
    return [entry for entry in writes.timers_removed if entry[1] not in known and entry[1] not in dirty_items]


def _row_of(change: ItemChange) -> Row:
    """Return a row for `Writes.updates`, of which a store writes the mutable columns only."""
    row = Row(
        id=change.number,
        namespace=change.namespace,
        topic=change.topic,
        priority=0,
        deliver_after_ms=0,
        enqueued_at_ms=0,
        lease_ms=0,
        ttl_ms=None,
        expires_at_ms=None,
        policy=DeliveryPolicy.AT_LEAST_ONCE,
        attempts_max=0,
        payload_bytes=0,
        payload=None,
        metadata=b"",
        state=change.state,
        due_ms=None,
        token=0,
        attempt=0,
    )
    return apply_change(row, change)
