"""The life of an item: one table, a row for every state and event.

`judge` looks the pair up and runs its rule, which says what becomes of the
row. Rules are pure: the row, the event with its arguments, and the time of the
flush go in, a `Verdict` comes out. The diagram in ARCHITECTURE.md is drawn
from `TABLE`. Knows nothing of indexes, flushes or callers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from foqs.core.errors import FoqsError, InvalidArgument, NotFound, StaleLease
from foqs.core.items.item import TIME_MS_MAX, DeliveryPolicy, NewItem, Row, State
from foqs.core.items.item_filter import ItemFilter


class EventKind(enum.Enum):
    """What can happen to an item that exists."""

    DUE = "due"
    DELIVER = "hand-out"
    ACK = "ack"
    NACK = "nack"
    EXTEND = "extend"
    RELEASE = "release"
    CANCEL = "cancel"
    REDRIVE = "redrive"
    UPDATE = "update"

    # Looked up for every event; Enum's own hashes the name, in Python.
    __hash__ = object.__hash__


@dataclass(slots=True, frozen=True)
class RetryPolicy:
    """A namespace's settings that a rule needs."""

    backoff_ms_min: int
    backoff_ms_max: int
    dead_retention_ms: int
    key_window_ms: int
    incarnation: bytes = b""
    """See `keys.incarnation_mark`."""


@dataclass(slots=True)
class Event:
    """Something that is to happen to one item. Not to be changed.

    `token`: the lease the caller holds (ACK, NACK, EXTEND, RELEASE).
    `namespace`: the caller's; None for the shard's own events.
    `delay_ms` / `deliver_after_ms`: NACK, where both None means backoff, and UPDATE, where it means unchanged.
    `jitter`: NACK; a number in [0, 1) drawn by the caller, so that rules stay pure.
    `metadata`: NACK and UPDATE; None means unchanged.
    `lease_ms`: HAND_OUT, EXTEND and a DUE that is wanted; None means the item's own.
    `priority`: UPDATE; None means unchanged.
    `wanted`: DUE; somebody waits for the item, and gets it instead of its becoming READY.
    `only`: the caller named the item by a filter, and means it as long as it matches.
    """

    kind: EventKind
    id: int
    namespace: str | None = None
    token: int = 0
    delay_ms: int | None = None
    deliver_after_ms: int | None = None
    jitter: float = 0.0
    metadata: bytes | None = None
    dead: bool = False
    lease_ms: int | None = None
    priority: int | None = None
    item_filter: ItemFilter | None = None
    has_waiter: bool = False


class Effect(enum.Enum):
    """What becomes of the row."""

    UNCHANGED = "kept"
    CHANGED = "changed"
    DELETED = "gone"


@dataclass(slots=True)
class Transition:
    """The answer of a rule. Not to be changed.

    `row` is the new row when CHANGED. `error` goes to the caller; a row never
    changes together with an error. `already_gone` marks a success that found
    nothing to do.
    """

    effect: Effect
    row: Row | None = None
    error: FoqsError | None = None
    already_gone: bool = False


_UNCHANGED: Final = Transition(Effect.UNCHANGED)
_DELETED: Final = Transition(Effect.DELETED)


@dataclass(slots=True, frozen=True)
class FlushContext:
    """The flush that judges: its time, the token it grants, and the policies.

    `begun_ms` is the time of its first attempt: a key that was taken then is
    taken, however long the database did not answer meanwhile.
    """

    now_ms: int
    first_attempt_ms: int
    token: int
    retry_policies: Mapping[str, RetryPolicy]


def new_row(item: NewItem, number: int, now_ms: int) -> Row:
    """The row of an item that enters now."""
    after = now_ms
    if item.delay_ms:
        after = min(now_ms + item.delay_ms, TIME_MS_MAX)
    elif item.deliver_after_ms is not None:
        after = min(max(item.deliver_after_ms, now_ms), TIME_MS_MAX)
    expires = None if item.ttl_ms is None else min(now_ms + item.ttl_ms, TIME_MS_MAX)
    state, due = State.READY, expires
    if after > now_ms:
        state, due = State.DEFERRED, after if expires is None else min(after, expires)
    # In the order of the fields: made for every item.
    return Row(
        number,
        item.namespace,
        item.topic,
        item.priority,
        after,
        now_ms,
        item.lease_ms,
        item.ttl_ms,
        expires,
        item.policy,
        item.attempts_max,
        len(item.payload),
        item.payload,
        item.metadata,
        state,
        due,
        0,
        0,
    )


