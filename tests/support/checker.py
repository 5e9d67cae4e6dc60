"""The checker: the rules that every history must keep, whatever failed on the way.

`check` returns the `Violation`s of invariants 1 to 9, 11, 15 to 17, 19 to 21 and 25
(ARCHITECTURE.md lists them). Always true: there are no false alarms. A rule is
broken only if it is broken in every order of events that the stamps allow, and
a call of unknown outcome may have taken effect, or not, or may do so later.
Therefore two calls that overlap prove little, and so does a delivery by a poll
that began before the event that forbids it.

If the history says `drops known`, the server dropped the items that the history
lists, and no other. Otherwise `clock_bounds` decides which may have been dropped.

The checker trusts that all stamps come from one observer's clock, and that no
earlier call can take effect after `healed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.support import (
    access_rules,
    admin_rules,
    atomic_rules,
    clock_bounds,
    completion_rules,
    explanation_rules,
    group_rules,
    incarnations,
)
from tests.support.clock_bounds import ClockBounds
from tests.support.history import CallEnd, Event, read
from tests.support.item_histories import (
    DESTROYING,
    ENDING,
    PAGES,
    DeliveryReceipt,
    ItemHistories,
    ItemHistory,
    sort_by_item,
)


@dataclass(slots=True, frozen=True)
class Violation:
    """A broken invariant: its number, the items, the problem, and all events of the items."""

    invariant: int
    items: tuple[str, ...]
    problem: str
    timeline: tuple[str, ...]

    def __str__(self) -> str:
        head = f"invariant {self.invariant}: {self.problem} (item {', '.join(self.items)})"
        return "\n".join([head, *(f"  {line}" for line in self.timeline)])


def check(events: Iterable[Event], bounds: ClockBounds | None = None) -> list[Violation]:
    """Return all violations in a history, in the order of its items."""
    return check_histories(sort_by_item(read(events)), bounds)


def check_histories(histories: ItemHistories, bounds: ClockBounds | None = None) -> list[Violation]:
    """Return all violations in a history that was sorted by item."""
    limits = bounds or ClockBounds()
    found = [
        *_check_one_item_per_enqueue(histories),
        *_check_one_id_per_key(histories, limits),
        *_check_dequeue_counts(histories),
        *(_violation(histories, 20, ids, problem) for ids, problem in atomic_rules.broken_calls(histories)),
        *_check_completions(histories, limits),
        *(_violation(histories, 3, (), problem) for problem in group_rules.wrong_conflicts(histories)),
        *(_violation(histories, 25, ids, problem) for ids, problem in group_rules.divided_groups(histories)),
        *_check_administration(histories, limits),
    ]
    for item in histories:
        for rule in _RULES:
            for invariant, problem in rule(item, limits):
                found.append(Violation(invariant, (item.id,), problem, tuple(item.timeline())))
    return found


def summary(histories: ItemHistories) -> dict[str, int]:
    """Count what happened to items, for a report."""
    count = dict.fromkeys(("enqueued", "unknown", "delivered", "acked", "cancelled", "dropped", "present"), 0)
    count["unknown"] = sum(entry.end is CallEnd.UNKNOWN for tried in histories.by_mark.values() for entry in tried)
    for item in histories:
        count["enqueued"] += bool(item.enqueued)
        count["delivered"] += len(item.receipts)
        count["acked"] += bool(item.acknowledged_operations("ack"))
        count["cancelled"] += bool(item.acknowledged_operations("cancel"))
        count["dropped"] += item.dropped is not None
        count["present"] += item.row is not None
    return count


Finding = tuple[int, str]


# ------------------------------------------------------- rules over all items


def _violation(histories: ItemHistories, invariant: int, items: Iterable[str], problem: str) -> Violation:
    ids = tuple(items)
    timeline = tuple(line for id in ids for line in histories.item_history(id).timeline())
    return Violation(invariant, ids, problem, timeline)


def _check_one_item_per_enqueue(histories: ItemHistories) -> Iterator[Violation]:
    """2 and 16: an enqueue makes at most one item, and a failed enqueue makes none."""
    ids_by_mark: dict[str, list[str]] = {}
    for item in list(histories):
        for mark in item.marks:
            ids_by_mark.setdefault(mark, []).append(item.id)
    for mark, ids in ids_by_mark.items():
        enqueues = histories.by_mark.get(mark, [])
        returned = {entry.result["id"] for entry in enqueues if entry.end is CallEnd.OK}
        unknown = sum(entry.end is CallEnd.UNKNOWN for entry in enqueues)
        extra = [id for id in ids if id not in returned]
        if len(extra) <= unknown:
            continue
        if not enqueues:
            yield _violation(histories, 2, extra, f"payload {mark} was never enqueued")
        elif not returned and not unknown:
            codes = ", ".join(sorted({str(entry.code) for entry in enqueues}))
            yield _violation(histories, 16, extra, f"its enqueue failed with {codes}, but it exists")
        elif any(entry.end is CallEnd.FAILED for entry in enqueues):
            yield _violation(histories, 16, ids, "there are more items than enqueues that did not fail")
        else:
            yield _violation(histories, 2, ids, "one enqueue made several items")


def _check_one_id_per_key(histories: ItemHistories, bounds: ClockBounds) -> Iterator[Violation]:
    """3: within the key window, and within one incarnation of the namespace, a key names one id in each group."""
    uses: dict[tuple[Any, Any, str], list[tuple[float, float, str]]] = {}
    for item in histories:
        key = item.requested("key")
        if key is not None:
            first_ms, last_ms = clock_bounds.inserted_between_ms(item)
            name = (item.origins[0].call.args.get("namespace"), item.requested("group"), key)
            uses.setdefault(name, []).append((last_ms, first_ms, item.id))
    window = float("inf") if bounds.key_window_ms is None else bounds.shortest_ms(bounds.key_window_ms)
    for ids, problem in incarnations.ids_of_earlier_incarnations(histories):
        yield _violation(histories, 3, ids, problem)
    for (namespace, _, key), items in uses.items():
        items.sort()
        for (_, first_ms, id), (last_ms, other_first_ms, other_id) in pairwise(items):
            start_ms = min(first_ms, other_first_ms)
            if last_ms - start_ms < window and not incarnations.incarnation_may_have_ended(
                histories, namespace, start_ms, last_ms
            ):
                yield _violation(histories, 3, (id, other_id), f"key {key} named two ids within its window")


def _check_completions(histories: ItemHistories, bounds: ClockBounds) -> Iterator[Violation]:
    """21: see `completion_rules`."""
    window_ms = float("inf") if bounds.key_window_ms is None else bounds.shortest_ms(bounds.key_window_ms)
    for ids, problem in completion_rules.broken_completions(histories, window_ms):
        yield _violation(histories, 21, ids, problem)


def _check_dequeue_counts(histories: ItemHistories) -> Iterator[Violation]:
    """2: a dequeue brings no more items of a topic than it asked for."""
    for call in histories.record.calls:
        if call.op != "dequeue":
            continue
        ids_by_topic: dict[str, list[str]] = {}
        for result in call.results:
            ids_by_topic.setdefault(result["topic"], []).append(result["id"])
        for topic, ids in ids_by_topic.items():
            wanted = call.args["topics"].get(topic, 0)
            if len(ids) > wanted:
                yield _violation(
                    histories, 2, ids, f"{call.name} asked for {wanted} items of topic {topic} and got {len(ids)}"
                )


def _check_administration(histories: ItemHistories, bounds: ClockBounds) -> Iterator[Violation]:
    """1, 17 and 19: the rules for administrators' calls and for grants."""

    def was_cancelled_by_page(item: ItemHistory) -> bool:
        pages = [entry.call for entry in item.possible_operations("cancel") if entry.call.op in PAGES]
        return (
            bool(pages)
            and _is_finished(item)
            and len(pages) == len(item.possible_operations(*DESTROYING))
            and not _may_be_dropped(item, bounds)
        )

    for ids, problem in admin_rules.check_pages(histories, was_cancelled_by_page):
        yield _violation(histories, 1, ids, problem)
    for ids, problem in access_rules.check_refusals(histories, bounds.spread_ms):
        yield _violation(histories, 17, ids, problem)
    for rule in _SETTINGS_RULES:
        for ids, problem in rule(histories, bounds.spread_ms):
            yield _violation(histories, 19, ids, problem)


