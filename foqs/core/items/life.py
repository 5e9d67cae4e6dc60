"""The life of an item: a finite-state machine, as one transition table.

The states are the members of `State`, and "gone": the row is deleted. Gone is
the only final state. The events are the members of `EventKind`. The machine is
an extended one: besides its state, a row carries variables (token, attempt,
policy, times), and guards read them.

`TABLE` is total: it maps every (state, event) to one `Rule`. A rule evaluates its
guards against the row, the event and the time of the flush, and picks one
transition: the next state, and the effect on the row. Rules are pure, so the
machine is deterministic. A caller's event that a state does not accept leaves the
row unchanged and returns an error; the shard's own events (DUE, DELIVER, GIVE_UP,
SUPERSEDE) are ignored.

A rule also declares its outcomes, as (guard, next state). The tests hold them
against what the rule does; the diagram in ARCHITECTURE.md is drawn from them.
Knows nothing of indexes, flushes or callers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from foqs.core.items.item import GIVEN_UP_MS, TIME_MS_MAX, DeliveryPolicy, NewItem, Row, State, TopicName
from foqs.core.items.row_filter import RowFilter
from foqs_contract.errors import FoqsError, InvalidArgument, NotFound, StaleLease


class EventKind(enum.Enum):
    """The events of an item's life."""

    DUE = "due"
    DELIVER = "deliver"
    ACK = "ack"
    NACK = "nack"
    EXTEND = "extend"
    RELEASE = "release"
    CANCEL = "cancel"
    REDRIVE = "redrive"
    UPDATE = "update"
    MOVE = "move"
    GIVE_UP = "give up"
    SUPERSEDE = "supersede"

    # Hashed once per event. Enum's own hash runs in Python.
    __hash__ = object.__hash__


OWN_EVENTS: Final = (EventKind.DUE, EventKind.DELIVER, EventKind.GIVE_UP, EventKind.SUPERSEDE)
"""Events that the shard itself brings."""


@dataclass(slots=True, frozen=True)
class RetryPolicy:
    """The settings of a namespace that rules and idempotency keys need."""

    backoff_ms_min: int
    backoff_ms_max: int
    dead_retention_ms: int
    key_window_ms: int
    incarnation: bytes = b""
    """The incarnation as a prefix of digests; see `idempotency_keys.incarnation_prefix`."""
    topic_key_windows_ms: Mapping[str, int] = field(default_factory=dict)
    """The key windows of topics that have one of their own."""

    def key_window_ms_of(self, topic: str) -> int:
        """Return for how long the key of a new item of a topic is remembered."""
        return self.topic_key_windows_ms.get(topic, self.key_window_ms)


@dataclass(slots=True)
class Event:
    """One event for one item. Must not be changed.

    `token`: the lease the caller holds (ACK, NACK, EXTEND, RELEASE). None: an EXTEND of the lease that the item has, by
        its current holder. SUPERSEDE: the lease that ends; 0: any.
    `namespace`: the caller's; None for the shard's own events.
    `delay_ms` / `deliver_after_ms`: NACK and UPDATE. If both are None, a NACK backs off and an UPDATE keeps the time.
    `jitter`: NACK; a number in [0, 1) drawn by the caller, so that rules stay pure.
    `metadata`: NACK and UPDATE; None means unchanged.
    `dead`: NACK; the consumer gives the item up, so it is DEAD.
    `lease_ms`: DELIVER, EXTEND and a DUE with `has_waiter`; None means the item's own. An EXTEND with 0 ends the lease.
    `priority`: UPDATE; None means unchanged.
    `has_waiter`: DUE; a dequeue waits for the item, which is leased to it instead of becoming READY.
    `is_unbegun`: SUPERSEDE; the consumer has said, by a release, that it did not begin the item.
    `topic`: MOVE; the topic of the new item.
    `accepted_ms`: MOVE; the place of a new item that is accepted when the flush is sealed. None: it is not in a flush yet.
    `ttl_remaining_ms`: MOVE; the new item expires this long from now. None: a DEAD item gets its whole TTL again, another
        one keeps the rest of it.
    `item_filter`: the caller selected the item by this filter; the event applies only while the item matches.
    """

    kind: EventKind
    id: int
    namespace: str | None = None
    token: int | None = 0
    delay_ms: int | None = None
    deliver_after_ms: int | None = None
    jitter: float = 0.0
    metadata: bytes | None = None
    dead: bool = False
    lease_ms: int | None = None
    priority: int | None = None
    item_filter: RowFilter | None = None
    has_waiter: bool = False
    is_unbegun: bool = False
    topic: str = ""
    ttl_remaining_ms: int | None = None
    accepted_ms: int | None = None


