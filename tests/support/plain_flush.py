"""The plain flush: what a batch must come to, entry by entry.

`plain_flush` asks the table of an item's life about one entry after the other.
`after` is the table that a decision leaves, made as a store makes it. Knows
nothing of columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from foqs.core.errors import KeyConflict
from foqs.core.flush.batch import Batch
from foqs.core.flush.decision import Decision, entry_result
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import DeliveryPolicy, KeyedItem, NewItem, OrderKey, Row, State, pack_order_key
from foqs.core.items.life import Effect, Event, EventKind, FlushContext, Transition, apply_event, new_row


def make_row(number: int = 1, **changes: Any) -> Row:
    """A READY row of namespace `n`, never delivered."""
    row = Row(
        id=number,
        namespace="n",
        topic="t",
        priority=0,
        deliver_after_ms=1_000,
        enqueued_at_ms=1_000,
        lease_ms=500,
        ttl_ms=None,
        expires_at_ms=None,
        policy=DeliveryPolicy.AT_LEAST_ONCE,
        attempts_max=0,
        payload_bytes=1,
        payload=b"p",
        metadata=b"",
        state=State.READY,
        due_ms=None,
        token=0,
        attempt=0,
    )
    return replace(row, **changes)


def make_item(**changes: Any) -> NewItem:
    """An item to enqueue into namespace `n`, ready at once."""
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


def make_keyed_item(key: bytes, digest: bytes = b"one", **changes: Any) -> KeyedItem:
    """The same with a key."""
    return KeyedItem(**asdict(make_item(**changes)), idempotency_key=key, digest=digest)


def keys_of(numbers: Iterable[int]) -> list[OrderKey]:
    return [pack_order_key(0, 1_000, number) for number in numbers]


@dataclass
class PlainOutcome:
    """The tables after a flush, what each part's entries are told, and what each claim gets."""

    table: dict[int, Row]
    keys: dict[KeyName, IdempotencyKey]
    results: list[list[Any]]
    directly_leased: list[list[Row | None]]


def plain_flush(
    batch: Batch,
    table: Mapping[int, Row],
    keys: Mapping[KeyName, IdempotencyKey],
    context: FlushContext,
    watermark_ms: int | None,
) -> PlainOutcome:
    """Judges every entry of a batch by its row, or its key's, one after the other."""
    after = dict(table)
    named = dict(keys)
    results: list[list[Any]] = []
    woken: set[int] = set()

    def lifted(row: Row) -> Row:
        if row.due_ms is None or watermark_ms is None:
            return row
        return replace(row, due_ms=max(row.due_ms, watermark_ms))

    def apply(event: Event) -> Transition:
        verdict = apply_event(event, after.get(event.id), context)
        if verdict.effect is Effect.DELETED:
            del after[event.id]
        elif verdict.row is not None:
            after[event.id] = lifted(verdict.row)
            if event.kind is EventKind.DUE and verdict.row.state is State.READY:
                woken.add(event.id)
        return verdict

    def claimed(number: int, lease_ms: int | None) -> Row | None:
        """What is new, or was due and has become READY just now."""
        return leased(Event(EventKind.DELIVER, number, lease_ms=lease_ms)) if number in woken else None

    def leased(event: Event) -> Row | None:
        return after[event.id] if apply(event).row is not None else None

    for acks in batch.acks:
        work = acks.work
        places = range(acks.start, acks.stop)
        events = [Event(EventKind.ACK, work.numbers[i], work.namespace, work.tokens[i]) for i in places]
        results.append([entry_result(apply(event)) for event in events])
    for part in batch.events:
        results.append([apply(event) for event in part.work.events[part.start : part.stop]])
    for hand_out in batch.hand_outs:
        lease_ms = hand_out.work.lease_ms
        results.append([leased(Event(EventKind.DELIVER, n, lease_ms=lease_ms)) for n in hand_out.numbers])
    for inserts in batch.inserts:
        told: list[Any] = []
        for place in range(inserts.start, inserts.stop):
            number, item = inserts.work.numbers[place], inserts.work.items[place]
            if isinstance(item, KeyedItem):
                name = (item.namespace, item.idempotency_key)
                first = named.get(name)
                if first is not None and first.until_ms > context.now_ms:
                    told.append(first.item_id if first.digest == item.digest else KeyConflict(""))
                    continue
                until_ms = context.now_ms + context.retry_policies[item.namespace].key_window_ms
                named[name] = IdempotencyKey(*name, number, item.digest, until_ms)
            after[number] = lifted(new_row(item, number, context.now_ms))
            woken.add(number)
            told.append(None)
        results.append(told)
    for recalls in batch.replay_lookups:
        told = []
        for place in range(recalls.start, recalls.stop):
            recall = recalls.work
            first = named.get((recall.namespace, recall.keys[place]))
            if first is None or first.until_ms <= context.now_ms:
                told.append(recall.refusals[place])
            else:
                told.append(first.item_id if first.digest == recall.digests[place] else KeyConflict(""))
        results.append(told)
    got = [[claimed(number, claim.lease_ms) for number in claim.numbers] for claim in batch.direct_deliveries]
    return PlainOutcome(after, named, results, got)


def table_after(decision: Decision, table: Mapping[int, Row]) -> dict[int, Row]:
    """The table when a decision is written: absolute values, whatever the rows were."""
    rows = dict(table)
    for gone in decision.deleted.values():
        for row in gone:
            del rows[row.id]
    for (due_ms, token, attempt), ids in decision.leases.items():
        for number in ids:
            rows[number] = replace(rows[number], state=State.LEASED, due_ms=due_ms, token=token, attempt=attempt)
    for _, _, row in decision.changed:
        rows[row.id] = row
    for row in decision.inserted:
        assert row.id not in rows
        rows[row.id] = row
    return rows


def keys_after(decision: Decision, keys: Mapping[KeyName, IdempotencyKey]) -> dict[KeyName, IdempotencyKey]:
    """The table of keys when a decision is written: new rows must not be there, others must."""
    rows = dict(keys)
    for namespace, found in decision.keys.items():
        for key, row in found.items():
            assert (namespace, key) == (row.namespace, row.key)
            assert (namespace, key) not in rows
            rows[namespace, key] = row
    for namespace, found in decision.keys_replaced.items():
        for key, row in found.items():
            assert (namespace, key) in keys
            rows[namespace, key] = row
    return rows


def is_same_result(result: Any, expected: Any) -> bool:
    """Two results say the same to a caller: errors are compared by what they are."""
    if isinstance(result, Transition) and isinstance(expected, Transition):
        return (result.effect, type(result.error), result.already_gone) == (
            expected.effect,
            type(expected.error),
            expected.already_gone,
        )
    if isinstance(result, Exception):
        return type(result) is type(expected)
    return bool(result == expected)
