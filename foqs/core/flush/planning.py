"""Decides what one flush does, as a pure function of its batch.

A number occurs in a batch at most once. The store calls `plan_flush` with the rows
that it read and those in the row cache, possibly in another thread; it changes only
the plan that it returns. The usual ack, delivery and insert are decided here,
because they are most of the work of a queue. All other cases go to `life.apply_event`,
whose table is the specification of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, Final

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.completion_planning import decide_completions
from foqs.core.flush.flush_keys import NO_KEYS, FlushKeys
from foqs.core.flush.flush_plan import FindRow, FlushPlan
from foqs.core.flush.moves import Moves
from foqs.core.flush.operation import ALREADY_GONE, Acks, Dues, Leases
from foqs.core.flush.purge_markers import DeletePurgedRows, PurgeMarkers, SetPurgeMarker
from foqs.core.flush.replay_lookup import ReplayLookup
from foqs.core.flush.run_ends import NO_RUN_ENDS, RunEnds, decide_ends_together, decide_run_ends
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName, move_digest, move_key
from foqs.core.items.item import TIME_MS_MAX, NewItem, Row, State
from foqs.core.items.item_with_history import restored_row
from foqs.core.items.life import Effect, Event, EventKind, FlushContext, Transition, apply_event, new_row
from foqs.core.timing.due_timers import DueTimers, timer_entry

NO_PURGE_MARKERS: Final = PurgeMarkers()
"""No topic is being purged."""


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
    decided = decide_run_ends(run_ends, find_row, context, timers, plan) if run_ends else {}
    if batch.dues and context.strict_topics:
        decide_ends_together(batch.dues, find_row, context, timers, plan, decided)
    for part in batch.events:
        events = part.operation.events[part.start : part.stop]
        if lease_ms_by_number:
            events = [_with_waiter(event, lease_ms_by_number) for event in events]
        transitions = [
            plan.apply(event, find_row(event.id), context, timers) if event.id not in decided else decided[event.id]
            for event in events
        ]
        plan.results.append((part, list(map(entry_result, transitions))))
    if batch.moves:
        _decide_moves(batch.moves, find_row, context, timers, plan)
    if batch.completions:
        decide_completions(batch.completions, find_row, context, purge_markers, plan)
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
                plan.change_timer(timer_entry(row), timer_entry(new))
        plan.results.append((part, results))


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
                plan.apply(Event(EventKind.DELIVER, number), row, context, timers)
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
