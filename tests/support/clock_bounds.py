"""The earliest and latest times of one item that stamps, settings and slightly different clocks allow.

Holds `ClockBounds` and functions of an `ItemHistory`. Always true: each result
is the earliest or latest in any order of events that the stamps allow. Does not
judge; the checker does.

If the history does not list dropped items, the server may have dropped an item:
- by a purge of its topic, unless the purge was over before the enqueue;
- by TTL, if `ttl_ms` have passed since the enqueue began;
- by retention, if the item may have died and `dead_retention_ms` have passed
  since the first dequeue that could have leased it;
- by the at-most-once policy, if it was delivered and its lease has ended, or if
  a dequeue of its topic did not bring it (the host may have leased it and
  crashed).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.support.certain_changes import SPREAD_MS
from tests.support.history import Call, CallEnd, Entry, Stamp
from tests.support.item_histories import DeliveryReceipt, ItemHistory


@dataclass(slots=True, frozen=True)
class ClockBounds:
    """The settings of the run, and how well its clocks agree.

    `slew_ms` and `slew_ratio`: to the observer, a duration of d ms on the server
    is d ms, give or take `slew_ms + slew_ratio * d`. This is at least 1 ms,
    because servers count whole milliseconds. `late_ms`: the most that all
    takeovers together add to a duration. A setting that is None is unknown, and
    nothing is concluded from it; `key_window_ms` and `dead_retention_ms` are
    then longer than the run.
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
    """The time until a change of the catalog is in effect on every host."""
    bound_ms: float | None = None
    """Invariant 11: how long an item may be overdue, and how long one consumer may wait for a ready item
    in all its empty dequeues together. None: not checked."""
    older_hosts: bool = False
    """Hosts of the version before take part, which do not know the time of the first delivery."""

    def shortest_ms(self, duration_ms: float) -> float:
        return duration_ms * (1 - self.slew_ratio) - self.slew_ms

    def longest_ms(self, duration_ms: float) -> float:
        return duration_ms * (1 + self.slew_ratio) + self.slew_ms + self.late_ms


def may_have_been_redriven(item: ItemHistory) -> bool:
    """Whether it may have been redriven, which resets its attempts and its TTL."""
    return bool(item.possible_operations("redrive"))


def requested_delay_ms(entry: Entry) -> float | None:
    """Return how long after its call an item must wait: the delay, or the absolute time made relative."""
    delay = entry.requested.get("delay_ms")
    return delay if delay is not None else entry.requested.get("deliver_after_in_ms")


def earliest_ready_ms(item: ItemHistory, bounds: ClockBounds) -> float:
    """Return the earliest moment at which the item can have been ready. It must have been enqueued."""
    moved = [entry for entry in item.possible_operations("update") if requested_delay_ms(entry) is not None]
    return min(
        entry.invoked.at_ms + bounds.shortest_ms(requested_delay_ms(entry) or 0) for entry in (*item.origins, *moved)
    )


def attempts_max(item: ItemHistory, bounds: ClockBounds) -> int | None:
    """Return its attempts; 0 without a limit, None if unknown."""
    limit = item.requested("attempts_max", bounds.attempts_max_default)
    return None if limit is None else int(limit)


def _item_lease(item: ItemHistory, bounds: ClockBounds) -> float | None:
    lease = item.requested("lease_ms", bounds.lease_ms_default)
    return None if lease is None else float(lease)


def earliest_lease_end_ms(
    item: ItemHistory, receipt: DeliveryReceipt, bounds: ClockBounds, during: Call | None = None
) -> float:
    """Return the earliest moment at which a lease can have ended; minus infinity if that is unknown.

    An item of a run is superseded if the lease of one before it has ended early.

    A lease begins after it was requested, and after the item was first ready. An extension replaces its end, so
    the last extension counts. If several may have been the last, the earliest end is returned. An extension may
    come when the lease has ended already, so one that is not answered before `during` replaces no end before it.
    """
    lease = receipt.call.args.get("lease_ms")
    if lease is None:
        lease = _item_lease(item, bounds)
    if lease is None:
        lease = receipt.result.get("lease_remaining_ms")
    start_ms = (
        max(receipt.requested.at_ms, earliest_ready_ms(item, bounds)) if item.origins else receipt.requested.at_ms
    )
    grants: list[tuple[float, Stamp | None, float | None]] = [(start_ms, receipt.received, lease)]
    extensions = [
        entry
        for entry in item.possible_operations("extend", token=receipt.token)
        if during is None or during.returned is None or not during.returned.before(entry.invoked)
    ]
    for entry in extensions:
        length_ms = entry.requested.get("lease_ms")
        if length_ms is None:
            length_ms = _item_lease(item, bounds)
        grants.append((entry.invoked.at_ms, entry.returned, length_ms))
    acknowledged = [
        entry.invoked
        for entry in extensions
        if entry.end is CallEnd.OK
        and (during is None or (entry.returned is not None and entry.returned.before(during.invoked)))
    ]
    ends = []
    for start_ms, answered, length in grants:
        if answered is not None and any(answered.before(other) for other in acknowledged):
            continue
        if length is None:
            return float("-inf")
        ends.append(start_ms + bounds.shortest_ms(length))
    ends += [entry.invoked.at_ms for entry in receipt.possible_ends_ahead()]
    ends += [earliest_lease_end_ms(other, ahead, bounds) for other, ahead in receipt.ahead[-1:]]
    return min(ends)


