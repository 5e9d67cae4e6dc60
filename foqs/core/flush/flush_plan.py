"""Decides what one flush does, as a pure function of its batch, in columns.

A number occurs in a batch at most once. The store calls `plan_flush` with the rows
that it read and those in the row cache, possibly in another thread; it changes only
the plan that it returns. The usual ack, delivery and insert are decided here,
because they are most of the work of a queue. All other cases go to `life.apply_event`,
whose table is the specification of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.completions import CompletionEntry, Completions, NewNumbers
from foqs.core.flush.flush_keys import NO_KEYS, FlushKeys
from foqs.core.flush.moves import Moves
from foqs.core.flush.operation import ALREADY_GONE, Acks, Dues, Leases
from foqs.core.flush.purge_markers import DeletePurgedRows, PurgeMarker, PurgeMarkers, SetPurgeMarker
from foqs.core.flush.replay_lookup import ReplayLookup
from foqs.core.flush.run_ends import NO_RUN_ENDS, RunEnds
from foqs.core.flush.writes import LeaseUpdate, RowChanges, Writes
from foqs.core.groups.places import run_key
from foqs.core.items.idempotency_keys import (
    IdempotencyKey,
    KeyName,
    completed_item_key,
    completion_key,
    move_digest,
    move_key,
)
from foqs.core.items.item import TIME_MS_MAX, KeyedItem, NewItem, Row, State, TopicName
from foqs.core.items.item_with_history import restored_row
from foqs.core.items.life import Effect, Event, EventKind, FlushContext, Transition, apply_event, new_row
from foqs.core.timing.due_timers import DueTimers, TimerEntry, timer_entry
from foqs_contract.errors import FoqsError, StaleLease

FindRow = Callable[[int], Row | None]

EQUAL_CHANGES_MIN: Final = 4
"""Fewer rows with equal changes do not get a statement of their own."""

NO_PURGE_MARKERS: Final = PurgeMarkers()
"""No topic is being purged."""


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


def plan_flush(
    batch: Batch,
    find_row: FindRow,
    context: FlushContext,
    timers: DueTimers,
    idempotency_keys: Mapping[KeyName, IdempotencyKey] = NO_KEYS,
    purge_markers: PurgeMarkers = NO_PURGE_MARKERS,
    run_ends: RunEnds = NO_RUN_ENDS,
) -> FlushPlan:
    """Return the plan of a batch: each event applies to the row that `find_row` returns, and new items are inserted.

    A new item whose key is in `idempotency_keys`, and in use, is not inserted. Items that `purge_markers` cover count as
    gone. A marker that this batch sets counts from the next batch on.
    """
    plan = FlushPlan(batch, FlushKeys(context, idempotency_keys))
    if purge_markers:
        find_row = purge_markers.hide_purged(find_row)
    if batch.acks:
        _decide_acks(batch.acks, find_row, context, plan)
    lease_ms_by_number = batch.dues_with_waiter()
    decided = _decide_run_ends(run_ends, find_row, context, timers, plan) if run_ends else {}
    if batch.dues and context.strict_topics:
        _decide_ends_together(batch.dues, find_row, context, timers, plan, decided)
    for part in batch.events:
        events = part.operation.events[part.start : part.stop]
        if lease_ms_by_number:
            events = [_with_waiter(event, lease_ms_by_number) for event in events]
        transitions = [
            _decide_event(event, find_row(event.id), context, timers, plan)
            if event.id not in decided
            else decided[event.id]
            for event in events
        ]
        plan.results.append((part, list(map(entry_result, transitions))))
    if batch.moves:
        _decide_moves(batch.moves, find_row, context, timers, plan)
    if batch.completions:
        _decide_completions(batch.completions, find_row, context, purge_markers, plan)
    if batch.dues:
        _remove_stale_timers(batch.dues, find_row, plan)
    if batch.leases:
        _decide_leases(batch.leases, find_row, context, timers, plan)
    if batch.inserts:
        _decide_inserts(batch, context, purge_markers, plan)
    if plan.inserted:
        _time_inserted(timers, plan)
    if batch.direct_deliveries:
        _decide_direct_deliveries(batch.direct_deliveries, context, timers, plan)
    if batch.replay_lookups:
        _decide_replay_lookups(batch.replay_lookups, plan)
    if batch.purges:
        _decide_purges(batch, plan)
    return plan


def entry_result(transition: Transition) -> Any:
    """Return the caller's result of a transition: None, ALREADY_GONE or an error."""
    if transition.error is not None:
        return transition.error
    return ALREADY_GONE if transition.already_gone else None


