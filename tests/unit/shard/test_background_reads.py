"""Reads beside the flushes of an engine: what is stale when it arrives is not believed."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.errors import Unavailable
from foqs.core.items.item import State, format_id
from foqs.core.items.life import EventKind
from foqs.queue.payload_pages import ITEM_OVERHEAD_BYTES
from foqs.store.in_memory.memory_store import MemoryReads, MemoryStore
from tests.support.builders import NAMESPACE, ROW_CACHE, changed, engine_settings, new_item
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import MethodGate, closed, restarted, start_task, wait_until_idle


def test_a_refill_whose_read_is_older_than_the_flush_under_way_takes_nothing_that_flush_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The read sees rows that a flush, begun before it and committed after it, deletes."""

    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        names = await Caller(world, engine).put(count=6)
        engine = await restarted(world, engine, settings)
        caller = Caller(world, engine)
        await world.until(lambda: not engine.shards[1].counts.is_lagging)
        reads = MethodGate(monkeypatch, MemoryReads, "ready_keys", on_the_way_back=True)
        commits = MethodGate(monkeypatch, MemoryStore, "_commit", on_the_way_back=False)
        commits.close()
        cancelling = start_task(caller.cancel(*names[3:]))
        await world.until(lambda: commits.held == 1)
        getting = start_task(caller.get(count=1))
        with closed(reads):
            await world.until(lambda: reads.held == 1)
        await world.pass_s(0.1)
        commits.open()
        assert await cancelling == [None] * 3
        await getting
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_a_refill_that_ends_while_a_flush_is_under_way_misses_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read is back before the flush, which adds an item below what was read, is committed."""

    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        await Caller(world, engine).put(count=3, priority=5)
        engine = await restarted(world, engine, settings)
        caller = Caller(world, engine)
        commits = MethodGate(monkeypatch, MemoryStore, "_commit", on_the_way_back=False)
        with closed(commits):
            putting = start_task(caller.put(count=2, priority=1))
            await world.until(lambda: commits.held == 1)
            getting = start_task(caller.get(count=1, wait_ms=500))
            await world.pass_s(0.1)
            assert not getting.done()
        await putting
        assert [seen.row.priority for seen in (await getting).items] == [1]
        await wait_until_idle(world, engine)
        assert [seen.row.priority for seen in (await caller.get(count=9)).items] == [1, 5, 5, 5]

    run_in_world(story)


def test_a_row_loaded_ahead_and_changed_meanwhile_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, buffer=changed(ROW_CACHE, written_items_max=0))
        engine = await world.engine(settings)
        await Caller(world, engine).put(count=8, attempts_max=2)
        engine = await restarted(world, engine, settings)
        caller = Caller(world, engine)
        loads = MethodGate(monkeypatch, MemoryReads, "rows", on_the_way_back=True)
        with closed(loads):
            (first,) = (await caller.get(wait_ms=100)).items
            await caller.do(EventKind.NACK, [first], delay_ms=0, metadata=b"once")
            await world.until(lambda: loads.held == 1)
            handed = await caller.get(count=9)
            assert len(handed.items) == 8
            await caller.do(EventKind.NACK, handed.items, delay_ms=0, metadata=b"twice")
        await wait_until_idle(world, engine)
        assert {row.metadata for row in world.database.tables[1].rows.values()} == {b"twice"}

    run_in_world(story)


def test_a_dequeue_without_wait_waits_for_what_must_be_read_first() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, 2)
        engine = await world.engine(settings)
        await Caller(world, engine).put(count=3)
        engine = await restarted(world, engine, settings)
        before = world.loop.time()
        assert len((await Caller(world, engine).get(count=3)).items) == 3
        assert world.loop.time() - before < 0.1

    run_in_world(story)


def test_a_dequeue_without_wait_waits_no_longer_than_a_late_shard_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, delivery_wait_ms_max=300)
        engine = await world.engine(settings)
        await Caller(world, engine).put(count=3)
        engine = await restarted(world, engine, settings)
        reads = MethodGate(monkeypatch, MemoryReads, "ready_keys", on_the_way_back=False)
        reads.close()
        before = world.loop.time()
        assert (await Caller(world, engine).get(count=3)).items == []
        assert 0.3 <= world.loop.time() - before < 0.4

    run_in_world(story)


def test_a_read_that_fails_in_an_unforeseen_way_has_the_shard_taken_over_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        await Caller(world, engine).put(count=3)
        engine = await restarted(world, engine, settings)
        failures = 1
        original = MemoryReads.ready_keys

        async def ready(self: MemoryReads, *arguments: Any) -> Any:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise RuntimeError("nobody thought of this")
            return await original(self, *arguments)

        monkeypatch.setattr(MemoryReads, "ready_keys", ready)
        commits = MethodGate(monkeypatch, MemoryStore, "_commit", on_the_way_back=False)
        caller = Caller(world, engine)
        with closed(commits):
            putting = start_task(caller.enqueue([new_item("other")]))
            await world.until(lambda: commits.held == 1)
            waiting = start_task(caller.get(count=3, wait_ms=9_000))
            await world.pass_s(0.05)
        await putting
        assert len((await waiting).items) == 3
        assert "nobody thought of this" in caplog.text

    run_in_world(story)


def test_a_page_with_payloads_is_as_long_as_a_hand_out_may_be() -> None:
    async def story(world: World) -> None:
        payload = bytes(NAMESPACE.payload_bytes_max)
        most = len(payload) + ITEM_OVERHEAD_BYTES
        caller = Caller(world, await world.engine(engine_settings(1, delivery_bytes_max=3 * most)))
        ids = await caller.put(count=8, payload=payload)
        found: list[str] = []
        cursor: str | None = None
        while True:
            page, cursor = await caller.queue.peek("default", "t", State.READY, cursor, 8, True, world.deadline_in(5))
            assert len(page) == 3 or cursor is None
            found += [format_id(seen.shard, seen.row.id) for seen in page]
            if cursor is None:
                break
        assert found == ids

    run_in_world(story)


def test_a_look_that_would_leave_out_a_shard_is_refused() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        shard = engine.shards.pop(2)
        try:
            with pytest.raises(Unavailable):
                await caller.queue.peek("default", "t", State.READY, None, 8, False, world.deadline_in(5))
        finally:
            engine.shards[2] = shard

    run_in_world(story)