class Effect(enum.Enum):
    """The effect of a transition on the row."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    DELETED = "deleted"
    MOVED = "moved"


@dataclass(slots=True)
class Transition:
    """The result of a rule. Must not be changed.

    `row` is the new row if CHANGED. If MOVED, it is the row of a new item, which still has the old id; the old row is
    deleted. `error` is for the caller; a transition with
    an error never changes the row. `already_gone` marks a success that found
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
    """The flush that applies the events: its time, the token of its leases, and the retry policies.

    `first_attempt_ms` is the time of its first attempt. An idempotency key that was
    in use then counts as in use, however long the retries took.
    """

    now_ms: int
    first_attempt_ms: int
    token: int
    retry_policies: Mapping[str, RetryPolicy]
    limited_topics: Container[TopicName] = ()
    """Topics with a limit on the leases of their groups: there, a lease that has ended is over."""
    strict_topics: Container[TopicName] = ()
    """Those with strict groups: there, an item keeps its place when it is given back."""


def new_row(item: NewItem, number: int, accepted_ms: int, now_ms: int) -> Row:
    """Return the row of an item that is inserted now.

    An item that is READY at once has `accepted_ms` as its place in the order, although the
    shard clock may be behind the arrival clock.
    """
    deliver_after_ms = attempt = 0
    if item.delay_ms:
        deliver_after_ms = min(now_ms + item.delay_ms, TIME_MS_MAX)
    elif item.deliver_after_ms is not None:
        deliver_after_ms = min(item.deliver_after_ms, TIME_MS_MAX)
    expires_at_ms = None if item.ttl_ms is None else min(now_ms + item.ttl_ms, TIME_MS_MAX)
    state, due_ms = State.READY, expires_at_ms
    if deliver_after_ms > now_ms:
        state = State.DEFERRED
        due_ms = deliver_after_ms if expires_at_ms is None else min(deliver_after_ms, expires_at_ms)
    elif deliver_after_ms < accepted_ms:
        deliver_after_ms = accepted_ms
    # Positional arguments are faster, and this runs for every item.
    # columns: begin row of a new item
    return Row(
        number,
        item.namespace,
        item.topic,
        item.priority,
        deliver_after_ms,
        now_ms,
        item.lease_ms,
        item.ttl_ms,
        expires_at_ms,
        item.policy,
        item.attempts_max,
        len(item.payload),
        item.payload,
        item.metadata,
        state,
        due_ms,
        0,
        attempt,
        item.trace_context,
        None,
        item.item_group,
    )
    # columns: end


def apply_event(event: Event, row: Row | None, context: FlushContext) -> Transition:
    """Return the transition of `row` on `event`. A `row` of None means that there is no such row."""
    if row is None or (event.namespace is not None and event.namespace != row.namespace):
        return _apply_to_missing(event, row)
    if event.item_filter is not None and not event.item_filter.matches(row):
        return Transition(Effect.UNCHANGED, error=NotFound("the item no longer matches the filter"))
    return TABLE[row.state, event.kind].decide(event, row, context)


def becomes_ready(row: Row, now_ms: int) -> bool:
    """Return whether a DUE event makes this row READY, or leases it to a waiting dequeue."""
    if _is_expired(row, now_ms):
        return False
    if row.state is State.DEFERRED:
        return row.ready_at_ms <= now_ms
    ended = row.state is State.LEASED and _has_lease_ended(row, now_ms)
    return ended and row.policy is not DeliveryPolicy.AT_MOST_ONCE and not _is_out_of_attempts(row)


def backoff_ms(retry_policy: RetryPolicy, attempt: int, jitter: float) -> int:
    """Return the exponential backoff after an attempt, in milliseconds.

    After attempt n: between half of min * 2**(n-1), capped, and all of it.
    """
    ceiling = min(retry_policy.backoff_ms_max, retry_policy.backoff_ms_min << min(max(attempt - 1, 0), 40))
    return ceiling - int(ceiling / 2 * jitter)