def _decide_acks(parts: Sequence[Part[Acks]], find_row: FindRow, context: FlushContext, plan: FlushPlan) -> None:
    deleted = plan.deleted.setdefault(EventKind.ACK, [])
    leased = State.LEASED
    for part in parts:
        operation = part.operation
        namespace, start = operation.namespace, part.start
        tokens = operation.tokens
        if part.count < len(tokens):
            tokens = tokens[start : part.stop]
        results: list[Any] = [None] * part.count
        for place, (number, token) in enumerate(zip(part.numbers, tokens, strict=True)):
            row = find_row(number)
            if (
                row is not None
                and (token == row.token or token == -row.token)  # negative: the lease was nacked or released
                and token > 0
                and row.namespace == namespace
            ):
                deleted.append(row)
                if row.state is not leased and row.due_ms is not None:
                    plan.timers_removed.append((row.due_ms, number))
            else:
                results[place] = entry_result(apply_event(Event(EventKind.ACK, number, namespace, token), row, context))
        plan.results.append((part, results))


def _decide_event(
    event: Event, row: Row | None, context: FlushContext, timers: DueTimers, plan: FlushPlan
) -> Transition:
    transition = apply_event(event, row, context)
    if transition.effect is Effect.DELETED:
        assert row is not None
        plan.deleted.setdefault(event.kind, []).append(row)
        _change_timer(timer_entry(row), None, plan)
    elif transition.row is not None:
        assert row is not None
        if transition.row.due_ms is not None:
            transition.row.due_ms = timers.raise_to_watermark(transition.row.due_ms)
        plan.changed.append((event.kind, row, transition.row))
        _change_timer(timer_entry(row), timer_entry(transition.row), plan)
    return transition


def _decide_run_ends(
    run_ends: RunEnds, find_row: FindRow, context: FlushContext, timers: DueTimers, plan: FlushPlan
) -> dict[int, Transition]:
    """Decide the events of items of runs that may end early, and supersede those behind one that does. Return all by number."""
    decided: dict[int, Transition] = {}
    for number, event in run_ends.events.items():
        if number in decided:
            continue
        row = find_row(number)
        if event.kind is EventKind.DUE and _is_behind(run_ends.ahead[number], plan):
            if not _ends_lease(apply_event(event, row, context)):
                continue
            event = Event(EventKind.SUPERSEDE, number)
        decided[number] = transition = _decide_event(event, row, context, timers, plan)
        if row is None or row.state is not State.LEASED or not _ends_lease(transition):
            continue
        is_unbegun = event.kind is EventKind.RELEASE
        for behind in run_ends.behind[number]:
            if behind not in decided:
                supersede = Event(EventKind.SUPERSEDE, behind, is_unbegun=is_unbegun)
                decided[behind] = _decide_event(supersede, find_row(behind), context, timers, plan)
        for behind in run_ends.later.get(number, ()):
            plan.superseded_later[behind] = Event(EventKind.SUPERSEDE, behind, token=row.token, is_unbegun=is_unbegun)
    return decided


def _decide_ends_together(
    parts: Sequence[Part[Dues]],
    find_row: FindRow,
    context: FlushContext,
    timers: DueTimers,
    plan: FlushPlan,
    decided: dict[int, Transition],
) -> None:
    """Decide the events of leases of one run that end together by their time: those behind the first one are superseded.

    Their rows alone say this, so it holds also after a takeover, before the owner knows the groups.
    """
    runs: dict[tuple[TopicName, bytes, int], list[Row]] = {}
    for part in parts:
        for number in part.numbers:
            row = None if number in decided else find_row(number)
            if row is None or row.state is not State.LEASED or row.item_group is None:
                continue
            topic = (row.namespace, row.topic)
            if topic in context.strict_topics and row.due_ms is not None and row.due_ms <= context.now_ms:
                runs.setdefault((topic, row.item_group, row.token), []).append(row)
    for run in runs.values():
        if len(run) > 1:
            run.sort(key=run_key)
            for place, row in enumerate(run):
                event = Event(EventKind.SUPERSEDE if place else EventKind.DUE, row.id)
                decided[row.id] = _decide_event(event, row, context, timers, plan)


def _is_behind(ahead: Sequence[int], plan: FlushPlan) -> bool:
    """Return whether one of these items of a run is not settled, so that the one behind them was not begun."""
    settled = {row.id for rows in plan.deleted.values() for row in rows} if ahead else ()
    return any(number not in settled for number in ahead)


def _ends_lease(transition: Transition) -> bool:
    if transition.row is None:
        return transition.effect is Effect.DELETED
    return transition.row.state is not State.LEASED