def apply_event(event: Event, row: Row | None, context: FlushContext) -> Transition:
    """What `event` does to `row` (None: there is no such row) at `context`."""
    if row is None or (event.namespace is not None and event.namespace != row.namespace):
        return _apply_to_missing(event, row)
    if event.item_filter is not None and not event.item_filter.matches(row):
        return Transition(Effect.UNCHANGED, error=NotFound("the item does not match the filter any more"))
    return TABLE[row.state, event.kind].decide(event, row, context)


def becomes_ready(row: Row, now_ms: int) -> bool:
    """A DUE event makes this row READY, or leases it to who waits for it."""
    if _is_expired(row, now_ms):
        return False
    if row.state is State.DEFERRED:
        return row.deliver_after_ms <= now_ms
    ended = row.state is State.LEASED and _has_lease_ended(row, now_ms)
    return ended and row.policy is not DeliveryPolicy.AT_MOST_ONCE and not _is_out_of_attempts(row)


def backoff_ms(retry_policy: RetryPolicy, attempt: int, jitter: float) -> int:
    """Exponential backoff with full jitter over its upper half, in milliseconds.

    The n-th attempt waits between half of and all of min * 2**(n-1), capped.
    """
    ceiling = min(retry_policy.backoff_ms_max, retry_policy.backoff_ms_min << min(max(attempt - 1, 0), 40))
    return ceiling - int(ceiling / 2 * jitter)


def _apply_to_missing(event: Event, row: Row | None) -> Transition:
    if event.kind in (EventKind.DUE, EventKind.DELIVER):
        return _UNCHANGED
    if row is None and event.kind in (EventKind.ACK, EventKind.CANCEL):
        return Transition(Effect.UNCHANGED, already_gone=True)
    return Transition(
        Effect.UNCHANGED, error=NotFound("no such item in this namespace; it may have been acked, cancelled or expired")
    )


def _is_expired(row: Row, now_ms: int) -> bool:
    return row.expires_at_ms is not None and row.expires_at_ms <= now_ms


def _has_lease_ended(row: Row, now_ms: int) -> bool:
    return row.due_ms is not None and row.due_ms <= now_ms


def _is_out_of_attempts(row: Row) -> bool:
    return bool(row.attempts_max) and row.attempt >= row.attempts_max


def _to_ready(
    row: Row, *, attempt: int | None = None, deliver_after_ms: int | None = None, metadata: bytes | None = None
) -> Transition:
    return _to_changed(row, State.READY, row.expires_at_ms, attempt, deliver_after_ms, metadata)


def _to_changed(
    row: Row,
    state: State,
    due_ms: int | None,
    attempt: int | None = None,
    deliver_after_ms: int | None = None,
    metadata: bytes | None = None,
    priority: int | None = None,
) -> Transition:
    """None: as it was. Spelled out, because every delayed item passes here."""
    new = Row(
        row.id,
        row.namespace,
        row.topic,
        row.priority if priority is None else priority,
        row.deliver_after_ms if deliver_after_ms is None else deliver_after_ms,
        row.enqueued_at_ms,
        row.lease_ms,
        row.ttl_ms,
        row.expires_at_ms,
        row.policy,
        row.attempts_max,
        row.payload_bytes,
        row.payload,
        row.metadata if metadata is None else metadata,
        state,
        due_ms,
        row.token,
        row.attempt if attempt is None else attempt,
    )
    return Transition(Effect.CHANGED, new)


def _to_dead(row: Row, context: FlushContext, metadata: bytes | None = None) -> Transition:
    due = context.now_ms + context.retry_policies[row.namespace].dead_retention_ms
    return _to_changed(row, State.DEAD, min(due, TIME_MS_MAX), metadata=metadata)


