"""Priority and age of topics from which nobody dequeues."""

from __future__ import annotations

import pytest

from foqs.core.items.item import TopicName
from foqs.store.in_memory.memory_store import MemoryReads, MemoryStore
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import MethodGate, closed, restarted, start_task, wait_until_idle

TOPIC: TopicName = ("default", "a")


def test_priority_and_age_are_known_soon_after_the_first_list_of_a_new_owner() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        await Caller(world, engine).put("a", 3, priority=7)
        engine = await restarted(world, engine, settings)
        await world.pass_s(30)
        caller, shard = Caller(world, engine), engine.shards[1]
        assert shard.oldest_ready_age_ms() is None  # nobody has asked
        await caller.stats("a")
        await world.pass_s(1)
        stats = await caller.stats("a")
        assert stats is not None
        assert (stats.ready, stats.best_priority) == (3, 7)
        assert stats.oldest_ready_age_ms is not None
        assert 30_000 <= stats.oldest_ready_age_ms < 32_000
        assert shard.oldest_ready_age_ms() == shard.oldest_ready_age_ms(TOPIC)
        assert len(shard.index) == 0

    run_in_world(story)


def test_best_item_stays_known_while_better_ones_come_and_is_read_again_when_it_leaves() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        await Caller(world, engine).put("a", priority=7)
        engine = await restarted(world, engine, settings)
        caller, shard = Caller(world, engine), engine.shards[1]

        async def best_priority() -> int | None:
            stats = await caller.stats("a")
            return None if stats is None else stats.best_priority

        assert await best_priority() is None
        await world.until(lambda: shard.index.first_known_key(TOPIC) is not None)
        assert await best_priority() == 7
        [better] = await caller.put("a", priority=3)
        assert await best_priority() == 3
        await caller.cancel(better)
        assert await best_priority() is None
        await world.pass_s(1)
        assert await best_priority() == 7
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_dequeue_does_not_wait_for_the_read_of_the_best_item(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        await Caller(world, engine).put("a", 2)
        engine = await restarted(world, engine, settings)
        caller, shard = Caller(world, engine), engine.shards[1]
        await world.until(lambda: not shard.counts.is_lagging)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):  # no result of a read is applied meanwhile
            putting = start_task(caller.put("b"))
            await world.until(lambda: commits.held == 1)
            await caller.stats("a")
            await world.pass_s(0.1)
            getting = start_task(caller.get("a", 2, wait_ms=500))
            await world.pass_s(0.1)
        await putting
        assert len((await getting).items) == 2
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_one_topic_is_read_at_a_time_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        topics = [f"topic-{number}" for number in range(20)]
        for topic in topics:
            await Caller(world, engine).put(topic)
        await Caller(world, engine).put("deferred", delay_ms=3_600_000)
        reads = MethodGate(monkeypatch, MemoryReads, "ready_order_keys", on_the_way_back=False)
        engine = await restarted(world, engine, settings)
        caller, shard = Caller(world, engine), engine.shards[1]
        with closed(reads):
            for topic in [*topics, *topics, "deferred"]:
                await caller.stats(topic)
            await world.pass_s(30)
            assert (reads.held, reads.passed) == (1, 0)
        await world.pass_s(30)
        assert reads.passed == len(topics)
        assert all(shard.index.first_known_key(("default", topic)) is not None for topic in topics)

    run_in_world(story)
