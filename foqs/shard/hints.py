"""Reads that extend a shard's memory while it is written: refills, and rows loaded ahead.

What these read may be stale when it arrives, so it enters the memory between
two flushes, and of it only what no flush has touched since the read began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foqs.core.errors import Unavailable
from foqs.core.fence import Fence
from foqs.core.item import Key, Row, State, TopicName, key_number
from foqs.core.ready import Refill
from foqs.core.rows import Load
from foqs.shard.memory import ShardMemory
from foqs.store.port import Reads

Between = Callable[[Callable[[], None]], None]
"""Calls something while no flush is under way."""


class RefillJob:
    """Extends a topic's window upwards."""

    wanted = True

    def __init__(self, memory: ShardMemory, topic: TopicName, between: Between, ended: Callable[[], None]) -> None:
        self._memory = memory
        self._topic = topic
        self._between = between
        self._ended = ended

    async def run(self, reads: Reads, past: Fence) -> None:
        index = self._memory.index
        refill = index.begin_refill(self._topic)
        if refill is None:
            self._ended()
            return
        try:
            last_cut = self._memory.cuts.last(self._topic)
            keys = await reads.ready(past, self._topic, refill.after, refill.limit, last_cut)
        except BaseException:
            index.drop_refill(refill)
            raise
        self._between(lambda: self._enter(refill, keys))

    def _enter(self, refill: Refill, keys: Sequence[Key]) -> None:
        self._memory.index.end_refill(refill, keys, complete=len(keys) < refill.limit)
        self._ended()

    def failed(self, error: Unavailable) -> None:
        self._ended()


class LoadJob:
    """Loads rows of READY keys, with their payloads, as many as their namespace has room for."""

    wanted = True

    def __init__(
        self,
        memory: ShardMemory,
        topic: TopicName,
        keys: Sequence[Key],
        weight: int,
        now_s: float,
        between: Between,
        ended: Callable[[], None],
    ) -> None:
        self._memory = memory
        self._topic = topic
        self._keys = keys
        self._weight = weight
        self._now_s = now_s
        self._between = between
        self._ended = ended

    async def run(self, reads: Reads, past: Fence) -> None:
        memory = self._memory
        load = memory.cache.begin_load(self._topic[0], self._weight, map(key_number, self._keys), self._now_s)
        if load is None:
            self._loaded()
            return
        try:
            rows = await reads.rows(past, load.numbers, load.payload_bytes_max)
            more = load.fitting(rows)
            if more:
                late = {row.id: row for row in await reads.rows(past, more)}
                rows = [late.get(row.id, row) for row in rows]
        except BaseException:
            memory.cache.drop_load(load)
            raise
        self._between(lambda: self._enter(load, rows))

    def _enter(self, load: Load, rows: Sequence[Row]) -> None:
        self._memory.cache.end_load(load, [row for row in rows if row.state is State.READY])
        self._loaded()

    def _loaded(self) -> None:
        self._memory.index.set_loaded(self._topic, self._keys[-1])
        self._ended()

    def failed(self, error: Unavailable) -> None:
        self._ended()
