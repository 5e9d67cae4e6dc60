"""Several namespaces on one shard, in flushes and virtual time (invariant 17)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from foqs.core.flush.writes import Writes
from foqs.core.items.life import EventKind
from foqs.queue.engine import EngineSettings
from foqs_contract.errors import Overloaded
from tests.support.builders import catalog, engine_settings, new_item
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import start_task

QUEUE = 1_000


def weighted(world: World, **weights: int) -> EngineSettings:
    """Return settings of one shard with flushes of 40 entries, and create namespaces of these weights."""
    world.catalog = catalog(**{name: {"weight": weight} for name, weight in weights.items()})
    return engine_settings(1, queue_items_max=QUEUE, flush_items_max=40)


class Flushes:
    """Counts the inserts of each flush by namespace."""

    def __init__(self, world: World) -> None:
        self.inserted: list[Counter[str]] = []
        world.database.refuse = self._note

    def _note(self, writes: Writes) -> None:
        self.inserted.append(Counter(row.namespace for row in writes.inserts))


async def flood(caller: Caller, calls: int = 1_000_000) -> None:
    """Keep the queue as full as possible."""
    pending: set[asyncio.Future[list[str]]] = set()
    while calls:
        calls -= 1
        pending.add(start_task(_put(caller)))
        if len(pending) > QUEUE // 10:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)


async def _put(caller: Caller) -> list[str]:
    try:
        results = await caller.enqueue([new_item("flood", namespace=caller.namespace)] * 10, 60)
    except Overloaded:
        await asyncio.sleep(0.002)
        return []
    return [result for result in results if isinstance(result, str)]


@pytest.mark.parametrize("wait_ms", [0, 5_000])
def test_item_is_delivered_within_a_few_flushes_during_a_flood_of_another_namespace(wait_ms: int) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(weighted(world, default=1, other=1))
        flushes = Flushes(world)
        quiet = Caller(world, engine, "other")
        flooding = start_task(flood(Caller(world, engine, "default")))
        shard = engine.shards[1]
        await world.until(lambda: shard.queued_items >= QUEUE // 2 - 50)
        for _ in range(10):
            before = len(flushes.inserted)
            if wait_ms:
                waiting = start_task(quiet.get(wait_ms=wait_ms))
                await asyncio.sleep(0)
                await quiet.put()
                (seen,) = (await waiting).items
            else:
                await quiet.put()
                seen = await quiet.one()
            # The flush in progress, the one of the insert, and one more for the lease.
            assert len(flushes.inserted) - before <= (2 if wait_ms else 4)
            assert await quiet.do(EventKind.ACK, [seen]) == [None]
            assert shard.queued_items >= QUEUE // 3
        flooding.cancel()

    run_in_world(story)


@pytest.mark.once
@pytest.mark.parametrize("weights", [pytest.param((1, 1), marks=pytest.mark.long), (3, 1), (1, 5)])
def test_saturated_writes_are_divided_by_weight(weights: tuple[int, int]) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(weighted(world, default=weights[0], other=weights[1]))
        flushes = Flushes(world)
        flooding = [start_task(flood(Caller(world, engine, name))) for name in ("default", "other")]
        await world.until(lambda: len(flushes.inserted) >= 60)
        total: Counter[str] = sum(flushes.inserted[20:60], Counter())
        assert total.total() >= 40 * 18
        assert total["default"] / total["other"] == pytest.approx(weights[0] / weights[1], rel=0.15)
        for task in flooding:
            task.cancel()

    run_in_world(story)
