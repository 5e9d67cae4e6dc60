"""One flush of a shard: what was decided, what it writes, and what the shard's memory is asked and told of it.

Always true: what it writes follows from its batch and from what was decided, and from
nothing else. No input or output of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.decision import Decision
from foqs.core.flush.purge_markers import PurgeMarkers
from foqs.core.flush.work import HandOut
from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs.core.items.item import Row, State, TopicName
from foqs.core.items.life import EventKind
from foqs.core.memory.row_cache import RowCache
from foqs.core.timing.due_timers import DueTimers
from foqs.store.port import LeaseUpdate, Writes

EQUAL_CHANGES_MIN: Final = 4
"""Fewer rows that change alike are no statement of their own."""


@dataclass(slots=True)
class Flush:
    """A batch and what was decided."""

    batch: Batch
    decision: Decision
    topics_added: list[TopicName]
    topics_removed: list[TopicName]

    def writes(self) -> Writes:
        """What it changes in the tables."""
        decision = self.decision
        alike, updates = _group_equal_changes(decision.changed)
        return Writes(
            deletes=[row.id for rows in (*decision.deleted.values(), decision.purged) for row in rows],
            updates=updates,
            inserts=decision.inserted,
            leases=[*(LeaseUpdate(*values, ids) for values, ids in decision.leases.items()), *alike],
            topics_added=self.topics_added,
            topics_removed=self.topics_removed,
            idempotency_keys_added=_idempotency_key_rows(decision.keys),
            idempotency_keys_replaced=_idempotency_key_rows(decision.keys_replaced),
            key_slots_added=self.batch.key_slots,
            purge_markers_added=decision.markers_set,
            purge_markers_removed=decision.markers_cleared,
        )

    @property
    def can_notify_before_apply(self) -> bool:
        """Before the memory follows: no reply tells what is left, or looks for more, of what the memory does not know."""
        batch, decision = self.batch, self.decision
        if batch.hand_outs:
            return False
        if not batch.direct_deliveries:
            return True
        return not decision.changed and State.READY not in {row.state for row in decision.inserted}


class ShardMemoryPort(Protocol):
    """What the shard's memory tells the writer, and is told by it. Called between two flushes only."""

    def assign_to_waiters(self, batch: Batch) -> list[HandOut]:
        """Hand-outs, for waiters, of items that this batch is about to insert, or finds due."""
        ...

    @property
    def cache(self) -> RowCache:
        """Rows that need not be read."""
        ...

    @property
    def timers(self) -> DueTimers:
        """Which rows are due, as far as they were looked for."""
        ...

    @property
    def purge_markers(self) -> PurgeMarkers:
        """What is purged."""
        ...

    def place_purge_markers(self, batch: Batch) -> None:
        """Says up to which number the cuts of this batch reach: it was just sealed."""
        ...

    def topics_to_add(self, topics: Mapping[str, set[str]]) -> list[TopicName]:
        """Those that are not in the topics table yet. Pure: may be asked in another thread, and again."""
        ...

    def topics_to_remove(self, topics: Mapping[str, set[str]], now_ms: int) -> list[TopicName]:
        """Those in the topics table that have no item, nor will have with these. Pure, likewise."""
        ...

    def record_results(self, flush: Flush, callbacks: MutableSequence[Callable[[], None]]) -> None:
        """A flush is known to be committed. What tells its callers is added to `callbacks`, and to be called soon; `applied` follows."""
        ...

    def on_callers_notified(self) -> None:
        """Callers were told, before `applied`."""
        ...

    def apply(self, flush: Flush, callbacks: MutableSequence[Callable[[], None]]) -> None:
        """Brings the memory up to the flush. Who else is to hear of it is added to `callbacks`, likewise, whatever this raises."""
        ...

    def on_refused(self, part: Part[Any]) -> None:
        """The database refused this one event for good; its caller has been told."""
        ...

    def on_store_recovered(self) -> None:
        """The store answers after it had not."""
        ...

    def on_batch_sealed(self) -> None:
        """Less waits to be leased: a flush was sealed."""
        ...


def _group_equal_changes(changed: Sequence[tuple[EventKind, Row, Row]]) -> tuple[list[LeaseUpdate], list[Row]]:
    """(due rows that change alike, many at once; the other changed rows).

    What has come due changes in nothing but what a lease changes, and what was
    delayed or leased together changes alike: a statement for all costs the
    database a fifth of what a value for each does.
    """
    groups: dict[tuple[int | None, int, int, State], list[Row]] = {}
    updates: list[Row] = []
    for kind, _, row in changed:
        if kind is EventKind.DUE:
            groups.setdefault((row.due_ms, row.token, row.attempt, row.state), []).append(row)
        else:
            updates.append(row)
    leases: list[LeaseUpdate] = []
    for (due_ms, token, attempt, state), rows in groups.items():
        if len(rows) < EQUAL_CHANGES_MIN:
            updates += rows
        else:
            leases.append(LeaseUpdate(due_ms, token, attempt, [row.id for row in rows], state))
    return leases, updates


def _idempotency_key_rows(keys: Mapping[str, Mapping[bytes, IdempotencyKey]]) -> list[IdempotencyKey]:
    return [row for found in keys.values() for row in found.values()]
