"""Counts interesting events of a run, above all races.

Wraps the product's methods once in a process; `COUNTS` is cleared before each
run. Does not change what it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, Final

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.completions import Completions, NewNumbers
from foqs.core.flush.fence import CommitOutcome, Fence
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.intake import Intake
from foqs.core.flush.moves import Moves
from foqs.core.flush.operation import Inserts, Leases, Operation
from foqs.core.groups.group_page import GroupPage, PageKind
from foqs.core.groups.limited_topic import LimitedTopic
from foqs.core.groups.row_pages import RowPages
from foqs.core.groups.topic_heads import HeadChanges
from foqs.core.items.item import OrderKey, Row, TopicName, order_key_number
from foqs.core.memory.ready_index import ReadyIndex
from foqs.core.memory.ready_window import Refill
from foqs.core.memory.row_cache import Prefetch, RowCache
from foqs.queue.dequeue import Dequeue
from foqs.queue.waiters import Waiters
from foqs.shard import flush_planner
from foqs.shard.flush_planner import FlushPlanner
from foqs.shard.observer import NullObserver
from foqs.shard.owned_store import ShardLost
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.writer import Writer
from foqs.store.port import IdempotencyKeyExists
from foqs_contract.errors import FoqsError, KeyConflict, KeyEnded
from tests.simulation.planting import wrap

NAMES: Final = (
    "refills",
    "refills cancelled",
    "refilled keys outdated",
    "better items inserted",
    "evictions",
    "prefetches",
    "prefetched rows outdated",
    "waits",
    "direct deliveries",
    "due items delivered directly",
    "direct deliveries without items",
    "direct deliveries abandoned",
    "operations waiting for a row",
    "keys taken",
    "keys repeated",
    "keys in conflict",
    "keys ended",
    "keys used again",
    "breakers opened",
    "breakers half-open",
    "breakers closed",
    "purge markers made",
    "purge markers raised",
    "rows purged",
    "purged before the insert",
    "items moved",
    "moves repeated",
    "moves refused",
    "unknown and fenced",
)
LIMIT_NAMES: Final = (
    "pages of delivered items",
    "pages that raise a boundary",
    "pages of long groups",
    "pages of groups outdated",
    "memories of groups made free",
    "topics full of groups",
)
"""Those that happen only if topics have limits."""
COUNTS: Final[Counter[str]] = Counter()
DIRECT_DELIVERIES: Final[set[Leases]] = set()
"""Direct deliveries that are being written."""


def _end_refill(original: Callable[..., Any]) -> Callable[..., Any]:
    def end_refill(self: ReadyIndex, refill: Refill, keys: Sequence[OrderKey], complete: bool) -> None:
        window = self._windows.get(refill.topic)
        if window is None or window.refill is not refill:
            COUNTS["refills cancelled"] += 1
        else:
            COUNTS["refills"] += bool(keys)
            COUNTS["refilled keys outdated"] += any(order_key_number(key) in refill.changes for key in keys)
        original(self, refill, keys, complete)

    return end_refill


def _add_ready(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_many(self: ReadyIndex, topic: TopicName, keys: Sequence[OrderKey]) -> None:
        best = self.best_key(topic)
        original(self, topic, keys)
        added = self.best_key(topic)
        COUNTS["better items inserted"] += best is not None and added is not None and added < best

    return add_many


def _lower(original: Callable[..., Any]) -> Callable[..., Any]:
    def lower(self: ReadyIndex, window: Any, keep: int) -> None:
        COUNTS["evictions"] += len(window) > keep
        original(self, window, keep)

    return lower


def _end_load(original: Callable[..., Any]) -> Callable[..., Any]:
    def end_load(self: RowCache, load: Prefetch, rows: Sequence[Row]) -> None:
        COUNTS["prefetches"] += bool(rows)
        COUNTS["prefetched rows outdated"] += any(self._prefetching.get(row.id) is not load for row in rows)
        original(self, load, rows)

    return end_load


def _add_waiter(original: Callable[..., Any]) -> Callable[..., Any]:
    def join(self: Waiters[Any], waiter: Dequeue) -> None:
        COUNTS["waits"] += 1
        original(self, waiter)

    return join


def _assign(original: Callable[..., Any]) -> Callable[..., Any]:
    def delivery(self: Dequeue, shard: Any, topic: TopicName, keys: Sequence[OrderKey]) -> Leases:
        COUNTS["direct deliveries"] += 1
        operation: Leases = original(self, shard, topic, keys)
        DIRECT_DELIVERIES.add(operation)
        return operation

    return delivery


def _assign_to_waiters(original: Callable[..., Any]) -> Callable[..., Any]:
    def deliveries(self: FlushPlanner, batch: Batch) -> list[Part[Leases]]:
        made: list[Part[Leases]] = original(self, batch)
        due = {number for part in batch.dues for number in part.numbers}
        COUNTS["due items delivered directly"] += sum(number in due for delivery in made for number in delivery.numbers)
        return made

    return deliveries


def _settle(original: Callable[..., Any]) -> Callable[..., Any]:
    def settle(self: Leases, start: int, results: Sequence[Any]) -> bool:
        if self in DIRECT_DELIVERIES:
            DIRECT_DELIVERIES.discard(self)
            COUNTS["direct deliveries abandoned"] += self.is_abandoned and any(row is not None for row in results)
            COUNTS["direct deliveries without items"] += all(row is None for row in results)
        return bool(original(self, start, results))

    return settle


def _submit_in_parts(original: Callable[..., Any]) -> Callable[..., Any]:
    def submit_in_parts(self: Intake, operation: Operation) -> None:
        COUNTS["operations waiting for a row"] += 1
        original(self, operation)

    return submit_in_parts


def _key_taken(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: IdempotencyKeyExists, message: str) -> None:
        COUNTS["keys taken"] += 1
        original(self, message)

    return init


def _plan_flush(original: Callable[..., FlushPlan]) -> Callable[..., FlushPlan]:
    def plan_flush(batch: Batch, *arguments: Any) -> FlushPlan:
        plan = original(batch, *arguments)
        insert_results, move_results = _results_of(Inserts, plan), _results_of(Moves, plan)
        COUNTS["keys repeated"] += sum(type(result) is int for result in insert_results)
        COUNTS["keys in conflict"] += sum(type(result) is KeyConflict for result in insert_results)
        COUNTS["keys ended"] += sum(type(result) is KeyEnded for result in insert_results)
        moved = {new.id for _, new in plan.moved}
        replaced = plan.keys.records_replaced()
        COUNTS["keys used again"] += sum(record.item_id not in moved for record in replaced)
        completed = [result for result in _results_of(Completions, plan) if isinstance(result, NewNumbers)]
        written = {number for result in completed if not result.is_repeat for number in result.numbers}
        inserted = [row for row in plan.inserted if row.id not in written]
        COUNTS["purged before the insert"] += insert_results.count(None) - len(inserted)
        COUNTS["items moved"] += len(plan.moved)
        COUNTS["moves repeated"] += sum(type(result) is int for result in move_results)
        COUNTS["moves refused"] += sum(isinstance(result, FoqsError) for result in move_results)
        return plan

    return plan_flush


def _results_of(kind: type[Completions | Inserts | Moves], plan: FlushPlan) -> list[Any]:
    return [result for part, results in plan.results if isinstance(part.operation, kind) for result in results]


def _breaker_changed(original: Callable[..., Any]) -> Callable[..., Any]:
    names = {"open": "breakers opened", "half-open": "breakers half-open", "closed": "breakers closed"}

    def breaker_changed(self: NullObserver, shard: int, state: str) -> None:
        COUNTS[names[state]] += 1
        original(self, shard, state)

    return breaker_changed


def _apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: ShardMemory, plan: FlushPlan, finished: MutableSequence[Operation]) -> None:
        COUNTS["rows purged"] += len(plan.purged)
        for marker in plan.markers_set:
            is_raised = self.purge_markers.last_number((marker.namespace, marker.topic))
            COUNTS["purge markers raised" if is_raised else "purge markers made"] += 1
        original(self, plan, finished)

    return apply


def _resolve(original: Callable[..., Any]) -> Callable[..., Any]:
    async def resolve(self: Writer, fence: Fence, why: str) -> CommitOutcome:
        try:
            found: CommitOutcome = await original(self, fence, why)
        except ShardLost:
            COUNTS["unknown and fenced"] += fence.flush > self.flush_number and bool(self._flushing_batch.inserts)
            raise
        return found

    return resolve


def _finish_page(original: Callable[..., Any]) -> Callable[..., Any]:
    names = dict(zip(PageKind, LIMIT_NAMES, strict=False))

    def finish_page(self: RowPages, page: GroupPage, rows: Sequence[Row]) -> None:
        if page is self._groups.page and not page.is_void:
            COUNTS[names[page.kind]] += 1
            COUNTS["pages of groups outdated"] += any(row.id in page._changes for row in rows)
        original(self, page, rows)

    return finish_page


def _make_room(original: Callable[..., Any]) -> Callable[..., Any]:
    def make_room(self: LimitedTopic) -> None:
        COUNTS["memories of groups made free"] += 1
        original(self)

    return make_room


def _settle_groups(original: Callable[..., Any]) -> Callable[..., Any]:
    def settle(self: LimitedTopic) -> HeadChanges:
        was_full = self.room.is_full
        changes: HeadChanges = original(self)
        COUNTS["topics full of groups"] += self.room.is_full and not was_full
        return changes

    return settle


_installed = False


def install() -> None:
    """Start to count in this process. Further calls do nothing."""
    global _installed
    if _installed:
        return
    _installed = True
    wrap(ReadyIndex, "finish_refill", _end_refill)
    wrap(ReadyIndex, "add_many", _add_ready)
    wrap(ReadyIndex, "_lower_boundary", _lower)
    wrap(RowCache, "finish_prefetch", _end_load)
    wrap(Waiters, "add", _add_waiter)
    wrap(Dequeue, "assign", _assign)
    wrap(Leases, "settle", _settle)
    wrap(Intake, "_submit_in_parts", _submit_in_parts)
    wrap(IdempotencyKeyExists, "__init__", _key_taken)
    wrap(flush_planner, "plan_flush", _plan_flush)
    wrap(NullObserver, "breaker_changed", _breaker_changed)
    wrap(FlushPlanner, "_assign_to_waiters", _assign_to_waiters)
    wrap(ShardMemory, "apply", _apply)
    wrap(Writer, "_resolve_outcome", _resolve)
    wrap(RowPages, "finish_page", _finish_page)
    wrap(LimitedTopic, "_make_room", _make_room)
    wrap(LimitedTopic, "settle", _settle_groups)


def reset() -> None:
    """Clear the counts before a run."""
    COUNTS.clear()
    COUNTS.update(dict.fromkeys((*NAMES, *LIMIT_NAMES), 0))
    DIRECT_DELIVERIES.clear()
