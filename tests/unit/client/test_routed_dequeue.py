"""Tests one dequeue of a client that follows the routing table, without a host."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from foqs_client import Deliveries
from foqs_client.best_priorities import BestPriorities
from foqs_client.long_polls import LongPolls
from foqs_client.releases import Releases
from foqs_client.routed_dequeue import DequeueParts, RoutedDequeue
from tests.support.aio import run

HOST = ("host", 1)


def test_outage_of_one_topic_is_reported_although_a_dequeue_of_another_ends_at_the_same_time() -> None:
    async def main() -> None:
        both_asked = asyncio.Event()
        asked: list[str] = []

        async def dequeue_from(host: object, wants: Mapping[str, int], *_: object) -> Deliveries:
            [topic] = wants
            asked.append(topic)
            if len(asked) == 2:
                both_asked.set()
            await both_asked.wait()
            return Deliveries((), 2 if topic == "broken" else 0)

        async def dequeue_by(host: object, wants: Mapping[str, int], *_: object) -> Deliveries:
            return Deliveries((), 2)

        table = SimpleNamespace(has_other_shards=False, hosts=[HOST])
        router: Any = SimpleNamespace(routing_table=table, hosts=lambda: [HOST])
        polls = LongPolls(Releases(cast(Any, None)))
        parts = DequeueParts(polls, BestPriorities(), router, cast(Any, None), dequeue_from, dequeue_by)
        fine, broken = [RoutedDequeue(parts, {topic: 1}, 0, None, None, 10_000) for topic in ("fine", "broken")]
        found_fine, found_broken = await asyncio.gather(fine.run(), broken.run())
        assert getattr(found_fine, "unavailable_shards", 0) == 0
        assert isinstance(found_broken, Deliveries)
        assert found_broken.unavailable_shards == 2

    run(main())
