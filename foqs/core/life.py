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
from foqs.core.filter import ItemFilter
from foqs.core.item import TIME_MS_MAX, Delivery, NewItem, Row, State


class Kind(enum.Enum):
    """What can happen to an item that exists."""

    DUE = "due"
    HAND_OUT = "hand-out"
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
class Policy:
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

    kind: Kind
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
    only: ItemFilter | None = None
    wanted: bool = False


class Fate(enum.Enum):
    """What becomes of the row."""

    KEPT = "kept"
    CHANGED = "changed"
    GONE = "gone"


@dataclass(slots=True)
class Verdict:
    """The answer of a rule. Not to be changed.

    `row` is the new row when CHANGED. `error` goes to the caller; a row never
    changes together with an error. `already_gone` marks a success that found
    nothing to do.
    """

    fate: Fate
    row: Row | None = None
    error: FoqsError | None = None
    already_gone: bool = False


_KEPT: Final = Verdict(Fate.KEPT)
_GONE: Final = Verdict(Fate.GONE)


@dataclass(slots=True, frozen=True)
class Moment:
    """The flush that judges: its time, the token it grants, and the policies.

    `begun_ms` is the time of its first attempt: a key that was taken then is
    taken, however long the database did not answer meanwhile.
    """

    now_ms: int
    begun_ms: int
    token: int
    policies: Mapping[str, Policy]


def admit(new: NewItem, number: int, now_ms: int) -> Row:
    """The row of an item that enters now."""
    after = now_ms
    if new.delay_ms:
        after = min(now_ms + new.delay_ms, TIME_MS_MAX)
    elif new.deliver_after_ms is not None:
        after = min(max(new.deliver_after_ms, now_ms), TIME_MS_MAX)
    expires = None if new.ttl_ms is None else min(now_ms + new.ttl_ms, TIME_MS_MAX)
    state, due = State.READY, expires
    if after > now_ms:
        state, due = State.DEFERRED, after if expires is None else min(after, expires)
    # In the order of the fields: made for every item.
    return Row(
        number,
        new.namespace,
        new.topic,
        new.priority,
        after,
        now_ms,
        new.lease_ms,
        new.ttl_ms,
        expires,
        new.policy,
        new.attempts_max,
        len(new.payload),
        new.payload,
        new.metadata,
        state,
        due,
        0,
        0,
    )


def judge(event: Event, row: Row | None, moment: Moment) -> Verdict:
    """What `event` does to `row` (None: there is no such row) at `moment`."""
    if row is None or (event.namespace is not None and event.namespace != row.namespace):
        return _judge_missing(event, row)
    if event.only is not None and not event.only.matches(row):
        return Verdict(Fate.KEPT, error=NotFound("the item does not match the filter any more"))
    return TABLE[row.state, event.kind].decide(event, row, moment)


def wakes(row: Row, now_ms: int) -> bool:
    """A DUE event makes this row READY, or leases it to who waits for it."""
    if _expired(row, now_ms):
        return False
    if row.state is State.DEFERRED:
        return row.deliver_after_ms <= now_ms
    ended = row.state is State.LEASED and _lease_over(row, now_ms)
    return ended and row.policy is not Delivery.AT_MOST_ONCE and not _exhausted(row)


def backoff_ms(policy: Policy, attempt: int, jitter: float) -> int:
    """Exponential backoff with full jitter over its upper half, in milliseconds.

    The n-th attempt waits between half of and all of min * 2**(n-1), capped.
    """
    ceiling = min(policy.backoff_ms_max, policy.backoff_ms_min << min(max(attempt - 1, 0), 40))
    return ceiling - int(ceiling / 2 * jitter)


def _judge_missing(event: Event, row: Row | None) -> Verdict:
    if event.kind in (Kind.DUE, Kind.HAND_OUT):
        return _KEPT
    if row is None and event.kind in (Kind.ACK, Kind.CANCEL):
        return Verdict(Fate.KEPT, already_gone=True)
    return Verdict(
        Fate.KEPT, error=NotFound("no such item in this namespace; it may have been acked, cancelled or expired")
    )


def _expired(row: Row, now_ms: int) -> bool:
    return row.expires_at_ms is not None and row.expires_at_ms <= now_ms


