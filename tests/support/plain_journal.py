"""The journal as a specification: how an owner plans a flush, what it remembers, and what the next owner finds.

It is about the rules, not about speed; docs/design/journal.md explains them. Each rule is a
small method, so that a planted mistake replaces one of them.

Always true, after each committed flush: the rows with the events of the journal over them
are what the owner remembers, and what a table would hold that is written through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from foqs.core.items.item import State
from tests.support.plain_journal_tables import (
    Added,
    Changed,
    Dirty,
    Fenced,
    Flush,
    JournalEvent,
    OwnerRow,
    Position,
    RowCurrent,
    Tables,
    Value,
    timer_entry,
)

TRIMMED_ROWS_MAX: Final = 3


@dataclass(slots=True)
class Wanted:
    """What a flush is asked to do."""

    changes: dict[int, Value | None] = field(default_factory=dict)
    moves: dict[int, tuple[int, Value]] = field(default_factory=dict)
    """By the old number: the new number and value."""
    keys: dict[str, int] = field(default_factory=dict)
    purges: dict[str, int] = field(default_factory=dict)
    """The last number that was assigned, by topic."""
    purge_page: int = 0
    write_back_early: set[int] = field(default_factory=set)
    """Items that are written back before their time."""


class PlainRead:
    """A read beside the flushes: the rows of a moment, and the items that flushes have touched since."""

    def __init__(self, rows: Mapping[int, Value]) -> None:
        self.rows = dict(rows)
        self.touched: dict[int, Value | None] = {}

    def merged(self, owner: PlainOwner) -> dict[int, Value]:
        """Return the items as they are now. The owner's memory judges each row."""
        items = {number: row for number, row in self.rows.items() if self.counts(number, owner)}
        items.update(self.written_back_since(owner))
        items.update({number: each.value for number, each in owner.dirty.items() if each.value is not None})
        return {number: value for number, value in items.items() if not owner.covers(number, value.topic)}

    def counts(self, number: int, owner: PlainOwner) -> bool:
        """Return whether the row that was read is still the item."""
        return number not in owner.dirty and number not in self.touched

    def written_back_since(self, owner: PlainOwner) -> Iterable[tuple[int, Value]]:
        """Return the items that were written back since the read began: the read may not have seen their rows."""
        return [
            (number, value) for number, value in self.touched.items() if value is not None and number not in owner.dirty
        ]


