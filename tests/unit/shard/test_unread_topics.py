"""The best items of topics from which nobody dequeues are known."""

from __future__ import annotations

import pytest

from foqs.store.in_memory.memory_store import MemoryReads
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import MethodGate, closed, restarted


def test_priority_and_age_of_a_topic_are_known_after_a_takeover_without_a_dequeue() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        await Caller(world, engine).put("a", 3, priority=7)
        engine = await restarted(world, engine, settings)
        await world.pass_s(30)
        stats = await Caller(world, engine).stats("a")
        assert stats is not None
        assert (stats.ready, stats.best_priority) == (3, 7)
        assert stats.oldest_ready_age_ms is not None
        assert stats.oldest_ready_age_ms >= 29_000
        assert engine.shards[1].oldest_ready_age_ms() is not None

    run_in_world(story)


def test_topics_are_read_one_at_a_time_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        topics = [f"topic-{number}" for number in range(20)]
        for topic in topics:
            await Caller(world, engine).put(topic)
        await Caller(world, engine).put("deferred", delay_ms=3_600_000)
        reads = MethodGate(monkeypatch, MemoryReads, "ready_order_keys", on_the_way_back=False)
        with closed(reads):
            engine = await restarted(world, engine, settings)
            await world.pass_s(30)
            assert (reads.held, reads.passed) == (1, 0)
        await world.pass_s(300)
        assert reads.passed == len(topics)
        assert all(engine.shards[1].index.best_key(("default", topic)) is not None for topic in topics)

    run_in_world(story)


def test_items_that_a_consumer_left_unread_become_known() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put("a", 2)
        index = engine.shards[1].index
        index.discover(("default", "a"))
        assert index.best_key(("default", "a")) is None
        await world.pass_s(120)
        assert index.best_key(("default", "a")) is not None

    run_in_world(story)
