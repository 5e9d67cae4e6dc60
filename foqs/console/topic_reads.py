"""The bounded reads behind the pages of topics: the priority line, what comes due, and the topics that a list leaves out.

Always true: the host checks the caller's permissions before a result is returned to it, as the
page lists the topic or the topics first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from foqs.console.due_calendar import Calendar, Count, DueItem, Place, intervals, read_calendar
from foqs.console.page_request import PageRequest
from foqs.console.priority_line import PriorityLine, ReadyItem, read_priority_line
from foqs.core.items.item import NUMBER_MAX, PRIORITY_MAX, SHARD_MAX, State, pack_order_key
from foqs.queue.reads.listings import format_cursor
from foqs_client import Client, Topic

WAIT_S: Final = 0.3
"""A page waits for each read this long, and then says that it is still going on."""
INACTIVE_READ_MAX: Final = 1_000
"""The maximum number of topics among which those without a ready or leased item are counted."""


@dataclass(slots=True, frozen=True)
class ReadResult:
    """The result of a read that a page waits for.

    Attributes:
        found: None if the read goes on.
    """

    found: Any


async def topic_priority_line(page_request: PageRequest, name: str, counts: Topic | None) -> ReadResult | None:
    """Return the `PriorityLine` of a topic; None if no item is ready."""
    if counts is None or not counts.ready:
        return None
    ready = counts.ready

    async def read() -> PriorityLine:
        with page_request.use_client() as client:

            async def page(cursor: str | None, limit: int) -> tuple[list[ReadyItem], str | None]:
                found = await client.peek(name, "ready", limit, cursor)
                return [ReadyItem(item.priority, item.age_ms or 0) for item in found.items], found.next_cursor

            return await read_priority_line(page, ready)

    return ReadResult(await page_request.shared.lines.get((page_request.namespace, name), read, WAIT_S))


async def topic_calendar(page_request: PageRequest, name: str, counts: Topic | None, unit: str) -> ReadResult | None:
    """Return the `Calendar` of a topic; None if no item is deferred."""
    if counts is None or not counts.deferred:
        return None
    deferred, now_s = counts.deferred, page_request.shared.now_s

    async def read() -> Calendar:
        now_ms = _ms(now_s())
        with page_request.use_client() as client:
            items = DeferredItems(client, name, now_s)
            return await read_calendar(items.page, intervals(unit, now_ms), deferred, now_ms)

    return ReadResult(await page_request.shared.calendars.get((page_request.namespace, name, unit), read, WAIT_S))


async def inactive_topics(page_request: PageRequest, prefix: str) -> Count:
    """Return the number of topics with only deferred or dead items: of the first topics by name, if there are many."""
    topics, more = await page_request.shared.figures.list_topics(
        page_request.namespace, prefix, tuple(State), None, INACTIVE_READ_MAX
    )
    hidden = sum(not (topic.ready or topic.leased) and bool(topic.deferred or topic.dead) for topic in topics)
    return Count(hidden, "≥" if more else "")


class DeferredItems:
    """The deferred items of a topic in the order of delivery, from any place on.

    Args:
        now_s: returns seconds since 1970-01-01 UTC. A shard's clock may differ a little.
    """

    def __init__(self, client: Client, topic: str, now_s: Callable[[], float]) -> None:
        self._client = client
        self._topic = topic
        self._now_s = now_s

    async def page(self, place: Place | str | None, limit: int) -> tuple[list[DueItem], str | None]:
        """See `due_calendar.ReadPage`."""
        if isinstance(place, Place):
            if place.priority > PRIORITY_MAX:
                return [], None
            place = cursor_before(place)
        found = await self._client.peek(self._topic, "deferred", limit, place)
        now_ms = _ms(self._now_s())
        return [DueItem(item.priority, now_ms + (item.due_in_ms or 0)) for item in found.items], found.next_cursor


def cursor_before(place: Place) -> str:
    """Return the cursor of a page that begins at a place."""
    if place.due_ms <= 0:
        return format_cursor(pack_order_key(place.priority, 0, 1), SHARD_MAX)
    return format_cursor(pack_order_key(place.priority, place.due_ms - 1, NUMBER_MAX), SHARD_MAX)


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)
