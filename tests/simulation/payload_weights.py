"""Checks the payload bytes of reads: no flush and no prefetch reads more than it reserved (invariant 18).

Wraps the product's methods once in a process; `OVER` is cleared before each run.
Does not change what it measures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from foqs.core.flush.batch import Batch
from foqs.core.flush.fence import Fence
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import KeyName
from foqs.core.items.item import Row
from foqs.core.memory.row_cache import Prefetch, RowCache
from foqs.shard.writer import Writer
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.port import Decide
from tests.simulation.planting import wrap

OVER: Final[dict[str, None]] = {}
"""The reads beyond a limit."""
_BUDGETS: Final[dict[MemoryStore, tuple[Collection[int], int]]] = {}
"""For the flush of each store: the ids of due items that are delivered directly, which have their own limit, and the limit."""


def reset() -> None:
    """Clear the results before a run."""
    OVER.clear()
    _BUDGETS.clear()


def install() -> None:
    """Start to measure all reads. Further calls do nothing."""
    if not hasattr(MemoryStore.flush, "weighed"):
        wrap(Writer, "_flush_once", _flush_once)
        wrap(MemoryStore, "flush", _flush)
        wrap(RowCache, "finish_prefetch", _end_load)


def _flush_once(original: Callable[..., Any]) -> Callable[..., Any]:
    async def flush_once(self: Writer, batch: Batch, *moments: int) -> Any:
        store = self._store.inner if isinstance(self._store, JournaledStore) else self._store
        assert isinstance(store, MemoryStore)
        _BUDGETS[store] = batch.dues_with_waiter(), self._intake._limits.flush_bytes_max
        return await original(self, batch, *moments)

    return flush_once


def _flush(original: Callable[..., Any]) -> Callable[..., Any]:
    async def flush(
        self: MemoryStore,
        fence: Fence,
        touched: Sequence[int],
        loaded: Mapping[int, int],
        keys: Sequence[KeyName],
        decide: Decide,
    ) -> None:
        due, limit_bytes = _BUDGETS.get(self, ((), 0))

        def weigh(found: Mapping[int, Row], found_keys: Mapping[Any, Any]) -> Writes:
            if limit_bytes:
                read = [found[number] for number in loaded if number in found]
                _weigh("deliveries", [row for row in read if row.id not in due], limit_bytes)
                _weigh("due items", [row for row in read if row.id in due], limit_bytes)
            return decide(found, found_keys)

        await original(self, fence, touched, loaded, keys, weigh)

    flush.weighed = True  # type: ignore[attr-defined]
    return flush


def _end_load(original: Callable[..., Any]) -> Callable[..., Any]:
    def end_load(self: RowCache, load: Prefetch, rows: Sequence[Row]) -> None:
        _weigh("prefetched rows", rows, load.reserved_bytes)
        original(self, load, rows)
        for budget in (self._written_budget, self._prefetch_budget):
            if budget.bytes > budget.bytes_max or budget.items > budget.items_max:
                OVER[f"invariant 18: {budget.items} rows of {budget.bytes} bytes are cached"] = None

    return end_load


def _weigh(kind: str, rows: Iterable[Row], limit_bytes: int) -> None:
    sizes = [len(row.payload) for row in rows if row.payload]
    # A payload that is longer than the limit is read alone.
    if sum(sizes) > limit_bytes and len(sizes) > 1:
        OVER[f"invariant 18: a read for {kind} has {sum(sizes)} bytes of payload, but its limit was {limit_bytes}"] = (
            None
        )
