"""Reads that extend a shard's memory beside its flushes: refills, reads of first keys, and prefetches.

Their rows may be stale when they arrive. So they enter the memory between two
flushes, and only those that no flush has changed since the read began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foqs.core.flush.fence import Fence
from foqs.core.groups.group_scan import GroupScan
from foqs.core.groups.known_keys import BELOW_ALL
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.items.item import OrderKey, Row, State, TopicName, order_key_number
from foqs.core.memory.ready_index import Refill
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


class GroupScanRead:
    """Reads groups of a topic with a limit: those that are wanted, else all. Page by page, so that other reads take turns.

    Args:
        submit: queues it again, for the next page.
        on_ended: is called at the end, also if it failed.
    """

    is_wanted = True

    def __init__(
        self,
        memory: ShardMemory,
        topic: TopicName,
        page_rows: int,
        run_between_flushes: RunBetweenFlushes,
        submit: Callable[[GroupScanRead], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._memory = memory
        self._topic = topic
        self._page_rows = page_rows
        self._run_between_flushes = run_between_flushes
        self._submit = submit
        self._on_ended = on_ended
        self._scan: GroupScan | None = None
        self._groups: TopicGroups | None = None

    def _start(self) -> None:
        groups = self._groups = self._memory.limited_topics.get(self._topic)
        if groups is None:
            return
        is_first = groups.boundary == BELOW_ALL
        read = groups.start_walk_page() if is_first or not groups.has_wanted else groups.start_lookup()
        if read is not None:
            self._scan = GroupScan(read, groups.limit, groups.groups_max)

    def _is_over(self) -> bool:
        """Return whether its result cannot be used any more: the policy has changed, or the topic was purged."""
        groups, scan = self._groups, self._scan
        return (
            groups is None
            or scan is None
            or self._memory.limited_topics.get(self._topic) is not groups
            or not groups.is_under_way(scan.read)
        )

    async def run(self, reads: Reads, committed: Fence) -> None:
        if self._scan is None:
            self._start()
        scan, groups = self._scan, self._groups
        page = None if scan is None else scan.next_page()
        if scan is None or groups is None or page is None or self._is_over():
            self._end()
            return
        try:
            purged_up_to = self._memory.purge_markers.last_number(self._topic)
            rows = await reads.list_rows(
                committed, self._topic, page.state, page.after, self._page_rows, purged_up_to, with_payload=False
            )
        except BaseException:
            groups.cancel_read(scan.read)
            self._scan = None  # another attempt begins again
            raise
        scan.add(rows, self._page_rows)
        if scan.next_page() is None or scan.read.is_void:
            self._run_between_flushes(self._apply)
        else:
            self._submit(self)

    def _apply(self) -> None:
        scan, groups = self._scan, self._groups
        if not self._is_over() and scan is not None and groups is not None:
            names = scan.read.names
            groups.finish_read(scan.read, scan.found(groups))
            groups.want((names or frozenset()) - (scan.read.names or frozenset()))
            self._memory.settle_groups(self._topic)
        self._on_ended()

    def _end(self) -> None:
        if self._groups is not None and self._scan is not None:
            self._groups.cancel_read(self._scan.read)
        self._on_ended()

    def on_failed(self, error: Unavailable) -> None:
        self._end()


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