# ---------------------------------------------------------- rules for one item


def _nothing_is_lost(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """1: an acknowledged item is in the tables, unless something may have removed it."""
    if _is_finished(item) and not item.possible_operations(*DESTROYING) and not _may_be_dropped(item, bounds):
        failed = [entry for op in DESTROYING for entry in item.ops[op]]
        if failed:
            yield (
                16,
                f"it is gone, but {failed[0].call.name} failed with {failed[0].code} and nothing else removed it",
            )
        else:
            yield 1, "its enqueue was acknowledged and nothing removed it, but it is gone"


def _is_finished(item: ItemHistory) -> bool:
    return item.histories.record.present is not None and bool(item.enqueued) and item.row is None


def _may_be_dropped(item: ItemHistory, bounds: ClockBounds) -> bool:
    """Whether the server dropped the item on its own or with its topic, or may have."""
    if clock_bounds.may_have_been_purged(item):
        return True
    if item.histories.record.drops_known:
        return item.dropped is not None
    return (
        clock_bounds.may_have_expired(item, bounds)
        or clock_bounds.may_have_aged(item, bounds)
        or clock_bounds.may_have_ended(item, bounds)
    )


def _drops_have_reasons(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """1: the server drops an item only for a valid reason."""
    if item.dropped is None or not item.origins:
        return
    why = item.dropped["why"]
    if item.row is not None:
        yield 1, f"it was dropped ({why}), but is still in the tables"
    if why == "expired" and not clock_bounds.may_have_expired(item, bounds, item.dropped["at"]):
        yield 1, "it was dropped as expired before its TTL ended"
    if why == "at most once" and not item.requested("at_most_once", False):
        yield 1, "it was dropped as delivered at most once, but its policy is at least once"
    if why == "retention" and not clock_bounds.may_have_aged(item, bounds, item.dropped["at"]):
        yield 1, "it was dropped by retention, but cannot have been dead for that long"


def _is_as_enqueued(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """2: each delivery has an enqueue, and shows the item as it was enqueued or updated."""
    keys = [entry.requested.get("key") for entry in item.enqueued]
    if len(item.marks) > 1:
        one_key = len(keys) > 1 and keys[0] is not None and len(set(keys)) == 1
        yield (3 if one_key else 2), f"one id names several payloads: {', '.join(item.marks)}"
        return
    if keys.count(None) > 1:
        yield 2, "several enqueues without a key returned one id"
    origins = item.origins
    views: list[tuple[str, Event]] = [(str(each), each.result) for each in item.receipts]
    if item.row is not None:
        views.append(("the row", item.row))
    if not origins:
        return
    topics = {entry.requested["topic"] for entry in origins}
    changes = [entry.requested for entry in item.possible_operations("nack", "update")]
    enqueued = [entry.requested for entry in origins]
    priorities = {each.get("priority", 0) for each in enqueued} | {each.get("priority") for each in changes} - {None}
    metadata = {each.get("metadata") for each in enqueued} | {each.get("metadata") for each in changes} - {None}
    traces = {each.get("trace") for each in enqueued}
    groups = {each.get("group") for each in enqueued}
    for name, view in views:
        if view.get("topic") not in topics:
            yield 2, f"{name} shows topic {view.get('topic')}, but it was enqueued in {', '.join(sorted(topics))}"
        if view.get("priority") not in priorities:
            yield 2, f"{name} shows priority {view.get('priority')}, which it never had"
        if "metadata" in view and view["metadata"] not in metadata:
            yield 2, f"{name} shows metadata that it never had"
        if "trace" in view and view["trace"] not in traces:
            yield 2, f"{name} shows a trace context that it was not enqueued with"
        if "group" in view and view["group"] not in groups:
            yield 2, f"{name} shows group {view['group']}, but it was enqueued in {groups}"
    for each in item.receipts:
        if all(each.received.before(entry.invoked) for entry in origins):
            yield 2, f"{each} was received before the enqueue began"


def _gone_is_gone(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """4: after an acknowledged ack or cancel there is no delivery and no row."""
    for entry in item.acknowledged_operations(*DESTROYING):
        for each in item.receipts:
            token = entry.requested.get("token")
            if entry.returned is not None and entry.returned.before(each.requested):
                yield 4, f"{each} was requested after {entry.call.name} had succeeded"
            elif token is not None and each.token > token and not entry.result.get("already_gone"):
                if each.received.before(entry.invoked):
                    yield 6, f"{entry.call.name} succeeded with token {token}, which {each} had superseded"
                else:
                    yield 4, f"{entry.call.name} removed it with token {token}, but there is a later {each}"
        if item.row is not None:
            yield 4, f"it is in the tables after {entry.call.name} had succeeded"


def _leases_exclude(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """5: an item is not delivered again during its lease, unless it was nacked or released."""
    for index, first in enumerate(item.receipts):
        later = item.receipts[index + 1 :]
        if not later:
            return
        second = min(later, key=lambda each: (each.received.at_ms, each.received.seq))
        if any(each.token == first.token for each in later):
            yield 5, f"one lease was delivered twice: {first}, {later[0]}"
            continue
        lease_end_ms = clock_bounds.earliest_lease_end_ms(item, first, bounds)
        if second.received.at_ms >= lease_end_ms:
            continue
        ended = [
            e for e in item.possible_operations(*ENDING, token=first.token) if not second.received.before(e.invoked)
        ]
        if not ended and not clock_bounds.may_have_been_redriven(item):
            yield 5, f"{second} was received before the lease of {first} can have ended, at {lease_end_ms:.3f} ms"


def _stale_tokens_do_nothing(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """6: only the holder of the last lease changes an item, and tokens rise."""
    for entry in item.acknowledged_operations("nack", "extend", "release"):
        token = entry.requested["token"]
        for each in item.receipts:
            if each.token > token and each.received.before(entry.invoked):
                yield 6, f"{entry.call.name} succeeded with token {token}, which {each} had superseded"
        for ended in item.acknowledged_operations("ack", "cancel", *ENDING):
            same = ended.call.op == "cancel" or ended.requested.get("token") == token
            if same and ended is not entry and ended.returned is not None and ended.returned.before(entry.invoked):
                yield 6, f"{entry.call.name} succeeded with token {token} after {ended.call.name} had ended that lease"
    for token in sorted({entry.requested["token"] for entry in item.acknowledged_operations(*ENDING)}):
        ends = item.acknowledged_operations(*ENDING, token=token)
        if len(ends) > 1 and not any(a.returned and a.returned.before(b.invoked) for a in ends for b in ends):
            yield 6, f"the lease with token {token} was ended twice"
    for first, second in pairwise(item.receipts):
        if second.received.before(first.requested):
            yield 6, f"tokens went back: {second} came before {first}"


def _at_most_once(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """7: an at-most-once item is delivered once, not counting deliveries that were released, or were behind a released one."""
    if not item.requested("at_most_once", False) or clock_bounds.may_have_been_redriven(item):
        return
    counted = [each for each in item.receipts if not _may_be_released(item, each)]
    if counted and counted[0] is not item.receipts[-1]:
        yield 7, f"an at-most-once item was delivered again after {counted[0]}"


def _attempts(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """8: there are no more deliveries than attempts, and each delivery counts."""
    if clock_bounds.may_have_been_redriven(item) or not item.origins:
        return
    limit = clock_bounds.attempts_max(item, bounds)
    counted = [each for each in item.receipts if not _may_not_count(item, each)]
    if limit and len(counted) > limit:
        yield 8, f"it was delivered {len(counted)} times without a release, but has {limit} attempts"
    for each in item.receipts:
        attempt = each.result["attempt"]
        if attempt < 1 or (limit and attempt > limit):
            yield 8, f"{each} is attempt {attempt} of {limit}"
    for first, second in pairwise(item.receipts):
        least = first.result["attempt"] + (0 if _may_not_count(item, first) else 1)
        if second.result["attempt"] < least and first.token != second.token:
            yield 8, f"{second} is attempt {second.result['attempt']}, after attempt {first.result['attempt']}"
    row = item.row
    if row is not None and row["state"] == "dead" and limit is not None:
        given_up = [entry for entry in item.possible_operations("nack") if entry.requested.get("dead")]
        if not given_up and not (limit and row.get("attempt", limit) >= limit):
            yield 8, "it is dead, but no consumer gave it up and it has attempts left"


def _may_be_released(item: ItemHistory, receipt: DeliveryReceipt) -> bool:
    """Return whether a delivery, or one ahead in its run, may have been released."""
    is_released_ahead = any(entry.call.op == "release" for entry in receipt.possible_ends_ahead())
    return is_released_ahead or bool(item.possible_operations("release", token=receipt.token))


def _may_not_count(item: ItemHistory, receipt: DeliveryReceipt) -> bool:
    """Return whether a delivery may have been released, or superseded in its run."""
    return bool(receipt.ahead) or _may_be_released(item, receipt)


def _first_delivery(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """8: the time of the first delivery is set once, so each delivery and the row show the same."""
    shown = [(str(each), each.result["first_wait_ms"]) for each in item.receipts if "first_wait_ms" in each.result]
    if bounds.older_hosts:
        shown = [(name, wait_ms) for name, wait_ms in shown if wait_ms is not None]
    for name, wait_ms in shown:
        if wait_ms is None or wait_ms < 0:
            yield 8, f"{name} shows a first delivery {wait_ms} ms after the enqueue"
    if shown and item.row is not None and "first_wait_ms" in item.row:
        shown.append(("the row", item.row["first_wait_ms"]))
    for (earlier, before_ms), (later, after_ms) in pairwise(shown):
        if before_ms != after_ms:
            yield 8, f"{later} shows a first delivery after {after_ms} ms, but {earlier} one after {before_ms} ms"


def _times_are_kept(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """9: an item is not delivered before deliver-after, nor after its TTL."""
    origins = item.origins
    if not origins:
        return
    due_ms = clock_bounds.earliest_ready_ms(item, bounds)
    for each in item.receipts:
        if each.received.at_ms < due_ms:
            yield 9, f"{each} was received before its deliver-after time, at the earliest {due_ms:.3f} ms"
    moved = any(clock_bounds.requested_delay_ms(entry) is not None for entry in item.possible_operations("update"))
    for entry in item.acknowledged_operations("nack"):
        delay = clock_bounds.requested_delay_ms(entry)
        for each in item.receipts if delay and not moved and not clock_bounds.may_have_been_redriven(item) else ():
            due_ms = entry.invoked.at_ms + bounds.shortest_ms(delay or 0)
            if each.token > entry.requested["token"] and each.received.at_ms < due_ms:
                yield 9, f"{each} was received before the delay of {entry.call.name} ended, at {due_ms:.3f} ms"
    ttl = item.requested("ttl_ms")
    acknowledged_ms = [entry.returned.at_ms for entry in item.enqueued if entry.returned is not None]
    if ttl is not None and acknowledged_ms and not clock_bounds.may_have_been_redriven(item):
        expired_ms = min(acknowledged_ms) + bounds.longest_ms(ttl)
        for each in item.receipts:
            if each.requested.at_ms > expired_ms:
                yield 9, f"{each} was requested after the end of its TTL, at the latest {expired_ms:.3f} ms"


def _nothing_is_stuck(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """11: after `healed`, due items are processed, and ready items are delivered to dequeues that wait."""
    record, row, bound_ms = item.histories.record, item.row, bounds.bound_ms
    if row is None or bound_ms is None or record.healed is None or record.ended is None:
        return
    overdue_ms = min(-(row.get("due_in_ms") or 0), record.ended.at_ms - record.healed.at_ms)
    if overdue_ms > bound_ms:
        yield 11, f"it is {row['state']} and overdue by {overdue_ms} ms"
    if row["state"] == "dead" or not item.origins or clock_bounds.earliest_ready_ms(item, bounds) >= record.ended.at_ms:
        return
    ready_ms = clock_bounds.latest_ready_ms(item, bounds)
    if ready_ms is None:
        return
    waited_ms: dict[str, float] = {}
    for call in [call for each in item.topic_dequeues() for call in each.empty]:
        assert call.returned is not None
        since_ms = max(call.invoked.at_ms, ready_ms, record.healed.at_ms)
        sum_ms = waited_ms.get(call.process, 0.0) + max(0.0, call.returned.at_ms - since_ms)
        waited_ms[call.process] = sum_ms
        if sum_ms > bound_ms:
            waited = f"{call.process} waited {sum_ms:.0f} ms in all, up to {call.name}, and got nothing"
            yield 11, f"it was ready by {ready_ms:.3f} ms, but {waited}"
            return


def _namespaces_are_apart(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """17: a client of another namespace neither receives nor changes the item."""
    for each in item.receipts:
        namespace = each.call.args.get("namespace")
        if item.namespace is not None and namespace != item.namespace:
            yield 17, f"an item of namespace {item.namespace} was delivered to a client of {namespace}: {each}"
    for entry in item.foreign:
        if entry.end is CallEnd.OK and not entry.result.get("already_gone"):
            yield 17, f"{entry.call.name} of namespace {entry.call.args.get('namespace')} succeeded on it"


def _is_purged_with_its_topic(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """19: an item that existed when its topic was purged is neither delivered afterwards nor kept."""
    known = [entry.returned for entry in item.enqueued] + [each.received for each in item.receipts]
    for call in item.purges():
        if call.end is not CallEnd.OK or call.returned is None:
            continue
        if not any(stamp is not None and stamp.before(call.invoked) for stamp in known):
            continue
        if item.row is not None:
            yield 19, f"it is in the tables after {call.name} had succeeded"
        for each in item.receipts:
            if call.returned.before(each.requested):
                yield 19, f"{each} was requested after {call.name} had succeeded"


def _is_deleted_with_its_namespace(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """19: see `access_rules`."""
    for problem in access_rules.check_deleted_with_namespace(item):
        yield 19, problem


def _is_explained(item: ItemHistory, bounds: ClockBounds) -> Iterator[Finding]:
    """15: see `explanation_rules`."""
    if item.origins:
        for problem in explanation_rules.check_explanation(item, bounds):
            yield 15, problem


_SETTINGS_RULES = (
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
    _first_delivery,
    _times_are_kept,
    _nothing_is_stuck,
    _namespaces_are_apart,
    _is_purged_with_its_topic,
    _is_deleted_with_its_namespace,
    _is_explained,
)
