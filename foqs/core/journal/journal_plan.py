"""Decides what a flush journals, which rows it writes, and where the journal may be cut.

Given the changes of items, as rows before and after, and the items that are to be written back.
Changes nothing: `JournalPlan.apply_to` does, after the commit. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.flush.writes import LeaseUpdate
from foqs.core.items.item import Row, State
from foqs.core.journal.dirty_items import DirtyItem, DirtyItems
from foqs.core.journal.journal_events import (
    Base,
    FlushEvents,
    ItemChange,
    base_of,
    change_of,
    merged_change,
)
from foqs.core.timing.due_timers import TimerEntry

_NO_PAYLOADS: Final[Mapping[int, bytes]] = {}


@dataclass(slots=True)
class JournalPlan:
    """The writes of one flush for its items.

    Attributes:
        floor: the first event that a later owner needs.
        inserts, leases, rewrites, deletes: the rows that are written back. Purged rows are among the deletes.
        moves: the rows that are renamed.
        timers_removed, timers_added: the entries that change with these rows.
    """

    position: Position
    events: FlushEvents = field(default_factory=FlushEvents)
    floor: Position = (0, 0)
    inserts: list[Row] = field(default_factory=list)
    moves: list[tuple[int, Row]] = field(default_factory=list)
    leases: list[LeaseUpdate] = field(default_factory=list)
    rewrites: list[ItemChange] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    timers_removed: list[TimerEntry] = field(default_factory=list)
    timers_added: list[TimerEntry] = field(default_factory=list)
    dirty: dict[int, DirtyItem] = field(default_factory=dict)
    """Items that are dirty after this flush, and are not yet, or are otherwise."""
    clean: dict[int, None] = field(default_factory=dict)
    """Items that are not dirty after it."""
    touched: dict[int, DirtyItem | None] = field(default_factory=dict)
    """The items whose rows it writes, as these rows are afterwards; None: the row is gone."""

    def apply_to(self, dirty_items: DirtyItems) -> None:
        """Bring the memory up to this flush, which is committed."""
        dirty_items.apply(self.dirty, self.clean)


class JournalPlanner:
    """Plans the journal row of one flush, change by change, and then its write-backs.

    Args:
        position: the place of the flush.
        payloads: those of young items that are written again, if the memory does not have them.
        writes_through: rows that are current stay so: their changes are written and not journaled, because there is
            no room for more dirty items.
    """

    def __init__(
        self,
        dirty_items: DirtyItems,
        position: Position,
        payloads: Mapping[int, bytes] = _NO_PAYLOADS,
        *,
        writes_through: bool = False,
    ) -> None:
        self._dirty_items = dirty_items
        self._payloads = payloads
        self._writes_through = writes_through
        self.plan = JournalPlan(position)
        self._payloads_end = 0
        self._leases: dict[tuple[int | None, int, int, State, int | None], LeaseUpdate] = {}

    def add(self, row: Row) -> None:
        """Plan the event of a new item."""
        if self._writes_through:
            self._write_row(row.id, DirtyItem(self.plan.position, None, row=row))
        else:
            self._journal_whole(row)

    def _journal_whole(self, row: Row) -> None:
        self.plan.events.added.append(row)
        self._set(row.id, DirtyItem(self.plan.position, None, row=row, payload_offset=self._payloads_end))
        self._payloads_end += row.payload_bytes

    def change(self, old: Row, new: Row) -> None:
        """Plan the change of an item. `old` is the item before, which its row need not show."""
        change = change_of(old, new)
        former = self._find(old.id)
        if former is None and self._writes_through:
            self._write_row(old.id, DirtyItem(self.plan.position, base_of(old), change=change))
            return
        self.plan.events.changed.append(change)
        if former is None:
            base = self.plan.events.bases[old.id] = base_of(old)
            self._set(old.id, DirtyItem(self.plan.position, base, change=change))
        elif former.row is not None:
            if new.payload is None and former.row.payload is not None:
                new = new.copy()
                new.payload = former.row.payload
            # Not `replace`, which is slow: this runs for most deliveries.
            self._set(old.id, DirtyItem(former.first, None, new, None, former.payload_offset))
        else:
            assert former.change is not None, f"item {old.id} has ended"
            self._set(old.id, DirtyItem(former.first, former.base, change=merged_change(former.change, change)))

    def end(self, old: Row) -> None:
        """Plan the end of an item."""
        former = self._find(old.id)
        if former is None and self._writes_through:
            self._write_row(old.id, DirtyItem(self.plan.position, base_of(old)))
            return
        self.plan.events.ended.append(old.id)
        if former is None:
            base = self.plan.events.bases[old.id] = base_of(old)
            self._set(old.id, DirtyItem(self.plan.position, base))
        elif former.base is None:
            self._forget(old.id)
        else:
            self._set(old.id, DirtyItem(former.first, former.base))

    def move(self, old: Row, new: Row) -> None:
        """Plan the move of an item to another number and topic. Its row, if it has one, is renamed by the flush itself."""
        former = self._find(old.id)
        if former is not None and former.base is None:
            self.end(old)
            if new.payload is None and former.row is not None:
                new = new.copy()
                new.payload = self._with_payload(former.row).payload
            self.add(new)
            return
        self.plan.moves.append((old.id, new))
        self._change_timer(_timer_due_ms(base_of(old) if former is None else former.base), old.id, None, 0)
        self._change_timer(None, 0, _timer_due_ms(base_of(new)), new.id)
        self.plan.touched[old.id] = None
        self.plan.touched[new.id] = DirtyItem(self.plan.position, None, row=new)
        if former is not None:
            self._end_events(old.id)

    def purge(self, row: Row) -> None:
        """Plan the deletion of an item that a purge marker covers, and of its row, if it has one, in this flush."""
        former = self._find(row.id)
        if former is not None and former.base is None:
            self.end(row)
            return
        self.plan.deletes.append(row.id)
        self.plan.touched[row.id] = None
        self._change_timer(_timer_due_ms(base_of(row) if former is None else former.base), row.id, None, 0)
        if former is not None:
            self._end_events(row.id)

    def write_back(self, numbers: Iterable[int]) -> None:
        """Write these items' rows as they are after the flush. Young ones need their payloads."""
        for number in numbers:
            item = self._find(number)
            if item is not None:
                self._write_row(number, item)
                self._end_events(number)

    def carry_forward(self, numbers: Iterable[int]) -> None:
        """Write the whole events of these items again: their rows are refused, and the journal must be trimmed."""
        events, position = self.plan.events, self.plan.position
        carried = {n: item for n in numbers if (item := self._find(n)) is not None and item.first != position}
        if not carried:
            return
        events.changed = [change for change in events.changed if change.number not in carried]
        for number, item in carried.items():
            if item.row is not None:
                self._journal_whole(self._with_payload(item.row))
                continue
            assert item.base is not None
            events.bases[number] = item.base
            if item.change is not None:
                events.changed.append(item.change)
            elif number not in events.ended:
                events.ended.append(number)
            self._set(number, replace(item, first=position))

    def finish(self) -> JournalPlan:
        """Return the plan, with its floor."""
        plan = self.plan
        not_older = {*plan.clean, *[number for number, item in plan.dirty.items() if item.first == plan.position]}
        plan.floor = self._dirty_items.floor(not_older, plan.position)
        return plan

    def _find(self, number: int) -> DirtyItem | None:
        """Return the item as it is after what was planned so far; None if it is not dirty."""
        if number in self.plan.clean:
            return None
        return self.plan.dirty.get(number) or self._dirty_items.get(number)

    def _set(self, number: int, item: DirtyItem) -> None:
        self.plan.dirty[number] = item

    def _forget(self, number: int) -> None:
        self.plan.dirty.pop(number, None)
        self.plan.clean[number] = None

    def _end_events(self, number: int) -> None:
        self.plan.events.current.append(number)
        self._forget(number)

    def _write_row(self, number: int, item: DirtyItem) -> None:
        plan, change = self.plan, item.change
        plan.touched[number] = None if item.is_ended else item
        self._change_timer(_timer_due_ms(item.base), number, item.timer_due_ms, number)
        if item.row is not None:
            plan.inserts.append(self._with_payload(item.row))
        elif change is None:
            plan.deletes.append(number)
        elif change.rewrite is not None:
            plan.rewrites.append(change)
        else:
            # Items that were delivered together mostly change equally: one statement for all of them.
            values = (change.due_ms, change.token, change.attempt, change.state, change.first_delivered_at_ms)
            update = self._leases.get(values)
            if update is None:
                due_ms, token, attempt, state, first_ms = values
                update = self._leases[values] = LeaseUpdate(due_ms, token, attempt, [], state, first_ms)
                plan.leases.append(update)
            update.ids.append(number)

    def _with_payload(self, row: Row) -> Row:
        if row.payload is None:
            row = row.copy()
            row.payload = self._payloads.get(row.id)
        return row

    def _change_timer(self, old_ms: int | None, old_number: int, new_ms: int | None, new_number: int) -> None:
        if (old_ms, old_number) != (new_ms, new_number):
            if old_ms is not None:
                self.plan.timers_removed.append((old_ms, old_number))
            if new_ms is not None:
                self.plan.timers_added.append((new_ms, new_number))


def _timer_due_ms(base: Base | None) -> int | None:
    return None if base is None or base.state is State.LEASED else base.due_ms
