"""What can be reckoned about one item from stamps, settings and clocks that nearly agree.

Holds `Bounds` and functions of a `Case`. Always true: each answer is the
earliest or latest that any order of events within the stamps allows. Judges
nothing; that is the checker's.

What the server may have dropped by itself, where the history does not list it:
- by a purge of its topic that was under way when it was enqueued, or came later;
- by TTL, when `ttl_ms` had passed since the enqueue was asked for;
- by retention, when the item may have died and `dead_retention_ms` had passed
  since the first dequeue that could have leased it;
- at most once, when it was delivered and its lease was over or given back, or
  when a dequeue of its topic did not bring it (the host may have leased it and
  crashed).
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.certain_changes import SPREAD_MS
from tests.support.history import Call, CallEnd, Entry, Stamp
from tests.support.item_histories import DeliveryReceipt, ItemHistory


@dataclass(slots=True, frozen=True)
class ClockBounds:
    """What the run was configured with, and how well clocks agree.

    `slew_ms` and `slew_ratio`: a duration of d ms on the server is, to the
    observer, d ms, give or take `slew_ms + slew_ratio * d`; at least 1 ms, since
    servers count whole milliseconds. `late_ms`: by so much in all may takeovers
    make it longer. None for a setting means that it is not
    known: nothing is concluded from it; for `key_window_ms` and
    `dead_retention_ms`, that it is longer than the run.
    """

    lease_ms_default: int | None = None
    attempts_max_default: int | None = None
    backoff_ms_max: int | None = None
    dead_retention_ms: int | None = None
    key_window_ms: int | None = None
    slew_ms: float = 1.0
    slew_ratio: float = 0.0
    late_ms: float = 0.0
    spread_ms: float = SPREAD_MS
    """So much later a change of the catalog holds on every host."""
    bound_ms: float | None = None
    """Invariant 11: how long something may be overdue, and how long one consumer may have waited for a
    ready item, over all its calls that brought nothing. None: not checked."""

    def shortest_ms(self, duration_ms: float) -> float:
        return duration_ms * (1 - self.slew_ratio) - self.slew_ms

    def longest_ms(self, duration_ms: float) -> float:
        return duration_ms * (1 + self.slew_ratio) + self.slew_ms + self.late_ms


def may_have_been_redriven(case: ItemHistory) -> bool:
    """It may have been redriven, which gives fresh attempts and a fresh TTL."""
    return bool(case.possible_operations("redrive"))


def requested_delay_ms(entry: Entry) -> float | None:
    """How long from its call an item must wait: the relative delay, or the absolute time made relative."""
    delay = entry.requested.get("delay_ms")
    return delay if delay is not None else entry.requested.get("deliver_after_in_ms")


def earliest_ready_ms(case: ItemHistory, bounds: ClockBounds) -> float:
    """The earliest moment at which the item can have been ready; it must have been enqueued."""
    moved = [entry for entry in case.possible_operations("update") if requested_delay_ms(entry) is not None]
    return min(
        entry.invoked.at_ms + bounds.shortest_ms(requested_delay_ms(entry) or 0) for entry in (*case.origins, *moved)
    )


def attempts_max(case: ItemHistory, bounds: ClockBounds) -> int | None:
    """0: without limit; None: not known."""
    limit = case.requested("attempts_max", bounds.attempts_max_default)
    return None if limit is None else int(limit)


def _item_lease(case: ItemHistory, bounds: ClockBounds) -> float | None:
    lease = case.requested("lease_ms", bounds.lease_ms_default)
    return None if lease is None else float(lease)


def earliest_lease_end_ms(case: ItemHistory, receipt: DeliveryReceipt, bounds: ClockBounds) -> float:
    """The earliest moment at which a lease can have run out; minus infinity when that is not known.

    It was granted after it was asked for, and after the item was ready first. An extension replaces the end, so the
    last one counts; any that may have been the last may be it.
    """
    lease = receipt.call.args.get("lease_ms")
    if lease is None:
        lease = _item_lease(case, bounds)
    if lease is None:
        lease = receipt.result.get("lease_remaining_ms")
    begun_ms = (
        max(receipt.requested.at_ms, earliest_ready_ms(case, bounds)) if case.origins else receipt.requested.at_ms
    )
    grants: list[tuple[float, Stamp | None, float | None]] = [(begun_ms, receipt.received, lease)]
    extensions = case.possible_operations("extend", token=receipt.token)
    for entry in extensions:
        asked = entry.requested.get("lease_ms")
        grants.append((entry.invoked.at_ms, entry.returned, _item_lease(case, bounds) if asked is None else asked))
    acknowledged = [entry.invoked for entry in extensions if entry.end is CallEnd.OK]
    ends = []
    for start_ms, answered, length in grants:
        if answered is not None and any(answered.before(other) for other in acknowledged):
            continue
        if length is None:
            return float("-inf")
        ends.append(start_ms + bounds.shortest_ms(length))
    return min(ends)


def inserted_between_ms(case: ItemHistory) -> tuple[float, float]:
    """Between which moments the item was inserted."""
    seen = [entry.returned for entry in case.enqueued] + [each.received for each in case.receipts]
    known = [stamp.at_ms for stamp in seen if stamp is not None]
    return _first_asked_ms(case), min(known, default=_ended_ms(case, None))


def _first_asked_ms(case: ItemHistory) -> float:
    return min(entry.invoked.at_ms for entry in case.origins)


def _ended_ms(case: ItemHistory, at_ms: float | None) -> float:
    ended = case.histories.record.ended
    assert ended is not None
    return ended.at_ms if at_ms is None else at_ms


def may_have_expired(case: ItemHistory, bounds: ClockBounds, at_ms: float | None = None) -> bool:
    """By its TTL, at `at_ms` or by the end."""
    ttl = case.requested("ttl_ms")
    return ttl is not None and _ended_ms(case, at_ms) >= _first_asked_ms(case) + bounds.shortest_ms(ttl)


def may_have_been_purged(case: ItemHistory) -> bool:
    """By a purge of its topic that was not certainly over before the item was enqueued."""
    return any(not _precedes_item(case, call) for call in case.purges())


def may_have_aged(case: ItemHistory, bounds: ClockBounds, at_ms: float | None = None) -> bool:
    """By the retention of dead items, at `at_ms` or by the end."""
    if bounds.dead_retention_ms is None:
        return False
    given_up = any(entry.requested.get("dead") for entry in case.possible_operations("nack"))
    leased = [call.invoked.at_ms for call in case.dequeues() if not _precedes_item(case, call)]
    if not leased or not (given_up or attempts_max(case, bounds) != 0):
        return False
    return _ended_ms(case, at_ms) >= min(leased) + bounds.shortest_ms(bounds.dead_retention_ms)


def may_have_ended(case: ItemHistory, bounds: ClockBounds) -> bool:
    """Because it was to be delivered at most once and its only lease was over by the end."""
    if not case.requested("at_most_once", False):
        return False
    for each in case.receipts:
        if case.possible_operations("nack", token=each.token) or _ended_ms(case, None) >= earliest_lease_end_ms(
            case, each, bounds
        ):
            return True
    brought = {id(each.call) for each in case.receipts}
    return any(id(call) not in brought and not _precedes_item(case, call) for call in case.dequeues())


def _precedes_item(case: ItemHistory, call: Call) -> bool:
    """A call that was over before the item can have existed; one that ended unknown may not have been."""
    returned = call.returned if call.end is CallEnd.OK else None
    return returned is not None and all(returned.before(entry.invoked) for entry in case.origins)


def latest_ready_ms(case: ItemHistory, bounds: ClockBounds) -> float | None:
    """The latest moment by which a present item must have become ready for the last time; None: not known.

    Each thing that may have held it back is reckoned at its longest. What ended
    unknown before `healed` has taken effect by then, if ever; what did so later
    may still.
    """
    record = case.histories.record
    lease, healed = _item_lease(case, bounds), record.healed
    if (
        not case.enqueued
        or lease is None
        or healed is None
        or may_have_been_redriven(case)
        or case.possible_operations("update")
    ):
        return None
    held = [(entry.call, entry.returned, requested_delay_ms(entry) or 0) for entry in case.origins]
    brought = {id(each.call) for each in case.receipts}
    for call in case.dequeues():
        # A host may have leased the item, left it out of its answer, and crashed before it gave it back.
        answered = call.returned if id(call) in brought else None
        if answered is not None or call.end is CallEnd.UNKNOWN or call.invoked.before(healed):
            held.append((call, answered, call.args.get("lease_ms") or lease))
    for entry in case.possible_operations("extend"):
        held.append((entry.call, entry.returned, entry.requested.get("lease_ms") or lease))
    for entry in case.possible_operations("nack", "release"):
        wait = requested_delay_ms(entry) if entry.call.op == "nack" else 0
        wait = bounds.backoff_ms_max if wait is None else wait
        if wait is None:
            return None
        held.append((entry.call, entry.returned, wait))
    moments = []
    for call, answered, length in held:
        if answered is None and not call.invoked.before(healed):
            return None
        moments.append((answered or healed).at_ms + bounds.longest_ms(length))
    return max(moments)