def _lease_over(row: Row, now_ms: int) -> bool:
    return row.due_ms is not None and row.due_ms <= now_ms


def _exhausted(row: Row) -> bool:
    return bool(row.attempts_max) and row.attempt >= row.attempts_max


def _ready(
    row: Row, *, attempt: int | None = None, deliver_after_ms: int | None = None, metadata: bytes | None = None
) -> Verdict:
    return _changed(row, State.READY, row.expires_at_ms, attempt, deliver_after_ms, metadata)


def _changed(
    row: Row,
    state: State,
    due_ms: int | None,
    attempt: int | None = None,
    deliver_after_ms: int | None = None,
    metadata: bytes | None = None,
    priority: int | None = None,
) -> Verdict:
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
    return Verdict(Fate.CHANGED, new)


def _dead(row: Row, moment: Moment, metadata: bytes | None = None) -> Verdict:
    due = moment.now_ms + moment.policies[row.namespace].dead_retention_ms
    return _changed(row, State.DEAD, min(due, TIME_MS_MAX), metadata=metadata)


def _leased(event: Event, row: Row, moment: Moment) -> Verdict:
    lease = event.lease_ms if event.lease_ms is not None else row.lease_ms
    return Verdict(Fate.CHANGED, row=row.leased(min(moment.now_ms + lease, TIME_MS_MAX), moment.token))


def _stale() -> Verdict:
    return Verdict(
        Fate.KEPT,
        error=StaleLease("this lease is over: the item was given back or delivered again; drop your copy of it"),
    )


# ------------------------------------------------------------------ the rules


def _keep(event: Event, row: Row, moment: Moment) -> Verdict:
    return _KEPT


def _delete(event: Event, row: Row, moment: Moment) -> Verdict:
    return _GONE


def _lease_is_over(event: Event, row: Row, moment: Moment) -> Verdict:
    return _stale()


def _deferred_due(event: Event, row: Row, moment: Moment) -> Verdict:
    if _expired(row, moment.now_ms):
        return _GONE
    if row.deliver_after_ms <= moment.now_ms:
        return _leased(event, row, moment) if event.wanted else _ready(row)
    return _KEPT


def _ready_due(event: Event, row: Row, moment: Moment) -> Verdict:
    return _GONE if _expired(row, moment.now_ms) else _KEPT


def _dead_due(event: Event, row: Row, moment: Moment) -> Verdict:
    return _GONE if row.due_ms is not None and row.due_ms <= moment.now_ms else _KEPT


def _leased_due(event: Event, row: Row, moment: Moment) -> Verdict:
    if not _lease_over(row, moment.now_ms):
        return _KEPT
    if row.policy is Delivery.AT_MOST_ONCE or _expired(row, moment.now_ms):
        return _GONE
    if _exhausted(row):
        return _dead(row, moment)
    return _leased(event, row, moment) if event.wanted else _ready(row)


def _hand_out(event: Event, row: Row, moment: Moment) -> Verdict:
    if _expired(row, moment.now_ms):
        return _GONE
    return _leased(event, row, moment)


def _ack(event: Event, row: Row, moment: Moment) -> Verdict:
    # Token 0 is that of an item never handed out: no lease, so nobody's to ack.
    return _GONE if event.token and event.token == row.token else _stale()


def _nack(event: Event, row: Row, moment: Moment) -> Verdict:
    if event.token != row.token:
        return _stale()
    metadata = event.metadata
    if event.dead:
        return _dead(row, moment, metadata)
    if row.policy is Delivery.AT_MOST_ONCE or _expired(row, moment.now_ms):
        return _GONE
    if _exhausted(row):
        return _dead(row, moment, metadata)
    if event.deliver_after_ms is not None:
        after = event.deliver_after_ms
    elif event.delay_ms is not None:
        after = moment.now_ms + event.delay_ms
    else:
        after = moment.now_ms + backoff_ms(moment.policies[row.namespace], row.attempt, event.jitter)
    after = min(max(after, moment.now_ms), TIME_MS_MAX)
    if after <= moment.now_ms:
        return _ready(row, deliver_after_ms=after, metadata=metadata)
    due = after if row.expires_at_ms is None else min(after, row.expires_at_ms)
    return _changed(row, State.DEFERRED, due, deliver_after_ms=after, metadata=metadata)


