"""Counts and the topics table of an engine, over takeovers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from foqs.core.items.life import EventKind
from foqs.shard.shard_memory import TOPICS_PER_STEP
from foqs.shard.supervisor import ShardTakenOver
from foqs.store.in_memory.memory_store import MemoryReads
from foqs.store.port import TopicCount
from tests.support.builders import engine_settings, new_item
from tests.support.engines import Caller, World, run_in_world
from tests.support.inner_parts import writer_of
from tests.support.method_gate import MethodGate, closed, restarted, wait_until_idle


def test_counts_are_exact_after_a_takeover_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        await Caller(world, engine).put("a", 30)
        await Caller(world, engine).put("b", 3)
        await engine.abort()
        counting = MethodGate(monkeypatch, MemoryReads, "counts", on_the_way_back=False)
        with closed(counting):
            engine = await world.engine(settings)
            caller = Caller(world, engine)
            # As many items were added as delivered, but the table holds more.
            await caller.put("a", priority=-9)
            assert (await caller.one("a")).row.priority == -9
            await caller.put("a", 5)
            await caller.put("c", 4, delay_ms=60_000)
            reply = await caller.get("a", 50)
            await caller.do(EventKind.ACK, reply.items[:10])
            await caller.do(EventKind.ACK, (await caller.get("b", 3)).items)
            assert len(reply.items) > 10
            stats = await caller.stats("a")
            assert stats is not None
            assert stats.counts_lag
        await world.until(lambda: not engine.shards[1].counts.is_lagging)
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_shards_are_counted_one_after_the_other_each_from_a_new_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, 2, 3)
        engine = await world.engine(settings)
        for _ in engine.shards:
            await Caller(world, engine).put("a", 5)
            await world.pass_s(0.3)
        assert all(table.rows for table in world.database.tables.values())
        await engine.abort()
        shown = MethodGate(monkeypatch, MemoryReads, "begin_snapshot", on_the_way_back=True)
        counting = MethodGate(monkeypatch, MemoryReads, "counts", on_the_way_back=False)
        with closed(counting):
            engine = await world.engine(settings)
            caller = Caller(world, engine)
            reply = await caller.get("a", 15)
            await caller.do(EventKind.ACK, reply.items[:7])
            await caller.put("a", 3)
            assert (shown.passed, counting.held) == (1, 1)
            assert all(shard.counts.is_lagging for shard in engine.shards.values())
        await world.until(lambda: not any(shard.counts.is_lagging for shard in engine.shards.values()))
        assert shown.passed == 3
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_a_shard_that_cannot_be_counted_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        counts = MemoryReads.counts

        async def lost(reads: MemoryReads) -> list[TopicCount]:
            if reads._tables is world.database.tables[1]:
                await reads.close()
            return await counts(reads)

        monkeypatch.setattr(MemoryReads, "counts", lost)
        engine = await world.engine(engine_settings(1, 2, 3))
        await world.until(lambda: not any(engine.shards[number].counts.is_lagging for number in (2, 3)))
        assert engine.shards[1].counts.is_lagging

    run_in_world(story)


class Frail:
    """Makes the first calls of one method of reads lose their connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, failures: int) -> None:
        self.left = failures
        original = getattr(MemoryReads, method)

        async def call(reads: MemoryReads, *arguments: Any) -> Any:
            if self.left > 0:
                self.left -= 1
                await reads.close()
            return await original(reads, *arguments)

        monkeypatch.setattr(MemoryReads, method, call)


def test_a_failed_count_is_repeated_while_the_shard_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, empty_topic_linger_ms=100)
        engine = await world.engine(settings)
        await Caller(world, engine).put("a", 30)
        await Caller(world, engine).put("b", 3)
        await engine.abort()
        counting = Frail(monkeypatch, "counts", 2)
        engine = await world.engine(settings)
        shard, epoch = engine.shards[1], engine.shards[1].epoch
        beginning = Frail(monkeypatch, "begin_snapshot", 1)
        caller = Caller(world, engine)

        async def live(topic: str) -> None:
            while shard.counts.is_lagging:
                await caller.put(topic, 3)
                await caller.do(EventKind.ACK, (await caller.get(topic, 2)).items)

        await caller.do(EventKind.ACK, (await caller.get("b", 3)).items)
        await asyncio.gather(live("a"), live("c"))
        assert counting.left == beginning.left == 0
        await wait_until_idle(world, engine)
        assert engine.shards[1] is shard
        assert shard.epoch == epoch
        await world.pass_s(0.2)
        await caller.put("a")
        assert topics_of(world) == {"a", "c"}

    run_in_world(story)


@pytest.mark.parametrize("after_ms", [0, 250, *range(485, 496)])
def test_a_shard_whose_count_fails_is_still_handed_over(monkeypatch: pytest.MonkeyPatch, after_ms: int) -> None:
    async def story(world: World) -> None:
        Frail(monkeypatch, "counts", 1_000)
        engine = await world.engine(engine_settings(1))
        await Caller(world, engine).put("a", 3)
        await world.pass_s(after_ms / 1000)
        assert engine.shards[1].counts.is_lagging
        engine.on_release_requested()
        await engine.run()
        assert len(world.database._alive) == 0

    run_in_world(story)


def topics_of(world: World, shard: int = 1) -> set[str]:
    return {name for _, name in world.database.tables[shard].topics}


