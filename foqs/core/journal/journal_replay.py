"""Rebuilds the dirty items of a shard from its journal, at a takeover.

The flushes come in order, from the floor on. Always true: what is replayed so far is what an
owner remembered after that flush. Pure; the caller reads the journal, and may pause between two flushes.
"""

from __future__ import annotations

from foqs.core.flush.fence import Position
from foqs.core.journal.dirty_items import DirtyItem, DirtyItems
from foqs.core.journal.journal_bytes import JournalDamaged
from foqs.core.journal.journal_events import Base, FlushEvents, ItemChange, apply_change, merged_change
from foqs_contract.plurals import counted


class JournalReplay:
    """One replay of a journal."""

    def __init__(self) -> None:
        self._dirty_items = DirtyItems()
        self._without_start: set[int] = set()
        """Items that changed, and whose first events are below the floor: they ended, became current or were carried later."""

    def add(self, position: Position, events: FlushEvents) -> None:
        """Apply the events of the next flush."""
        dirty: dict[int, DirtyItem] = {}
        clean: dict[int, None] = {}
        offset = 0
        for row in events.added:
            self._without_start.discard(row.id)
            dirty[row.id] = DirtyItem(position, None, row=row, payload_offset=offset)
            offset += row.payload_bytes
        for change in events.changed:
            self._change(position, change, events.bases.get(change.number), dirty)
        for number in events.ended:
            self._end(position, number, events.bases.get(number), dirty, clean)
        for number in events.current:
            self._without_start.discard(number)
            dirty.pop(number, None)
            clean[number] = None
        self._dirty_items.apply(dirty, clean)

    def _change(
        self,
        position: Position,
        change: ItemChange,
        base: Base | None,
        dirty: dict[int, DirtyItem],
    ) -> None:
        number = change.number
        former = self._dirty_items.get(number)
        if base is not None:
            self._without_start.discard(number)
            dirty[number] = DirtyItem(position, base, change=change)
        elif former is None:
            self._without_start.add(number)
        elif former.row is not None:
            row = apply_change(former.row, change)
            dirty[number] = DirtyItem(former.first, None, row=row, payload_offset=former.payload_offset)
        else:
            merged = change if former.change is None else merged_change(former.change, change)
            dirty[number] = DirtyItem(former.first, former.base, change=merged)

    def _end(
        self,
        position: Position,
        number: int,
        base: Base | None,
        dirty: dict[int, DirtyItem],
        clean: dict[int, None],
    ) -> None:
        self._without_start.discard(number)
        former = self._dirty_items.get(number)
        if base is not None:
            dirty[number] = DirtyItem(position, base)
        elif former is not None and former.base is not None:
            dirty[number] = DirtyItem(former.first, former.base)
        else:
            clean[number] = None

    def finish(self) -> DirtyItems:
        """Return the dirty items after the last flush.

        Raises:
            JournalDamaged: the journal lacks first events that are needed.
        """
        if self._without_start:
            raise JournalDamaged(
                f"the journal lacks the first events of {counted(len(self._without_start), 'item')}, such as "
                f"{min(self._without_start)}"
            )
        return self._dirty_items
