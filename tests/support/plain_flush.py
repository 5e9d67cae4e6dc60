"""The plain flush: the specification of the outcome of a batch, entry by entry.

`plain_flush` applies the transition table to one entry after the other.
`table_after` applies a plan to a table as a store does. Knows nothing of columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from foqs.core.flush.batch import Batch
from foqs.core.flush.completions import CompletionEntry, Completions, NewNumbers
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.moves import Moves
from foqs.core.flush.operation import Inserts
from foqs.core.flush.planning import entry_result
from foqs.core.flush.replay_lookup import ReplayLookup
from foqs.core.flush.writes import LeaseUpdate
from foqs.core.items.idempotency_keys import (
    IdempotencyKey,
    KeyName,
    completed_item_key,
    completion_key,
    move_digest,
    move_key,
)
from foqs.core.items.item import DeliveryPolicy, KeyedItem, NewItem, OrderKey, Row, State, pack_order_key
from foqs.core.items.life import Effect, Event, EventKind, FlushContext, Transition, apply_event, new_row
from foqs.store.sql_rows import lease_columns
from foqs_contract.errors import FoqsError, InvalidArgument, KeyConflict, KeyEnded, StaleLease
from tests.support import builders


def make_row(number: int = 1, **changes: Any) -> Row:
    """Return a READY row of namespace `n` that was never delivered."""
    return builders.row(number, **{"namespace": "n", **changes})


def make_item(**changes: Any) -> NewItem:
    """Return a new item of namespace `n` that is ready at once."""
    item = NewItem(
        namespace="n",
        topic="t",
        priority=0,
        payload=b"p",
        metadata=b"",
        delay_ms=0,
        deliver_after_ms=None,
        lease_ms=500,
        ttl_ms=None,
        policy=DeliveryPolicy.AT_LEAST_ONCE,
        attempts_max=0,
    )
    return replace(item, **changes)


def make_keyed_item(key: bytes, digest: bytes = b"one", key_until_ms: int | None = None, **changes: Any) -> KeyedItem:
    """Return an item like `make_item`, with an idempotency key."""
    return KeyedItem(**asdict(make_item(**changes)), idempotency_key=key, digest=digest, key_until_ms=key_until_ms)


def keys_of(numbers: Iterable[int]) -> list[OrderKey]:
    return [pack_order_key(0, 1_000, number) for number in numbers]


@dataclass
class PlainOutcome:
    """The tables after a flush, the results of each part, and the rows of each direct delivery."""

    table: dict[int, Row]
    keys: dict[KeyName, IdempotencyKey]
    results: list[list[Any]]


def plain_flush(
    batch: Batch,
    table: Mapping[int, Row],
    keys: Mapping[KeyName, IdempotencyKey],
    context: FlushContext,
    watermark_ms: int | None,
) -> PlainOutcome:
    """Decide every entry of a batch by its row, or the record of its key, one after the other."""
    rows = dict(table)
    records = dict(keys)
    results: list[list[Any]] = []
    newly_ready: set[int] = set()

    def above_watermark(row: Row) -> Row:
        if row.due_ms is None or watermark_ms is None:
            return row
        return replace(row, due_ms=max(row.due_ms, watermark_ms))

    def apply(event: Event) -> Transition:
        transition = apply_event(event, rows.get(event.id), context)
        if transition.effect is Effect.DELETED:
            del rows[event.id]
        elif transition.row is not None:
            rows[event.id] = above_watermark(transition.row)
            if event.kind is EventKind.DUE and transition.row.state is State.READY:
                newly_ready.add(event.id)
        return transition

    def move(operation: Moves, place: int) -> Any:
        """Move an item and record the move; or find the record."""
        event = operation.events[place]
        name = (operation.namespace, move_key(event.id))
        digest = move_digest(event.topic, b"")
        record = records.get(name)
        if event.id not in rows and record is not None and record.until_ms > context.now_ms:
            return record.item_id if record.digest == digest else KeyConflict("")
        transition = apply_event(event, rows.get(event.id), context)
        if transition.effect is Effect.MOVED:
            assert transition.row is not None
            del rows[event.id]
            number = operation.new_numbers[place]
            rows[number] = above_watermark(replace(transition.row, id=number))
            until_ms = context.now_ms + context.retry_policies[operation.namespace].key_window_ms
            records[name] = IdempotencyKey(*name, number, digest, until_ms)
        return transition.error

    def complete(operation: Completions, place: int) -> Any:
        """Delete the item, insert those that follow, and record both; or find the record; or do nothing."""
        entry, own = operation.entries[place], operation.own_numbers[place]
        namespace = operation.namespace
        if entry.number not in rows:
            return completed_before(namespace, entry)
        event = Event(EventKind.ACK, entry.number, namespace, entry.token)
        error = apply_event(event, rows[entry.number], context).error
        numbers = [own + 1 + i for i in range(len(entry.items))]
        policy = context.retry_policies[namespace]
        added = {completion_key(entry.number): own}
        for i, item in enumerate(entry.items):
            if error is not None or not isinstance(item, KeyedItem):
                continue
            name = (namespace, item.idempotency_key)
            record = records.get(name)
            if record is not None and record.until_ms > context.now_ms:
                if record.digest != item.digest:
                    error = KeyConflict("")
                numbers[i] = record.item_id
                added[completed_item_key(entry.number, i)] = record.item_id
            elif item.key_until_ms is not None and item.key_until_ms > context.now_ms + policy.key_window_ms:
                error = InvalidArgument("")
            elif item.key_until_ms is not None and item.key_until_ms <= context.now_ms:
                error = KeyEnded("")
        if error is not None:
            return error
        del rows[entry.number]
        for key, number in added.items():
            until_ms = context.now_ms + policy.key_window_ms
            records[namespace, key] = IdempotencyKey(namespace, key, number, entry.digest, until_ms)
        for i, item in enumerate(entry.items):
            if numbers[i] != own + 1 + i:
                continue
            if isinstance(item, KeyedItem):
                name = (namespace, item.idempotency_key)
                until_ms = max(context.now_ms + policy.key_window_ms_of(item.topic), item.key_until_ms or 0)
                records[name] = IdempotencyKey(*name, numbers[i], item.digest, until_ms)
            rows[numbers[i]] = above_watermark(new_row(item, numbers[i], operation.accepted_ms, context.now_ms))
        return NewNumbers(numbers, False)

    def completed_before(namespace: str, entry: CompletionEntry) -> NewNumbers | FoqsError:
        record = records.get((namespace, completion_key(entry.number)))
        if record is None or record.until_ms <= context.now_ms or record.digest != entry.digest:
            return StaleLease("")
        numbers = [record.item_id + 1 + i for i in range(len(entry.items))]
        for i, item in enumerate(entry.items):
            repeated = records.get((namespace, completed_item_key(entry.number, i)))
            if isinstance(item, KeyedItem) and repeated is not None and repeated.until_ms > context.now_ms:
                numbers[i] = repeated.item_id
        return NewNumbers(numbers, True)

    def insert(operation: Inserts, place: int) -> Any:
        """Insert an item and record its key; or find the record."""
        number, item = operation.numbers[place], operation.items[place]
        if isinstance(item, KeyedItem):
            name = (item.namespace, item.idempotency_key)
            record = records.get(name)
            if record is not None and record.until_ms > context.now_ms:
                return record.item_id if record.digest == item.digest else KeyConflict("")
            policy = context.retry_policies[item.namespace]
            if item.key_until_ms is not None and item.key_until_ms > context.now_ms + policy.key_window_ms:
                return InvalidArgument("", field="key_until_ms")
            if item.key_until_ms is not None and item.key_until_ms <= context.now_ms:
                return KeyEnded("")
            until_ms = max(context.now_ms + policy.key_window_ms_of(item.topic), item.key_until_ms or 0)
            records[name] = IdempotencyKey(*name, number, item.digest, until_ms)
        rows[number] = above_watermark(new_row(item, number, operation.accepted_ms, context.now_ms))
        newly_ready.add(number)
        return None

    def look_up(lookup: ReplayLookup, place: int) -> Any:
        """Return the number of the first item of a key, or an error."""
        record = records.get((lookup.namespace, lookup.idempotency_keys[place]))
        if record is None or record.until_ms <= context.now_ms:
            return lookup.refusals[place]
        return record.item_id if record.digest == lookup.digests[place] else KeyConflict("")

    def deliver_directly(number: int, lease_ms: int | None) -> Row | None:
        """Lease an item that is new, or became READY in this batch."""
        return leased(Event(EventKind.DELIVER, number, lease_ms=lease_ms)) if number in newly_ready else None

    def leased(event: Event) -> Row | None:
        return rows[event.id] if apply(event).row is not None else None

    for acks in batch.acks:
        operation = acks.operation
        places = range(acks.start, acks.stop)
        events = [Event(EventKind.ACK, operation.numbers[i], operation.namespace, operation.tokens[i]) for i in places]
        results.append([entry_result(apply(event)) for event in events])
    for part in batch.events:
        results.append([entry_result(apply(event)) for event in part.operation.events[part.start : part.stop]])
    for moves in batch.moves:
        results.append([move(moves.operation, place) for place in range(moves.start, moves.stop)])
    for done in batch.completions:
        results.append([complete(done.operation, place) for place in range(done.start, done.stop)])
    for delivery in batch.leases:
        lease_ms = delivery.operation.lease_ms
        results.append([leased(Event(EventKind.DELIVER, n, lease_ms=lease_ms)) for n in delivery.numbers])
    for inserts in batch.inserts:
        before = dict(rows), dict(records), set(newly_ready)
        part_results = [insert(inserts.operation, place) for place in range(inserts.start, inserts.stop)]
        if inserts.operation.is_whole:
            part_results = _together(part_results)
            if part_results[0] is not None:
                rows, records, newly_ready = before
        results.append(part_results)
    for lookups in batch.replay_lookups:
        part_results = [look_up(lookups.operation, place) for place in range(lookups.start, lookups.stop)]
        results.append(_together(part_results) if lookups.operation.is_whole else part_results)
    direct: list[list[Any]] = [
        [deliver_directly(number, part.operation.lease_ms) for number in part.numbers]
        for part in batch.direct_deliveries
    ]
    return PlainOutcome(rows, records, [*direct, *results])


def _together(results: list[Any]) -> list[Any]:
    """Return the results of a whole operation: those of its entries if they are alike, else one error for all."""
    if all(result is None for result in results) or all(type(result) is int for result in results):
        return results
    has_used_keys = any(type(result) is int or isinstance(result, KeyConflict) for result in results)
    error = KeyConflict("") if has_used_keys else next(result for result in results if result is not None)
    return [error] * len(results)


def table_after(plan: FlushPlan, table: Mapping[int, Row]) -> dict[int, Row]:
    """Return the table after a plan is written. The plan holds absolute values."""
    rows = dict(table)
    for deleted in plan.deleted.values():
        for row in deleted:
            del rows[row.id]
    for (due_ms, token, attempt, first_ms), numbers in plan.leases.items():
        for number in numbers:
            old = rows[number]
            assert (first_ms is None) == (old.first_delivered_at_ms is not None)
            lease = LeaseUpdate(due_ms, token, attempt, [number], first_delivered_at_ms=first_ms)
            rows[number] = replace(old, **{name: getattr(lease, name) for name in lease_columns(lease)})
    for _, _, row in plan.changed:
        rows[row.id] = row
    for old, row in plan.moved:
        del rows[old.id]
        assert row.id not in rows
        rows[row.id] = row
    for row in plan.inserted:
        assert row.id not in rows
        rows[row.id] = row
    return rows


def keys_after(plan: FlushPlan, keys: Mapping[KeyName, IdempotencyKey]) -> dict[KeyName, IdempotencyKey]:
    """Return the key records after a plan is written. Checks that new ones do not exist and replaced ones do."""
    records = dict(keys)
    for namespace, new in plan.keys.added.items():
        for key, record in new.items():
            assert (namespace, key) == (record.namespace, record.key)
            assert (namespace, key) not in records
            records[namespace, key] = record
    for namespace, replaced in plan.keys.replaced.items():
        for key, record in replaced.items():
            assert (namespace, key) in keys
            records[namespace, key] = record
    return records


def is_same_result(result: Any, expected: Any) -> bool:
    """Return whether two results mean the same to a caller. Errors are compared by type."""
    if isinstance(result, Exception):
        return type(result) is type(expected)
    return bool(result == expected)
