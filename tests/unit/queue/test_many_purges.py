"""Many purges at once, and large ones: their limits, and what other calls notice of them."""

from __future__ import annotations

import asyncio

import pytest

from foqs.core.flush.writes import Writes
from foqs.core.items.life import EventKind
from foqs_contract.errors import Overloaded
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.inner_parts import writer_of
from tests.support.method_gate import start_task
from tests.support.purges import keep_rows, purge, stored, wait_for_deletion


def test_too_many_purge_markers_are_refused_but_not_a_repeated_purge() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, purge_topics_max=2))
        caller = Caller(world, engine)
        for topic in ("t", "u", "v"):
            await caller.put(topic)
        keep_rows(world)
        await purge(caller, "t")
        await purge(caller, "u")
        with pytest.raises(Overloaded):
            await purge(caller, "v")
        assert await purge(caller, "u") == 0
        await wait_for_deletion(world, engine)
        assert await purge(caller, "v") == 1

    run_in_world(story)


def test_namespace_with_many_purges_leaves_room_for_others() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, purge_topics_max=3, purge_topics_per_namespace_max=2))
        many, other = Caller(world, engine), Caller(world, engine, "other")
        for topic in ("t", "u", "v"):
            await many.put(topic)
            await other.put(topic)
        keep_rows(world)
        await purge(many, "t")
        await purge(many, "u")
        with pytest.raises(Overloaded):
            await purge(many, "v")
        assert await purge(many, "u") == 0
        assert await purge(other, "t") == 1
        with pytest.raises(Overloaded):
            await purge(other, "u")
        await wait_for_deletion(world, engine)
        assert await purge(many, "v") == 1

    run_in_world(story)


def test_small_purge_completes_during_many_large_ones_of_another_namespace() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, purge_page_items=20))
        many, other = Caller(world, engine), Caller(world, engine, "other")
        await many.put("large", 500)
        for number in range(30):
            await many.put(f"{number}", 3)
        await other.put("t", 30)
        await purge(many, "large")
        await asyncio.gather(*(purge(many, f"{number}") for number in range(30)))
        await purge(other, "t")
        await world.until(
            lambda: stored(world) == [] and engine.shards[1].memory.purge_markers.topic_count("other") == 0
        )
        assert len(stored(world, "large")) > 300
        assert engine.shards[1].memory.purge_markers.topic_count("default") == 31
        await wait_for_deletion(world, engine)
        assert world.rows() == []

    run_in_world(story)


def test_concurrent_purges_of_many_topics_share_flushes() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        many, other = Caller(world, engine), Caller(world, engine, "other")
        for number in range(90):
            await many.put(f"{number}")
        await other.put("t")
        keep_rows(world)
        world.stall()
        calls = [start_task(purge(many, f"{number}")) for number in range(90)]
        await world.pass_s(0.01)
        quick = start_task(purge(other))
        await world.pass_s(0.01)
        first = writer_of(engine.shards[1]).flush_number
        world.resume()
        assert await quick == 1
        assert writer_of(engine.shards[1]).flush_number <= first + 3
        assert sum(not call.done() for call in calls) > 10
        assert await asyncio.gather(*calls) == [1] * 90
        await wait_for_deletion(world, engine)

    run_in_world(story)


def test_large_purge_does_not_delay_other_calls() -> None:
    """While rows are deleted, each flush has room for other calls, and acks come first."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, purge_page_items=500))
        caller = Caller(world, engine)
        for _ in range(20):
            await caller.put(count=100)
        most_deletes = 0

        def record(writes: Writes) -> None:
            nonlocal most_deletes
            most_deletes = max(most_deletes, len({row.id for row in stored(world)}.intersection(writes.deletes)))

        world.database.refuse = record
        await purge(caller)
        before = len(stored(world))
        await caller.put("other", count=10)
        assert await caller.do(EventKind.ACK, (await caller.get("other", 10)).items) == [None] * 10
        assert len(stored(world)) > 0
        assert before - len(stored(world)) < 500
        await world.until(lambda: stored(world) == [])
        assert most_deletes == 60  # of a flush of 100
        await wait_for_deletion(world, engine)
        assert stored(world) == []

    run_in_world(story)
