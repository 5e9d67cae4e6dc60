"""The topics of a namespace with the most ready items, the oldest one, or the most dead items.

Holds `Rankings`. Topics are listed by name only, so a ranking reads them all; one reading
serves all orders. Always true: one choice of topics is read at a time, in pages, and other
tasks run between two orders of a page; a request waits a limited time, and gets what is known then, with how
much was read. A choice is read when a page is loaded that needs it. Choices are read again
only after `COST_FACTOR` times the time of all readings before, so that open pages take a
small part of a core, however many topics and choices there are. Knows nothing of pages.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from foqs.core.items.item import State
from foqs.queue.port import ListTopics, TopicStats
from foqs_contract.errors import Unavailable

TOPICS_MAX: Final = 1_000
"""The most topics of a ranking."""
PAGE_TOPICS: Final = 10_000
"""The maximum number of topics that one call lists. A host without a cluster sorts the names for each call."""
CHOICES_MAX: Final = 4
PERIOD_S: Final = 1.0
COST_FACTOR: Final = 25
_ALL_STATES: Final = (State.READY, State.DEFERRED, State.LEASED, State.DEAD)

ORDERS: Final[dict[str, Callable[[TopicStats], int]]] = {
    "ready": lambda topic: topic.ready,
    "age": lambda topic: -1 if topic.oldest_ready_age_ms is None else topic.oldest_ready_age_ms,
    "dead": lambda topic: topic.dead,
}
"""The number by which each order ranks a topic. The highest comes first."""
_LEAST: Final = {"ready": 1, "age": 0, "dead": 1}
"""The least number by which each order ranks a topic. A topic with less is left out."""


@dataclass(slots=True, frozen=True)
class Choice:
    """The topics to rank.

    Attributes:
        states: the states; only topics with an item in one of them are listed.
    """

    namespace: str
    prefix: str
    states: tuple[State, ...]


@dataclass(slots=True, frozen=True)
class TopicRanking:
    """The best topics of a choice in one order.

    Attributes:
        read_count: the topics that were read.
        is_whole: all topics were read.
        age_s: the time since the reading ended.
    """

    topics: Sequence[TopicStats]
    read_count: int
    is_whole: bool
    age_s: float


class HighestTopics:
    """Keeps the highest of many topics, with bounded memory."""

    def __init__(self, order: str) -> None:
        self._measure = ORDERS[order]
        self._least = _LEAST[order]
        self._topics: list[TopicStats] = []

    def add(self, topics: Sequence[TopicStats]) -> None:
        """Consider more topics."""
        measure, least = self._measure, self._least
        self._topics += [topic for topic in topics if measure(topic) >= least]
        if len(self._topics) > TOPICS_MAX:
            self._topics.sort(key=self._rank)
            del self._topics[TOPICS_MAX:]
            self._least = max(self._least, measure(self._topics[-1]))

    def topics(self) -> list[TopicStats]:
        """Return the highest so far, the highest first, and equal ones by name."""
        return sorted(self._topics, key=self._rank)

    def _rank(self, topic: TopicStats) -> tuple[int, str]:
        return -self._measure(topic), topic.topic


class _Reading:
    """One reading of all topics of a choice."""

    def __init__(self) -> None:
        self.best = {order: HighestTopics(order) for order in ORDERS}
        self.read_count = 0
        self.cost_s = 0.0
        self.ended_at_s: float | None = None
        self.is_outdated = False
        """Whether a topic was changed since the reading began."""


class _ChoiceReadings:
    __slots__ = ("next", "task", "whole")

    def __init__(self) -> None:
        self.whole: _Reading | None = None
        """The last reading that ended."""
        self.next: _Reading | None = None
        """The one that is under way."""
        self.task: asyncio.Task[None] | None = None


class Rankings:
    """The rankings of topics that the pages of one console show.

    Args:
        list_topics: lists the topics of the tier by name.
        cpu_s: returns the processor time of this thread.
    """

    def __init__(self, list_topics: ListTopics, cpu_s: Callable[[], float], page_topics: int = PAGE_TOPICS) -> None:
        self._list_topics = list_topics
        self._page_topics = page_topics
        self._cpu_s = cpu_s
        self._entries: OrderedDict[Choice, _ChoiceReadings] = OrderedDict()
        self._turn = asyncio.Lock()
        self._read_again_at_s = 0.0
        """The moment before which no ranking is read again, on the loop's clock."""

    async def follow(self, choice: Choice, order: str) -> TopicRanking:
        """Return the ranking of an open page as it is known now.

        Raises:
            Unavailable: other choices took its place since the page was loaded.
        """
        if choice not in self._entries and len(self._entries) >= CHOICES_MAX:
            raise Unavailable("newer lists took the place of this one; load the page again")
        return await self.get(choice, order, 0.0)

    async def get(self, choice: Choice, order: str, wait_s: float) -> TopicRanking:
        """Return the ranking of a choice in an order of `ORDERS`, as it is known within `wait_s`. Raises what the listing raises."""
        now_s = asyncio.get_running_loop().time()
        entry = self._entry(choice)
        whole = entry.whole
        if entry.task is None and (whole is None or self._may_renew(whole, now_s)):
            self._start(choice, entry)
        if entry.task is not None:
            done, _ = await asyncio.wait((entry.task,), timeout=wait_s)
            for task in done:
                if not task.cancelled():
                    task.result()
        reading = entry.whole or entry.next
        if reading is None:
            return TopicRanking([], 0, is_whole=False, age_s=0.0)
        age_s = 0.0 if reading.ended_at_s is None else asyncio.get_running_loop().time() - reading.ended_at_s
        topics = reading.best[order].topics()
        return TopicRanking(topics, reading.read_count, reading.ended_at_s is not None, age_s)

    def _entry(self, choice: Choice) -> _ChoiceReadings:
        entry = self._entries.get(choice)
        if entry is None:
            entry = self._entries[choice] = _ChoiceReadings()
            if len(self._entries) > CHOICES_MAX:
                _, dropped = self._entries.popitem(last=False)
                if dropped.task is not None:
                    dropped.task.cancel()
        else:
            self._entries.move_to_end(choice)
        return entry

    def _start(self, choice: Choice, entry: _ChoiceReadings) -> None:
        entry.next = _Reading()
        entry.task = asyncio.get_running_loop().create_task(self._read(choice, entry, entry.next))

        def on_ended(task: asyncio.Task[None]) -> None:
            entry.task = entry.next = None
            if not task.cancelled():
                task.exception()  # it was raised to those who waited

        entry.task.add_done_callback(on_ended)

    async def _read(self, choice: Choice, entry: _ChoiceReadings, reading: _Reading) -> None:
        cursor: str | None = None
        async with self._turn:
            while True:
                started_s = self._cpu_s()
                topics, cursor = await self._list_topics(
                    choice.namespace, choice.prefix, choice.states or _ALL_STATES, cursor, self._page_topics
                )
                for best in reading.best.values():
                    best.add(topics)
                    reading.cost_s += self._cpu_s() - started_s
                    await asyncio.sleep(0)
                    started_s = self._cpu_s()
                reading.read_count += len(topics)
                if cursor is None:
                    break
        now_s = reading.ended_at_s = asyncio.get_running_loop().time()
        self._read_again_at_s = max(self._read_again_at_s, now_s) + COST_FACTOR * reading.cost_s
        entry.whole = reading

    def _may_renew(self, reading: _Reading, now_s: float) -> bool:
        """Return whether a whole ranking is old enough, and reading it again costs not too much."""
        if reading.is_outdated or reading.ended_at_s is None:
            return True
        return now_s >= max(reading.ended_at_s + PERIOD_S, self._read_again_at_s)

    def forget(self, namespace: str) -> None:
        """Read the topics of a namespace again at the next request, because one of them was changed."""
        for choice, entry in self._entries.items():
            if choice.namespace == namespace:
                entry.whole = None
                if entry.next is not None:
                    entry.next.is_outdated = True

    async def close(self) -> None:
        """Cancel the readings."""
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        self._entries.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
