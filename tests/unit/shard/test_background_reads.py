"""Reads beside the flushes of an engine: stale results are not used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foqs.core.items.item import State, format_id
from foqs.core.items.life import EventKind
from foqs.queue.port import ITEM_OVERHEAD_BYTES
from foqs.store.in_memory.memory_store import MemoryReads, MemoryStore
from foqs_contract.errors import Unavailable
from tests.support.builders import CACHE, NAMESPACE, engine_settings, new_item
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import MethodGate, closed, restarted, start_task, wait_until_idle


def test_a_refill_ignores_items_that_a_flush_deleted_during_its_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The read sees rows that are deleted by a flush which begins before it and commits after it."""

    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        names = await Caller(world, engine).put(count=6)
        engine = await restarted(world, engine, settings)
        caller = Caller(world, engine)
        await world.until(lambda: not engine.shards[1].counts.is_lagging)
        reads = MethodGate(monkeypatch, MemoryReads, "ready_order_keys", on_the_way_back=True)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
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


def test_a_refill_that_ends_during_a_flush_does_not_hide_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read ends before the commit of a flush that adds an item with a better key."""

    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        await Caller(world, engine).put(count=3, priority=5)
        engine = await restarted(world, engine, settings)
        caller = Caller(world, engine)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
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


def test_a_prefetched_row_that_changed_during_the_read_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, cache=replace(CACHE, written_items_max=0))
        engine = await world.engine(settings)
        await Caller(world, engine).put(count=8, attempts_max=2)
        engine = await restarted(world, engine, settings)
        caller = Caller(world, engine)
        loads = MethodGate(monkeypatch, MemoryReads, "rows", on_the_way_back=True)
        with closed(loads):
            (first,) = (await caller.get(wait_ms=100)).items
            await caller.do(EventKind.NACK, [first], delay_ms=0, metadata=b"once")
            await world.until(lambda: loads.held == 1)
            reply = await caller.get(count=9)
            assert len(reply.items) == 8
            await caller.do(EventKind.NACK, reply.items, delay_ms=0, metadata=b"twice")
        await wait_until_idle(world, engine)
        assert {row.metadata for row in world.database.tables[1].rows.values()} == {b"twice"}

    run_in_world(story)


def test_a_dequeue_without_wait_waits_for_a_refill() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, 2)
        engine = await world.engine(settings)
        await Caller(world, engine).put(count=3)
        engine = await restarted(world, engine, settings)
        before = world.loop.time()
        assert len((await Caller(world, engine).get(count=3)).items) == 3
        assert world.loop.time() - before < 0.1

    run_in_world(story)


def test_a_dequeue_without_wait_waits_at_most_delivery_wait_ms_max(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, delivery_wait_ms_max=300)
        engine = await world.engine(settings)
        await Caller(world, engine).put(count=3)
        engine = await restarted(world, engine, settings)
        reads = MethodGate(monkeypatch, MemoryReads, "ready_order_keys", on_the_way_back=False)
        reads.close()
        before = world.loop.time()
        assert (await Caller(world, engine).get(count=3)).items == []
        assert 0.3 <= world.loop.time() - before < 0.4

    run_in_world(story)


def test_shard_is_taken_over_again_after_an_unexpected_error_of_a_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        await Caller(world, engine).put(count=3)
        engine = await restarted(world, engine, settings)
        failures = 1
        original = MemoryReads.ready_order_keys

        async def ready(self: MemoryReads, *arguments: Any) -> Any:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise RuntimeError("an unexpected error")
            return await original(self, *arguments)

        monkeypatch.setattr(MemoryReads, "ready_order_keys", ready)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        caller = Caller(world, engine)
        with closed(commits):
            putting = start_task(caller.enqueue([new_item("other")]))
            await world.until(lambda: commits.held == 1)
            waiting = start_task(caller.get(count=3, wait_ms=9_000))
            await world.pass_s(0.05)
        await putting
        assert len((await waiting).items) == 3
        assert "an unexpected error" in caplog.text

    run_in_world(story)


def test_a_page_with_payloads_is_at_most_as_large_as_a_delivery() -> None:
    async def story(world: World) -> None:
        payload = bytes(NAMESPACE.payload_bytes_max)
        most = len(payload) + ITEM_OVERHEAD_BYTES
        caller = Caller(world, await world.engine(engine_settings(1, delivery_bytes_max=3 * most)))
        ids = await caller.put(count=8, payload=payload)
        found: list[str] = []
        cursor: str | None = None
        while True:
            page, cursor = await caller.queue.reads.peek(
                "default", "t", State.READY, cursor, 8, True, world.deadline_in(5)
            )
            assert len(page) == 3 or cursor is None
            found += [format_id(seen.shard, seen.row.id) for seen in page]
            if cursor is None:
                break
        assert found == ids

    run_in_world(story)


def test_a_peek_that_would_leave_out_a_shard_is_refused() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        shard = engine.shards.pop(2)
        try:
            with pytest.raises(Unavailable):
                await caller.queue.reads.peek("default", "t", State.READY, None, 8, False, world.deadline_in(5))
        finally:
            engine.shards[2] = shard

    run_in_world(story)
