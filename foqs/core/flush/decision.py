"""What one flush does: pure judgement of its batch, in columns.

An id stands in a batch once at most. `judge_batch` is run by the store on the
rows it read, together with those that the writer remembers, possibly in another
thread; it touches nothing but its arguments. The usual ack, hand-out and insert
are decided right here, because they are most of what a queue does; whatever is
not usual goes to `life.judge`, whose table is the specification of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

from foqs.core.errors import KeyConflict
from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.purge_markers import DeletePurgedRows, PurgeMarker, PurgeMarkers, SetPurgeMarker
from foqs.core.flush.replay_lookup import ReplayLookup
from foqs.core.flush.work import ALREADY_GONE, Acks, HandOut, Inserts
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName, is_of_incarnation
from foqs.core.items.item import TIME_MS_MAX, NewItem, Row, State
from foqs.core.items.life import Effect, Event, EventKind, FlushContext, Transition, apply_event, new_row
from foqs.core.timing.due_timers import DueTimers

FindRow = Callable[[int], Row | None]

NO_KEYS: Final[Mapping[KeyName, IdempotencyKey]] = {}
"""No key's row was found, or looked for: all keys are believed new."""

NO_PURGE_MARKERS: Final = PurgeMarkers()
"""Nothing is being purged."""


@dataclass(slots=True)
class Decision:
    """What a flush decided, as absolute values.

    Attributes:
        gone: rows to delete, as they were, by kind of event.
        changed: (kind, the row as it was, as it will be).
        leased: rows as they were and as they will be, place by place.
        leases: ids by (due_ms, token, attempt) of the leased.
        inserted: new rows; of them some are leased already.
        results: for each part of the batch, what to settle it with.
        unread: hand-outs that end at a place, as the payload of the row that stands
            there is longer than what was set aside for it, and was not read.
        claimed: for each claim of the batch, its rows; None where one cannot be leased yet.
        purged: rows to delete, as they were, that a cut covers.
        cuts: those that are made.
        cuts_over: those that are over.
        topics: names of the inserted, each once.
        keys: rows of keys that are new; by namespace and key.
        keys_replaced: rows in place of those that are over.
        keys_repeated: new items that were not inserted, as their key named the same item before.
        keys_in_conflict: the same, where it named another item.
    """

    deleted: dict[EventKind, list[Row]] = field(default_factory=dict)
    changed: list[tuple[EventKind, Row, Row]] = field(default_factory=list)
    leased: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    leases: dict[tuple[int, int, int], list[int]] = field(default_factory=dict)
    inserted: list[Row] = field(default_factory=list)
    results: list[tuple[Part[Any], Sequence[Any]]] = field(default_factory=list)
    unread: list[tuple[Part[HandOut], int, Row]] = field(default_factory=list)
    directly_leased: list[list[Row | None]] = field(default_factory=list)
    purged: list[Row] = field(default_factory=list)
    markers_set: list[PurgeMarker] = field(default_factory=list)
    markers_cleared: list[PurgeMarker] = field(default_factory=list)
    topics: dict[str, set[str]] = field(default_factory=dict)
    keys: dict[str, dict[bytes, IdempotencyKey]] = field(default_factory=dict)
    keys_replaced: dict[str, dict[bytes, IdempotencyKey]] = field(default_factory=dict)
    key_repeat_count: int = field(default=0, compare=False)
    key_conflict_count: int = field(default=0, compare=False)