def _apply_to_missing(event: Event, row: Row | None) -> Transition:
    if event.kind in OWN_EVENTS:
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
    # None means unchanged.
    new = row.copy()
    new.state, new.due_ms = state, due_ms
    if attempt is not None:
        new.attempt = attempt
    if deliver_after_ms is not None:
        new.deliver_after_ms = deliver_after_ms
    if metadata is not None:
        new.metadata = metadata
    if priority is not None:
        new.priority = priority
    return Transition(Effect.CHANGED, new)


def _to_dead(row: Row, context: FlushContext, metadata: bytes | None = None) -> Transition:
    due = context.now_ms + context.retry_policies[row.namespace].dead_retention_ms
    return _to_changed(row, State.DEAD, min(due, TIME_MS_MAX), metadata=metadata)


def _to_leased(event: Event, row: Row, context: FlushContext) -> Transition:
    lease = event.lease_ms if event.lease_ms is not None else row.lease_ms
    due = min(context.now_ms + lease, TIME_MS_MAX)
    return Transition(Effect.CHANGED, row=row.with_lease(due, context.token, context.now_ms))


def _stale_lease() -> Transition:
    return Transition(
        Effect.UNCHANGED,
        error=StaleLease("this lease is over: the item was settled or delivered again; drop your copy of it"),
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
    if row.ready_at_ms <= context.now_ms:
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
    # An item that was never delivered has token 0 and no lease.
    return _DELETED if event.token is not None and 0 < event.token == abs(row.token) else _stale_lease()


def _nack(event: Event, row: Row, context: FlushContext) -> Transition:
    if event.token != row.token:
        return _stale_lease()
    if event.deliver_after_ms is not None:
        after = event.deliver_after_ms
    elif event.delay_ms is not None:
        after = context.now_ms + event.delay_ms
    else:
        after = context.now_ms + backoff_ms(context.retry_policies[row.namespace], row.attempt, event.jitter)
    if event.dead:
        nacked = _to_dead(row, context, event.metadata)
    else:
        nacked = _end_attempt(row, context, min(max(after, context.now_ms), TIME_MS_MAX), event.metadata)
    if nacked.row is not None:
        nacked.row.token = -row.token  # a renewal that is under way does not lease the item again
    return nacked


def _end_attempt(row: Row, context: FlushContext, after_ms: int, metadata: bytes | None = None) -> Transition:
    """Return the transition that ends a lease before its time. `after_ms`: when the item may be delivered again."""
    if row.policy is DeliveryPolicy.AT_MOST_ONCE or _is_expired(row, context.now_ms):
        return _DELETED
    if _is_out_of_attempts(row):
        return _to_dead(row, context, metadata)
    keeps_place = row.item_group is not None and (row.namespace, row.topic) in context.strict_topics
    place_ms = None if keeps_place else after_ms
    if after_ms <= context.now_ms:
        return _to_ready(row, deliver_after_ms=place_ms, metadata=metadata)
    due = after_ms if row.expires_at_ms is None else min(after_ms, row.expires_at_ms)
    return _to_changed(row, State.DEFERRED, due, deliver_after_ms=place_ms, metadata=metadata)


def _extend(event: Event, row: Row, context: FlushContext) -> Transition:
    if event.token is not None and event.token != row.token:
        return _stale_lease()
    if event.lease_ms == 0:
        return _end_attempt(row, context, context.now_ms)
    lease = event.lease_ms if event.lease_ms is not None else row.lease_ms
    end_ms = min(context.now_ms + lease, TIME_MS_MAX)
    # The holder does not learn of an extension by others, so theirs never takes time away from it.
    return _to_changed(row, row.state, end_ms if event.token is not None else max(end_ms, row.due_ms or 0))


def _extend_ready(event: Event, row: Row, context: FlushContext) -> Transition:
    """Lease a READY item again to its last consumer: its lease has ended, and it was not leased since."""
    if event.token is None:
        return _reject_extend(event, row, context)
    if event.token <= 0 or event.token != row.token:
        return _stale_lease()
    if row.item_group is not None and (row.namespace, row.topic) in context.limited_topics:
        return _stale_lease()  # another item of its group may have its permit
    if _is_expired(row, context.now_ms):
        return _ttl_ended()
    if event.lease_ms == 0:
        return _UNCHANGED
    lease = event.lease_ms if event.lease_ms is not None else row.lease_ms
    return _to_changed(row, State.LEASED, min(context.now_ms + lease, TIME_MS_MAX))


def _reject_extend(event: Event, row: Row, context: FlushContext) -> Transition:
    if event.token is not None:
        return _stale_lease()
    message = "the item is not leased, so no lease can be extended; explain says why it is not delivered"
    return Transition(Effect.UNCHANGED, error=StaleLease(message))


def _release(event: Event, row: Row, context: FlushContext) -> Transition:
    if event.token != row.token:
        return _stale_lease()
    if _is_expired(row, context.now_ms):
        return _DELETED
    released = _to_ready(row, attempt=row.attempt - 1)
    assert released.row is not None
    released.row.token = -row.token  # an attempt that does not count any more is not taken up again
    return released


def _give_up(event: Event, row: Row, context: FlushContext) -> Transition:
    """End an item whose row the columns of the database do not hold. The time of its next delivery says so."""
    if _is_expired(row, context.now_ms):
        return _DELETED
    given_up = _to_dead(row, context)
    assert given_up.row is not None
    given_up.row.deliver_after_ms = GIVEN_UP_MS
    return given_up


def _supersede(event: Event, row: Row, context: FlushContext) -> Transition:
    """End the lease of an item behind another one of its run, whose lease has ended early.

    Its consumer has not begun it, so the attempt does not count, as with a release. Its token is no last token: an ack must
    not settle it before the other one. A slow consumer may have begun it all the same, so it is gone if it is delivered at
    most once, unless that consumer has said that it did not.
    """
    if event.token and event.token != row.token:
        return _UNCHANGED  # leased again since
    is_once = row.policy is DeliveryPolicy.AT_MOST_ONCE and not event.is_unbegun
    if is_once or _is_expired(row, context.now_ms):
        return _DELETED
    superseded = _to_ready(row, attempt=row.attempt - 1)
    assert superseded.row is not None
    superseded.row.token = 0
    return superseded


def _redrive(event: Event, row: Row, context: FlushContext) -> Transition:
    expires = None if row.ttl_ms is None else min(context.now_ms + row.ttl_ms, TIME_MS_MAX)
    new = replace(
        row,
        state=State.READY,
        deliver_after_ms=context.now_ms,
        expires_at_ms=expires,
        due_ms=expires,
        token=-abs(row.token),
        attempt=0,
    )
    return Transition(Effect.CHANGED, new)


def _reject_redrive(event: Event, row: Row, context: FlushContext) -> Transition:
    return Transition(Effect.UNCHANGED, error=NotFound("the item is not dead; only a dead item can be redriven"))


def _move(event: Event, row: Row, context: FlushContext) -> Transition:
    """Move a READY or DEFERRED item: it keeps its place in the order, but for groups in order, and the rest of its TTL, unless another one is given.

    A DEFERRED item that is due becomes READY here, because no scan would find its new row: the scan under way
    knows the old id, and later scans begin above this due.
    """
    if _is_expired(row, context.now_ms):
        return _ttl_ended()
    if row.state is State.DEFERRED and row.ready_at_ms <= context.now_ms:
        row = replace(row, state=State.READY, due_ms=row.expires_at_ms)
    return _to_moved(event, row, context)


def _move_dead(event: Event, row: Row, context: FlushContext) -> Transition:
    redriven = _redrive(event, row, context).row
    assert redriven is not None
    return _to_moved(event, redriven, context)


def _reject_move(event: Event, row: Row, context: FlushContext) -> Transition:
    message = "the item is leased, so only its consumer can settle it; move it after its lease has ended"
    return Transition(Effect.UNCHANGED, error=InvalidArgument(message))


def _to_moved(event: Event, row: Row, context: FlushContext) -> Transition:
    """Return the transition to a new item in the event's topic, which was never delivered."""
    if event.topic == row.topic:
        return Transition(
            Effect.UNCHANGED, error=InvalidArgument("the item is in this topic already; name another", field="topic")
        )
    moved = replace(row, topic=event.topic, token=0, attempt=0, first_delivered_at_ms=None)
    if row.state is State.DEFERRED:
        moved.deliver_after_ms = row.ready_at_ms  # a backoff in a strict group has kept the place of the first delivery
    if (
        event.accepted_ms is not None
        and moved.state is State.READY
        and moved.item_group is not None
        and (moved.namespace, moved.topic) in context.limited_topics
    ):
        moved.deliver_after_ms = event.accepted_ms  # behind the items of its group that came before it
    if event.ttl_remaining_ms is not None:
        expires = moved.expires_at_ms = min(context.now_ms + event.ttl_remaining_ms, TIME_MS_MAX)
        moved.due_ms = min(moved.deliver_after_ms, expires) if moved.state is State.DEFERRED else expires
    return Transition(Effect.MOVED, moved)


def _ttl_ended() -> Transition:
    return Transition(Effect.UNCHANGED, error=NotFound("the item's TTL has ended; enqueue it again"))


def _update(event: Event, row: Row, context: FlushContext) -> Transition:
    """Update a READY or DEFERRED item. A READY item with delay 0 keeps its place in the order."""
    if _is_expired(row, context.now_ms):
        return _ttl_ended()
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
            "the item is leased, so only its consumer can set when it is delivered again; "
            "give the time with nack, or update the item after its lease has ended",
        )
    return _to_changed(row, row.state, row.due_ms, metadata=event.metadata, priority=event.priority)


