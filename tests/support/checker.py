"""The checker: what must be true of every history, whatever failed on the way.

Holds `check` and its `Violation`s, for invariants 1 to 9, 11, 15 to 17 and 19 of the
design (ARCHITECTURE.md names them). Always true: it concludes only
what holds for every order of events that the time stamps allow, and treats an
unknown call as one that took effect, did not, or still will. So it raises no
false alarm, and two calls that overlap prove little; nor does a delivery by a
poll that had begun when what forbids it happened.

What the server may drop by itself is known in one of two ways: where the
history says `drops known`, it is what the history lists; otherwise it is what
`reckon` says may have gone by then.

What is trusted: one observer's clock for all stamps, and `healed` being noted
only when no earlier call can still take effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.support import access_rules, admin_rules, clock_bounds, explanation_rules, incarnations
from tests.support.clock_bounds import ClockBounds
from tests.support.history import CallEnd, Event, read
from tests.support.item_histories import DESTROYING, ENDING, PAGES, ItemHistories, ItemHistory, sort_by_item


@dataclass(slots=True, frozen=True)
class Violation:
    """A broken promise: the invariant's number, the items, what is wrong, and their whole story."""

    invariant: int
    items: tuple[str, ...]
    what: str
    story: tuple[str, ...]

    def __str__(self) -> str:
        head = f"invariant {self.invariant}: {self.what} (item {', '.join(self.items)})"
        return "\n".join([head, *(f"  {line}" for line in self.story)])


def check(events: Iterable[Event], bounds: ClockBounds | None = None) -> list[Violation]:
    """All violations in a history, in the order of its items."""
    return check_histories(sort_by_item(read(events)), bounds)


def check_histories(book: ItemHistories, bounds: ClockBounds | None = None) -> list[Violation]:
    """All violations in a history that was sorted by item."""
    limits = bounds or ClockBounds()
    found = [*_one_item_each(book), *_one_id_a_key(book, limits), *_replies(book), *_oversight(book, limits)]
    for case in book:
        for rule in _RULES:
            for invariant, what in rule(case, limits):
                found.append(Violation(invariant, (case.id,), what, tuple(case.timeline())))
    return found


def summary(book: ItemHistories) -> dict[str, int]:
    """Counts of what happened to items, for people."""
    count = dict.fromkeys(("enqueued", "unknown", "delivered", "acked", "cancelled", "dropped", "present"), 0)
    count["unknown"] = sum(entry.end is CallEnd.UNKNOWN for tried in book.by_mark.values() for entry in tried)
    for case in book:
        count["enqueued"] += bool(case.enqueued)
        count["delivered"] += len(case.receipts)
        count["acked"] += bool(case.acknowledged_operations("ack"))
        count["cancelled"] += bool(case.acknowledged_operations("cancel"))
        count["dropped"] += case.dropped is not None
        count["present"] += case.row is not None
    return count


Finding = tuple[int, str]


# ------------------------------------------------------- rules over all items


def _violation(book: ItemHistories, invariant: int, items: Iterable[str], what: str) -> Violation:
    ids = tuple(items)
    return Violation(invariant, ids, what, tuple(line for each in ids for line in book.item_history(each).timeline()))


def _one_item_each(book: ItemHistories) -> Iterator[Violation]:
    """2 and 16: an enqueue makes one item at most, and one that failed makes none."""
    ids: dict[str, list[str]] = {}
    for case in list(book):
        for each in case.marks:
            ids.setdefault(each, []).append(case.id)
    for each, named in ids.items():
        tried = book.by_mark.get(each, [])
        returned = {entry.result["id"] for entry in tried if entry.end is CallEnd.OK}
        unknown = sum(entry.end is CallEnd.UNKNOWN for entry in tried)
        extra = [number for number in named if number not in returned]
        if len(extra) <= unknown:
            continue
        if not tried:
            yield _violation(book, 2, extra, f"payload {each} was never enqueued")
        elif not returned and not unknown:
            codes = ", ".join(sorted({str(entry.code) for entry in tried}))
            yield _violation(book, 16, extra, f"its enqueue failed with {codes}, and yet it exists")
        elif any(entry.end is CallEnd.FAILED for entry in tried):
            yield _violation(book, 16, named, "more items than enqueues that did not fail")
        else:
            yield _violation(book, 2, named, "one enqueue made several items")