def _extend(event: Event, row: Row, moment: Moment) -> Verdict:
    if event.token != row.token:
        return _stale()
    lease = event.lease_ms if event.lease_ms is not None else row.lease_ms
    return _changed(row, row.state, min(moment.now_ms + lease, TIME_MS_MAX))


def _release(event: Event, row: Row, moment: Moment) -> Verdict:
    if event.token != row.token:
        return _stale()
    if _expired(row, moment.now_ms):
        return _GONE
    return _ready(row, attempt=row.attempt - 1)


def _redrive(event: Event, row: Row, moment: Moment) -> Verdict:
    expires = None if row.ttl_ms is None else min(moment.now_ms + row.ttl_ms, TIME_MS_MAX)
    new = replace(
        row,
        state=State.READY,
        deliver_after_ms=moment.now_ms,
        expires_at_ms=expires,
        due_ms=expires,
        attempt=0,
    )
    return Verdict(Fate.CHANGED, new)


def _not_dead(event: Event, row: Row, moment: Moment) -> Verdict:
    return Verdict(Fate.KEPT, error=NotFound("the item is not dead; only a dead item can be redriven"))


def _update(event: Event, row: Row, moment: Moment) -> Verdict:
    """Of a READY or DEFERRED item. One that is READY keeps its place when it is to be delivered now."""
    if _expired(row, moment.now_ms):
        return Verdict(Fate.KEPT, error=NotFound("the item's TTL is over; enqueue it again"))
    if event.delay_ms is None and event.deliver_after_ms is None:
        return _changed(row, row.state, row.due_ms, metadata=event.metadata, priority=event.priority)
    after = event.deliver_after_ms if event.delay_ms is None else moment.now_ms + event.delay_ms
    assert after is not None
    after = min(max(after, moment.now_ms), TIME_MS_MAX)
    expires = row.expires_at_ms
    if expires is not None and after >= expires:
        left = expires - moment.now_ms
        return _wrong_time(
            event, f"the item's TTL ends in {left} ms, before it could be delivered; give a shorter time, or cancel it"
        )
    if after > moment.now_ms:
        due = after if expires is None else min(after, expires)
        return _changed(row, State.DEFERRED, due, None, after, event.metadata, event.priority)
    own = None if row.state is State.READY else after
    return _changed(row, State.READY, expires, None, own, event.metadata, event.priority)


def _update_leased(event: Event, row: Row, moment: Moment) -> Verdict:
    if event.delay_ms is not None or event.deliver_after_ms is not None:
        return _wrong_time(
            event,
            "the item is leased, and when it is delivered again is for its consumer to say; "
            "give the time with nack, or update the item when its lease is over",
        )
    return _changed(row, row.state, row.due_ms, metadata=event.metadata, priority=event.priority)


def _update_dead(event: Event, row: Row, moment: Moment) -> Verdict:
    if event.delay_ms is not None or event.deliver_after_ms is not None:
        return _wrong_time(event, "the item is dead and is not delivered at all; redrive it first")
    return _changed(row, row.state, row.due_ms, metadata=event.metadata, priority=event.priority)


def _wrong_time(event: Event, message: str) -> Verdict:
    field = "change.deliver_after_ms" if event.delay_ms is None else "change.delay_ms"
    return Verdict(Fate.KEPT, error=InvalidArgument(message, field=field))


# ------------------------------------------------------------------ the table


@dataclass(slots=True, frozen=True)
class Rule:
    """A function, and every (condition, next state) it can lead to, for the diagram.

    The next state None means that the row is gone; the same state, that it
    stays. A condition is a few words, empty when there is no other way.
    """

    decide: Callable[[Event, Row, Moment], Verdict]
    ways: tuple[tuple[str, State | None], ...]


LEASED_ANEW: Final = "lease over and wanted, leased anew"
"""The one way of a DUE that ends where it began and yet changes the row."""

_D, _R, _L, _X = State.DEFERRED, State.READY, State.LEASED, State.DEAD

