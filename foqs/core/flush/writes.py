"""The changes of the tables that one flush writes: all that a store has to know of it.

Always true: every value is absolute, so a flush that is run again writes the same. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from foqs.core.flush.fence import Position
from foqs.core.flush.journal_rows import JournalRange, JournalRow
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs.core.items.item import Row, State, TopicName
from foqs.core.timing.due_timers import TimerEntry


@dataclass(slots=True)
class LeaseUpdate:
    """Rows that get equal values in the columns that a lease changes. The fields are named after these columns.

    `state` differs when a lease or delay ends.
    `first_delivered_at_ms`: of rows that were never delivered; None leaves the column as it is.
    """

    due_ms: int | None
    token: int
    attempt: int
    ids: list[int]
    state: State = State.LEASED
    first_delivered_at_ms: int | None = None


@dataclass(slots=True)
class RowChanges:
    """The rows of a flush before and after: what a store that journals has to know beside `Writes`.

    Each list is that of `FlushPlan` with the same name. An old row is the item before the flush.
    """

    leased: tuple[Sequence[Row], Sequence[Row]] = ((), ())
    changed: Sequence[tuple[object, Row, Row]] = ()
    deleted: Mapping[Any, Sequence[Row]] = field(default_factory=dict)
    inserted: Sequence[Row] = ()
    moved: Sequence[tuple[Row, Row]] = ()
    purged: Sequence[Row] = ()

    def numbers(self) -> set[int]:
        """Return the numbers of all items that exist before or after."""
        old = [*self.leased[0], *self.inserted, *self.purged, *chain.from_iterable(self.deleted.values())]
        old += [row for _, row, _ in self.changed]
        old += chain.from_iterable(self.moved)
        return {row.id for row in old}


@dataclass(slots=True)
class Writes:
    """The changes of one flush, as absolute values. A row is in at most one of the first five fields.

    - `deletes`, `leases` and `updates` of rows that do not exist change nothing.
    - `updates` hold whole rows; a store writes the mutable columns.
    - `moves` are (id, new row): the row with that id gets the id, the topic and the mutable columns of the new row.
      No other field changes the row.
    - `inserts` of an id that exists refuse the whole flush.
    - `timers_removed` are deleted if they exist, then `timers_added` are added if they
      do not: the entries of the timer table, (due_ms, id).
    - `topics_added` may be in the topics table already. A name that is also in
      `topics_removed` is in the table afterwards.
    - `idempotency_keys_added` of a key that exists refuse the whole flush;
      `idempotency_keys_replaced` replace the stored row.
    - After that, key rows that end from `idempotency_keys_expired_from_ms` to `idempotency_keys_expired_by_ms`
      are deleted, the oldest first, at most `idempotency_keys_expired_max`.
    - `key_slots_added` may be in the slots table already.
    - `purge_markers_removed` are deleted unless they were raised since;
      `purge_markers_added` replace the former marker of their topic.
    - First the rows of `journal_trimmed` are deleted, those of `journal_emptied` lose their payloads, and the reserve of
      the journal gets `journal_reserve_bytes`; 0: none, None: it stays. So what they free may be used. Then `journal_row`
      is added at the position of the flush. See `check_journal_writes`.
    """

    deletes: list[int] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)
    moves: list[tuple[int, Row]] = field(default_factory=list)
    inserts: list[Row] = field(default_factory=list)
    leases: list[LeaseUpdate] = field(default_factory=list)
    topics_added: list[TopicName] = field(default_factory=list)
    topics_removed: list[TopicName] = field(default_factory=list)
    idempotency_keys_added: list[IdempotencyKey] = field(default_factory=list)
    idempotency_keys_replaced: list[IdempotencyKey] = field(default_factory=list)
    idempotency_keys_expired_from_ms: int = 0
    idempotency_keys_expired_by_ms: int | None = None
    idempotency_keys_expired_max: int = 0
    key_slots_added: Sequence[int] = ()
    purge_markers_added: list[PurgeMarker] = field(default_factory=list)
    purge_markers_removed: list[PurgeMarker] = field(default_factory=list)
    timers_added: Sequence[TimerEntry] = ()
    timers_removed: Sequence[TimerEntry] = ()
    changes: RowChanges = field(default_factory=RowChanges)
    journal_row: JournalRow | None = None
    journal_trimmed: JournalRange | None = None
    journal_emptied: Sequence[Position] = ()
    journal_reserve_bytes: int | None = None
