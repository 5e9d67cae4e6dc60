"""A database whose flushes are all slow: waiting dequeues still get their items."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from foqs.core.items.life import EventKind
from foqs.shard.awaited_results import AwaitedResults
from foqs.store.in_memory.memory_store import MemoryStore
from tests.support.builders import engine_settings, new_item
from tests.support.engines import Caller, World, run_in_world

FLUSHES_S = (0.02, 0.9, 1.8, 4.0, 12.0)
ITEMS = 20
CLIENT_S = 10.0
"""How much longer a client's call may last than its dequeue waits."""


def slow_down(monkeypatch: pytest.MonkeyPatch, flushes_s: Mapping[int, float]) -> None:
    """Delay each flush of these shards by this time."""
    original = MemoryStore.flush

    async def flush(self: MemoryStore, *arguments: Any) -> None:
        await asyncio.sleep(flushes_s.get(self._shard, 0.0))
        await original(self, *arguments)

    monkeypatch.setattr(MemoryStore, "flush", flush)


class Consumers:
    """Consumers that dequeue and ack until they are stopped."""

    def __init__(self, caller: Caller, count: int, wait_s: float, how_many: int) -> None:
        self.ids: list[tuple[int, int]] = []
        self._caller = caller
        self._tasks = [asyncio.ensure_future(self._consume(count, wait_s)) for _ in range(how_many)]

    async def _consume(self, count: int, wait_s: float) -> None:
        while True:
            delivered = await self._caller.get(
                count=count, wait_ms=int(wait_s * 1_000), lease_ms=120_000, timeout_s=wait_s + CLIENT_S
            )
            self.ids += [(seen.shard, seen.row.id) for seen in delivered.items]
            if delivered.items:
                await self._caller.do(EventKind.ACK, delivered.items, timeout_s=100)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("wait_s", [5, 20])
@pytest.mark.parametrize("flush_s", FLUSHES_S)
def test_waiting_consumers_get_every_item_however_slow_flushes_are(
    flush_s: float, wait_s: int, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=ITEMS)
        slow_down(monkeypatch, {1: flush_s})

        async def produce() -> None:
            while True:
                await caller.put("noise", timeout_s=100)

        producers = [asyncio.ensure_future(produce()) for _ in range(2 * busy)]
        consumers = Consumers(caller, 5, wait_s, 4)
        await world.until(lambda: len(consumers.ids) >= ITEMS, within_s=5 + 12 * flush_s)
        assert len(set(consumers.ids)) == len(consumers.ids) == ITEMS
        for task in producers:
            task.cancel()
        await consumers.stop()

    run_in_world(story)


@pytest.mark.once
@pytest.mark.parametrize("flush_s", FLUSHES_S)
def test_one_consumer_gets_item_after_item_however_slow_flushes_are(
    flush_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=ITEMS)
        slow_down(monkeypatch, {1: flush_s})
        consumers = Consumers(caller, 1, 5, 1)
        # A lease and an ack of each item.
        await world.until(lambda: len(consumers.ids) >= ITEMS, within_s=5 + 3 * ITEMS * flush_s)
        assert len(set(consumers.ids)) == ITEMS
        await consumers.stop()

    run_in_world(story)


@pytest.mark.parametrize("flush_s", FLUSHES_S)
def test_new_item_reaches_a_waiting_consumer_however_slow_flushes_are(
    flush_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        slow_down(monkeypatch, {1: flush_s})
        consumers = Consumers(caller, 5, 5, 2)
        await world.pass_s(0.1)
        await caller.put(count=ITEMS, timeout_s=100)
        await world.until(lambda: len(consumers.ids) >= ITEMS, within_s=5 + 12 * flush_s)
        assert len(set(consumers.ids)) == ITEMS
        await consumers.stop()

    run_in_world(story)


@pytest.mark.once
@pytest.mark.parametrize("delivery_ms", [80, 1_000])
@pytest.mark.parametrize("flush_s", [*FLUSHES_S, 0.12])
def test_items_of_several_slow_shards_reach_a_waiting_consumer(
    flush_s: float, delivery_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        shards = (1, 2, 3, 4, 5, 6)
        engine = await world.engine(engine_settings(*shards, delivery_wait_ms_max=delivery_ms))
        caller = Caller(world, engine)
        while any(len(world.database.tables[shard].rows) < 3 for shard in shards):
            await caller.put()
            await world.pass_s(0.05)
        stored = sum(len(world.database.tables[shard].rows) for shard in shards)
        slow_down(monkeypatch, {shard: flush_s * (1 + shard / 100) for shard in shards})
        consumers = Consumers(caller, 5, 5, 2)
        await world.until(lambda: len(consumers.ids) >= stored, within_s=5 + stored * flush_s)
        assert len(set(consumers.ids)) == stored
        await consumers.stop()

    run_in_world(story)


def test_dequeue_without_wait_gets_the_item_that_is_being_leased_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put()
        slow_down(monkeypatch, {1: 4.0})
        assert len((await caller.get(wait_ms=0)).items) == 1

    run_in_world(story)


def test_dequeue_replies_by_its_deadline_however_slow_the_flush_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put()
        slow_down(monkeypatch, {1: 12.0})
        began_s = world.loop.time()
        assert (await caller.get(wait_ms=1_000, timeout_s=5.0)).items == []
        assert world.loop.time() - began_s < 5.1

    run_in_world(story)


def test_dequeue_that_waits_for_a_slow_shard_takes_new_items_of_a_fast_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        inserted = AwaitedResults()
        engine.shards[1].submit_inserts("default", [new_item()], inserted)
        await inserted.future
        slow_down(monkeypatch, {1: 12.0})
        began_s = world.loop.time()
        asked = asyncio.ensure_future(caller.get(wait_ms=1_000, timeout_s=30))
        await world.pass_s(0.1)
        inserted = AwaitedResults()
        engine.shards[2].submit_inserts("default", [new_item()], inserted)
        await inserted.future
        assert [seen.shard for seen in (await asked).items] == [2]
        assert world.loop.time() - began_s < 2.5

    run_in_world(story)
