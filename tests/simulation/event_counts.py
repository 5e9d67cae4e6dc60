"""How often the interesting things happened in a run: races above all.

Counts by wrapping the product's own methods, once in a process; `COUNTS` is
cleared before each run. Changes nothing that it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from foqs.core.errors import KeyConflict
from foqs.core.flush import decision
from foqs.core.flush.batch import Batch
from foqs.core.flush.decision import Decision
from foqs.core.flush.fence import CommitOutcome, Fence
from foqs.core.flush.intake import Intake
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.flush.work import HandOut, Work
from foqs.core.items.item import OrderKey, Row, TopicName, order_key_number
from foqs.core.memory.ready_index import ReadyIndex, Refill
from foqs.core.memory.row_cache import Prefetch, RowCache
from foqs.queue.dequeue import Dequeue
from foqs.queue.waiters import Waiters
from foqs.shard.observer import NullObserver
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.writer import ShardLost, Writer
from foqs.store.port import IdempotencyKeyExists

NAMES: Final = (
    "refills",
    "refills void",
    "reads distrusted",
    "overtakings",
    "evictions",
    "loads",
    "loads distrusted",
    "waits",
    "claims",
    "due and wanted",
    "claims that came to nothing",
    "claims for nobody",
    "held events",
    "keys taken",
    "keys repeated",
    "keys in conflict",
    "keys used again",
    "breakers opened",
    "breakers tried",
    "breakers closed",
    "cuts made",
    "cuts risen",
    "rows purged",
    "purged before they were written",
    "unknown and fenced",
)
COUNTS: Final[Counter[str]] = Counter()
CLAIMED: Final[set[HandOut]] = set()
"""Claims that are being written."""


def _wrap(owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    setattr(owner, name, around(getattr(owner, name)))


def _end_refill(original: Callable[..., Any]) -> Callable[..., Any]:
    def end_refill(self: ReadyIndex, refill: Refill, keys: Sequence[OrderKey], complete: bool) -> None:
        window = self._windows.get(refill.topic)
        if window is None or window.refill is not refill:
            COUNTS["refills void"] += 1
        else:
            COUNTS["refills"] += bool(keys)
            COUNTS["reads distrusted"] += any(order_key_number(key) in refill.changes for key in keys)
        original(self, refill, keys, complete)

    return end_refill


def _enter(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(self: ReadyIndex, window: Any, keys: Sequence[OrderKey]) -> None:
        COUNTS["overtakings"] += bool(len(window)) and keys[0] < window.keys[window.start]
        original(self, window, keys)

    return enter


def _lower(original: Callable[..., Any]) -> Callable[..., Any]:
    def lower(self: ReadyIndex, window: Any, keep: int) -> None:
        COUNTS["evictions"] += len(window) > keep
        original(self, window, keep)

    return lower


def _end_load(original: Callable[..., Any]) -> Callable[..., Any]:
    def end_load(self: RowCache, load: Prefetch, rows: Sequence[Row]) -> None:
        COUNTS["loads"] += bool(rows)
        COUNTS["loads distrusted"] += any(self._prefetching.get(row.id) is not load for row in rows)
        original(self, load, rows)

    return end_load


def _join(original: Callable[..., Any]) -> Callable[..., Any]:
    def join(self: Waiters[Any], waiter: Dequeue) -> None:
        COUNTS["waits"] += 1
        original(self, waiter)

    return join


def _claim(original: Callable[..., Any]) -> Callable[..., Any]:
    def claim(self: Dequeue, shard: Any, topic: TopicName, keys: Sequence[OrderKey]) -> HandOut:
        COUNTS["claims"] += 1
        work: HandOut = original(self, shard, topic, keys)
        CLAIMED.add(work)
        return work

    return claim


def _claims(original: Callable[..., Any]) -> Callable[..., Any]:
    def claims(self: ShardMemory, batch: Batch) -> list[HandOut]:
        made: list[HandOut] = original(self, batch)
        due = {number for part in batch.dues for number in part.numbers}
        COUNTS["due and wanted"] += sum(number in due for claim in made for number in claim.numbers)
        return made

    return claims


def _record(original: Callable[..., Any]) -> Callable[..., Any]:
    def record(self: HandOut, start: int, results: Sequence[Any], tells: Any) -> None:
        if self in CLAIMED:
            CLAIMED.discard(self)
            COUNTS["claims for nobody"] += self.is_abandoned and any(row is not None for row in results)
            COUNTS["claims that came to nothing"] += all(row is None for row in results)
        original(self, start, results, tells)

    return record


def _submit_in_parts(original: Callable[..., Any]) -> Callable[..., Any]:
    def submit_in_parts(self: Intake, work: Work) -> None:
        COUNTS["held events"] += 1
        original(self, work)

    return submit_in_parts


def _key_taken(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: IdempotencyKeyExists, message: str) -> None:
        COUNTS["keys taken"] += 1
        original(self, message)

    return init


def _firsts(original: Callable[..., Any]) -> Callable[..., Any]:
    def firsts(part: Any, moment: Any, keys: Any, decision: Decision) -> list[Any]:
        before = sum(map(len, decision.keys_replaced.values()))
        results: list[Any] = original(part, moment, keys, decision)
        COUNTS["keys repeated"] += sum(type(result) is int for result in results)
        COUNTS["keys in conflict"] += sum(type(result) is KeyConflict for result in results)
        COUNTS["keys used again"] += sum(map(len, decision.keys_replaced.values())) - before
        return results

    return firsts


def _breaker_changed(original: Callable[..., Any]) -> Callable[..., Any]:
    names = {"open": "breakers opened", "half-open": "breakers tried", "closed": "breakers closed"}

    def breaker_changed(self: NullObserver, shard: int, state: str) -> None:
        COUNTS[names[state]] += 1
        original(self, shard, state)

    return breaker_changed


def _cut(original: Callable[..., Any]) -> Callable[..., Any]:
    def cut(self: ShardMemory, made: PurgeMarker) -> int:
        COUNTS["cuts risen" if self.purge_markers.last_number((made.namespace, made.topic)) else "cuts made"] += 1
        items: int = original(self, made)
        return items

    return cut


def _purged(original: Callable[..., Any]) -> Callable[..., Any]:
    def purged(self: ShardMemory, batch: Any, decision: Decision, tells: Any) -> None:
        COUNTS["rows purged"] += len(decision.purged)
        original(self, batch, decision, tells)

    return purged


def _not_purged(original: Callable[..., Any]) -> Callable[..., Any]:
    def not_purged(namespace: str, items: Any, numbers: Any, cuts: Any) -> Any:
        kept = original(namespace, items, numbers, cuts)
        COUNTS["purged before they were written"] += len(items) - len(kept[0])
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
    """Counts from now on, in this process; once is enough."""
    global _installed
    if _installed:
        return
    _installed = True
    _wrap(ReadyIndex, "finish_refill", _end_refill)
    _wrap(ReadyIndex, "_insert_keys", _enter)
    _wrap(ReadyIndex, "_lower_boundary", _lower)
    _wrap(RowCache, "finish_prefetch", _end_load)
    _wrap(Waiters, "add", _join)
    _wrap(Dequeue, "assign", _claim)
    _wrap(HandOut, "record_results", _record)
    _wrap(Intake, "_submit_in_parts", _submit_in_parts)
    _wrap(IdempotencyKeyExists, "__init__", _key_taken)
    _wrap(decision, "_add_keys", _firsts)
    _wrap(NullObserver, "breaker_changed", _breaker_changed)
    _wrap(ShardMemory, "assign_to_waiters", _claims)
    _wrap(ShardMemory, "_apply_purge_marker", _cut)
    _wrap(ShardMemory, "_apply_purges", _purged)
    _wrap(decision, "_not_purged", _not_purged)
    _wrap(Writer, "_resolve_outcome", _resolve)


def reset() -> None:
    """A run begins."""
    COUNTS.clear()
    COUNTS.update(dict.fromkeys(NAMES, 0))
    CLAIMED.clear()