class PlainOwner:
    """An owner: what it remembers, and how it plans a flush.

    Args:
        patience: an item is written back this many flushes after its first event.
    """

    read_type: type[PlainRead] = PlainRead
    commits_with_statements = False
    """COMMIT travels with the statements, as in a statement that commits by itself."""

    def __init__(self, tables: Tables, patience: int) -> None:
        self.epoch = tables.owner.epoch
        self.flush = tables.owner.flush
        self.attempt = tables.owner.attempt
        self.patience = patience
        self.tables = tables
        """For the rows that it reads. Everything else is remembered."""
        self.journal = sorted(tables.journal)
        self.dirty = self.replay(tables)
        self.markers = dict(tables.markers)
        self.markers_set_at = dict.fromkeys(tables.markers, (self.epoch, 0))
        self.refused: dict[int, int] = {}
        """How often each of these items was carried forward, because its row was refused."""
        self.reads: list[PlainRead] = []

    # ------------------------------------------------------------- recovery

    def replay(self, tables: Tables) -> dict[int, Dirty]:
        """Return the items whose rows are not current. Raises ValueError if the journal lacks an event."""
        dirty: dict[int, Dirty] = {}
        without_start: set[int] = set()
        for position in sorted(tables.journal):
            if position < tables.owner.floor:
                continue
            for event in tables.journal[position]:
                self._replay_event(event, position, tables, dirty, without_start)
        if without_start:
            raise ValueError(f"the journal lacks the first events of {sorted(without_start)}")
        return dirty

    def _replay_event(
        self, event: JournalEvent, position: Position, tables: Tables, dirty: dict[int, Dirty], without_start: set[int]
    ) -> None:
        number = event.number
        if isinstance(event, RowCurrent):
            dirty.pop(number, None)
            without_start.discard(number)
            return
        base = event.base if isinstance(event, Changed) else None
        seen = event.value or base
        is_covered = seen is not None and tables.covers(number, seen.topic)
        if is_covered or isinstance(event, Added) or base is not None:
            without_start.discard(number)
        if is_covered:
            dirty.pop(number, None)
        elif isinstance(event, Added):
            dirty[number] = Dirty(position, None, event.value)
        elif base is not None:
            dirty[number] = Dirty(position, base, _with_payload(event.value, base))
        elif number in dirty:
            _change(dirty, number, event.value)
        elif event.value is None:
            without_start.discard(number)
        else:
            without_start.add(number)

    # --------------------------------------------------------------- memory

    def covers(self, number: int, topic: str) -> bool:
        return number <= self.markers.get(topic, 0)

    def value(self, number: int) -> Value | None:
        """Return the item as it is now."""
        each = self.dirty.get(number)
        value = self.overlay(number, each.value) if each is not None else self.tables.rows.get(number)
        return None if value is None or self.covers(number, value.topic) else value

    def overlay(self, number: int, value: Value | None) -> Value | None:
        """Return what counts of a dirty item: what is remembered, not its row."""
        return value

    def items(self) -> dict[int, Value]:
        """Return all items."""
        numbers = {*self.tables.rows, *self.dirty}
        return {number: value for number in numbers if (value := self.value(number)) is not None}

    def timers(self) -> set[tuple[int, int]]:
        """Return what is due at a time: the entries of rows that are current, and the dues of dirty items."""
        return {entry for entry in self.tables.timers if self.entry_counts(entry[1])} | self.remembered_dues()

    def entry_counts(self, number: int) -> bool:
        """Return whether an entry of the timer table is that of an item."""
        return number not in self.dirty and self.value(number) is not None

    def remembered_dues(self) -> set[tuple[int, int]]:
        """Return what is due at a time of dirty items."""
        items = {number: each.value for number, each in self.dirty.items() if self.value(number) is not None}
        return {entry for number, value in items.items() if (entry := timer_entry(number, value))}

    def count_difference(self) -> dict[tuple[str, State], int]:
        """Return what the rows lack, by topic and state."""
        found: dict[tuple[str, State], int] = {}
        for number, each in self.dirty.items():
            for value, count in ((each.base, -1), (each.value, 1)):
                if value is not None and not self.covers(number, value.topic):
                    place = value.topic, value.state
                    found[place] = found.get(place, 0) + count
        return found

    def begin_read(self) -> PlainRead:
        """Begin a read, as of the last committed flush."""
        read = self.read_type(self.tables.rows)
        self.reads.append(read)
        return read

    # -------------------------------------------------------------- a flush

    def fence(self, flush: Flush, tables: Tables) -> None:
        """The first statement of a flush: it matches this owner after its last flush only."""
        row = tables.owner
        if not self.fence_matches(flush, row):
            raise Fenced
        tables.owner = OwnerRow(row.epoch, flush.position[1], flush.floor, row.attempt)

    def fence_matches(self, flush: Flush, row: OwnerRow) -> bool:
        return (row.epoch, row.flush, row.attempt) == (flush.position[0], flush.position[1] - 1, flush.attempt)

    def plan(self, wanted: Wanted) -> Flush:
        """Plan the next flush. Changes nothing in the memory."""
        flush = Flush((self.epoch, self.flush + 1), self.attempt)
        flush.dirty_after = {number: replace(each) for number, each in self.dirty.items()}
        for number, value in wanted.changes.items():
            flush.changed[number] = (self.value(number), value)
            self._plan_change(number, value, flush)
        for number, (new_number, value) in wanted.moves.items():
            flush.changed[number] = (self.value(number), None)
            flush.changed[new_number] = (None, value)
            self._plan_move(number, new_number, value, flush)
        flush.keys = dict(wanted.keys)
        for number in self._to_write_back(wanted, flush):
            self._plan_write_back(number, flush)
        self._plan_purges(wanted, flush)
        flush.floor = self.floor(flush)
        flush.trimmed = self.rows_to_trim(flush)
        for topic, last in self.markers.items():
            if topic not in flush.markers_set and self.may_clear(topic, last, flush):
                flush.markers_cleared.append(topic)
        return flush

    def _plan_change(self, number: int, value: Value | None, flush: Flush) -> None:
        dirty = flush.dirty_after
        if number in dirty:
            flush.events.append(Changed(number, _without_payload(value)))
            _change(dirty, number, value)
        elif (row := self.tables.rows.get(number)) is not None:
            flush.events.append(Changed(number, _without_payload(value), row))
            dirty[number] = Dirty(flush.position, row, value)
        elif value is not None:
            flush.events.append(Added(number, value))
            dirty[number] = Dirty(flush.position, None, value)

    def _plan_move(self, number: int, new_number: int, value: Value, flush: Flush) -> None:
        """A row gets another number. An item without a row ends, and another one is added."""
        row = self.tables.rows.get(number)
        if row is None:
            self._plan_change(number, None, flush)
            self._plan_change(new_number, value, flush)
            return
        flush.row_changes[number] = (row, None)
        flush.row_changes[new_number] = (None, value)
        if flush.dirty_after.pop(number, None) is not None:
            self.record_direct_write(number, flush)

    def record_direct_write(self, number: int, flush: Flush) -> None:
        flush.events.append(RowCurrent(number))

    def _to_write_back(self, wanted: Wanted, flush: Flush) -> list[int]:
        """Return the items to write back, and carry forward those whose rows were refused.

        Items that a marker covers are dropped, some of them in each flush.
        """
        found: list[int] = []
        dropped = 0
        for number, each in list(flush.dirty_after.items()):
            is_due = each.first[0] < self.epoch or each.first[1] <= flush.position[1] - self.patience
            if self._is_purged(number, each):
                if is_due or dropped < wanted.purge_page:
                    del flush.dirty_after[number]
                    dropped += 1
                continue
            is_refused = number in self.refused and each.value is not None
            if is_refused and is_due:
                self.carry_forward(number, each, flush)
            elif not is_refused and (is_due or number in wanted.write_back_early):
                found.append(number)
        return found

    def carry_forward(self, number: int, each: Dirty, flush: Flush) -> None:
        """Write the whole event again, so that the journal can be trimmed."""
        if each.base is None:
            assert each.value is not None
            flush.events.append(Added(number, each.value))
        else:
            flush.events.append(Changed(number, _without_payload(each.value), each.base))
        each.first = flush.position

    def _plan_write_back(self, number: int, flush: Flush) -> None:
        each = flush.dirty_after.pop(number)
        flush.row_changes[number] = (each.base, each.value)
        self.record_write_back(number, flush)

    def record_write_back(self, number: int, flush: Flush) -> None:
        flush.events.append(RowCurrent(number))

    def _plan_purges(self, wanted: Wanted, flush: Flush) -> None:
        """New markers cover all else in their flush. Rows that a former marker covers are deleted, page by page."""
        covered = [number for number, row in self.tables.rows.items() if self.covers(number, row.topic)]
        for number in covered[: wanted.purge_page]:
            flush.row_changes[number] = (self.tables.rows[number], None)
            flush.dirty_after.pop(number, None)
        flush.markers_set = dict(wanted.purges)

    def _is_purged(self, number: int, each: Dirty) -> bool:
        value = each.value or each.base
        return value is not None and self.covers(number, value.topic)

    def dirty_items(self) -> dict[int, Dirty]:
        """Return the dirty items that no marker covers."""
        return {number: each for number, each in self.dirty.items() if not self._is_purged(number, each)}

    def floor(self, flush: Flush) -> Position:
        """Return the place of the first event that the next owner needs."""
        return min((each.first for each in flush.dirty_after.values()), default=flush.position)

    def rows_to_trim(self, flush: Flush) -> list[Position]:
        """Return the journal rows to delete: a prefix, and not all of it at once."""
        return [position for position in self.journal if position < flush.floor][:TRIMMED_ROWS_MAX]

    def may_clear(self, topic: str, last: int, flush: Flush) -> bool:
        """Return whether a marker covers no row and no event any more."""
        return flush.floor > self.markers_set_at[topic] and not self._has_covered_rows(topic, last)

    def _has_covered_rows(self, topic: str, last: int) -> bool:
        return any(row.topic == topic and number <= last for number, row in self.tables.rows.items())

    def apply(self, flush: Flush, tables: Tables) -> None:
        """Bring the memory up to a flush that is committed."""
        self.flush = flush.position[1]
        self.tables = tables
        trimmed = set(flush.trimmed)
        self.journal = [position for position in (*self.journal, flush.position) if position not in trimmed]
        self.dirty = flush.dirty_after
        for topic in flush.markers_cleared:
            del self.markers[topic], self.markers_set_at[topic]
        self.markers.update(flush.markers_set)
        self.markers_set_at.update(dict.fromkeys(flush.markers_set, flush.position))
        for read in self.reads:
            read.touched.update({number: self.value(number) for number in (*flush.changed, *flush.row_changes)})


def _without_payload(value: Value | None) -> Value | None:
    return None if value is None else value._replace(payload=None)


def _with_payload(value: Value | None, former: Value | None) -> Value | None:
    if value is None or value.payload is not None or former is None:
        return value
    return value._replace(payload=former.payload)


def _change(dirty: dict[int, Dirty], number: int, value: Value | None) -> None:
    each = dirty[number]
    if value is None and each.base is None:
        del dirty[number]  # there is no row to delete
    else:
        each.value = _with_payload(value, each.value or each.base)
