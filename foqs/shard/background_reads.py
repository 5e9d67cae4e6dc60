"""Reads that extend a shard's memory beside its flushes: refills, reads of first keys, pages of groups, and prefetches.

Their rows may be stale when they arrive. So they enter the memory between two
flushes, and only those that no flush has changed since the read began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from foqs.core.flush.fence import Fence
from foqs.core.groups.group_page import GroupPage
from foqs.core.groups.limited_topic import LimitedTopic
from foqs.core.items.item import OrderKey, Row, State, TopicName, order_key_number
from foqs.core.memory.ready_window import Refill
from foqs.core.memory.row_cache import Prefetch
from foqs.shard.shard_memory import ShardMemory
from foqs.store.port import Reads
from foqs_contract.errors import Unavailable

RunBetweenFlushes = Callable[[Callable[[], None]], None]
"""Calls a function while no flush is under way."""


class RefillRead:
    """Extends the window of a topic in the ready index."""

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

    def _start(self) -> Refill | None:
        return self._memory.index.start_refill(self._topic)

    def _finish(self, refill: Refill, order_keys: Sequence[OrderKey]) -> None:
        self._memory.index.finish_refill(refill, order_keys, complete=len(order_keys) < refill.limit)

    async def run(self, reads: Reads, committed: Fence) -> None:
        refill = self._start()
        if refill is None:
            self._on_ended()
            return
        try:
            purged_up_to = self._memory.purge_markers.last_number(self._topic)
            order_keys = await reads.ready_order_keys(committed, self._topic, refill.after, refill.limit, purged_up_to)
        except BaseException:
            self._memory.index.cancel_refill(refill)
            raise
        self._run_between_flushes(lambda: self._apply(refill, order_keys))

    def _apply(self, refill: Refill, order_keys: Sequence[OrderKey]) -> None:
        self._finish(refill, order_keys)
        self._on_ended()

    def on_failed(self, error: Unavailable) -> None:
        self._on_ended()


class FirstKeyRead(RefillRead):
    """Reads the first key of a topic whose window is empty. The window stays empty."""

    def _start(self) -> Refill | None:
        return self._memory.index.start_first_key_read(self._topic)

    def _finish(self, refill: Refill, order_keys: Sequence[OrderKey]) -> None:
        self._memory.index.finish_first_key_read(refill, order_keys)


class GroupPageRead:
    """Reads the next page of a topic with a limit.

    Args:
        page_rows: the most rows of the page.
        on_ended: is called at the end with whether there are new heads, or others that are read ahead, and how long the read
            took, also if it failed.
    """

    is_wanted = True

    def __init__(
        self,
        memory: ShardMemory,
        topic: TopicName,
        page_rows: int,
        run_between_flushes: RunBetweenFlushes,
        on_ended: Callable[[bool, float], None],
    ) -> None:
        self._memory = memory
        self._topic = topic
        self._page_rows = page_rows
        self._run_between_flushes = run_between_flushes
        self._on_ended = on_ended
        self._began_s = asyncio.get_running_loop().time()

    async def run(self, reads: Reads, committed: Fence) -> None:
        self._began_s = asyncio.get_running_loop().time()
        limited = self._memory.limited_topics.get(self._topic)
        page = None if limited is None else limited.pages.start_page(self._page_rows)
        if limited is None or page is None:
            self._end(False)
            return
        try:
            purged_up_to = self._memory.purge_markers.last_number(self._topic)
            rows = await reads.list_rows(
                committed, self._topic, page.state, page.after, page.rows_max, purged_up_to, with_payload=False
            )
        except BaseException:
            limited.pages.cancel_page(page)
            raise
        self._run_between_flushes(lambda: self._apply(limited, page, rows))

    def _apply(self, limited: LimitedTopic, page: GroupPage, rows: Sequence[Row]) -> None:
        limited.pages.finish_page(page, rows)
        is_current = self._memory.limited_topics.get(self._topic) is limited
        self._end(is_current and (self._memory.settle_groups(self._topic) or limited.pages.reads_ahead))
        self._memory.settle_full_topics()

    def _end(self, goes_on: bool) -> None:
        self._on_ended(goes_on, asyncio.get_running_loop().time() - self._began_s)

    def on_failed(self, error: Unavailable) -> None:
        self._end(False)


class PrefetchRead:
    """Loads rows of READY keys with their payloads, as many as the cache has room for in their namespace."""

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
        prefetch = memory.cache.start_prefetch(
            self._topic[0], self._weight, map(order_key_number, self._order_keys), self._now_s
        )
        if prefetch is None:
            self._mark_loaded()
            return
        try:
            rows = await reads.rows(committed, prefetch.numbers, prefetch.payload_bytes_max)
            numbers = prefetch.numbers_to_read_again(rows)
            if numbers:
                reread = {row.id: row for row in await reads.rows(committed, numbers)}
                rows = [reread.get(row.id, row) for row in rows]
        except BaseException:
            memory.cache.cancel_prefetch(prefetch)
            raise
        self._run_between_flushes(lambda: self._apply(prefetch, rows))

    def _apply(self, prefetch: Prefetch, rows: Sequence[Row]) -> None:
        self._memory.cache.finish_prefetch(prefetch, [row for row in rows if row.state is State.READY])
        self._mark_loaded()

    def _mark_loaded(self) -> None:
        self._memory.index.set_prefetched(self._topic, self._order_keys[-1])
        self._on_ended()

    def on_failed(self, error: Unavailable) -> None:
        self._on_ended()