def inserted_between_ms(item: ItemHistory) -> tuple[float, float]:
    """Return the two moments between which the item was inserted."""
    seen = [entry.returned for entry in item.enqueued] + [each.received for each in item.receipts]
    known = [stamp.at_ms for stamp in seen if stamp is not None]
    return _first_requested_ms(item), min(known, default=_ended_ms(item, None))


def _first_requested_ms(item: ItemHistory) -> float:
    return min(entry.invoked.at_ms for entry in item.origins)


def _ended_ms(item: ItemHistory, at_ms: float | None) -> float:
    ended = item.histories.record.ended
    assert ended is not None
    return ended.at_ms if at_ms is None else at_ms


def may_have_expired(item: ItemHistory, bounds: ClockBounds, at_ms: float | None = None) -> bool:
    """Whether its TTL may have ended by `at_ms`; without that, by the end of the history."""
    ttl = item.requested("ttl_ms")
    return ttl is not None and _ended_ms(item, at_ms) >= _first_requested_ms(item) + bounds.shortest_ms(ttl)


def may_have_been_purged(item: ItemHistory) -> bool:
    """Whether a purge of its topic may have deleted it: one that was not certainly over before the enqueue."""
    return any(not _precedes_item(item, call) for call in item.purges())


def may_have_aged(item: ItemHistory, bounds: ClockBounds, at_ms: float | None = None) -> bool:
    """Whether its retention may have ended by `at_ms`; without that, by the end of the history."""
    if bounds.dead_retention_ms is None:
        return False
    given_up = any(entry.requested.get("dead") for entry in item.possible_operations("nack"))
    leased = [call.invoked.at_ms for call in item.dequeues() if not _precedes_item(item, call)]
    if not leased or not (given_up or attempts_max(item, bounds) != 0):
        return False
    return _ended_ms(item, at_ms) >= min(leased) + bounds.shortest_ms(bounds.dead_retention_ms)


def may_have_ended(item: ItemHistory, bounds: ClockBounds) -> bool:
    """Whether it was an at-most-once item and its only lease may have ended by the end of the history."""
    if not item.requested("at_most_once", False):
        return False
    for each in item.receipts:
        if item.possible_operations("nack", token=each.token) or _ended_ms(item, None) >= earliest_lease_end_ms(
            item, each, bounds
        ):
            return True
    brought = {id(each.call) for each in item.receipts}
    return any(id(call) not in brought and not _precedes_item(item, call) for call in item.dequeues())


def _precedes_item(item: ItemHistory, call: Call) -> bool:
    """Whether the call was certainly over before the item existed. A call of unknown outcome is not."""
    returned = call.returned if call.end is CallEnd.OK else None
    return returned is not None and all(returned.before(entry.invoked) for entry in item.origins)


def latest_ready_ms(item: ItemHistory, bounds: ClockBounds) -> float | None:
    """Return the moment by which an item in the tables must have become ready for the last time; None if unknown.

    Each delay is taken at its longest. A call of unknown outcome from before
    `healed` has taken effect by then, if at all. A later one may still take effect.
    """
    record = item.histories.record
    lease, healed = _item_lease(item, bounds), record.healed
    if (
        not item.enqueued
        or lease is None
        or healed is None
        or may_have_been_redriven(item)
        or item.possible_operations("update")
    ):
        return None
    held = [(entry.call, entry.returned, requested_delay_ms(entry) or 0) for entry in item.origins]
    brought = {id(each.call): each.call for each in item.receipts}
    held += [(call, call.returned, call.args.get("lease_ms") or lease) for call in brought.values()]
    moments = []
    for dequeues in item.topic_dequeues():
        # A host may have leased the item, left it out of its reply, and crashed before it released it.
        if any(id(call) not in brought for call in dequeues.late_unknown):
            return None
        others = dequeues.early - Counter(
            call.args.get("lease_ms") for call in brought.values() if call.invoked.before(healed)
        )
        moments += [healed.at_ms + bounds.longest_ms(asked or lease) for asked in others]
    for entry in item.possible_operations("extend"):
        asked = entry.requested.get("lease_ms")
        held.append((entry.call, entry.returned, lease if asked is None else asked))
    for entry in item.possible_operations("nack", "release"):
        wait = requested_delay_ms(entry) if entry.call.op == "nack" else 0
        wait = bounds.backoff_ms_max if wait is None else wait
        if wait is None:
            return None
        held.append((entry.call, entry.returned, wait))
    for call, answered, length in held:
        if answered is None and not call.invoked.before(healed):
            return None
        moments.append((answered or healed).at_ms + bounds.longest_ms(length))
    return max(moments)
