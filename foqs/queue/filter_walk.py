"""A walk over the items of a namespace that a filter matches: where it stands, and its next rows.

Goes through the shards by number, in each through topics by name, in each
through states, in each through rows in the order of their keys. Always true: a
read looks at so many rows at most, by the index, whether they match or not; the
place after it is where another walk may go on, on any host. What it finds are
hints: an item that changes while it is walked by may be passed over or be met
twice. Changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from foqs.core.errors import InvalidArgument
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
from foqs.core.items.item_filter import ItemFilter
from foqs.core.memory.sorted_names import merge_names
from foqs.queue.port import ItemView
from foqs.shard.shard import Shard


@dataclass(slots=True, frozen=True)
class WalkCursor:
    """Before the rows above `after`, of a topic in a state, on a shard, and all that come later.

    `started_ms`: when the whole walk began, on the clock of the shard that was most ahead.
    """

    started_ms: int
    shard: int
    state: State
    after_key: OrderKey
    topic: str

    def __str__(self) -> str:
        numbers = (self.started_ms, self.shard, int(self.state), *unpack_order_key(self.after_key))
        return ":".join([*map(str, numbers), self.topic])


def parse_walk_cursor(cursor: str) -> WalkCursor:
    """The place that a cursor names. Raises InvalidArgument."""
    parts = cursor.split(":", 6)
    try:
        begun_ms, shard, state, priority, after_ms, number = map(int, parts[:6])
        place = WalkCursor(begun_ms, shard, State(state), pack_order_key(priority, after_ms, number), parts[6])
    except (ValueError, IndexError):
        place = None
    if (
        place is None
        or str(place) != cursor
        or not 0 <= place.started_ms <= TIME_MS_MAX
        or not 0 <= place.shard <= SHARD_MAX
        or not PRIORITY_MIN <= priority <= PRIORITY_MAX
        or not 0 <= after_ms <= TIME_MS_MAX
        or not 0 <= number <= NUMBER_MAX
    ):
        raise InvalidArgument("this is not a cursor of an earlier reply to this call", field="page.cursor")
    return place


def start_of_shard(started_ms: int, shard: int) -> WalkCursor:
    """Before all rows of a shard."""
    return WalkCursor(started_ms, shard, min(State), pack_order_key(PRIORITY_MIN, 0, 0), "")


def cursor_after(item: ItemView) -> str:
    """Where a walk goes on after this row, which it found as it had just begun."""
    row: Row = item.row
    return str(WalkCursor(item.now_ms, item.shard, row.state, row.order_key, row.topic))


class Walk:
    """One walk, or a page of it.

    Args:
        shards: those that are walked through, by number.
        item_filter: what is looked for; its moment is the walk's beginning.
        cursor: where to go on; None at the beginning.
    """

    def __init__(
        self, shards: Sequence[Shard], namespace: str, item_filter: ItemFilter, cursor: WalkCursor | None
    ) -> None:
        begun_ms = cursor.started_ms if cursor else max([shard.now_ms() for shard in shards], default=0)
        self.item_filter = replace(item_filter, at_ms=begun_ms)
        self._namespace = namespace
        self._first_key = pack_order_key(item_filter.priority_min, 0, 0)
        self._ranges = self._ranges_from(shards, cursor)
        self._shard: Shard | None = None
        self.cursor: WalkCursor | None = None
        """Where it stands; None before it has begun, and at the end."""

    async def start(self) -> None:
        """Goes to its first rows."""
        await self._advance()

    @property
    def shard_number(self) -> int | None:
        """The shard where it stands; None at the end."""
        return None if self.cursor is None else self.cursor.shard

    async def read(self, limit: int) -> list[ItemView]:
        """Looks at the next `limit` rows at most, of one topic in one state, and returns those that match.

        Raises:
            Unavailable: the shard cannot be read now.
        """
        shard, place = self._shard, self.cursor
        assert shard is not None and place is not None
        topic = (self._namespace, place.topic)
        rows = await shard.list_rows(topic, place.state, place.after_key, limit)
        now_ms, lasts = shard.now_ms(), shard.real_ms_until_function()
        if len(rows) < limit or rows[-1].priority > self.item_filter.priority_max:
            await self._advance()
        else:
            self.cursor = replace(place, after_key=rows[-1].order_key)
        return [
            ItemView(shard.number, row, now_ms, real_wait_ms=lasts) for row in rows if self.item_filter.matches(row)
        ]

    def cursor_before(self, item: ItemView) -> WalkCursor:
        """The place from which this row is met again."""
        row: Row = item.row
        return WalkCursor(self.item_filter.at_ms, item.shard, row.state, row.order_key - 1, row.topic)

    async def _advance(self) -> None:
        """Goes to the next rows. Others run while many topics without any are passed by."""
        for found in self._ranges:
            if found is not None:
                self._shard, self.cursor = found
                return
            await asyncio.sleep(0)
        self._shard = self.cursor = None

    def _ranges_from(
        self, shards: Sequence[Shard], cursor: WalkCursor | None
    ) -> Iterator[tuple[Shard, WalkCursor] | None]:
        """Where each stretch of rows that may match begins; None where others should run."""
        for shard in shards:
            if cursor is not None and shard.number < cursor.shard:
                continue
            start = cursor if cursor is not None and shard.number == cursor.shard else None
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
                        yield shard, WalkCursor(self.item_filter.at_ms, shard.number, state, after, topic)

    def _topics_from(self, shard: Shard, first_name: str) -> Iterator[str | None]:
        if self.item_filter.topic is None:
            return merge_names([shard.memory.topics(self._namespace)], first_name)
        return iter(
            [self.item_filter.topic] if shard.memory.has_topic((self._namespace, self.item_filter.topic)) else ()
        )