def _to_leased(event: Event, row: Row, context: FlushContext) -> Transition:
    lease = event.lease_ms if event.lease_ms is not None else row.lease_ms
    return Transition(Effect.CHANGED, row=row.with_lease(min(context.now_ms + lease, TIME_MS_MAX), context.token))


def _stale_lease() -> Transition:
    return Transition(
        Effect.UNCHANGED,
        error=StaleLease("this lease is over: the item was given back or delivered again; drop your copy of it"),
    )


# ------------------------------------------------------------------ the rules


def _leave_unchanged(event: Event, row: Row, context: FlushContext) -> Transition:
    return _UNCHANGED


def _delete(event: Event, row: Row, context: FlushContext) -> Transition:
    return _DELETED


def _reject_stale_lease(event: Event, row: Row, context: FlushContext) -> Transition:
    return _stale_lease()


def _deferred_due(event: Event, row: Row, context: FlushContext) -> Transition:
    if _is_expired(row, context.now_ms):
        return _DELETED
    if row.deliver_after_ms <= context.now_ms:
        return _to_leased(event, row, context) if event.has_waiter else _to_ready(row)
    return _UNCHANGED


def _ready_due(event: Event, row: Row, context: FlushContext) -> Transition:
    return _DELETED if _is_expired(row, context.now_ms) else _UNCHANGED


def _dead_due(event: Event, row: Row, context: FlushContext) -> Transition:
    return _DELETED if row.due_ms is not None and row.due_ms <= context.now_ms else _UNCHANGED


def _leased_due(event: Event, row: Row, context: FlushContext) -> Transition:
    if not _has_lease_ended(row, context.now_ms):
        return _UNCHANGED
    if row.policy is DeliveryPolicy.AT_MOST_ONCE or _is_expired(row, context.now_ms):
        return _DELETED
    if _is_out_of_attempts(row):
        return _to_dead(row, context)
    return _to_leased(event, row, context) if event.has_waiter else _to_ready(row)


def _deliver(event: Event, row: Row, context: FlushContext) -> Transition:
    if _is_expired(row, context.now_ms):
        return _DELETED
    return _to_leased(event, row, context)


def _ack(event: Event, row: Row, context: FlushContext) -> Transition:
    # Token 0 is that of an item never handed out: no lease, so nobody's to ack.
    return _DELETED if event.token and event.token == row.token else _stale_lease()


def _nack(event: Event, row: Row, context: FlushContext) -> Transition:
    if event.token != row.token:
        return _stale_lease()
    metadata = event.metadata
    if event.dead:
        return _to_dead(row, context, metadata)
    if row.policy is DeliveryPolicy.AT_MOST_ONCE or _is_expired(row, context.now_ms):
        return _DELETED
    if _is_out_of_attempts(row):
        return _to_dead(row, context, metadata)
    if event.deliver_after_ms is not None:
        after = event.deliver_after_ms
    elif event.delay_ms is not None:
        after = context.now_ms + event.delay_ms
    else:
        after = context.now_ms + backoff_ms(context.retry_policies[row.namespace], row.attempt, event.jitter)
    after = min(max(after, context.now_ms), TIME_MS_MAX)
    if after <= context.now_ms:
        return _to_ready(row, deliver_after_ms=after, metadata=metadata)
    due = after if row.expires_at_ms is None else min(after, row.expires_at_ms)
    return _to_changed(row, State.DEFERRED, due, deliver_after_ms=after, metadata=metadata)


def _extend(event: Event, row: Row, context: FlushContext) -> Transition:
    if event.token != row.token:
        return _stale_lease()
    lease = event.lease_ms if event.lease_ms is not None else row.lease_ms
    return _to_changed(row, row.state, min(context.now_ms + lease, TIME_MS_MAX))


def _release(event: Event, row: Row, context: FlushContext) -> Transition:
    if event.token != row.token:
        return _stale_lease()
    if _is_expired(row, context.now_ms):
        return _DELETED
    return _to_ready(row, attempt=row.attempt - 1)