def _decide_moves(
    parts: Sequence[Part[Moves]],
    find_row: FindRow,
    context: FlushContext,
    timers: DueTimers,
    plan: FlushPlan,
) -> None:
    keys = plan.keys
    for part in parts:
        operation = part.operation
        namespace = operation.namespace
        incarnation = context.retry_policies[namespace].incarnation
        results: list[Any] = []
        for place in range(part.start, part.stop):
            event = operation.events[place]
            row, key = find_row(event.id), move_key(event.id)
            digest = move_digest(event.topic, incarnation)
            record = keys.record_in_use(namespace, key) if row is None else None
            if record is not None:
                results.append(keys.repeat_result(record, digest, "this item was moved to another topic"))
                continue
            transition = apply_event(event, row, context)
            results.append(transition.error)
            if transition.effect is Effect.MOVED:
                assert row is not None and transition.row is not None
                new = transition.row
                new.id = operation.new_numbers[place]
                if new.due_ms is not None:
                    new.due_ms = timers.raise_to_watermark(new.due_ms)
                plan.moved.append((row, new))
                plan.topics.setdefault(namespace, set()).add(new.topic)
                keys.add(namespace, key, new.id, digest)
                _change_timer(timer_entry(row), timer_entry(new), plan)
        plan.results.append((part, results))


def _decide_completions(
    parts: Sequence[Part[Completions]],
    find_row: FindRow,
    context: FlushContext,
    purge_markers: PurgeMarkers,
    plan: FlushPlan,
) -> None:
    """Ack each item and insert those that follow from it, or do neither."""
    for part in parts:
        operation = part.operation
        results: list[Any] = []
        for place in range(part.start, part.stop):
            completion = operation.entries[place]
            row = find_row(completion.number)
            if row is None:
                results.append(_repeat_of_completion(operation.namespace, completion, plan.keys))
            else:
                own_number, accepted_ms = operation.own_numbers[place], operation.accepted_ms
                results.append(
                    _complete(
                        operation.namespace, completion, row, own_number, accepted_ms, context, purge_markers, plan
                    )
                )
        plan.results.append((part, results))


def _complete(
    namespace: str,
    completion: CompletionEntry,
    row: Row,
    own_number: int,
    accepted_ms: int,
    context: FlushContext,
    purge_markers: PurgeMarkers,
    plan: FlushPlan,
) -> Any:
    """Complete the item of a row. Return `NewNumbers`, or the error for which nothing is written."""
    number, keys = completion.number, plan.keys
    error = apply_event(Event(EventKind.ACK, number, namespace, completion.token), row, context).error
    if error is not None:
        return error
    numbers = keys.add_of_completion(namespace, completion.items, own_number + 1, completion.first_place)
    if isinstance(numbers, FoqsError):
        return numbers
    keys.add(namespace, completion_key(number), own_number, completion.digest)
    plan.deleted.setdefault(EventKind.ACK, []).append(row)
    _change_timer(timer_entry(row), None, plan)
    topics = plan.topics.setdefault(namespace, set())
    for place, item in enumerate(completion.items):
        if numbers[place] == own_number + 1 + place:
            # As with inserts, a covered item was purged before it was written: its flush was refused and is repeated.
            if numbers[place] > purge_markers.last_number((namespace, item.topic)):
                plan.inserted.append(new_row(item, numbers[place], accepted_ms, context.now_ms))
                topics.add(item.topic)
        else:
            keys.repeat_count += 1
            keys.add(namespace, completed_item_key(number, place), numbers[place], completion.digest)
    return NewNumbers(numbers, False)


def _repeat_of_completion(namespace: str, completion: CompletionEntry, keys: FlushKeys) -> Any:
    """Return the numbers that an earlier attempt wrote, or the error of a completion whose item is gone without its record."""
    number = completion.number
    record = keys.record_in_use(namespace, completion_key(number))
    if record is None or record.digest != completion.digest:
        return StaleLease(
            "this item is gone, and not by this completion as far as is remembered: another consumer may have finished it, "
            "or it was cancelled or purged; nothing was written"
        )
    keys.repeat_count += 1
    numbers = list(range(record.item_id + 1, record.item_id + 1 + len(completion.items)))
    for place, item in enumerate(completion.items):
        if isinstance(item, KeyedItem):
            repeated = keys.record_in_use(namespace, completed_item_key(number, place))
            if repeated is not None:
                numbers[place] = repeated.item_id
    return NewNumbers(numbers, True)


def _change_timer(old: TimerEntry | None, new: TimerEntry | None, plan: FlushPlan) -> None:
    if old != new:
        if old is not None:
            plan.timers_removed.append(old)
        if new is not None:
            plan.timers_added.append(new)