def _update_dead(event: Event, row: Row, context: FlushContext) -> Transition:
    if event.delay_ms is not None or event.deliver_after_ms is not None:
        return _invalid_time(event, "the item is dead and is not delivered; redrive it first")
    return _to_changed(row, row.state, row.due_ms, metadata=event.metadata, priority=event.priority)


def _invalid_time(event: Event, message: str) -> Transition:
    field = "change.deliver_after_ms" if event.delay_ms is None else "change.delay_ms"
    return Transition(Effect.UNCHANGED, error=InvalidArgument(message, field=field))


# ------------------------------------------------------------------ the table


@dataclass(slots=True, frozen=True)
class Rule:
    """The function that picks a transition, and all the outcomes that it can have.

    An outcome is (guard, next state); a next state of None means gone. The guard
    is a few words for the diagram, and empty if no other guard applies.
    """

    decide: Callable[[Event, Row, FlushContext], Transition]
    outcomes: tuple[tuple[str, State | None], ...]


LEASED_AGAIN: Final = "lease ended, dequeue waiting: leased again"
"""The only outcome of a DUE that changes the row and not the state."""

_D, _R, _L, _X = State.DEFERRED, State.READY, State.LEASED, State.DEAD

TABLE: Final[Mapping[tuple[State, EventKind], Rule]] = {
    (_D, EventKind.DUE): Rule(
        _deferred_due,
        (
            ("deliver-after reached", _R),
            ("deliver-after reached, dequeue waiting", _L),
            ("TTL ended", None),
            ("not yet", _D),
        ),
    ),
    (_D, EventKind.DELIVER): Rule(_leave_unchanged, (("not ready", _D),)),
    (_D, EventKind.ACK): Rule(_ack, (("last token", None), ("other token: STALE_LEASE", _D))),
    (_D, EventKind.NACK): Rule(_reject_stale_lease, (("STALE_LEASE", _D),)),
    (_D, EventKind.EXTEND): Rule(_reject_extend, (("STALE_LEASE", _D),)),
    (_D, EventKind.RELEASE): Rule(_reject_stale_lease, (("STALE_LEASE", _D),)),
    (_D, EventKind.CANCEL): Rule(_delete, (("", None),)),
    (_D, EventKind.REDRIVE): Rule(_reject_redrive, (("NOT_FOUND", _D),)),
    (_D, EventKind.UPDATE): Rule(
        _update, (("", _D), ("no delay", _R), ("beyond the TTL: INVALID_ARGUMENT", _D), ("TTL ended: NOT_FOUND", _D))
    ),
    (_D, EventKind.MOVE): Rule(
        _move, (("", None), ("TTL ended: NOT_FOUND", _D), ("in the topic already: INVALID_ARGUMENT", _D))
    ),
    (_D, EventKind.GIVE_UP): Rule(_leave_unchanged, (("not ready", _D),)),
    (_D, EventKind.SUPERSEDE): Rule(_leave_unchanged, (("not leased", _D),)),
    (_R, EventKind.DUE): Rule(_ready_due, (("TTL ended", None), ("not yet", _R))),
    (_R, EventKind.DELIVER): Rule(_deliver, (("", _L), ("TTL ended", None))),
    (_R, EventKind.ACK): Rule(_ack, (("last token", None), ("other token: STALE_LEASE", _R))),
    (_R, EventKind.NACK): Rule(_reject_stale_lease, (("STALE_LEASE", _R),)),
    (_R, EventKind.EXTEND): Rule(
        _extend_ready,
        (
            ("last token", _L),
            ("last token, for 0 ms", _R),
            ("other token: STALE_LEASE", _R),
            ("TTL ended: NOT_FOUND", _R),
        ),
    ),
    (_R, EventKind.RELEASE): Rule(_reject_stale_lease, (("STALE_LEASE", _R),)),
    (_R, EventKind.CANCEL): Rule(_delete, (("", None),)),
    (_R, EventKind.REDRIVE): Rule(_reject_redrive, (("NOT_FOUND", _R),)),
    (_R, EventKind.UPDATE): Rule(
        _update, (("", _R), ("delay", _D), ("beyond the TTL: INVALID_ARGUMENT", _R), ("TTL ended: NOT_FOUND", _R))
    ),
    (_R, EventKind.MOVE): Rule(
        _move, (("", None), ("TTL ended: NOT_FOUND", _R), ("in the topic already: INVALID_ARGUMENT", _R))
    ),
    (_R, EventKind.GIVE_UP): Rule(_give_up, (("row refused", _X), ("TTL ended", None))),
    (_R, EventKind.SUPERSEDE): Rule(_leave_unchanged, (("not leased", _R),)),
    (_L, EventKind.DUE): Rule(
        _leased_due,
        (
            ("lease ended", _R),
            (LEASED_AGAIN, _L),
            ("lease ended, attempts exhausted", _X),
            ("lease ended, at most once or TTL ended", None),
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
            ("at most once or TTL ended", None),
            ("other token: STALE_LEASE", _L),
        ),
    ),
    (_L, EventKind.EXTEND): Rule(
        _extend,
        (
            ("", _L),
            ("for 0 ms", _R),
            ("for 0 ms, attempts exhausted", _X),
            ("for 0 ms, at most once or TTL ended", None),
            ("other token: STALE_LEASE", _L),
        ),
    ),
    (_L, EventKind.RELEASE): Rule(_release, (("", _R), ("TTL ended", None), ("other token: STALE_LEASE", _L))),
    (_L, EventKind.CANCEL): Rule(_delete, (("", None),)),
    (_L, EventKind.REDRIVE): Rule(_reject_redrive, (("NOT_FOUND", _L),)),
    (_L, EventKind.UPDATE): Rule(_update_leased, (("", _L), ("a time: INVALID_ARGUMENT", _L))),
    (_L, EventKind.MOVE): Rule(_reject_move, (("INVALID_ARGUMENT", _L),)),
    (_L, EventKind.GIVE_UP): Rule(_leave_unchanged, (("not ready", _L),)),
    (_L, EventKind.SUPERSEDE): Rule(
        _supersede, (("", _R), ("at most once and not released, or TTL ended", None), ("other token", _L))
    ),
    (_X, EventKind.DUE): Rule(_dead_due, (("retention ended", None), ("not yet", _X))),
    (_X, EventKind.DELIVER): Rule(_leave_unchanged, (("not ready", _X),)),
    (_X, EventKind.ACK): Rule(_ack, (("last token", None), ("other token: STALE_LEASE", _X))),
    (_X, EventKind.NACK): Rule(_reject_stale_lease, (("STALE_LEASE", _X),)),
    (_X, EventKind.EXTEND): Rule(_reject_extend, (("STALE_LEASE", _X),)),
    (_X, EventKind.RELEASE): Rule(_reject_stale_lease, (("STALE_LEASE", _X),)),
    (_X, EventKind.CANCEL): Rule(_delete, (("", None),)),
    (_X, EventKind.REDRIVE): Rule(_redrive, (("", _R),)),
    (_X, EventKind.UPDATE): Rule(_update_dead, (("", _X), ("a time: INVALID_ARGUMENT", _X))),
    (_X, EventKind.MOVE): Rule(_move_dead, (("", None), ("in the topic already: INVALID_ARGUMENT", _X))),
    (_X, EventKind.GIVE_UP): Rule(_leave_unchanged, (("dead already", _X),)),
    (_X, EventKind.SUPERSEDE): Rule(_leave_unchanged, (("not leased", _X),)),
}