def _redrive(event: Event, row: Row, context: FlushContext) -> Transition:
    expires = None if row.ttl_ms is None else min(context.now_ms + row.ttl_ms, TIME_MS_MAX)
    new = replace(
        row,
        state=State.READY,
        deliver_after_ms=context.now_ms,
        expires_at_ms=expires,
        due_ms=expires,
        attempt=0,
    )
    return Transition(Effect.CHANGED, new)


def _reject_redrive(event: Event, row: Row, context: FlushContext) -> Transition:
    return Transition(Effect.UNCHANGED, error=NotFound("the item is not dead; only a dead item can be redriven"))


def _update(event: Event, row: Row, context: FlushContext) -> Transition:
    """Of a READY or DEFERRED item. One that is READY keeps its place when it is to be delivered now."""
    if _is_expired(row, context.now_ms):
        return Transition(Effect.UNCHANGED, error=NotFound("the item's TTL is over; enqueue it again"))
    if event.delay_ms is None and event.deliver_after_ms is None:
        return _to_changed(row, row.state, row.due_ms, metadata=event.metadata, priority=event.priority)
    after = event.deliver_after_ms if event.delay_ms is None else context.now_ms + event.delay_ms
    assert after is not None
    after = min(max(after, context.now_ms), TIME_MS_MAX)
    expires = row.expires_at_ms
    if expires is not None and after >= expires:
        left = expires - context.now_ms
        return _invalid_time(
            event, f"the item's TTL ends in {left} ms, before it could be delivered; give a shorter time, or cancel it"
        )
    if after > context.now_ms:
        due = after if expires is None else min(after, expires)
        return _to_changed(row, State.DEFERRED, due, None, after, event.metadata, event.priority)
    own = None if row.state is State.READY else after
    return _to_changed(row, State.READY, expires, None, own, event.metadata, event.priority)


def _update_leased(event: Event, row: Row, context: FlushContext) -> Transition:
    if event.delay_ms is not None or event.deliver_after_ms is not None:
        return _invalid_time(
            event,
            "the item is leased, and when it is delivered again is for its consumer to say; "
            "give the time with nack, or update the item when its lease is over",
        )
    return _to_changed(row, row.state, row.due_ms, metadata=event.metadata, priority=event.priority)


def _update_dead(event: Event, row: Row, context: FlushContext) -> Transition:
    if event.delay_ms is not None or event.deliver_after_ms is not None:
        return _invalid_time(event, "the item is dead and is not delivered at all; redrive it first")
    return _to_changed(row, row.state, row.due_ms, metadata=event.metadata, priority=event.priority)


def _invalid_time(event: Event, message: str) -> Transition:
    field = "change.deliver_after_ms" if event.delay_ms is None else "change.delay_ms"
    return Transition(Effect.UNCHANGED, error=InvalidArgument(message, field=field))


# ------------------------------------------------------------------ the table


@dataclass(slots=True, frozen=True)
class Rule:
    """A function, and every (condition, next state) it can lead to, for the diagram.

    The next state None means that the row is gone; the same state, that it
    stays. A condition is a few words, empty when there is no other way.
    """

    decide: Callable[[Event, Row, FlushContext], Transition]
    outcomes: tuple[tuple[str, State | None], ...]


LEASED_AGAIN: Final = "lease over and wanted, leased anew"
"""The one way of a DUE that ends where it began and yet changes the row."""

_D, _R, _L, _X = State.DEFERRED, State.READY, State.LEASED, State.DEAD