def _remove_stale_timers(parts: Sequence[Part[Dues]], find_row: FindRow, plan: FlushPlan) -> None:
    """Remove the timer entries that a scan found and whose rows are gone or have another due."""
    for part in parts:
        for number, due_ms in zip(part.numbers, part.operation.timer_dues[part.start : part.stop], strict=False):
            row = find_row(number)
            if row is None or timer_entry(row) != (due_ms, number):
                plan.timers_removed.append((due_ms, number))


def _with_waiter(event: Event, lease_ms_by_number: Mapping[int, int | None]) -> Event:
    """Return a DUE event as one with a waiter, if its item is delivered directly."""
    if event.kind is not EventKind.DUE or event.id not in lease_ms_by_number:
        return event
    return Event(EventKind.DUE, event.id, lease_ms=lease_ms_by_number[event.id], has_waiter=True)


def _decide_leases(
    parts: Sequence[Part[Leases]], find_row: FindRow, context: FlushContext, timers: DueTimers, plan: FlushPlan
) -> None:
    now_ms, token = context.now_ms, context.token
    ready = State.READY
    due_ms_min = timers.raise_to_watermark(0)
    old_rows, new_rows = plan.leased
    # Most leases of a flush are equal, so the last end and the last group are reused.
    last_lease_ms, due_ms = -1, 0
    last_group: tuple[int, int, int | None] = (0, 0, None)
    numbers: list[int] = []
    for part in parts:
        requested_ms = part.operation.lease_ms
        results: list[Row | None] = [None] * part.count
        for place, number in enumerate(part.numbers):
            row = find_row(number)
            if row is None or row.state is not ready:
                continue
            if row.expires_at_ms is not None and row.expires_at_ms <= now_ms:
                _decide_event(Event(EventKind.DELIVER, number), row, context, timers, plan)
                continue
            if row.payload is None:
                # The payloads of the following rows were not read either.
                plan.unread.append((part, part.start + place, row))
                break
            lease_ms = row.lease_ms if requested_ms is None else requested_ms
            if lease_ms != last_lease_ms:
                last_lease_ms, due_ms = lease_ms, _lease_end_ms(lease_ms, now_ms, due_ms_min)
            new = results[place] = row.with_lease(due_ms, token, now_ms)
            old_rows.append(row)
            new_rows.append(new)
            first_ms = now_ms if row.first_delivered_at_ms is None else None
            if row.due_ms is not None:
                plan.timers_removed.append((row.due_ms, number))
            if last_group != (due_ms, new.attempt, first_ms):
                last_group = (due_ms, new.attempt, first_ms)
                numbers = plan.leases.setdefault((due_ms, token, new.attempt, first_ms), [])
            numbers.append(number)
        plan.results.append((part, results))


def _lease_end_ms(lease_ms: int, now_ms: int, due_ms_min: int) -> int:
    return max(due_ms_min, min(now_ms + lease_ms, TIME_MS_MAX))


def _decide_purges(batch: Batch, plan: FlushPlan) -> None:
    for part in batch.purges:
        operation = part.operation
        if isinstance(operation, SetPurgeMarker):  # the shard's counts give its result
            plan.markers_set.append(operation.marker)
            continue
        if isinstance(operation, DeletePurgedRows):
            rows = operation.rows[part.start : part.stop]
            plan.purged += rows
            plan.timers_removed += [entry for entry in map(timer_entry, rows) if entry is not None]
        else:
            plan.markers_cleared.append(operation.marker)
        plan.results.append((part, [None] * part.count))


def _decide_inserts(
    batch: Batch,
    context: FlushContext,
    purge_markers: PurgeMarkers,
    plan: FlushPlan,
) -> None:
    items: list[NewItem] = []
    numbers: list[int] = []
    accepted: list[int] = []
    restored: list[Row] = []
    keys = plan.keys
    for part in batch.inserts:
        operation = part.operation
        part_items = operation.items if part.count == len(operation.items) else operation.items[part.start : part.stop]
        part_numbers = part.numbers
        results: list[Any] = [None] * part.count
        if operation.has_idempotency_keys and not keys.add_if_all_new(part):
            results = keys.add_all_or_none(part) if operation.is_whole else keys.add_free(part)
            part_items = [item for item, result in zip(part_items, results, strict=True) if result is None]
            part_numbers = [number for number, result in zip(part_numbers, results, strict=True) if result is None]
        plan.results.append((part, results))
        if purge_markers:
            part_items, part_numbers = _not_purged(operation.namespace, part_items, part_numbers, purge_markers)
        if operation.is_restore:
            policy = context.retry_policies[operation.namespace]
            now_ms = context.now_ms
            restored += map(restored_row, part_items, part_numbers, repeat(now_ms), repeat(policy))  # type: ignore[arg-type]
        else:
            items += part_items
            numbers += part_numbers
            accepted += repeat(operation.accepted_ms, len(part_items))
        topics = plan.topics.get(operation.namespace)
        if topics is None:
            topics = plan.topics[operation.namespace] = set()
        topics.update([item.topic for item in part_items])
    inserted = plan.inserted
    inserted += map(new_row, items, numbers, accepted, repeat(context.now_ms))
    inserted += restored


