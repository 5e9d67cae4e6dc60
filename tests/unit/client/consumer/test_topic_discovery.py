"""Tests after how many calls a consumer has an item of each of many topics, if one has nine tenths of the items.

The hosts are counts of items. Each call takes a moment of virtual time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from foqs_client import Deliveries, Delivery, Outcome
from foqs_client.consumer import Consumer, Job
from foqs_client.types import Topic, TopicPage
from tests.support.virtual_time import run_virtual

IN_FLIGHT: Final = 800
TOPICS_PER_CALL: Final = 100
LATENCY_S: Final = 0.01


class Hosts:
    """A client of hosts with the given number of items of each topic.

    Attributes:
        calls: the wants of each dequeue, in order.
        at_once_max: the most dequeues in flight at a time.
        held_max: the most items at a time that were requested, or delivered and not acked.
    """

    timeout_ms = 10_000
    tracing = None

    def __init__(self, backlog: Mapping[str, int]) -> None:
        self.backlog = dict(sorted(backlog.items()))
        self.calls: list[dict[str, int]] = []
        self.at_once = self.at_once_max = 0
        self.held = self.held_max = 0
        self.delivered: Counter[str] = Counter()

    def owner(self, id: str) -> None:
        """Return None: all hosts are one."""

    async def topics(self, prefix: str, *, limit: int, cursor: str | None) -> TopicPage:
        await asyncio.sleep(LATENCY_S)
        names = [name for name, items in self.backlog.items() if items and (cursor is None or name > cursor)]
        page = [Topic(name, self.backlog[name], 0, 0, 0, 0, 0, None, False, False) for name in names[:limit]]
        return TopicPage(page, names[limit - 1] if len(names) > limit else None)

    async def dequeue(self, wants: Mapping[str, int], *, items_max: int, **options: Any) -> Deliveries:
        assert len(wants) <= TOPICS_PER_CALL
        self.calls.append(dict(wants))
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        self.held += items_max
        self.held_max = max(self.held_max, self.held)
        found = Deliveries()
        for topic, count in wants.items():
            count = min(count, self.backlog[topic], items_max - len(found))
            self.backlog[topic] -= count
            found += [Delivery(topic=topic, lease_remaining_ms=30_000) for _ in range(count)]
        await asyncio.sleep(LATENCY_S)
        self.held -= items_max - len(found)
        self.at_once -= 1
        self.delivered.update([delivery.topic for delivery in found])
        return found

    async def ack(self, leases: Sequence[Any], *, timeout_ms: int) -> list[Outcome]:
        await asyncio.sleep(LATENCY_S)
        self.held -= len(leases)
        return [Outcome()] * len(leases)

    async def release(self, leases: Sequence[Any], *, timeout_ms: int) -> list[Outcome]:
        return await self.ack(leases, timeout_ms=timeout_ms)


def firsts(hosts: Hosts) -> None:
    """Run a consumer until the first item of every topic was handled."""

    async def main() -> None:
        seen: set[str] = set()
        over = asyncio.Event()
        every = len(hosts.backlog)

        async def handle(job: Job) -> None:
            seen.add(job.topic)
            if len(seen) == every:
                over.set()

        consumer = Consumer(
            hosts,  # type: ignore[arg-type]
            handle,
            ["*"],
            concurrency=IN_FLIGHT // 2,
            in_flight=IN_FLIGHT,
            rng=Random(1),
        )
        running = asyncio.ensure_future(consumer.run())
        await over.wait()
        consumer.stop()
        await running

    run_virtual(main, until_s=600.0)


def test_each_of_10000_topics_is_requested_before_any_is_requested_again() -> None:
    names = [f"t{n:05}" for n in range(9_999)]
    hosts = Hosts({**dict.fromkeys(names, 1), "big": 90_000})
    firsts(hosts)
    asked: set[str] = set()
    calls = 0
    while not asked.issuperset(names):
        asked.update(hosts.calls[calls])
        calls += 1
    # A call names the large topic and 99 others; the first ones come while topics are still being found.
    assert calls <= 9_999 / 99 + 5
    # A quarter goes to the topic whose items are the oldest, on account of its own turns.
    assert hosts.delivered["big"] <= 0.26 * hosts.delivered.total()


def test_parallel_calls_for_many_topics_stay_within_the_in_flight_limit() -> None:
    hosts = Hosts({f"t{n:05}": 1 for n in range(3_000)})
    firsts(hosts)
    assert hosts.at_once_max == 4
    assert hosts.held_max <= IN_FLIGHT


def test_topic_with_few_items_is_requested_by_one_call_at_a_time() -> None:
    hosts = Hosts({f"t{n:05}": 1 for n in range(30)})
    firsts(hosts)
    assert hosts.at_once_max == 1
