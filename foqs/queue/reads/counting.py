"""Counts the items that match a filter: in memory, or by a filter walk that reads the rows.

Always true: a count by topic and state alone reads no row while the owner's counts are
complete; a page of a count ends after a bounded time, and from its cursor another host
can continue. Changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Final

from foqs.core.items.item import PRIORITY_MIN, Row, State, pack_order_key, unpack_order_key
from foqs.core.items.row_filter import RowFilter
from foqs.queue.port import ItemTotals, PageResult
from foqs.queue.reads.filter_walk import FilterWalk, FilterWalkCursor, parse_filter_walk_cursor, read_deadline
from foqs.shard.shard import OwnedShard
from foqs.store.port import IdRange

COUNT_ROWS_PER_READ: Final = 1_000
"""Rows that one read looks at, in either order. A longer read would delay the shard's other reads, and the event loop."""
COUNT_TOPICS_PER_STEP: Final = 1_000
"""Topics whose counts are added in one turn of the event loop: about a millisecond."""
COUNT_PAGE_S_MAX: Final = 0.5
"""A page of a count ends with the first read after this time."""


class CountingFilterWalk(FilterWalk):
    """A filter walk that counts. It may read a shard by id, which needs few reads where a topic has few items.

    The cursor of a shard that is read by id is before all topics; its order key holds the last id that was read.
    """

    async def count(self) -> tuple[int, int]:
        """Do one read, and return how many items of it match, and their payload bytes. Raises `Unavailable`."""
        assert self.cursor is not None
        rows: Sequence[Row]
        if self.cursor.topic:
            rows = [item.row for item in await self.read(COUNT_ROWS_PER_READ)]
        else:
            rows = await self._read_by_id(self.cursor)
        return len(rows), sum([row.payload_bytes for row in rows])

    async def _read_by_id(self, cursor: FilterWalkCursor) -> Sequence[Row]:
        shard = self._shard
        assert shard is not None
        _, _, after = unpack_order_key(cursor.after_key)
        last = max(after, shard.numbers.next_number - 1)
        ids = IdRange(after, last, COUNT_ROWS_PER_READ, COUNT_ROWS_PER_READ)
        page = await shard.queries.in_id_range(self._namespace, self.item_filter, ids)
        if page.last_id is None:
            await self._advance()
        else:
            self.cursor = replace(cursor, after_key=pack_order_key(PRIORITY_MIN, 0, page.last_id))
        return page.rows

    def _ranges_of(
        self, shard: OwnedShard, start: FilterWalkCursor | None
    ) -> Iterator[tuple[OwnedShard, FilterWalkCursor] | None]:
        place = FilterWalkCursor(
            self.item_filter.at_ms, shard.number, min(State), pack_order_key(PRIORITY_MIN, 0, 0), ""
        )
        if start is not None and not start.topic and start.after_key > place.after_key:
            yield shard, replace(place, after_key=start.after_key)
        elif (start is None or not start.topic) and (yield from self._is_faster_by_id(shard)):
            yield shard, place
        else:
            yield from super()._ranges_of(shard, start)

    def _is_faster_by_id(self, shard: OwnedShard) -> Generator[None, None, bool]:
        """Return whether all rows of the shard need fewer reads than the topics with matching items, as far as counted.

        Yields between many topics, to let other tasks run.
        """
        if self.item_filter.topic_names is not None or shard.counts.is_lagging:
            return False
        reads_by_id = _reads_of(sum(shard.counts.totals))
        reads_by_topic = 0
        for place, topic in enumerate(shard.memory.topics(self._namespace)):
            if place and not place % COUNT_TOPICS_PER_STEP:
                yield
            for state in self.item_filter.states:
                reads_by_topic += _reads_of(shard.counts.count((self._namespace, topic), state))
            if reads_by_topic > reads_by_id:
                return True
        return False


def _reads_of(rows: int) -> int:
    """Return how many reads this number of rows needs."""
    return -(-rows // COUNT_ROWS_PER_READ)


async def count_matching(
    shards: Sequence[OwnedShard], namespace: str, item_filter: RowFilter, deadline: float
) -> ItemTotals:
    """See `QueueReads.count_matching`."""
    if item_filter.is_by_topic_and_state and not any(shard.counts.is_lagging for shard in shards):
        async with read_deadline(deadline):
            return ItemTotals(sum([await _sum_counts(shard, namespace, item_filter) for shard in shards]), None)
    walk = CountingFilterWalk(shards, namespace, item_filter, None)
    items = payload_bytes = 0
    async with read_deadline(deadline):
        await walk.start()
        while walk.cursor is not None:
            found, found_bytes = await walk.count()
            items += found
            payload_bytes += found_bytes
    return ItemTotals(items, payload_bytes)


async def count_page(
    shards: Sequence[OwnedShard],
    namespace: str,
    item_filter: RowFilter,
    cursor: str | None,
    limit: int,
    deadline: float,
) -> PageResult:
    """See `QueueReads.count_page`."""
    walk = CountingFilterWalk(
        shards, namespace, item_filter, None if cursor is None else parse_filter_walk_cursor(cursor)
    )
    loop = asyncio.get_running_loop()
    ends_at_s = loop.time() + COUNT_PAGE_S_MAX
    items = 0
    async with read_deadline(deadline):
        await walk.start()
        shard = walk.shard_number
        while limit and walk.cursor is not None and walk.shard_number == shard:
            found, _ = await walk.count()
            items += found
            if loop.time() >= ends_at_s:
                break
    return PageResult(0, 0, None, None if walk.cursor is None else str(walk.cursor), items)


async def _sum_counts(shard: OwnedShard, namespace: str, item_filter: RowFilter) -> int:
    """Add up the counts. Yields to the event loop between many topics."""
    names = item_filter.topic_names
    topics = shard.memory.topics(namespace) if names is None else names
    items = 0
    for start in range(0, len(topics), COUNT_TOPICS_PER_STEP):
        if start:
            await asyncio.sleep(0)
        part = topics[start : start + COUNT_TOPICS_PER_STEP]
        items += sum([shard.counts.count((namespace, topic), state) for topic in part for state in item_filter.states])
    return items