def decide_batch(
    batch: Batch,
    find_row: FindRow,
    context: FlushContext,
    timers: DueTimers,
    keys: Mapping[KeyName, IdempotencyKey] = NO_KEYS,
    purge_markers: PurgeMarkers = NO_PURGE_MARKERS,
) -> Decision:
    """Judges every event by the row that `find_row` has and admits every new item whose key is not taken by `keys`.

    What one of `purge_markers` covers is not there; a cut that this batch makes counts from the next on.
    """
    decision = Decision()
    if purge_markers:
        find_row = purge_markers.hide_purged(find_row)
    if batch.acks:
        _decide_acks(batch.acks, find_row, context, decision)
    wanted = batch.dues_with_waiter()
    for events in batch.events:
        work = events.work
        of = work.events[events.start : events.stop]
        if wanted:
            of = [_with_waiter(event, wanted) for event in of]
        decision.results.append(
            (events, [_decide_event(event, find_row(event.id), context, timers, decision) for event in of])
        )
    if batch.hand_outs:
        _decide_hand_outs(batch.hand_outs, find_row, context, timers, decision)
    if batch.inserts:
        _decide_inserts(batch, context, timers, keys, purge_markers, decision)
    if batch.direct_deliveries:
        _decide_direct_deliveries(batch.direct_deliveries, context, timers, decision)
    if batch.replay_lookups:
        _decide_replay_lookups(batch.replay_lookups, context, keys, decision)
    if batch.purges:
        _decide_purges(batch, decision)
    return decision


def entry_result(transition: Transition) -> Any:
    """A verdict as a caller is told it: None, ALREADY_GONE or an error."""
    if transition.error is not None:
        return transition.error
    return ALREADY_GONE if transition.already_gone else None


def _decide_acks(parts: Sequence[Part[Acks]], find_row: FindRow, context: FlushContext, decision: Decision) -> None:
    gone = decision.deleted.setdefault(EventKind.ACK, [])
    for part in parts:
        work = part.work
        namespace, start = work.namespace, part.start
        tokens = work.tokens
        if part.count < len(tokens):
            tokens = tokens[start : part.stop]
        results: list[Any] = [None] * part.count
        for place, (number, token) in enumerate(zip(part.numbers, tokens, strict=True)):
            row = find_row(number)
            if row is not None and token == row.token and token and row.namespace == namespace:
                gone.append(row)
            else:
                results[place] = entry_result(apply_event(Event(EventKind.ACK, number, namespace, token), row, context))
        decision.results.append((part, results))


def _decide_event(
    event: Event, row: Row | None, context: FlushContext, timers: DueTimers, decision: Decision
) -> Transition:
    verdict = apply_event(event, row, context)
    if verdict.effect is Effect.DELETED:
        assert row is not None
        decision.deleted.setdefault(event.kind, []).append(row)
    elif verdict.row is not None:
        assert row is not None
        if verdict.row.due_ms is not None:
            verdict.row.due_ms = timers.raise_to_watermark(verdict.row.due_ms)
        decision.changed.append((event.kind, row, verdict.row))
    return verdict


def _with_waiter(event: Event, lease_ms_by_number: Mapping[int, int | None]) -> Event:
    """A DUE event whose item a claim names, which gets it."""
    if event.kind is not EventKind.DUE or event.id not in lease_ms_by_number:
        return event
    return Event(EventKind.DUE, event.id, lease_ms=lease_ms_by_number[event.id], has_waiter=True)


def _decide_hand_outs(
    parts: Sequence[Part[HandOut]], find_row: FindRow, context: FlushContext, timers: DueTimers, decision: Decision
) -> None:
    now_ms, token = context.now_ms, context.token
    ready = State.READY
    lift_ms = timers.raise_to_watermark(0)
    olds, news = decision.leased
    # Most leases of a flush are equal: their end and their ids need not be looked for again.
    last_ms, due_ms = -1, 0
    last = (0, 0)
    ids: list[int] = []
    for part in parts:
        own_ms = part.work.lease_ms
        results: list[Row | None] = [None] * part.count
        for place, number in enumerate(part.numbers):
            row = find_row(number)
            if row is None or row.state is not ready:
                continue
            if row.expires_at_ms is not None and row.expires_at_ms <= now_ms:
                _decide_event(Event(EventKind.DELIVER, number), row, context, timers, decision)
                continue
            if row.payload is None:
                # Nor is any that comes after it in this order.
                decision.unread.append((part, part.start + place, row))
                break
            lease_ms = row.lease_ms if own_ms is None else own_ms
            if lease_ms != last_ms:
                last_ms, due_ms = lease_ms, _lease_end_ms(lease_ms, now_ms, lift_ms)
            new = results[place] = row.with_lease(due_ms, token)
            olds.append(row)
            news.append(new)
            if last != (due_ms, new.attempt):
                last = (due_ms, new.attempt)
                ids = decision.leases.setdefault((due_ms, token, new.attempt), [])
            ids.append(number)
        decision.results.append((part, results))