def _time_inserted(timers: DueTimers, plan: FlushPlan) -> None:
    """Note which new rows have a due, and raise it to the watermark."""
    plan.timed = [row for row in plan.inserted if row.due_ms is not None]
    for row in plan.timed:
        assert row.due_ms is not None
        row.due_ms = timers.raise_to_watermark(row.due_ms)


def _not_purged(
    namespace: str, items: Sequence[NewItem], numbers: Sequence[int], purge_markers: PurgeMarkers
) -> tuple[Sequence[NewItem], Sequence[int]]:
    """Return the items, with their numbers, that no purge marker covers. The others were purged before they were written."""
    kept = [
        (item, number)
        for item, number in zip(items, numbers, strict=True)
        if number > purge_markers.last_number((namespace, item.topic))
    ]
    return [item for item, _ in kept], [number for _, number in kept]


def _decide_replay_lookups(parts: Sequence[Part[ReplayLookup]], plan: FlushPlan) -> None:
    # Called after the inserts, because their keys count as in use.
    keys = plan.keys
    for part in parts:
        operation = part.operation
        namespace = operation.namespace
        if operation.is_whole:
            repeated = keys.repeat_of_whole(namespace, operation.idempotency_keys, operation.digests)
            plan.results.append((part, operation.refusals if repeated is None else repeated))
            continue
        results: list[Any] = []
        for place in range(part.start, part.stop):
            record = keys.record_in_use(namespace, operation.idempotency_keys[place])
            if record is None:
                results.append(operation.refusals[place])
            else:
                results.append(keys.repeat_result(record, operation.digests[place]))
        plan.results.append((part, results))


def _decide_direct_deliveries(
    parts: Sequence[Part[Leases]], context: FlushContext, timers: DueTimers, plan: FlushPlan
) -> None:
    """Lease new items that are delivered directly. Due ones are leased already, by their DUE events.

    The result of an item that cannot be leased yet is None.
    """
    places = {row.id: place for place, row in enumerate(plan.inserted)}
    due = {new.id: new for kind, _, new in plan.changed if kind is EventKind.DUE and new.state is State.LEASED}
    now_ms, token, due_ms_min = context.now_ms, context.token, timers.raise_to_watermark(0)
    inserted, ready, leased = plan.inserted, State.READY, State.LEASED
    last_lease_ms, due_ms = -1, 0
    numbers: list[int] = []
    decided: list[tuple[Part[Any], Sequence[Any]]] = []
    for part in parts:
        requested_ms = part.operation.lease_ms
        rows: list[Row | None] = []
        for number in part.numbers:
            place = places.get(number)
            if place is None:  # a due item, if it still exists; or a repeat, which was not inserted
                rows.append(due.get(number))
                continue
            row = inserted[place]
            if row.state is ready:
                lease_ms = row.lease_ms if requested_ms is None else requested_ms
                if lease_ms != last_lease_ms:
                    last_lease_ms, due_ms = lease_ms, _lease_end_ms(lease_ms, now_ms, due_ms_min)
                    numbers = plan.direct_lease_ends.setdefault(due_ms, [])
                numbers.append(number)
                # The row is this plan's own: a change in place saves a copy for each item.
                row.state, row.due_ms, row.token, row.attempt = leased, due_ms, token, 1
                row.first_delivered_at_ms = now_ms
                rows.append(row)
            else:
                rows.append(None)
        plan.direct_count += len(rows) - rows.count(None)
        decided.append((part, rows))
    plan.results[:0] = decided


def chain_finders(*sources: Mapping[int, Row] | FindRow) -> FindRow:
    """Return a function that looks a row up in the sources, one after the other."""
    gets: list[FindRow] = [source.get if isinstance(source, Mapping) else source for source in sources]
    if len(gets) == 1:
        return gets[0]

    def find(number: int) -> Row | None:
        for get in gets:
            row = get(number)
            if row is not None:
                return row
        return None

    return find


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
