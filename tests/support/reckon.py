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

from tests.support.casebook import Case, Receipt
from tests.support.history import Call, End, Entry, Stamp
from tests.support.holding import SPREAD_MS


@dataclass(slots=True, frozen=True)
class Bounds:
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

    def shortest(self, duration_ms: float) -> float:
        return duration_ms * (1 - self.slew_ratio) - self.slew_ms

    def longest(self, duration_ms: float) -> float:
        return duration_ms * (1 + self.slew_ratio) + self.slew_ms + self.late_ms


def redriven(case: Case) -> bool:
    """It may have been redriven, which gives fresh attempts and a fresh TTL."""
    return bool(case.maybe("redrive"))


def delay(entry: Entry) -> float | None:
    """How long from its call an item must wait: the relative delay, or the absolute time made relative."""
    delay = entry.asked.get("delay_ms")
    return delay if delay is not None else entry.asked.get("deliver_after_in_ms")


def due_ms(case: Case, bounds: Bounds) -> float:
    """The earliest moment at which the item can have been ready; it must have been enqueued."""
    moved = [entry for entry in case.maybe("update") if delay(entry) is not None]
    return min(entry.invoked.at_ms + bounds.shortest(delay(entry) or 0) for entry in (*case.origins, *moved))


def attempts_max(case: Case, bounds: Bounds) -> int | None:
    """0: without limit; None: not known."""
    limit = case.asked("attempts_max", bounds.attempts_max_default)
    return None if limit is None else int(limit)


def _item_lease(case: Case, bounds: Bounds) -> float | None:
    lease = case.asked("lease_ms", bounds.lease_ms_default)
    return None if lease is None else float(lease)


def lease_over_ms(case: Case, receipt: Receipt, bounds: Bounds) -> float:
    """The earliest moment at which a lease can have run out; minus infinity when that is not known.

    It was granted after it was asked for, and after the item was ready first. An extension replaces the end, so the
    last one counts; any that may have been the last may be it.
    """
    lease = receipt.call.args.get("lease_ms")
    if lease is None:
        lease = _item_lease(case, bounds)
    if lease is None:
        lease = receipt.result.get("lease_remaining_ms")
    begun_ms = max(receipt.requested.at_ms, due_ms(case, bounds)) if case.origins else receipt.requested.at_ms
    grants: list[tuple[float, Stamp | None, float | None]] = [(begun_ms, receipt.received, lease)]
    extensions = case.maybe("extend", token=receipt.token)
    for entry in extensions:
        asked = entry.asked.get("lease_ms")
        grants.append((entry.invoked.at_ms, entry.returned, _item_lease(case, bounds) if asked is None else asked))
    acknowledged = [entry.invoked for entry in extensions if entry.end is End.OK]
    ends = []
    for start_ms, answered, length in grants:
        if answered is not None and any(answered.before(other) for other in acknowledged):
            continue
        if length is None:
            return float("-inf")
        ends.append(start_ms + bounds.shortest(length))
    return min(ends)


def born_between_ms(case: Case) -> tuple[float, float]:
    """Between which moments the item was inserted."""
    seen = [entry.returned for entry in case.enqueued] + [each.received for each in case.receipts]
    known = [stamp.at_ms for stamp in seen if stamp is not None]
    return _first_asked_ms(case), min(known, default=_ended_ms(case, None))


def _first_asked_ms(case: Case) -> float:
    return min(entry.invoked.at_ms for entry in case.origins)


def _ended_ms(case: Case, at_ms: float | None) -> float:
    ended = case.book.record.ended
    assert ended is not None
    return ended.at_ms if at_ms is None else at_ms


def may_have_expired(case: Case, bounds: Bounds, at_ms: float | None = None) -> bool:
    """By its TTL, at `at_ms` or by the end."""
    ttl = case.asked("ttl_ms")
    return ttl is not None and _ended_ms(case, at_ms) >= _first_asked_ms(case) + bounds.shortest(ttl)


def may_have_been_purged(case: Case) -> bool:
    """By a purge of its topic that was not certainly over before the item was enqueued."""
    return any(not _too_early(case, call) for call in case.purges())


def may_have_aged(case: Case, bounds: Bounds, at_ms: float | None = None) -> bool:
    """By the retention of dead items, at `at_ms` or by the end."""
    if bounds.dead_retention_ms is None:
        return False
    given_up = any(entry.asked.get("dead") for entry in case.maybe("nack"))
    leased = [call.invoked.at_ms for call in case.dequeues() if not _too_early(case, call)]
    if not leased or not (given_up or attempts_max(case, bounds) != 0):
        return False
    return _ended_ms(case, at_ms) >= min(leased) + bounds.shortest(bounds.dead_retention_ms)


def may_have_ended(case: Case, bounds: Bounds) -> bool:
    """Because it was to be delivered at most once and its only lease was over by the end."""
    if not case.asked("at_most_once", False):
        return False
    for each in case.receipts:
        if case.maybe("nack", token=each.token) or _ended_ms(case, None) >= lease_over_ms(case, each, bounds):
            return True
    brought = {id(each.call) for each in case.receipts}
    return any(id(call) not in brought and not _too_early(case, call) for call in case.dequeues())


def _too_early(case: Case, call: Call) -> bool:
    """A call that was over before the item can have existed; one that ended unknown may not have been."""
    returned = call.returned if call.end is End.OK else None
    return returned is not None and all(returned.before(entry.invoked) for entry in case.origins)


def ready_by_ms(case: Case, bounds: Bounds) -> float | None:
    """The latest moment by which a present item must have become ready for the last time; None: not known.

    Each thing that may have held it back is reckoned at its longest. What ended
    unknown before `healed` has taken effect by then, if ever; what did so later
    may still.
    """
    record = case.book.record
    lease, healed = _item_lease(case, bounds), record.healed
    if not case.enqueued or lease is None or healed is None or redriven(case) or case.maybe("update"):
        return None
    held = [(entry.call, entry.returned, delay(entry) or 0) for entry in case.origins]
    brought = {id(each.call) for each in case.receipts}
    for call in case.dequeues():
        # A host may have leased the item, left it out of its answer, and crashed before it gave it back.
        answered = call.returned if id(call) in brought else None
        if answered is not None or call.end is End.UNKNOWN or call.invoked.before(healed):
            held.append((call, answered, call.args.get("lease_ms") or lease))
    for entry in case.maybe("extend"):
        held.append((entry.call, entry.returned, entry.asked.get("lease_ms") or lease))
    for entry in case.maybe("nack", "release"):
        wait = delay(entry) if entry.call.op == "nack" else 0
        wait = bounds.backoff_ms_max if wait is None else wait
        if wait is None:
            return None
        held.append((entry.call, entry.returned, wait))
    moments = []
    for call, answered, length in held:
        if answered is None and not call.invoked.before(healed):
            return None
        moments.append((answered or healed).at_ms + bounds.longest(length))
    return max(moments)
