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
from foqs.core.filter import ItemFilter
from foqs.core.item import (
    NUMBER_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    SHARD_MAX,
    TIME_MS_MAX,
    Key,
    Row,
    State,
    pack_key,
    unpack_key,
)
from foqs.core.names import in_order
from foqs.service.api import Seen
from foqs.shard.shard import Shard


@dataclass(slots=True, frozen=True)
class Place:
    """Before the rows above `after`, of a topic in a state, on a shard, and all that come later.

    `begun_ms`: when the whole walk began, on the clock of the shard that was most ahead.
    """

    begun_ms: int
    shard: int
    state: State
    after: Key
    topic: str

    def __str__(self) -> str:
        numbers = (self.begun_ms, self.shard, int(self.state), *unpack_key(self.after))
        return ":".join([*map(str, numbers), self.topic])


def parse_place(cursor: str) -> Place:
    """The place that a cursor names. Raises InvalidArgument."""
    parts = cursor.split(":", 6)
    try:
        begun_ms, shard, state, priority, after_ms, number = map(int, parts[:6])
        place = Place(begun_ms, shard, State(state), pack_key(priority, after_ms, number), parts[6])
    except (ValueError, IndexError):
        place = None
    if (
        place is None
        or str(place) != cursor
        or not 0 <= place.begun_ms <= TIME_MS_MAX
        or not 0 <= place.shard <= SHARD_MAX
        or not PRIORITY_MIN <= priority <= PRIORITY_MAX
        or not 0 <= after_ms <= TIME_MS_MAX
        or not 0 <= number <= NUMBER_MAX
    ):
        raise InvalidArgument("this is not a cursor of an earlier reply to this call", field="page.cursor")
    return place


def beginning(begun_ms: int, shard: int) -> Place:
    """Before all rows of a shard."""
    return Place(begun_ms, shard, min(State), pack_key(PRIORITY_MIN, 0, 0), "")


def cursor_after(seen: Seen) -> str:
    """Where a walk goes on after this row, which it found as it had just begun."""
    row: Row = seen.row
    return str(Place(seen.now_ms, seen.shard, row.state, row.key, row.topic))


class Walk:
    """One walk, or a page of it.

    Args:
        shards: those that are walked through, by number.
        only: what is looked for; its moment is the walk's beginning.
        place: where to go on; None at the beginning.
    """

    def __init__(self, shards: Sequence[Shard], namespace: str, only: ItemFilter, place: Place | None) -> None:
        begun_ms = place.begun_ms if place else max([shard.now_ms() for shard in shards], default=0)
        self.only = replace(only, at_ms=begun_ms)
        self._namespace = namespace
        self._first = pack_key(only.priority_min, 0, 0)
        self._stretches = self._all(shards, place)
        self._shard: Shard | None = None
        self.place: Place | None = None
        """Where it stands; None before it has begun, and at the end."""

    async def begin(self) -> None:
        """Goes to its first rows."""
        await self._go_on()

    @property
    def shard(self) -> int | None:
        """The shard where it stands; None at the end."""
        return None if self.place is None else self.place.shard

    async def read(self, limit: int) -> list[Seen]:
        """Looks at the next `limit` rows at most, of one topic in one state, and returns those that match.

        Raises:
            Unavailable: the shard cannot be read now.
        """
        shard, place = self._shard, self.place
        assert shard is not None and place is not None
        topic = (self._namespace, place.topic)
        rows = await shard.listed(topic, place.state, place.after, limit)
        now_ms, lasts = shard.now_ms(), shard.lasts()
        if len(rows) < limit or rows[-1].priority > self.only.priority_max:
            await self._go_on()
        else:
            self.place = replace(place, after=rows[-1].key)
        return [Seen(shard.number, row, now_ms, lasts=lasts) for row in rows if self.only.matches(row)]

    def before(self, seen: Seen) -> Place:
        """The place from which this row is met again."""
        row: Row = seen.row
        return Place(self.only.at_ms, seen.shard, row.state, row.key - 1, row.topic)

    async def _go_on(self) -> None:
        """Goes to the next rows. Others run while many topics without any are passed by."""
        for found in self._stretches:
            if found is not None:
                self._shard, self.place = found
                return
            await asyncio.sleep(0)
        self._shard = self.place = None

    def _all(self, shards: Sequence[Shard], place: Place | None) -> Iterator[tuple[Shard, Place] | None]:
        """Where each stretch of rows that may match begins; None where others should run."""
        for shard in shards:
            if place is not None and shard.number < place.shard:
                continue
            start = place if place is not None and shard.number == place.shard else None
            for topic in self._topics(shard, "" if start is None else start.topic):
                if topic is None:
                    yield None
                    continue
                for state in sorted(self.only.states):
                    after = self._first
                    if start is not None:
                        if (topic, state) < (start.topic, start.state):
                            continue
                        if (topic, state) == (start.topic, start.state):
                            after = max(after, start.after)
                    if shard.counts.lag or shard.counts.of((self._namespace, topic), state):
                        yield shard, Place(self.only.at_ms, shard.number, state, after, topic)

    def _topics(self, shard: Shard, least: str) -> Iterator[str | None]:
        if self.only.topic is None:
            return in_order([shard.memory.topics(self._namespace)], least)
        return iter([self.only.topic] if shard.memory.has((self._namespace, self.only.topic)) else ())