TABLE: Final[Mapping[tuple[State, Kind], Rule]] = {
    (_D, Kind.DUE): Rule(
        _deferred_due,
        (("deliver-after reached", _R), ("deliver-after reached and wanted", _L), ("TTL over", None), ("not yet", _D)),
    ),
    (_D, Kind.HAND_OUT): Rule(_keep, (("not ready", _D),)),
    (_D, Kind.ACK): Rule(_ack, (("last token", None), ("other token: STALE_LEASE", _D))),
    (_D, Kind.NACK): Rule(_lease_is_over, (("STALE_LEASE", _D),)),
    (_D, Kind.EXTEND): Rule(_lease_is_over, (("STALE_LEASE", _D),)),
    (_D, Kind.RELEASE): Rule(_lease_is_over, (("STALE_LEASE", _D),)),
    (_D, Kind.CANCEL): Rule(_delete, (("", None),)),
    (_D, Kind.REDRIVE): Rule(_not_dead, (("NOT_FOUND", _D),)),
    (_D, Kind.UPDATE): Rule(
        _update, (("", _D), ("no delay", _R), ("beyond its TTL: INVALID_ARGUMENT", _D), ("TTL over: NOT_FOUND", _D))
    ),
    (_R, Kind.DUE): Rule(_ready_due, (("TTL over", None), ("not yet", _R))),
    (_R, Kind.HAND_OUT): Rule(_hand_out, (("", _L), ("TTL over", None))),
    (_R, Kind.ACK): Rule(_ack, (("last token", None), ("other token: STALE_LEASE", _R))),
    (_R, Kind.NACK): Rule(_lease_is_over, (("STALE_LEASE", _R),)),
    (_R, Kind.EXTEND): Rule(_lease_is_over, (("STALE_LEASE", _R),)),
    (_R, Kind.RELEASE): Rule(_lease_is_over, (("STALE_LEASE", _R),)),
    (_R, Kind.CANCEL): Rule(_delete, (("", None),)),
    (_R, Kind.REDRIVE): Rule(_not_dead, (("NOT_FOUND", _R),)),
    (_R, Kind.UPDATE): Rule(
        _update, (("", _R), ("delay", _D), ("beyond its TTL: INVALID_ARGUMENT", _R), ("TTL over: NOT_FOUND", _R))
    ),
    (_L, Kind.DUE): Rule(
        _leased_due,
        (
            ("lease over", _R),
            (LEASED_ANEW, _L),
            ("lease over, attempts exhausted", _X),
            ("lease over, at most once or TTL over", None),
            ("not yet", _L),
        ),
    ),
    (_L, Kind.HAND_OUT): Rule(_keep, (("not ready", _L),)),
    (_L, Kind.ACK): Rule(_ack, (("", None), ("other token: STALE_LEASE", _L))),
    (_L, Kind.NACK): Rule(
        _nack,
        (
            ("no delay", _R),
            ("delay or backoff", _D),
            ("given up, or attempts exhausted", _X),
            ("at most once or TTL over", None),
            ("other token: STALE_LEASE", _L),
        ),
    ),
    (_L, Kind.EXTEND): Rule(_extend, (("", _L), ("other token: STALE_LEASE", _L))),
    (_L, Kind.RELEASE): Rule(_release, (("", _R), ("TTL over", None), ("other token: STALE_LEASE", _L))),
    (_L, Kind.CANCEL): Rule(_delete, (("", None),)),
    (_L, Kind.REDRIVE): Rule(_not_dead, (("NOT_FOUND", _L),)),
    (_L, Kind.UPDATE): Rule(_update_leased, (("", _L), ("a time: INVALID_ARGUMENT", _L))),
    (_X, Kind.DUE): Rule(_dead_due, (("retention over", None), ("not yet", _X))),
    (_X, Kind.HAND_OUT): Rule(_keep, (("not ready", _X),)),
    (_X, Kind.ACK): Rule(_ack, (("last token", None), ("other token: STALE_LEASE", _X))),
    (_X, Kind.NACK): Rule(_lease_is_over, (("STALE_LEASE", _X),)),
    (_X, Kind.EXTEND): Rule(_lease_is_over, (("STALE_LEASE", _X),)),
    (_X, Kind.RELEASE): Rule(_lease_is_over, (("STALE_LEASE", _X),)),
    (_X, Kind.CANCEL): Rule(_delete, (("", None),)),
    (_X, Kind.REDRIVE): Rule(_redrive, (("", _R),)),
    (_X, Kind.UPDATE): Rule(_update_dead, (("", _X), ("a time: INVALID_ARGUMENT", _X))),
}
