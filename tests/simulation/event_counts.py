"""Counts interesting events of a run, above all races.

Wraps the product's methods once in a process; `COUNTS` is cleared before each
run. Does not change what it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from foqs.core.flush import flush_plan
from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.fence import CommitOutcome, Fence
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.intake import Intake
from foqs.core.flush.operation import Leases, Operation
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.items.item import OrderKey, Row, TopicName, order_key_number
from foqs.core.memory.ready_index import ReadyIndex, Refill
from foqs.core.memory.row_cache import Prefetch, RowCache
from foqs.queue.dequeue import Dequeue
from foqs.queue.waiters import Waiters
from foqs.shard.observer import NullObserver
from foqs.shard.owned_store import ShardLost
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.writer import Writer
from foqs.store.port import IdempotencyKeyExists
from foqs_contract.errors import FoqsError, KeyConflict
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


def _insert_keys_counted(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(self: ReadyIndex, window: Any, keys: Sequence[OrderKey]) -> None:
        COUNTS["better items inserted"] += bool(len(window)) and keys[0] < window.keys[window.start]
        original(self, window, keys)

    return enter


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
    def deliveries(self: ShardMemory, batch: Batch) -> list[Part[Leases]]:
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


def _firsts(original: Callable[..., Any]) -> Callable[..., Any]:
    def firsts(part: Any, moment: Any, keys: Any, plan: FlushPlan) -> list[Any]:
        before = sum(map(len, plan.keys_replaced.values()))
        results: list[Any] = original(part, moment, keys, plan)
        COUNTS["keys repeated"] += sum(type(result) is int for result in results)
        COUNTS["keys in conflict"] += sum(type(result) is KeyConflict for result in results)
        COUNTS["keys used again"] += sum(map(len, plan.keys_replaced.values())) - before
        return results

    return firsts


def _moves(original: Callable[..., Any]) -> Callable[..., Any]:
    def moves(parts: Any, find_row: Any, context: Any, timers: Any, keys: Any, plan: FlushPlan) -> None:
        original(parts, find_row, context, timers, keys, plan)
        COUNTS["items moved"] += len(plan.moved)
        results = [result for _, results in plan.results[-len(parts) :] for result in results]
        COUNTS["moves repeated"] += sum(type(result) is int for result in results)
        COUNTS["moves refused"] += sum(isinstance(result, FoqsError) for result in results)

    return moves


def _breaker_changed(original: Callable[..., Any]) -> Callable[..., Any]:
    names = {"open": "breakers opened", "half-open": "breakers half-open", "closed": "breakers closed"}

    def breaker_changed(self: NullObserver, shard: int, state: str) -> None:
        COUNTS[names[state]] += 1
        original(self, shard, state)

    return breaker_changed


def _apply_purge_marker_counted(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_purge_marker(self: ShardMemory, made: PurgeMarker) -> int:
        COUNTS[
            "purge markers raised"
            if self.purge_markers.last_number((made.namespace, made.topic))
            else "purge markers made"
        ] += 1
        items: int = original(self, made)
        return items

    return apply_purge_marker


def _purged(original: Callable[..., Any]) -> Callable[..., Any]:
    def purged(self: ShardMemory, batch: Any, plan: FlushPlan, finished: Any) -> None:
        COUNTS["rows purged"] += len(plan.purged)
        original(self, batch, plan, finished)

    return purged


def _not_purged(original: Callable[..., Any]) -> Callable[..., Any]:
    def not_purged(namespace: str, items: Any, numbers: Any, purge_markers: Any) -> Any:
        kept = original(namespace, items, numbers, purge_markers)
        COUNTS["purged before the insert"] += len(items) - len(kept[0])
        return kept

    return not_purged


def _resolve(original: Callable[..., Any]) -> Callable[..., Any]:
    async def resolve(self: Writer, fence: Fence, why: str) -> CommitOutcome:
        try:
            found: CommitOutcome = await original(self, fence, why)
        except ShardLost:
            COUNTS["unknown and fenced"] += fence.flush > self.flush_number and bool(self._flushing_batch.inserts)
            raise
        return found

    return resolve


_installed = False


def install() -> None:
    """Start to count in this process. Further calls do nothing."""
    global _installed
    if _installed:
        return
    _installed = True
    wrap(ReadyIndex, "finish_refill", _end_refill)
    wrap(ReadyIndex, "_insert_keys", _insert_keys_counted)
    wrap(ReadyIndex, "_lower_boundary", _lower)
    wrap(RowCache, "finish_prefetch", _end_load)
    wrap(Waiters, "add", _add_waiter)
    wrap(Dequeue, "assign", _assign)
    wrap(Leases, "settle", _settle)
    wrap(Intake, "_submit_in_parts", _submit_in_parts)
    wrap(IdempotencyKeyExists, "__init__", _key_taken)
    wrap(flush_plan, "_add_keys", _firsts)
    wrap(flush_plan, "_decide_moves", _moves)
    wrap(NullObserver, "breaker_changed", _breaker_changed)
    wrap(ShardMemory, "assign_to_waiters", _assign_to_waiters)
    wrap(ShardMemory, "_apply_purge_marker", _apply_purge_marker_counted)
    wrap(ShardMemory, "_apply_purges", _purged)
    wrap(flush_plan, "_not_purged", _not_purged)
    wrap(Writer, "_resolve_outcome", _resolve)


def reset() -> None:
    """Clear the counts before a run."""
    COUNTS.clear()
    COUNTS.update(dict.fromkeys(NAMES, 0))
    DIRECT_DELIVERIES.clear()
