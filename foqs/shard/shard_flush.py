"""One flush of a shard: its batch, the decision, and its writes.

Always true: the writes follow from the batch and the decision alone. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foqs.core.flush.batch import Batch
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs.core.items.item import Row, State, TopicName
from foqs.core.items.life import EventKind
from foqs.store.port import LeaseUpdate, Writes

EQUAL_CHANGES_MIN: Final = 4
"""Fewer rows with equal changes do not get a statement of their own."""


@dataclass(slots=True)
class Flush:
    """A batch and the decision on it."""

    batch: Batch
    plan: FlushPlan
    topics_added: list[TopicName]
    topics_removed: list[TopicName]

    def writes(self) -> Writes:
        """Return the changes of the tables."""
        plan = self.plan
        equal_changes, updates = _group_equal_changes(plan.changed)
        return Writes(
            deletes=[row.id for rows in (*plan.deleted.values(), plan.purged) for row in rows],
            updates=updates,
            inserts=plan.inserted,
            leases=[*(LeaseUpdate(*values, ids) for values, ids in plan.leases.items()), *equal_changes],
            topics_added=self.topics_added,
            topics_removed=self.topics_removed,
            idempotency_keys_added=_idempotency_key_rows(plan.keys),
            idempotency_keys_replaced=_idempotency_key_rows(plan.keys_replaced),
            key_slots_added=self.batch.key_slots,
            purge_markers_added=plan.markers_set,
            purge_markers_removed=plan.markers_cleared,
        )

    @property
    def can_notify_before_apply(self) -> bool:
        """Whether callers may be notified before the memory is updated: no reply depends on what this flush changes in it."""
        batch, plan = self.batch, self.plan
        if batch.leases:
            return False
        if not batch.direct_deliveries:
            return True
        return not plan.changed and State.READY not in {row.state for row in plan.inserted}


def _group_equal_changes(changed: Sequence[tuple[EventKind, Row, Row]]) -> tuple[list[LeaseUpdate], list[Row]]:
    """Split changed rows into (groups of due rows with equal changes, the others).

    A due row changes only in the columns of a lease, and items that were delayed or
    leased together change equally. One statement for all of them costs the database
    a fifth of one value for each.
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