def _lease_end_ms(lease_ms: int, now_ms: int, due_ms_min: int) -> int:
    """`due_ms_min` is the least due that may be written."""
    return max(due_ms_min, min(now_ms + lease_ms, TIME_MS_MAX))


def _decide_purges(batch: Batch, decision: Decision) -> None:
    for part in batch.purges:
        work = part.work
        if isinstance(work, SetPurgeMarker):  # its result is for whoever counts to say
            decision.markers_set.append(work.marker)
            continue
        if isinstance(work, DeletePurgedRows):
            decision.purged += work.rows[part.start : part.stop]
        else:
            decision.markers_cleared.append(work.marker)
        decision.results.append((part, [None] * part.count))


def _decide_inserts(
    batch: Batch,
    context: FlushContext,
    timers: DueTimers,
    keys: Mapping[KeyName, IdempotencyKey],
    purge_markers: PurgeMarkers,
    decision: Decision,
) -> None:
    items: list[NewItem] = []
    numbers: list[int] = []
    for part in batch.inserts:
        work = part.work
        own = work.items if part.count == len(work.items) else work.items[part.start : part.stop]
        own_numbers = part.numbers
        results: list[Any] = [None] * part.count
        if work.has_keys and not _add_keys_if_all_new(part, context, keys, decision):
            results = _add_keys(part, context, keys, decision)
            own = [item for item, first in zip(own, results, strict=True) if first is None]
            own_numbers = [number for number, first in zip(own_numbers, results, strict=True) if first is None]
        decision.results.append((part, results))
        if purge_markers:
            own, own_numbers = _not_purged(work.namespace, own, own_numbers, purge_markers)
        items += own
        numbers += own_numbers
        names = decision.topics.get(work.namespace)
        if names is None:
            names = decision.topics[work.namespace] = set()
        names.update([item.topic for item in own])
    inserted = decision.inserted
    inserted += map(new_row, items, numbers, repeat(context.now_ms))
    if timers.watermark_ms is not None:
        for row in inserted:
            if row.due_ms is not None:
                row.due_ms = timers.raise_to_watermark(row.due_ms)


def _not_purged(
    namespace: str, items: Sequence[NewItem], numbers: Sequence[int], purge_markers: PurgeMarkers
) -> tuple[Sequence[NewItem], Sequence[int]]:
    """Those items, with their numbers, that were numbered after their topic's cut. The others were purged before they were written."""
    kept = [
        (item, number)
        for item, number in zip(items, numbers, strict=True)
        if number > purge_markers.last_number((namespace, item.topic))
    ]
    return [item for item, _ in kept], [number for _, number in kept]


def _add_keys_if_all_new(
    part: Part[Inserts], context: FlushContext, keys: Mapping[KeyName, IdempotencyKey], decision: Decision
) -> bool:
    """Takes all keys of a part at once, when each is new and stands in the flush once; else does nothing."""
    work = part.work
    namespace = work.namespace
    taken = decision.keys.setdefault(namespace, {})
    names = work.keys(part.start, part.stop)
    fresh = set(names)
    if keys or len(fresh) < len(names) or not fresh.isdisjoint(taken):
        return False
    until_ms = context.now_ms + context.retry_policies[namespace].key_window_ms
    digests = work.digests(part.start, part.stop)
    rows = map(IdempotencyKey, repeat(namespace), names, part.numbers, digests, repeat(until_ms))
    taken.update(zip(names, rows, strict=True))
    return True


