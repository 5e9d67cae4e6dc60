"""What one flush writes and answers, in columns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.flush_keys import FlushKeys
from foqs.core.flush.operation import Leases
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.flush.writes import LeaseUpdate, RowChanges, Writes
from foqs.core.items.item import Row, State, TopicName
from foqs.core.items.life import Effect, Event, EventKind, FlushContext, Transition, apply_event
from foqs.core.timing.due_timers import DueTimers, TimerEntry, timer_entry

FindRow = Callable[[int], Row | None]

EQUAL_CHANGES_MIN: Final = 4
"""Fewer rows with equal changes do not get a statement of their own."""


@dataclass(slots=True)
class FlushPlan:
    """The writes and the results of one flush, as absolute values. An old row is the row before the flush.

    Attributes:
        batch: the operations that it carries out.
        keys: the idempotency keys: which are in use, and the records that it adds.
        deleted: old rows to delete, by kind of event.
        changed: (kind, old row, new row).
        moved: (old row, row of the new item). The payload is there if the old row had it; the store copies it.
        leased: the old rows and the new rows of leases, place by place.
        leases: numbers of the leased rows, by (due_ms, token, attempt, first_delivered_at_ms). The last is None for
            rows that were delivered before: they keep theirs.
        inserted: new rows; some of them may be leased already.
        timed: the inserted rows that had a due before any of them was leased directly.
        timers_added, timers_removed: entries of the timer table that other rows get and lose.
        direct_lease_ends: numbers of the new rows that are leased already, by due.
        results: for each part of the batch, the results of its entries. Direct deliveries come first, so that
            waiting dequeues get their items before the enqueues get their replies.
        unread: (part, place, row): leases that are not made from this place on, because the row's payload
            is longer than the operation's `read_bytes`, so it was not read.
        direct_count: items that are delivered directly.
        superseded_later: by number, events that supersede items of runs after this flush, because another event of theirs
            comes first.
        purged: old rows to delete that a purge marker covers.
        markers_set, markers_cleared: purge markers to set and to clear.
        topics: topics of the inserted and moved items, by namespace.
        topics_added, topics_removed: changes of the topics table.
    """

    batch: Batch = field(compare=False)
    keys: FlushKeys = field(compare=False)
    deleted: dict[EventKind, list[Row]] = field(default_factory=dict)
    changed: list[tuple[EventKind, Row, Row]] = field(default_factory=list)
    moved: list[tuple[Row, Row]] = field(default_factory=list)
    leased: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    leases: dict[tuple[int, int, int, int | None], list[int]] = field(default_factory=dict)
    inserted: list[Row] = field(default_factory=list)
    timed: list[Row] = field(default_factory=list)
    timers_added: list[TimerEntry] = field(default_factory=list)
    timers_removed: list[TimerEntry] = field(default_factory=list)
    direct_lease_ends: dict[int, list[int]] = field(default_factory=dict)
    results: list[tuple[Part[Any], Sequence[Any]]] = field(default_factory=list)
    unread: list[tuple[Part[Leases], int, Row]] = field(default_factory=list)
    direct_count: int = 0
    superseded_later: dict[int, Event] = field(default_factory=dict)
    purged: list[Row] = field(default_factory=list)
    markers_set: list[PurgeMarker] = field(default_factory=list)
    markers_cleared: list[PurgeMarker] = field(default_factory=list)
    topics: dict[str, set[str]] = field(default_factory=dict)
    topics_added: list[TopicName] = field(default_factory=list)
    topics_removed: list[TopicName] = field(default_factory=list)

    def apply(self, event: Event, row: Row | None, context: FlushContext, timers: DueTimers) -> Transition:
        """Apply an event to its row by the table of transitions, and add what it changes."""
        transition = apply_event(event, row, context)
        if transition.effect is Effect.DELETED:
            assert row is not None
            self.deleted.setdefault(event.kind, []).append(row)
            self.change_timer(timer_entry(row), None)
        elif transition.row is not None:
            assert row is not None
            if transition.row.due_ms is not None:
                transition.row.due_ms = timers.raise_to_watermark(transition.row.due_ms)
            self.changed.append((event.kind, row, transition.row))
            self.change_timer(timer_entry(row), timer_entry(transition.row))
        return transition

    def change_timer(self, old: TimerEntry | None, new: TimerEntry | None) -> None:
        """Replace the old timer entry of an item by the new one."""
        if old != new:
            if old is not None:
                self.timers_removed.append(old)
            if new is not None:
                self.timers_added.append(new)

    def writes(self) -> Writes:
        """Return the changes of the tables."""
        equal_changes, updates = _group_equal_changes(self.changed)
        return Writes(
            deletes=self.deleted_numbers(),
            updates=updates,
            moves=[(old.id, new) for old, new in self.moved],
            inserts=self.inserted,
            leases=[
                *(
                    LeaseUpdate(due_ms, token, attempt, ids, State.LEASED, first_ms)
                    for (due_ms, token, attempt, first_ms), ids in self.leases.items()
                ),
                *equal_changes,
            ],
            topics_added=self.topics_added,
            topics_removed=self.topics_removed,
            idempotency_keys_added=self.keys.records_added(),
            idempotency_keys_replaced=self.keys.records_replaced(),
            key_slots_added=self.batch.key_slots,
            purge_markers_added=self.markers_set,
            purge_markers_removed=self.markers_cleared,
            timers_added=self.new_timers(),
            timers_removed=self.timers_removed,
            changes=RowChanges(self.leased, self.changed, self.deleted, self.inserted, self.moved, self.purged),
        )

    def deleted_numbers(self) -> list[int]:
        """Return the numbers of all rows that the flush deletes."""
        return [row.id for rows in (*self.deleted.values(), self.purged) for row in rows]

    def new_timers(self) -> list[TimerEntry]:
        """Return the entries that the flush adds to the timer table."""
        if not self.timed:
            return self.timers_added
        # A row with a TTL may have been leased since it was inserted.
        return [*self.timers_added, *[entry for entry in map(timer_entry, self.timed) if entry is not None]]

    def lease_ends(self) -> dict[int, list[int]]:
        """Return the numbers of all rows whose lease begins or is extended, by its end."""
        ends = {due_ms: list(numbers) for due_ms, numbers in self.direct_lease_ends.items()}
        for (due_ms, *_), numbers in self.leases.items():
            ends.setdefault(due_ms, []).extend(numbers)
        for _, _, row in self.changed:
            if row.state is State.LEASED and row.due_ms is not None:
                ends.setdefault(row.due_ms, []).append(row.id)
        return ends

    @property
    def can_notify_before_apply(self) -> bool:
        """Whether callers may be notified before the memory is updated: no reply depends on what this flush changes in it."""
        if self.batch.leases or self.superseded_later:
            return False
        if not self.batch.direct_deliveries:
            return True
        added = [*self.inserted, *(new for _, new in self.moved)]
        return not self.changed and State.READY not in {row.state for row in added}


def _group_equal_changes(changed: Sequence[tuple[EventKind, Row, Row]]) -> tuple[list[LeaseUpdate], list[Row]]:
    """Split changed rows into (groups of due or superseded rows with equal changes, the others).

    Such a row changes only in the columns of a lease, and items that were delayed or
    leased together change equally. One statement for all of them costs the database
    a fifth of one that has values for each row.
    """
    groups: dict[tuple[int | None, int, int, State, int | None], list[Row]] = {}
    updates: list[Row] = []
    for kind, old, row in changed:
        if kind in (EventKind.DUE, EventKind.SUPERSEDE):
            first_ms = row.first_delivered_at_ms if old.first_delivered_at_ms is None else None
            groups.setdefault((row.due_ms, row.token, row.attempt, row.state, first_ms), []).append(row)
        else:
            updates.append(row)
    leases: list[LeaseUpdate] = []
    for (due_ms, token, attempt, state, first_ms), rows in groups.items():
        if len(rows) < EQUAL_CHANGES_MIN:
            updates += rows
        else:
            leases.append(LeaseUpdate(due_ms, token, attempt, [row.id for row in rows], state, first_ms))
    return leases, updates
