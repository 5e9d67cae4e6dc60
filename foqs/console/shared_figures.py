"""The figures that all pages of a console share: the collected totals, the history, and reads that take long.

Always true: the totals are collected at most once in `PERIOD_S`, however many pages ask;
all memory is bounded. Reads no page and checks no permission: a page asks the host for the
same topic by a call first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from foqs.console.history import SLOT_S, History, Point
from foqs.console.host_figures import Totals
from foqs.console.rankings import Rankings
from foqs.console.shared_reads import SharedReads
from foqs.core.items.item import State, TopicName
from foqs.core.memory.order_samples import TopicOrder
from foqs.core.memory.topic_rates import Rates
from foqs.queue.port import ListTopics
from foqs.queue.tier_figures import DatabaseState, PeerState
from foqs_contract.errors import FoqsError

log = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
_PERIOD_MIN_S: Final = 0.9 * PERIOD_S
"""The least time between two collections: rounds that are one period apart each collect, although no clock is exact."""
LINE_TTL_S: Final = 10.0
CALENDAR_TTL_S: Final = 30.0
COUNT_TTL_S: Final = 60.0
_ALL_STATES: Final = (State.READY, State.DEFERRED, State.LEASED, State.DEAD)


class Figures(Protocol):
    """The part of `HostFigures` that the shared figures use."""

    @property
    def list_topics(self) -> ListTopics: ...

    def not_ready_reasons(self) -> Mapping[str, str]: ...

    async def totals(self) -> Totals: ...

    def topic_rates(self, topic: TopicName) -> Rates: ...

    def busiest_topics(self) -> list[tuple[TopicName, Rates]]: ...

    def order(self, topic: TopicName) -> TopicOrder | None: ...

    def is_paused(self, topic: TopicName) -> bool: ...

    def breakers(self) -> Mapping[int, str]: ...

    def peers(self) -> list[PeerState]: ...

    async def databases(self) -> Sequence[DatabaseState]: ...


class TopicFigures(Protocol):
    """The figures of a topic in its history: `TopicStats` and the client's `Topic` have them."""

    @property
    def ready(self) -> int: ...
    @property
    def leased(self) -> int: ...
    @property
    def deferred(self) -> int: ...
    @property
    def dead(self) -> int: ...
    @property
    def oldest_ready_age_ms(self) -> int | None: ...


class SharedFigures:
    """The figures of the tier that all pages of one console share.

    Args:
        now_s: returns seconds since 1970-01-01 UTC.
        cpu_s: returns the processor time of this thread.

    Attributes:
        collection_count: how often the totals were collected.
    """

    def __init__(self, figures: Figures, now_s: Callable[[], float], cpu_s: Callable[[], float]) -> None:
        self.figures = figures
        self.now_s = now_s
        self.history = History()
        self.rankings = Rankings(figures.list_topics, cpu_s)
        self.lines = SharedReads(LINE_TTL_S)
        self.calendars = SharedReads(CALENDAR_TTL_S)
        self.counts = SharedReads(COUNT_TTL_S)
        self.collection_count = 0
        self._totals: Totals | None = None
        self._collected_at_s = 0.0
        self._turn = asyncio.Lock()

    async def totals(self) -> Totals:
        """Return the totals; at most a period old."""
        async with self._turn:
            now_s = asyncio.get_running_loop().time()
            if self._totals is None or now_s - self._collected_at_s >= _PERIOD_MIN_S:
                self._totals = totals = await self.figures.totals()
                self._collected_at_s = now_s
                self.collection_count += 1
                self.history.tier.add(_point(self.now_s(), totals, totals.rates))
            return self._totals

    def record_topic(self, name: TopicName, topic: TopicFigures | None) -> Rates:
        """Add the figures of a topic that a page shows to its history, and return its rates. `topic` None: it has no items."""
        rates = self.figures.topic_rates(name)
        self.history.topic(name).add(_point(self.now_s(), topic, rates))
        return rates

    async def run(self) -> None:
        """Keep the history up to date while no page is open. Runs until it is cancelled."""
        while True:
            try:
                await self._sample()
            except Exception:
                log.exception("the console's figures could not be read; its history has a gap")
            await asyncio.sleep(SLOT_S)

    async def _sample(self) -> None:
        await self.totals()
        for busy, _ in self.figures.busiest_topics():
            self.history.topic(busy)
        for (namespace, topic), series in self.history.topics():
            try:
                page, _ = await self.figures.list_topics(namespace, topic, _ALL_STATES, None, 1)
            except FoqsError:
                continue
            found = page[0] if page and page[0].topic == topic else None
            series.add(_point(self.now_s(), found, self.figures.topic_rates((namespace, topic))))

    async def close(self) -> None:
        """Cancel the reads that are under way."""
        await asyncio.gather(self.rankings.close(), self.lines.close(), self.calendars.close(), self.counts.close())


def _point(at_s: float, figures: TopicFigures | None, rates: Rates) -> Point:
    if figures is None:
        return Point(at_s, 0, 0, 0, 0, 0.0, rates.ready, rates.acked)
    age_ms = figures.oldest_ready_age_ms
    return Point(
        at_s,
        figures.ready,
        figures.leased,
        figures.deferred,
        figures.dead,
        0.0 if age_ms is None else age_ms / 1_000,
        rates.ready,
        rates.acked,
    )
