"""The administrators of a simulated run: they change items by filter, pause and resume, set limits, grant and read.

Always true: only items of one topic are changed by filter, as the checker can say
less of such items. After the work everything is resumed and no limit is set.
Judges only that listings at rest show what the tables hold.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

from foqs_client import BulkPage, Change, FoqsError, Item, ItemFilter, ItemPage, ItemView, Namespace, Topic
from tests.simulation.principals import GUEST
from tests.support.history import Event
from tests.support.recording_admin import RecordingAdmin

SWEPT: Final = "swept"
"""The topic whose items are changed by filter."""
STATES: Final = ("deferred", "ready", "leased", "dead")
NO_LIMITS: Final = {"metadata_bytes_max": 1_024, "backlog_items_max": 0, "enqueues_per_minute": 0}
_PAGE_ITEMS: Final = 5
_LEFT: Final = 12


class Administrator:
    """The administrator of one namespace, which makes one call after the other.

    Args:
        topics: all topics.
        called: called before every call.
    """

    def __init__(
        self, client: RecordingAdmin, rng: Random, topics: Sequence[str], weight: int, called: Callable[[], None]
    ) -> None:
        self._client = client
        self._rng = rng
        self._topics = topics
        self._weight = weight
        self._called = called

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Make random calls until the work is over."""
        rng = self._rng
        deeds = (self._sweep, self._sweep, self._pause, self._limit, self._read_all, self._grant)
        while not is_over():
            with contextlib.suppress(FoqsError):
                await rng.choice(deeds)()
            await asyncio.sleep(rng.expovariate(4))

    async def restore(self) -> None:
        """Resume all topics and remove all limits, with retries; then enqueue items for the comparison."""
        for topic in self._topics:
            await self._until_done(lambda topic=topic: self._client.resume_topic(topic))  # type: ignore[misc]
        await self._until_done(lambda: self._client.set_limits(self._limits(NO_LIMITS)))
        name = self._client.client.namespace
        items = [Item(SWEPT, f"{name}/left/{n}".encode(), delay_ms=self._rng.choice((0, 1))) for n in range(_LEFT)]
        await asyncio.sleep(1)  # other hosts learn a little later that there are no limits
        await self._client.enqueue(items)
        await asyncio.sleep(1)

    async def differences(self, rows: Sequence[Event], payload_bytes: int) -> list[str]:
        """Return the differences between listings and counts and these rows of the namespace, at rest."""
        client = self._client.client
        held = Counter((row["topic"], row["state"]) for row in rows)
        found = listing_differences(await self.listed(), held)
        for topic, state in sorted(held):
            counted = await client.count(ItemFilter(topic, states=[state]))
            if counted.items != held[topic, state]:
                found.append(
                    f"invariant 15: {topic} counts {counted.items} {state} items, there are {held[topic, state]}"
                )
        walked = await client.count(ItemFilter(age_min_ms=1))
        if walked.items != held.total():
            found.append(f"invariant 15: {walked.items} items are counted one by one, there are {held.total()}")
        usage, topics = await client.usage(), len({row["topic"] for row in rows})
        if (usage.items, usage.bytes, usage.topics) != (len(rows), payload_bytes, topics):
            found.append(f"invariant 15: {usage}, there are {len(rows)} items, {payload_bytes} bytes, {topics} topics")
        for topic, state in sorted(held):
            ids = [view.id async for view in self._pages(lambda cursor: client.peek(topic, state, 7, cursor))]  # noqa: B023
            if sorted(ids) != sorted(row["id"] for row in rows if (row["topic"], row["state"]) == (topic, state)):
                found.append(f"invariant 15: peek of {topic}, {state}, shows {', '.join(ids)}")
        dead = {view.id async for view in self._pages(lambda cursor: client.dead(None, 7, cursor))}
        if dead != {row["id"] for row in rows if row["state"] == "dead"}:
            found.append(f"invariant 15: these are listed as dead: {', '.join(sorted(dead))}")
        return found

    async def listed(self) -> list[Topic]:
        """Return all topics, as some host lists them."""
        listed: list[Topic] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await self._client.client.topics(states=STATES, limit=2, cursor=cursor or None)
            listed += page.topics
            cursor = page.next_cursor
        return listed

    async def close(self) -> None:
        await self._client.client.close()

    async def _pages(self, page_after: Callable[[str | None], Awaitable[ItemPage]]) -> AsyncIterator[ItemView]:
        cursor: str | None = ""
        while cursor is not None:
            page = await page_after(cursor or None)
            for view in page.items:
                yield view
            cursor = page.next_cursor

    # ------------------------------------------------------------------ calls

    async def _sweep(self) -> None:
        """Change all items that a filter matches, until the end or an error."""
        rng, client = self._rng, self._client
        only = ItemFilter(
            SWEPT,
            states=rng.choice((None, ["ready"], ["deferred", "leased"], ["dead"])),
            priority_min=rng.choice((None, None, 0)),
            age_min_ms=rng.choice((None, None, 300)),
        )
        limit = rng.randint(1, _PAGE_ITEMS)
        change = Change(priority=rng.choice((None, 3, -9)), delay_ms=rng.choice((0, 200)), metadata=b"swept")
        calls: tuple[Callable[[str | None], object], ...] = (
            lambda cursor: client.cancel_matching(only, limit, cursor),
            lambda cursor: client.update_matching(only, change, limit, cursor),
            lambda cursor: client.redrive_matching(only, limit, cursor),
        )
        [call] = rng.choices(calls, (1, 3, 3))
        cursor: str | None = None
        while True:
            self._called()
            page = await call(cursor)  # type: ignore[misc]
            assert isinstance(page, BulkPage)
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _pause(self) -> None:
        """Pause a topic for a while. Sometimes it stays paused until the next time."""
        rng, topic = self._rng, self._rng.choice(self._topics)
        self._called()
        await self._client.pause_topic(topic)
        await asyncio.sleep(rng.choice((0.0, 0.1, 0.6)))
        if rng.random() < 0.9:
            self._called()
            await self._client.resume_topic(topic)

    async def _limit(self) -> None:
        """Set limits for a while, and a new weight."""
        rng = self._rng
        limits = {name: rng.choice(values) for name, values in _LIMITED.items()}
        self._called()
        await self._client.set_limits(self._limits(limits))
        await asyncio.sleep(rng.uniform(0, 0.3))
        self._called()
        await self._client.set_limits(self._limits(NO_LIMITS))

    async def _grant(self) -> None:
        """Change the grants of the guest, mostly to none."""
        count = self._rng.choice((0, 0, 1, 2))
        self._called()
        await self._client.grant(GUEST, self._rng.sample(("enqueue", "consume", "admin"), count))

    async def _read_all(self) -> None:
        """Make all reading calls, while everything changes."""
        client, rng = self._client.client, self._rng
        self._called()
        await client.topics(states=rng.choice((None, STATES)), limit=2)
        await client.count(ItemFilter(rng.choice((None, *self._topics)), age_min_ms=rng.choice((None, 100))))
        page = await client.peek(rng.choice(self._topics), rng.choice(STATES), 3, with_payload=True)
        for view in page.items:
            await client.item(view.id)
        await client.dead(limit=3)
        await client.usage()
        await client.grants()

    def _limits(self, limits: Mapping[str, Any]) -> Namespace:
        weight = max(1, self._weight + self._rng.randint(-1, 1))
        return Namespace(self._client.client.namespace, weight=weight, **limits)

    async def _until_done(self, call: Callable[[], object]) -> None:
        while True:
            self._called()
            try:
                await call()  # type: ignore[misc]
            except FoqsError:
                await asyncio.sleep(0.1)
            else:
                return


def listing_differences(listed: Sequence[Any], held: Counter[tuple[str, str]]) -> list[str]:
    """Return the differences between a listing and the tables, at rest: items by topic and state."""
    found = []
    shown = {(topic.topic, state): getattr(topic, state) for topic in listed for state in STATES}
    for topic in listed:
        if not any(shown[topic.topic, state] for state in STATES) or topic.counts_lag or topic.paused:
            found.append(f"invariant 15: topic {topic.topic} is listed as {topic}")
    for place in sorted({*held, *shown}):
        if held[place] != shown.get(place, 0):
            found.append(f"invariant 15: {place} is listed with {shown.get(place, 0)} items, there are {held[place]}")
    return found


_LIMITED: Final[Mapping[str, tuple[int, ...]]] = {
    "metadata_bytes_max": (0, 0, 4, 1_024),
    "backlog_items_max": (0, 1, 40),
    "enqueues_per_minute": (0, 0, 60),
}
