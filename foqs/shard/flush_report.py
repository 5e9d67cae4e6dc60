"""Counts what the committed flushes of one shard did, and reports it to the metrics. Knows no memory."""

from __future__ import annotations

from collections import Counter
from typing import Final

from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.items.item import State
from foqs.core.items.life import EventKind
from foqs.shard.observer import ShardObserver

_DUE_KIND_IF_KEPT: Final = {State.DEFERRED: "deliver_after", State.LEASED: "lease"}
_DUE_KIND_IF_DELETED: Final = {
    State.DEFERRED: "ttl",
    State.READY: "ttl",
    State.LEASED: "lease",
    State.DEAD: "retention",
}
"""What has ended when a due row of a state is kept, or is deleted: the kinds of `due_counts`."""


class FlushReport:
    """Counts what the flushes of one ownership of a shard did, and reports it to the observer."""

    def __init__(self, shard: int, observer: ShardObserver) -> None:
        self._shard = shard
        self._observer = observer
        self.due_counts: Counter[str] = Counter()
        """Items that became due, by what ended."""
        self.keys_repeated = 0
        self.keys_in_conflict = 0
        self.rows_purged = 0
        """Rows that were deleted because of purge markers."""

    def add(self, plan: FlushPlan, seconds: float) -> None:
        """Report a committed flush, which took `seconds`."""
        observer = self._observer
        self.keys_repeated += plan.keys.repeat_count
        self.keys_in_conflict += plan.keys.conflict_count
        self.rows_purged += len(plan.purged)
        if plan.inserted:
            observer.items_enqueued(len(plan.inserted))
        leased = len(plan.leased[1]) + plan.direct_count
        if leased:
            observer.items_delivered(leased)
        if plan.moved:
            observer.items_moved(len(plan.moved))
        if plan.changed or plan.deleted:
            self._report_events(plan)
        observer.flush_committed(self._shard, len(plan.batch), seconds)

    def _report_events(self, plan: FlushPlan) -> None:
        observer = self._observer
        self.due_counts.update([_DUE_KIND_IF_KEPT[old.state] for kind, old, _ in plan.changed if kind is EventKind.DUE])
        self.due_counts.update([_DUE_KIND_IF_DELETED[row.state] for row in plan.deleted.get(EventKind.DUE, ())])
        tally = {kind: len(rows) for kind, rows in plan.deleted.items()}
        dead = 0
        for kind, old, new in plan.changed:
            if kind is not EventKind.DUE or old.state is not State.DEFERRED:
                tally[kind] = tally.get(kind, 0) + 1
            dead += new.state is State.DEAD and old.state is not State.DEAD
        # A superseded item was given back without an attempt, as a released one.
        tally[EventKind.RELEASE] = tally.get(EventKind.RELEASE, 0) + tally.pop(EventKind.SUPERSEDE, 0)
        reports = {
            EventKind.ACK: observer.items_acked,
            EventKind.NACK: observer.items_nacked,
            EventKind.RELEASE: observer.items_released,
            EventKind.DUE: observer.items_timed_out,
        }
        for kind, items in tally.items():
            if items and kind in reports:
                reports[kind](items)
        if dead:
            observer.items_dead_lettered(dead)