def _add_keys(
    part: Part[Inserts], context: FlushContext, keys: Mapping[KeyName, IdempotencyKey], decision: Decision
) -> list[Any]:
    """None for each entry whose key was free, which takes it; for the others the first item's number, or the conflict."""
    work = part.work
    namespace = work.namespace
    new = decision.keys.setdefault(namespace, {})
    replaced = decision.keys_replaced.setdefault(namespace, {})
    policy = context.retry_policies[namespace]
    until_ms = context.now_ms + policy.key_window_ms
    names, digests = work.keys(part.start, part.stop), work.digests(part.start, part.stop)
    results: list[Any] = []
    for key, number, digest in zip(names, part.numbers, digests, strict=True):
        old = keys.get((namespace, key))
        row = new.get(key) or replaced.get(key)
        if row is None and old is not None and old.until_ms > context.first_attempt_ms:
            # A row of a deleted namespace of this name names an item that is gone: its key is free.
            row = old if is_of_incarnation(old, policy.incarnation) else None
        if row is None:
            (new if old is None else replaced)[key] = IdempotencyKey(namespace, key, number, digest, until_ms)
            results.append(None)
        else:
            results.append(_repeat_result(row, digest, decision))
    return results


def _repeat_result(row: IdempotencyKey, digest: bytes, decision: Decision) -> Any:
    """What an entry is told whose key this row names: the first item's number, or the conflict."""
    if row.digest == digest:
        decision.key_repeat_count += 1
        return row.item_id
    decision.key_conflict_count += 1
    return KeyConflict("this key was used for another item; give each item a key of its own")


def _decide_replay_lookups(
    parts: Sequence[Part[ReplayLookup]],
    context: FlushContext,
    keys: Mapping[KeyName, IdempotencyKey],
    decision: Decision,
) -> None:
    """After the inserts, whose keys are taken as well."""
    for part in parts:
        work = part.work
        new = decision.keys.get(work.namespace, {})
        replaced = decision.keys_replaced.get(work.namespace, {})
        incarnation = context.retry_policies[work.namespace].incarnation
        results: list[Any] = []
        for place in range(part.start, part.stop):
            key = work.keys[place]
            row = new.get(key) or replaced.get(key) or keys.get((work.namespace, key))
            if row is None or row.until_ms <= context.first_attempt_ms or not is_of_incarnation(row, incarnation):
                results.append(work.refusals[place])
            else:
                results.append(_repeat_result(row, work.digests[place], decision))
        decision.results.append((part, results))


def _decide_direct_deliveries(
    deliveries: Sequence[HandOut], context: FlushContext, timers: DueTimers, decision: Decision
) -> None:
    """New items that a waiter gets enter the table leased; those that were due and wanted are leased already."""
    places = {row.id: place for place, row in enumerate(decision.inserted)}
    woken = {new.id: new for kind, _, new in decision.changed if kind is EventKind.DUE and new.state is State.LEASED}
    lift_ms = timers.raise_to_watermark(0)
    for claim in deliveries:
        rows: list[Row | None] = []
        for number in claim.numbers:
            place = places.get(number)
            if place is None:  # not inserted, as its key was taken; or due, if there still is something to deliver
                rows.append(woken.get(number))
                continue
            row = decision.inserted[place]
            if row.state is State.READY:
                lease_ms = row.lease_ms if claim.lease_ms is None else claim.lease_ms
                due_ms = _lease_end_ms(lease_ms, context.now_ms, lift_ms)
                row = decision.inserted[place] = row.with_lease(due_ms, context.token)
                rows.append(row)
            else:
                rows.append(None)
        decision.directly_leased.append(rows)


def chain_finders(*sources: Mapping[int, Row] | FindRow) -> FindRow:
    """Looks a row up in one source after the other."""
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
