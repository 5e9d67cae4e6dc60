"""A filter walk: one pass over the items of a namespace that match a filter.

It visits shards by number, their topics by name, then states, then rows by
order key. Always true: a read looks at a limited number of rows, whether they
match or not; from the cursor after it, another walk can continue on any host.
Results are hints: an item that changes during the walk may be missed or found
twice. Changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from foqs.core.items.item import (
    NUMBER_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    SHARD_MAX,
    TIME_MS_MAX,
    OrderKey,
    Row,
    State,
    pack_order_key,
    unpack_order_key,
)
from foqs.core.items.row_filter import RowFilter
from foqs.queue.port import RowView
from foqs.queue.reads.listings import sorted_topics
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import DeadlineExceeded, InvalidArgument

READS_MAX: Final = 20
"""A page ends after this many reads, because they may find few matches."""


@dataclass(slots=True, frozen=True)
class FilterWalkCursor:
    """The position of a walk: before the rows above `after_key`, of one topic in one state on one shard.

    `started_ms`: when the whole walk started, by the shard clock that was furthest ahead.
    """

    started_ms: int
    shard: int
    state: State
    after_key: OrderKey
    topic: str

    def __str__(self) -> str:
        numbers = (self.started_ms, self.shard, int(self.state), *unpack_order_key(self.after_key))
        return ":".join([*map(str, numbers), self.topic])


def parse_filter_walk_cursor(cursor: str) -> FilterWalkCursor:
    """Parse the text of a cursor. Raises `InvalidArgument`."""
    parts = cursor.split(":", 6)
    try:
        started_ms, shard, state, priority, after_ms, number = map(int, parts[:6])
        parsed = FilterWalkCursor(started_ms, shard, State(state), pack_order_key(priority, after_ms, number), parts[6])
    except (ValueError, IndexError):
        parsed = None
    if (
        parsed is None
        or str(parsed) != cursor
        or not 0 <= parsed.started_ms <= TIME_MS_MAX
        or not 0 <= parsed.shard <= SHARD_MAX
        or not PRIORITY_MIN <= priority <= PRIORITY_MAX
        or not 0 <= after_ms <= TIME_MS_MAX
        or not 0 <= number <= NUMBER_MAX
    ):
        raise InvalidArgument(
            "this is not a cursor of an earlier reply to this call; leave it out to begin again", field="page.cursor"
        )
    return parsed


def start_of_shard(started_ms: int, shard: int) -> FilterWalkCursor:
    """Return the cursor before all rows of a shard."""
    return FilterWalkCursor(started_ms, shard, min(State), pack_order_key(PRIORITY_MIN, 0, 0), "")


def cursor_after(item: RowView) -> str:
    """Return the cursor after this item. The walk must have started when the item was read."""
    row: Row = item.row
    return str(FilterWalkCursor(item.now_ms, item.shard, row.state, row.order_key, row.topic))


class FilterWalk:
    """One filter walk, or one page of it.

    Args:
        shards: the shards to visit, sorted by number.
        item_filter: its ages are measured at the start of the walk.
        cursor: where to continue; None starts a walk.
    """

    def __init__(
        self, shards: Sequence[OwnedShard], namespace: str, item_filter: RowFilter, cursor: FilterWalkCursor | None
    ) -> None:
        started_ms = cursor.started_ms if cursor else max([shard.now_ms() for shard in shards], default=0)
        self.item_filter = replace(item_filter, at_ms=started_ms)
        self._namespace = namespace
        self._first_key = pack_order_key(item_filter.priority_min, 0, 0)
        self._ranges = self._ranges_from(shards, cursor)
        self._shard: OwnedShard | None = None
        self.cursor: FilterWalkCursor | None = None
        """The position; None before the start and at the end."""

    async def start(self) -> None:
        """Go to the first rows."""
        await self._advance()

    @property
    def shard_number(self) -> int | None:
        """The shard of the position; None at the end."""
        return None if self.cursor is None else self.cursor.shard

    async def read(self, limit: int) -> list[RowView]:
        """Read up to `limit` rows, of one topic in one state, and return those that match.

        Raises:
            Unavailable: the shard cannot be read now.
        """
        shard, cursor = self._shard, self.cursor
        assert shard is not None and cursor is not None
        topic = (self._namespace, cursor.topic)
        rows = await shard.queries.in_order(topic, cursor.state, cursor.after_key, limit)
        now_ms, real_wait_ms = shard.now_ms(), shard.real_ms_until_function()
        if len(rows) < limit or rows[-1].priority > self.item_filter.priority_max:
            await self._advance()
        else:
            self.cursor = replace(cursor, after_key=rows[-1].order_key)
        return [
            RowView(shard.number, row, now_ms, real_wait_ms=real_wait_ms)
            for row in rows
            if self.item_filter.matches(row)
        ]

    async def read_page(self, limit: int, *, in_one_shard: bool = False) -> list[RowView]:
        """Start the walk, and return up to `limit` items that match, of the shard of the first read if `in_one_shard`.

        Raises:
            Unavailable: a shard cannot be read now.
        """
        await self.start()
        shard = self.shard_number
        found: list[RowView] = []
        for _ in range(READS_MAX):
            if self.cursor is None or len(found) == limit or (in_one_shard and self.shard_number != shard):
                break
            found += await self.read(limit - len(found))
        return found

    def cursor_before(self, item: RowView) -> FilterWalkCursor:
        """Return the cursor just before this item."""
        row: Row = item.row
        return FilterWalkCursor(self.item_filter.at_ms, item.shard, row.state, row.order_key - 1, row.topic)

    async def _advance(self) -> None:
        """Go to the next rows. Yields to the event loop while it skips many topics."""
        for next_range in self._ranges:
            if next_range is not None:
                self._shard, self.cursor = next_range
                return
            await asyncio.sleep(0)
        self._shard = self.cursor = None

    def _ranges_from(
        self, shards: Sequence[OwnedShard], cursor: FilterWalkCursor | None
    ) -> Iterator[tuple[OwnedShard, FilterWalkCursor] | None]:
        """Yield the start of each range of rows that may match; None to let other tasks run."""
        for shard in shards:
            if cursor is not None and shard.number < cursor.shard:
                continue
            yield from self._ranges_of(shard, cursor if cursor is not None and shard.number == cursor.shard else None)

    def _ranges_of(
        self, shard: OwnedShard, start: FilterWalkCursor | None
    ) -> Iterator[tuple[OwnedShard, FilterWalkCursor] | None]:
        """Yield the ranges of one shard, from a place on."""
        for topic in self._topics_from(shard, "" if start is None else start.topic):
            if topic is None:
                yield None
                continue
            for state in sorted(self.item_filter.states):
                after = self._first_key
                if start is not None:
                    if (topic, state) < (start.topic, start.state):
                        continue
                    if (topic, state) == (start.topic, start.state):
                        after = max(after, start.after_key)
                if shard.counts.is_lagging or shard.counts.count((self._namespace, topic), state):
                    yield shard, FilterWalkCursor(self.item_filter.at_ms, shard.number, state, after, topic)

    def _topics_from(self, shard: OwnedShard, first_name: str) -> Iterator[str | None]:
        names = self.item_filter.topic_names
        if names is None:
            return sorted_topics([shard], self._namespace, first_name)
        return (
            name for name in sorted(names) if name >= first_name and shard.memory.has_topic((self._namespace, name))
        )


@asynccontextmanager
async def read_deadline(deadline: float) -> AsyncIterator[None]:
    """Limit the time of the reads in its block. Raises `DeadlineExceeded`."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise DeadlineExceeded(
            "the time ran out while items were read; nothing was changed; narrow the filter or give the call more time"
        ) from None
