"""The first topics by ready items, age or dead items."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from random import Random

import pytest

from foqs.console.rankings import CHOICES_MAX, COST_FACTOR, ORDERS, TOPICS_MAX, Choice, HighestTopics, Rankings
from foqs.core.items.item import State
from foqs.queue.port import TopicStats
from foqs_contract.errors import Unavailable
from tests.support.virtual_time import run_virtual

PAGE_S = 0.1


def stats(name: str, ready: int = 0, dead: int = 0, age_ms: int | None = None) -> TopicStats:
    return TopicStats(name, ready, 0, 0, dead, None, age_ms, None, False, False)


class Topics:
    """The topics of a tier. Each page of a listing costs `PAGE_S` of the processor."""

    def __init__(self, topics: list[TopicStats]) -> None:
        self.topics = sorted(topics, key=lambda topic: topic.topic)
        self.cpu_s = 0.0
        self.error: Exception | None = None
        self.listings = 0
        self.running = 0

    async def list_topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        self.listings += cursor is None
        self.running += 1
        assert self.running == 1
        try:
            await asyncio.sleep(PAGE_S)
        finally:
            self.running -= 1
        self.cpu_s += PAGE_S
        if self.error is not None:
            raise self.error
        rest = [each for each in self.topics if each.topic.startswith(prefix) and each.topic > (cursor or "")]
        return rest[:limit], rest[limit - 1].topic if len(rest) > limit else None

    def rankings(self) -> Rankings:
        return Rankings(self.list_topics, lambda: self.cpu_s, 1_000)


def choice(prefix: str = "", namespace: str = "n") -> Choice:
    return Choice(namespace, prefix, tuple(State))


@pytest.mark.parametrize("order", ORDERS)
def test_the_first_thousand_of_many_topics_are_the_highest(order: str) -> None:
    rng = Random(3)
    topics = [
        stats(f"t{number:05}", rng.randrange(9), rng.randrange(9), rng.randrange(-1, 900)) for number in range(6_500)
    ]
    topics = [each if (each.oldest_ready_age_ms or 0) >= 0 else stats(each.topic) for each in topics]

    async def main() -> None:
        rankings = Topics(topics).rankings()
        found = await rankings.get(choice(), order, 10.0)
        measure = ORDERS[order]
        ranked = [each for each in topics if measure(each) >= (0 if order == "age" else 1)]
        assert list(found.topics) == sorted(ranked, key=lambda each: (-measure(each), each.topic))[:TOPICS_MAX]
        assert (found.read_count, found.is_whole) == (6_500, True)
        await rankings.close()

    run_virtual(main)


def test_a_page_gets_what_is_known_in_its_time() -> None:
    async def main() -> None:
        rankings = Topics([stats(f"t{number:05}", number) for number in range(10_000)]).rankings()
        early = await rankings.get(choice(), "ready", 0.25)
        assert (early.read_count, early.is_whole, early.topics[0].ready) == (2_000, False, 1_999)
        late = await rankings.get(choice(), "ready", 5.0)
        assert (late.read_count, late.is_whole, late.topics[0].ready) == (10_000, True, 9_999)
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)
        await rankings.close()

    run_virtual(main)


def test_reading_takes_a_small_part_of_a_core() -> None:
    async def main() -> None:
        topics = Topics([stats(f"t{number:05}", number) for number in range(10_000)])
        rankings = topics.rankings()
        for _ in range(600):
            await rankings.get(choice(), "ready", 0.0)
            await asyncio.sleep(1.0)
        passed_s = asyncio.get_running_loop().time()
        assert topics.cpu_s / passed_s <= 1.1 / COST_FACTOR
        assert topics.listings >= 20
        await rankings.close()

    run_virtual(main)


def test_open_pages_with_different_rankings_take_a_small_part_of_a_core_together() -> None:
    async def main() -> None:
        topics = Topics([stats(f"t{number:05}", number) for number in range(10_000)])
        rankings = topics.rankings()
        choices = [choice(prefix="t"), *(choice(prefix=f"t0{number}") for number in range(7))]
        for each in choices:
            await rankings.get(each, "ready", 0.0)
        await asyncio.sleep(100.0)
        loaded_s, began_s = topics.cpu_s, asyncio.get_running_loop().time()
        refused = 0
        for _ in range(600):
            for each in choices:
                try:
                    await rankings.follow(each, "ready")
                except Unavailable:
                    refused += 1
            await asyncio.sleep(5.0)
        passed_s = asyncio.get_running_loop().time() - began_s
        assert (topics.cpu_s - loaded_s) / passed_s <= 1.2 / COST_FACTOR
        assert refused == 600 * (len(choices) - CHOICES_MAX)
        await rankings.close()

    run_virtual(main)


def test_other_tasks_run_between_the_orders_of_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    add = HighestTopics.add

    def noted(best: HighestTopics, topics: Sequence[TopicStats]) -> None:
        events.append("order")
        add(best, topics)

    async def list_topics(*_: object) -> tuple[list[TopicStats], str | None]:
        return [stats("a", 1)], None if "order" in events else "a"

    async def main() -> None:
        rankings = Rankings(list_topics, lambda: 0.0)
        reading = asyncio.ensure_future(rankings.get(choice(), "ready", 5.0))
        for _ in range(100):
            events.append("others")
            await asyncio.sleep(0)
        assert (await reading).is_whole
        await rankings.close()

    monkeypatch.setattr(HighestTopics, "add", noted)
    run_virtual(main)
    assert events.count("order") == 2 * len(ORDERS)
    assert ("order", "order") not in itertools.pairwise(events)


def test_one_reading_serves_all_orders() -> None:
    async def main() -> None:
        topics = Topics([stats("a", ready=1, dead=5), stats("b", ready=2, age_ms=7)])
        rankings = topics.rankings()
        found = {order: await rankings.get(choice(), order, 5.0) for order in ORDERS}
        assert {order: each.topics[0].topic for order, each in found.items()} == {"ready": "b", "age": "b", "dead": "a"}
        assert topics.listings == 1
        await rankings.close()

    run_virtual(main)


def test_an_open_page_is_read_again_after_a_restart() -> None:
    async def main() -> None:
        rankings = Topics([stats("a", 1)]).rankings()
        assert not (await rankings.follow(choice(), "ready")).is_whole
        await asyncio.sleep(1.0)
        assert (await rankings.follow(choice(), "ready")).topics[0].topic == "a"
        await rankings.close()

    run_virtual(main)


def test_an_old_ranking_is_shown_until_the_next_one_is_read() -> None:
    async def main() -> None:
        topics = Topics([stats(f"t{number:05}", number) for number in range(3_000)])
        rankings = topics.rankings()
        await rankings.get(choice(), "ready", 5.0)
        await asyncio.sleep(60.0)
        topics.topics.append(stats("z", 9_000))
        old = await rankings.get(choice(), "ready", 0.05)
        assert (old.is_whole, old.topics[0].ready) == (True, 2_999)
        assert old.age_s == pytest.approx(60.05)
        assert (await rankings.get(choice(), "ready", 5.0)).topics[0].ready == 9_000
        await rankings.close()

    run_virtual(main)


def test_few_rankings_are_kept_and_one_is_read_at_a_time() -> None:
    async def main() -> None:
        topics = Topics([stats(f"t{number:05}", number) for number in range(2_000)])
        rankings = topics.rankings()
        choices = [choice(namespace=f"n{number}") for number in range(CHOICES_MAX + 2)]
        found = await asyncio.gather(*(rankings.get(each, "ready", 0.0) for each in choices))
        assert [each.read_count for each in found] == [0] * len(choices)
        await asyncio.sleep(10.0)
        assert len(rankings._entries) == CHOICES_MAX
        assert topics.listings == CHOICES_MAX
        await rankings.close()

    run_virtual(main)


def test_an_error_of_the_listing_reaches_the_page_and_the_next_page_reads_again() -> None:
    async def main() -> None:
        topics = Topics([stats("a", 1)])
        topics.error = ValueError("no")
        rankings = topics.rankings()
        with pytest.raises(ValueError, match="no"):
            await rankings.get(choice(), "ready", 5.0)
        topics.error = None
        assert (await rankings.get(choice(), "ready", 5.0)).topics[0].topic == "a"
        await rankings.close()

    run_virtual(main)


def test_a_changed_topic_is_read_again_at_once() -> None:
    async def main() -> None:
        topics = Topics([stats("a", 1)])
        rankings = topics.rankings()
        await rankings.get(choice(), "ready", 5.0)
        topics.topics[0] = stats("a", 7)
        assert (await rankings.get(choice(), "ready", 5.0)).topics[0].ready == 1
        rankings.forget("another")
        assert (await rankings.get(choice(), "ready", 5.0)).topics[0].ready == 1
        rankings.forget("n")
        assert (await rankings.get(choice(), "ready", 5.0)).topics[0].ready == 7
        await rankings.close()

    run_virtual(main)
