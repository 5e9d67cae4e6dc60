"""The figures that all pages of a console share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from foqs.console.history import SLOT_S, TOPICS_MAX
from foqs.console.host_figures import Totals
from foqs.console.shared_figures import SharedFigures
from foqs.core.items.item import State, TopicName
from foqs.core.memory.order_samples import TopicOrder
from foqs.core.memory.topic_rates import Rates
from foqs.queue.port import TopicStats
from foqs.queue.tier_figures import DatabaseState, PeerState
from foqs_contract.errors import Unavailable
from tests.support.virtual_time import run_virtual


class Figures:
    """The figures of a host with one topic."""

    def __init__(self) -> None:
        self.collections = 0
        self.ready = 1
        self.is_down = False
        self.busy: list[TopicName] = []

    async def totals(self) -> Totals:
        self.collections += 1
        await asyncio.sleep(0.01)
        return Totals(self.ready, 2, 3, 4, False, 5_000, Rates(6.0, 7.0), False)

    async def list_topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        if self.is_down:
            raise Unavailable("no shard is served")
        return [TopicStats("t", self.ready, 0, 0, 0, 0, 9_000, None, False, False)], None

    def topic_rates(self, topic: TopicName) -> Rates:
        return Rates(1.5, 0.5)

    def busiest_topics(self) -> list[tuple[TopicName, Rates]]:
        return [(topic, Rates(1.5, 0.5)) for topic in self.busy]

    def order(self, topic: TopicName) -> TopicOrder | None:
        return None

    def is_paused(self, topic: TopicName) -> bool:
        return False

    def breakers(self) -> Mapping[int, str]:
        return {}

    def peers(self) -> list[PeerState]:
        return []

    async def databases(self) -> Sequence[DatabaseState]:
        return []

    def not_ready_reasons(self) -> Mapping[str, str]:
        return {}


def shared_figures_of(figures: Figures) -> SharedFigures:
    return SharedFigures(figures, lambda: asyncio.get_running_loop().time(), lambda: 0.0)


def test_pages_of_one_second_share_a_collection() -> None:
    async def main() -> None:
        figures = Figures()
        shared = shared_figures_of(figures)
        for _ in range(5):
            await asyncio.gather(*(shared.totals() for _ in range(20)))
            await asyncio.sleep(1.0)
        assert figures.collections == shared.collection_count == 5
        last = shared.history.tier.last
        assert last is not None
        assert last[1:] == (1, 2, 3, 4, 5.0, 6.0, 7.0)

    run_virtual(main)


def test_the_history_goes_on_while_no_page_is_open() -> None:
    async def main() -> None:
        figures = Figures()
        shared = shared_figures_of(figures)
        shared.record_topic(("n", "t"), None)
        sampling = asyncio.get_running_loop().create_task(shared.run())
        await asyncio.sleep(10 * SLOT_S + 1)
        figures.is_down = True
        await asyncio.sleep(5 * SLOT_S)
        figures.is_down = False
        await asyncio.sleep(5 * SLOT_S)
        sampling.cancel()
        points = shared.history.topic(("n", "t")).points
        assert 15 <= len(points) <= 17
        assert points[-1][1:] == (1, 0, 0, 0, 9.0, 1.5, 0.5)
        assert figures.collections == 21
        await shared.close()

    run_virtual(main)


def test_a_topic_that_is_gone_has_zeros() -> None:
    async def main() -> None:
        shared = shared_figures_of(Figures())
        shared.record_topic(("n", "gone"), None)
        sampling = asyncio.get_running_loop().create_task(shared.run())
        await asyncio.sleep(2 * SLOT_S + 1)
        sampling.cancel()
        last = shared.history.topic(("n", "gone")).last
        assert last is not None
        assert last[1:6] == (0, 0, 0, 0, 0.0)

    run_virtual(main)


def test_the_busiest_topics_have_a_history_before_a_page_shows_them() -> None:
    async def main() -> None:
        figures = Figures()
        figures.busy = [("n", "t")]
        shared = shared_figures_of(figures)
        sampling = asyncio.get_running_loop().create_task(shared.run())
        await asyncio.sleep(5 * SLOT_S + 1)
        sampling.cancel()
        assert len(shared.history.topic(("n", "t")).points) == 6

    run_virtual(main)


def test_looking_at_many_topics_keeps_few() -> None:
    async def main() -> None:
        shared = shared_figures_of(Figures())
        for number in range(10 * TOPICS_MAX):
            shared.record_topic(("n", f"t{number}"), None)
        assert len(shared.history.topics()) == TOPICS_MAX

    run_virtual(main)