def test_a_topic_row_is_added_with_its_first_item_and_deleted_after_the_linger_time() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, empty_topic_linger_ms=500))
        caller = Caller(world, engine)
        await caller.put("a")
        assert topics_of(world) == {"a"}
        await caller.do(EventKind.ACK, [await caller.one("a")])
        assert topics_of(world) == {"a"}
        await world.pass_s(0.4)
        await caller.put("b", delay_ms=86_400_000)
        assert topics_of(world) == {"a", "b"}
        await world.pass_s(0.2)
        await caller.put("c")
        assert topics_of(world) == {"b", "c"}
        await caller.put("a")
        assert topics_of(world) == {"a", "b", "c"}
        await world.pass_s(1)
        await caller.put("c")
        assert topics_of(world) == {"a", "b", "c"}
        engine = await restarted(world, engine, engine_settings(1))
        assert len((await Caller(world, engine).get("a", 9)).items) == 1

    run_in_world(story)


def test_a_topic_that_has_an_item_again_keeps_its_row() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1, empty_topic_linger_ms=500)))
        for _ in range(5):
            await caller.put("a")
            await world.pass_s(0.3)
            await caller.do(EventKind.ACK, [await caller.one("a")])
            await caller.put("b")
            assert topics_of(world) == {"a", "b"}
        await world.pass_s(0.6)
        await caller.put("a")
        assert topics_of(world) == {"a", "b"}

    run_in_world(story)


def test_a_topic_with_items_of_another_owner_is_found_and_not_removed() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, empty_topic_linger_ms=100)
        first = await world.engine(settings)
        await Caller(world, first).put("old")
        second = await world.engine(settings)
        await Caller(world, second).put("new", 2)
        for shard in first.shards.values():
            writer_of(shard).request_flush()
        with pytest.raises(ShardTakenOver):
            await first.run()
        third = await restarted(world, second, settings)
        caller = Caller(world, third)
        await caller.put("mine")
        await world.pass_s(0.5)
        await caller.put("mine")
        assert topics_of(world) == {"old", "new", "mine"}
        assert len((await caller.get("new", 9, wait_ms=100)).items) == 2
        assert len((await caller.get("old", 9, wait_ms=100)).items) == 1
        await wait_until_idle(world, third)

    run_in_world(story)


def test_no_topic_row_is_deleted_while_the_counts_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, empty_topic_linger_ms=100)
        engine = await world.engine(settings)
        await Caller(world, engine).put("a", 2)
        await engine.abort()
        counting = MethodGate(monkeypatch, MemoryReads, "counts", on_the_way_back=False)
        with closed(counting):
            engine = await world.engine(settings)
            caller = Caller(world, engine)
            await caller.do(EventKind.ACK, [await caller.one("a")])
            await world.pass_s(1)
            await caller.put("b")
            assert topics_of(world) == {"a", "b"}
        await world.pass_s(1)
        await caller.put("b")
        assert topics_of(world) == {"a", "b"}
        assert len((await caller.get("a", 9)).items) == 1

    run_in_world(story)


def test_a_takeover_removes_topics_without_items() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, empty_topic_linger_ms=500)
        engine = await world.engine(settings)
        await Caller(world, engine).put("a")
        await Caller(world, engine).do(EventKind.ACK, [await Caller(world, engine).one("a")])
        engine = await restarted(world, engine, settings)
        assert topics_of(world) == {"a"}
        await wait_until_idle(world, engine)
        assert engine.shards[1].index.topics() == []
        await world.pass_s(1)
        await Caller(world, engine).put("b")
        assert topics_of(world) == {"b"}

    run_in_world(story)


class SmallSteps:
    """The memory as an initial count sees it, with small steps of which it keeps a record.

    Attributes:
        changes: how many counts each step changed.
        flushes: the number of the last flush at the end of each step.
    """

    def __init__(self, shard: Any, topics_per_step: int) -> None:
        self._shard = shard
        self._topics_per_step = topics_per_step
        self.changes: list[int] = []
        self.flushes: list[int] = []

    def restart_count(self) -> None:
        self._shard.memory.restart_count()

    def add_counts(self, found: Sequence[TopicCount]) -> Iterator[None]:
        counts, writer = self._shard.memory.counts, writer_of(self._shard)
        changed: dict[Any, None] = {}
        counts.changed = changed
        for _ in self._shard.memory.add_counts(found, self._topics_per_step):
            self.changes.append(len(changed))
            self.flushes.append(writer.flush_number)
            assert not writer._is_flushing
            yield
            changed.clear()


def test_the_initial_counts_are_added_in_steps_with_flushes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        await Caller(world, engine).enqueue([new_item(f"t{number}") for number in range(100)])
        await Caller(world, engine).put("gone")
        await Caller(world, engine).do(EventKind.ACK, (await Caller(world, engine).get("gone")).items)
        await engine.abort()
        counting = MethodGate(monkeypatch, MemoryReads, "counts", on_the_way_back=False)
        with closed(counting):
            engine = await world.engine(settings)
            await world.until(lambda: counting.held == 1)
            initial_count: Any = engine.shards[1]._initial_count
            steps = initial_count._memory = SmallSteps(engine.shards[1], 10)
        caller = Caller(world, engine)
        while engine.shards[1].counts.is_lagging:
            await asyncio.gather(caller.put("t1"), caller.put("gone"), caller.put("new"))
        await world.until(lambda: len(steps.flushes) >= 19)
        assert max(steps.changes) == 10
        assert len(set(steps.flushes)) >= 3, "no flush ran between the steps"
        stats = await caller.stats("t1")
        assert stats is not None
        assert not stats.counts_lag
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_a_takeover_loads_the_topic_names_in_steps() -> None:
    async def story(world: World) -> None:
        memory = (await world.engine(engine_settings(1))).shards[1].memory
        names = [("default", f"t{number}") for number in range(3 * TOPICS_PER_STEP)]

        loaded = [len(memory.index.topics()) for _ in memory.recover(names, (), ())]

        assert loaded == [TOPICS_PER_STEP, 2 * TOPICS_PER_STEP, 3 * TOPICS_PER_STEP]

    run_in_world(story)