def _one_id_a_key(book: ItemHistories, bounds: ClockBounds) -> Iterator[Violation]:
    """3: within its window, and the life of its namespace, a key names one id."""
    uses: dict[tuple[Any, str], list[tuple[float, float, str]]] = {}
    for case in book:
        key = case.requested("key")
        if key is not None:
            first_ms, last_ms = clock_bounds.inserted_between_ms(case)
            uses.setdefault((case.origins[0].call.args.get("namespace"), key), []).append((last_ms, first_ms, case.id))
    window = float("inf") if bounds.key_window_ms is None else bounds.shortest_ms(bounds.key_window_ms)
    for ids, what in incarnations.ids_of_earlier_incarnations(book):
        yield _violation(book, 3, ids, what)
    for (namespace, key), used in uses.items():
        used.sort()
        for (_, first_ms, number), (last_ms, other_first_ms, other) in pairwise(used):
            begun_ms = min(first_ms, other_first_ms)
            if last_ms - begun_ms < window and not incarnations.incarnation_may_have_ended(
                book, namespace, begun_ms, last_ms
            ):
                yield _violation(book, 3, (number, other), f"key {key} named two ids within its window")


def _replies(book: ItemHistories) -> Iterator[Violation]:
    """2: a dequeue brings what it asked for, and no more of it."""
    for call in book.record.calls:
        if call.op != "dequeue":
            continue
        brought: dict[str, list[str]] = {}
        for result in call.results:
            brought.setdefault(result["topic"], []).append(result["id"])
        for topic, numbers in brought.items():
            wanted = call.args["topics"].get(topic, 0)
            if len(numbers) > wanted:
                what = f"{call.name} asked for {wanted} of topic {topic} and got {len(numbers)}"
                yield _violation(book, 2, numbers, what)


def _oversight(book: ItemHistories, bounds: ClockBounds) -> Iterator[Violation]:
    """1, 17 and 19: what administrators do, and for whom."""

    def gone(case: ItemHistory) -> bool:
        pages = [entry.call for entry in case.possible_operations("cancel") if entry.call.op in PAGES]
        return (
            bool(pages)
            and _is_finished(case)
            and len(pages) == len(case.possible_operations(*DESTROYING))
            and not _may_be_dropped(case, bounds)
        )

    for ids, what in admin_rules.check_pages(book, gone):
        yield _violation(book, 1, ids, what)
    for ids, what in access_rules.check_refusals(book, bounds.spread_ms):
        yield _violation(book, 17, ids, what)
    for rule in _SETTINGS:
        for ids, what in rule(book, bounds.spread_ms):
            yield _violation(book, 19, ids, what)


# ---------------------------------------------------------- rules for one item