TABLE: Final[Mapping[tuple[State, EventKind], Rule]] = {
    (_D, EventKind.DUE): Rule(
        _deferred_due,
        (("deliver-after reached", _R), ("deliver-after reached and wanted", _L), ("TTL over", None), ("not yet", _D)),
    ),
    (_D, EventKind.DELIVER): Rule(_leave_unchanged, (("not ready", _D),)),
    (_D, EventKind.ACK): Rule(_ack, (("last token", None), ("other token: STALE_LEASE", _D))),
    (_D, EventKind.NACK): Rule(_reject_stale_lease, (("STALE_LEASE", _D),)),
    (_D, EventKind.EXTEND): Rule(_reject_stale_lease, (("STALE_LEASE", _D),)),
    (_D, EventKind.RELEASE): Rule(_reject_stale_lease, (("STALE_LEASE", _D),)),
    (_D, EventKind.CANCEL): Rule(_delete, (("", None),)),
    (_D, EventKind.REDRIVE): Rule(_reject_redrive, (("NOT_FOUND", _D),)),
    (_D, EventKind.UPDATE): Rule(
        _update, (("", _D), ("no delay", _R), ("beyond its TTL: INVALID_ARGUMENT", _D), ("TTL over: NOT_FOUND", _D))
    ),
    (_R, EventKind.DUE): Rule(_ready_due, (("TTL over", None), ("not yet", _R))),
    (_R, EventKind.DELIVER): Rule(_deliver, (("", _L), ("TTL over", None))),
    (_R, EventKind.ACK): Rule(_ack, (("last token", None), ("other token: STALE_LEASE", _R))),
    (_R, EventKind.NACK): Rule(_reject_stale_lease, (("STALE_LEASE", _R),)),
    (_R, EventKind.EXTEND): Rule(_reject_stale_lease, (("STALE_LEASE", _R),)),
    (_R, EventKind.RELEASE): Rule(_reject_stale_lease, (("STALE_LEASE", _R),)),
    (_R, EventKind.CANCEL): Rule(_delete, (("", None),)),
    (_R, EventKind.REDRIVE): Rule(_reject_redrive, (("NOT_FOUND", _R),)),
    (_R, EventKind.UPDATE): Rule(
        _update, (("", _R), ("delay", _D), ("beyond its TTL: INVALID_ARGUMENT", _R), ("TTL over: NOT_FOUND", _R))
    ),
    (_L, EventKind.DUE): Rule(
        _leased_due,
        (
            ("lease over", _R),
            (LEASED_AGAIN, _L),
            ("lease over, attempts exhausted", _X),
            ("lease over, at most once or TTL over", None),
            ("not yet", _L),
        ),
    ),
    (_L, EventKind.DELIVER): Rule(_leave_unchanged, (("not ready", _L),)),
    (_L, EventKind.ACK): Rule(_ack, (("", None), ("other token: STALE_LEASE", _L))),
    (_L, EventKind.NACK): Rule(
        _nack,
        (
            ("no delay", _R),
            ("delay or backoff", _D),
            ("given up, or attempts exhausted", _X),
            ("at most once or TTL over", None),
            ("other token: STALE_LEASE", _L),
        ),
    ),
    (_L, EventKind.EXTEND): Rule(_extend, (("", _L), ("other token: STALE_LEASE", _L))),
    (_L, EventKind.RELEASE): Rule(_release, (("", _R), ("TTL over", None), ("other token: STALE_LEASE", _L))),
    (_L, EventKind.CANCEL): Rule(_delete, (("", None),)),
    (_L, EventKind.REDRIVE): Rule(_reject_redrive, (("NOT_FOUND", _L),)),
    (_L, EventKind.UPDATE): Rule(_update_leased, (("", _L), ("a time: INVALID_ARGUMENT", _L))),
    (_X, EventKind.DUE): Rule(_dead_due, (("retention over", None), ("not yet", _X))),
    (_X, EventKind.DELIVER): Rule(_leave_unchanged, (("not ready", _X),)),
    (_X, EventKind.ACK): Rule(_ack, (("last token", None), ("other token: STALE_LEASE", _X))),
    (_X, EventKind.NACK): Rule(_reject_stale_lease, (("STALE_LEASE", _X),)),
    (_X, EventKind.EXTEND): Rule(_reject_stale_lease, (("STALE_LEASE", _X),)),
    (_X, EventKind.RELEASE): Rule(_reject_stale_lease, (("STALE_LEASE", _X),)),
    (_X, EventKind.CANCEL): Rule(_delete, (("", None),)),
    (_X, EventKind.REDRIVE): Rule(_redrive, (("", _R),)),
    (_X, EventKind.UPDATE): Rule(_update_dead, (("", _X), ("a time: INVALID_ARGUMENT", _X))),
}
