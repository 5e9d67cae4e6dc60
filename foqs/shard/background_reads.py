"""Reads that extend a shard's memory while it is written: refills, and rows loaded ahead.

What these read may be stale when it arrives, so it enters the memory between
two flushes, and of it only what no flush has touched since the read began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foqs.core.errors import Unavailable
from foqs.core.flush.fence import Fence
from foqs.core.items.item import OrderKey, Row, State, TopicName, order_key_number
from foqs.core.memory.ready_index import Refill
from foqs.core.memory.row_cache import Prefetch
from foqs.shard.shard_memory import ShardMemory
from foqs.store.port import Reads

RunBetweenFlushes = Callable[[Callable[[], None]], None]
"""Calls something while no flush is under way."""


class RefillJob:
    """Extends a topic's window upwards."""

    is_wanted = True

    def __init__(
        self,
        memory: ShardMemory,
        topic: TopicName,
        run_between_flushes: RunBetweenFlushes,
        on_ended: Callable[[], None],
    ) -> None:
        self._memory = memory
        self._topic = topic
        self._run_between_flushes = run_between_flushes
        self._on_ended = on_ended

    async def run(self, reads: Reads, committed: Fence) -> None:
        index = self._memory.index
        refill = index.start_refill(self._topic)
        if refill is None:
            self._on_ended()
            return
        try:
            last_cut = self._memory.purge_markers.last_number(self._topic)
            keys = await reads.ready_keys(committed, self._topic, refill.after, refill.limit, last_cut)
        except BaseException:
            index.cancel_refill(refill)
            raise
        self._run_between_flushes(lambda: self._apply(refill, keys))

    def _apply(self, refill: Refill, keys: Sequence[OrderKey]) -> None:
        self._memory.index.finish_refill(refill, keys, complete=len(keys) < refill.limit)
        self._on_ended()

    def on_failed(self, error: Unavailable) -> None:
        self._on_ended()


class PrefetchJob:
    """Loads rows of READY keys, with their payloads, as many as their namespace has room for."""

    is_wanted = True

    def __init__(
        self,
        memory: ShardMemory,
        topic: TopicName,
        order_keys: Sequence[OrderKey],
        weight: int,
        now_s: float,
        run_between_flushes: RunBetweenFlushes,
        on_ended: Callable[[], None],
    ) -> None:
        self._memory = memory
        self._topic = topic
        self._order_keys = order_keys
        self._weight = weight
        self._now_s = now_s
        self._run_between_flushes = run_between_flushes
        self._on_ended = on_ended

    async def run(self, reads: Reads, committed: Fence) -> None:
        memory = self._memory
        load = memory.cache.start_prefetch(
            self._topic[0], self._weight, map(order_key_number, self._order_keys), self._now_s
        )
        if load is None:
            self._mark_loaded()
            return
        try:
            rows = await reads.rows(committed, load.numbers, load.payload_bytes_max)
            more = load.numbers_to_read_again(rows)
            if more:
                late = {row.id: row for row in await reads.rows(committed, more)}
                rows = [late.get(row.id, row) for row in rows]
        except BaseException:
            memory.cache.cancel_prefetch(load)
            raise
        self._run_between_flushes(lambda: self._apply(load, rows))

    def _apply(self, load: Prefetch, rows: Sequence[Row]) -> None:
        self._memory.cache.finish_prefetch(load, [row for row in rows if row.state is State.READY])
        self._mark_loaded()

    def _mark_loaded(self) -> None:
        self._memory.index.set_prefetched(self._topic, self._order_keys[-1])
        self._on_ended()

    def on_failed(self, error: Unavailable) -> None:
        self._on_ended()