def _nothing_is_lost(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """1: an acknowledged item is in the tables, or there is a reason why not."""
    if _is_finished(case) and not case.possible_operations(*DESTROYING) and not _may_be_dropped(case, bounds):
        failed = [entry for op in DESTROYING for entry in case.ops[op]]
        if failed:
            yield (
                16,
                f"it is gone, though {failed[0].call.name} failed with {failed[0].code} and nothing else removed it",
            )
        else:
            yield 1, "its enqueue was acknowledged, nothing removed it, and it is gone"


def _is_finished(case: ItemHistory) -> bool:
    return case.histories.record.present is not None and bool(case.enqueued) and case.row is None


def _may_be_dropped(case: ItemHistory, bounds: ClockBounds) -> bool:
    """The server dropped it by itself, or with its topic, or may have."""
    if clock_bounds.may_have_been_purged(case):
        return True
    if case.histories.record.drops_known:
        return case.dropped is not None
    return (
        clock_bounds.may_have_expired(case, bounds)
        or clock_bounds.may_have_aged(case, bounds)
        or clock_bounds.may_have_ended(case, bounds)
    )


def _drops_have_reasons(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """1: the server drops nothing without the right to."""
    if case.dropped is None or not case.origins:
        return
    why = case.dropped["why"]
    if case.row is not None:
        yield 1, f"it was dropped ({why}) and is still in the tables"
    if why == "expired" and not clock_bounds.may_have_expired(case, bounds, case.dropped["at"]):
        yield 1, "it was dropped as expired before its TTL was over"
    if why == "at most once" and not case.requested("at_most_once", False):
        yield 1, "it was dropped as delivered at most once, but its policy is at least once"
    if why == "retention" and not clock_bounds.may_have_aged(case, bounds, case.dropped["at"]):
        yield 1, "it was dropped by retention, but cannot have been dead that long"


def _is_as_enqueued(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """2: no delivery without an enqueue, and nothing of it changed on the way."""
    keys = [entry.requested.get("key") for entry in case.enqueued]
    if len(case.marks) > 1:
        one_key = len(keys) > 1 and keys[0] is not None and len(set(keys)) == 1
        yield (3 if one_key else 2), f"one id names several payloads: {', '.join(case.marks)}"
        return
    if keys.count(None) > 1:
        yield 2, "several enqueues without a key returned one id"
    origins = case.origins
    views: list[tuple[str, Event]] = [(str(each), each.result) for each in case.receipts]
    if case.row is not None:
        views.append(("the row", case.row))
    if not origins:
        return
    topics = {entry.requested["topic"] for entry in origins}
    changes = [entry.requested for entry in case.possible_operations("nack", "update")]
    asked = [entry.requested for entry in origins]
    priorities = {each.get("priority", 0) for each in asked} | {each.get("priority") for each in changes} - {None}
    metadata = {each.get("metadata") for each in asked} | {each.get("metadata") for each in changes} - {None}
    for name, view in views:
        if view.get("topic") not in topics:
            yield 2, f"{name} shows topic {view.get('topic')}, enqueued was {', '.join(sorted(topics))}"
        if view.get("priority") not in priorities:
            yield 2, f"{name} shows priority {view.get('priority')}, which it never had"
        if "metadata" in view and view["metadata"] not in metadata:
            yield 2, f"{name} shows metadata that it never had"
    for each in case.receipts:
        if all(each.received.before(entry.invoked) for entry in origins):
            yield 2, f"{each} came before its enqueue was asked for"


def _gone_is_gone(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """4: after an acknowledged ack or cancel there is no hand-out and no row."""
    for entry in case.acknowledged_operations(*DESTROYING):
        for each in case.receipts:
            token = entry.requested.get("token")
            if entry.returned is not None and entry.returned.before(each.requested):
                yield 4, f"{each} was asked for after {entry.call.name} had succeeded"
            elif token is not None and each.token > token and not entry.result.get("already_gone"):
                if each.received.before(entry.invoked):
                    yield 6, f"{entry.call.name} succeeded with token {token}, superseded by {each}"
                else:
                    yield 4, f"{entry.call.name} removed it under token {token}, and yet there is a later {each}"
        if case.row is not None:
            yield 4, f"it is in the tables after {entry.call.name} had succeeded"


def _leases_exclude(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """5: nobody else receives an item during its lease, unless it was given back."""
    for at, first in enumerate(case.receipts):
        later = case.receipts[at + 1 :]
        if not later:
            return
        second = min(later, key=lambda each: (each.received.at_ms, each.received.seq))
        if any(each.token == first.token for each in later):
            yield 5, f"one lease was handed out twice: {first}, {later[0]}"
            continue
        over_ms = clock_bounds.earliest_lease_end_ms(case, first, bounds)
        if second.received.at_ms >= over_ms:
            continue
        back = [
            e for e in case.possible_operations(*ENDING, token=first.token) if not second.received.before(e.invoked)
        ]
        if not back and not clock_bounds.may_have_been_redriven(case):
            yield 5, f"{second} was received before the lease of {first} can have ended, at {over_ms:.3f} ms"


def _stale_tokens_do_nothing(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """6: only the holder of the last lease changes an item; tokens rise."""
    for entry in case.acknowledged_operations("nack", "extend", "release"):
        token = entry.requested["token"]
        for each in case.receipts:
            if each.token > token and each.received.before(entry.invoked):
                yield 6, f"{entry.call.name} succeeded with token {token}, superseded by {each}"
        for ended in case.acknowledged_operations("ack", "cancel", *ENDING):
            same = ended.call.op == "cancel" or ended.requested.get("token") == token
            if same and ended is not entry and ended.returned is not None and ended.returned.before(entry.invoked):
                yield 6, f"{entry.call.name} succeeded with token {token} after {ended.call.name} had ended that lease"
    for token in sorted({entry.requested["token"] for entry in case.acknowledged_operations(*ENDING)}):
        backs = case.acknowledged_operations(*ENDING, token=token)
        if len(backs) > 1 and not any(a.returned and a.returned.before(b.invoked) for a in backs for b in backs):
            yield 6, f"the lease with token {token} was given back twice"
    for first, second in pairwise(case.receipts):
        if second.received.before(first.requested):
            yield 6, f"tokens went back: {second} came before {first}"


def _at_most_once(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """7: an at-most-once item is delivered once, releases apart."""
    if not case.requested("at_most_once", False) or clock_bounds.may_have_been_redriven(case):
        return
    kept = [each for each in case.receipts if not case.possible_operations("release", token=each.token)]
    if kept and kept[0] is not case.receipts[-1]:
        yield 7, f"an at-most-once item came again after {kept[0]}"


def _attempts(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """8: no more deliveries than attempts, and each counts."""
    if clock_bounds.may_have_been_redriven(case) or not case.origins:
        return
    limit = clock_bounds.attempts_max(case, bounds)
    kept = [each for each in case.receipts if not case.possible_operations("release", token=each.token)]
    if limit and len(kept) > limit:
        yield 8, f"delivered {len(kept)} times without a release, allowed are {limit}"
    for each in case.receipts:
        attempt = each.result["attempt"]
        if attempt < 1 or (limit and attempt > limit):
            yield 8, f"{each} is attempt {attempt} of {limit}"
    for first, second in pairwise(case.receipts):
        least = first.result["attempt"] + (0 if case.possible_operations("release", token=first.token) else 1)
        if second.result["attempt"] < least and first.token != second.token:
            yield 8, f"{second} is attempt {second.result['attempt']}, after attempt {first.result['attempt']}"
    row = case.row
    if row is not None and row["state"] == "dead" and limit is not None:
        given_up = [entry for entry in case.possible_operations("nack") if entry.requested.get("dead")]
        if not given_up and not (limit and row.get("attempt", limit) >= limit):
            yield 8, "it is dead, but neither given up nor out of attempts"


def _times_are_kept(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """9: never handed out before deliver-after, nor after the TTL."""
    origins = case.origins
    if not origins:
        return
    due_ms = clock_bounds.earliest_ready_ms(case, bounds)
    for each in case.receipts:
        if each.received.at_ms < due_ms:
            yield 9, f"{each} was received before its deliver-after time, at the earliest {due_ms:.3f} ms"
    moved = any(clock_bounds.requested_delay_ms(entry) is not None for entry in case.possible_operations("update"))
    for entry in case.acknowledged_operations("nack"):
        delay = clock_bounds.requested_delay_ms(entry)
        for each in case.receipts if delay and not moved and not clock_bounds.may_have_been_redriven(case) else ():
            due_ms = entry.invoked.at_ms + bounds.shortest_ms(delay or 0)
            if each.token > entry.requested["token"] and each.received.at_ms < due_ms:
                yield 9, f"{each} was received before the delay of {entry.call.name} was over, at {due_ms:.3f} ms"
    ttl = case.requested("ttl_ms")
    known = [entry.returned.at_ms for entry in case.enqueued if entry.returned is not None]
    if ttl is not None and known and not clock_bounds.may_have_been_redriven(case):
        over_ms = min(known) + bounds.longest_ms(ttl)
        for each in case.receipts:
            if each.requested.at_ms > over_ms:
                yield 9, f"{each} was asked for after its TTL was over, at the latest {over_ms:.3f} ms"


def _nothing_is_stuck(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """11: once healed, what is due is processed, and what is ready and wanted is delivered."""
    record, row, bound_ms = case.histories.record, case.row, bounds.bound_ms
    if row is None or bound_ms is None or record.healed is None or record.ended is None:
        return
    overdue_ms = min(-(row.get("due_in_ms") or 0), record.ended.at_ms - record.healed.at_ms)
    if overdue_ms > bound_ms:
        yield 11, f"it is {row['state']} and overdue by {overdue_ms} ms"
    ready_ms = clock_bounds.latest_ready_ms(case, bounds)
    if row["state"] == "dead" or ready_ms is None:
        return
    waited_ms: dict[str, float] = {}
    for call in case.dequeues():
        if call.end is not CallEnd.OK or call.results or call.returned is None:
            continue
        since_ms = max(call.invoked.at_ms, ready_ms, record.healed.at_ms)
        sum_ms = waited_ms.get(call.process, 0.0) + max(0.0, call.returned.at_ms - since_ms)
        waited_ms[call.process] = sum_ms
        if sum_ms > bound_ms:
            what = f"{call.process} waited for it {sum_ms:.0f} ms in all, up to {call.name}, and got nothing"
            yield 11, f"it was ready by {ready_ms:.3f} ms, and {what}"
            return


def _namespaces_are_apart(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """17: who belongs to another namespace neither receives nor changes it."""
    for each in case.receipts:
        namespace = each.call.args.get("namespace")
        if case.namespace is not None and namespace != case.namespace:
            yield 17, f"an item of namespace {case.namespace} came to one of {namespace}: {each}"
    for entry in case.foreign:
        if entry.end is CallEnd.OK and not entry.result.get("already_gone"):
            yield 17, f"{entry.call.name} of namespace {entry.call.args.get('namespace')} succeeded on it"


def _what_was_purged_is_gone(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """19: an item that was there when its topic was purged is neither delivered afterwards nor kept."""
    known = [entry.returned for entry in case.enqueued] + [each.received for each in case.receipts]
    for call in case.purges():
        if call.end is not CallEnd.OK or call.returned is None:
            continue
        if not any(stamp is not None and stamp.before(call.invoked) for stamp in known):
            continue
        if case.row is not None:
            yield 19, f"it is in the tables after {call.name} had succeeded"
        for each in case.receipts:
            if call.returned.before(each.requested):
                yield 19, f"{each} was asked for after {call.name} had succeeded"


def _went_with_its_namespace(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """19: see `admittance`."""
    for what in access_rules.went_with_its_namespace(case):
        yield 19, what


def _is_explained(case: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """15: see `explained`."""
    if case.origins:
        for what in explanation_rules.check_explanation(case, bounds):
            yield 15, what


_SETTINGS = (
    admin_rules.check_pauses,
    admin_rules.check_limits,
    access_rules.check_imports,
    access_rules.check_grants,
    access_rules.check_deletions,
)
_RULES = (
    _nothing_is_lost,
    _drops_have_reasons,
    _is_as_enqueued,
    _gone_is_gone,
    _leases_exclude,
    _stale_tokens_do_nothing,
    _at_most_once,
    _attempts,
    _times_are_kept,
    _nothing_is_stuck,
    _namespaces_are_apart,
    _what_was_purged_is_gone,
    _went_with_its_namespace,
    _is_explained,
)
