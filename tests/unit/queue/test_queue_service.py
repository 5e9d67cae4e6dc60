"""The queue of a host with some failing shards."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from foqs.core.items.item import State, parse_id
from foqs.core.items.life import EventKind
from foqs.queue.engine import Engine
from foqs.queue.placement import ROTATION_S
from foqs.store.in_memory.memory_store import MemoryReads
from foqs_contract.errors import DeadlineExceeded, InvalidArgument, Unavailable
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world


def slow_shard(monkeypatch: pytest.MonkeyPatch, shard: int, method: str) -> Callable[[], None]:
    """Block one kind of read of one shard until the returned function is called."""
    answers = asyncio.Event()
    original = getattr(MemoryReads, method)

    async def slow(self: MemoryReads, *arguments: Any) -> Any:
        if self._tables is self._database.tables[shard]:
            await answers.wait()
        return await original(self, *arguments)

    monkeypatch.setattr(MemoryReads, method, slow)
    return answers.set


async def restarted_with_items(world: World) -> Engine:
    """Start an engine that knows only that both shards hold items of topic t."""
    engine = await world.engine()
    for _ in range(4):
        await Caller(world, engine).put(count=3)
        await world.pass_s(ROTATION_S)
    await engine.abort()
    return await world.engine()


def test_few_calls_use_one_shard_at_a_time_in_rotation() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        turns: list[set[int]] = []
        for _ in range(4):
            turns.append({parse_id(name, "id")[0] for _ in range(5) for name in await caller.put(count=2)})
            await world.pass_s(ROTATION_S)
        assert turns in ([{1}, {2}, {1}, {2}], [{2}, {1}, {2}, {1}])

    run_in_world(story)


def test_items_beyond_an_efficient_flush_use_the_shard_with_the_shorter_queue() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        calls = await asyncio.gather(*(caller.put(count=20) for _ in range(20)))
        shards = Counter(parse_id(name, "id")[0] for names in calls for name in names)
        assert min(shards[1], shards[2]) >= 120

    run_in_world(story)


def test_unresponsive_shard_delays_no_item_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await restarted_with_items(world)
        slow_shard(monkeypatch, 1, "ready_order_keys")
        delivered = await Caller(world, engine).get(count=100, wait_ms=20_000, timeout_s=30.0)
        assert {seen.shard for seen in delivered.items} == {2}
        assert len(delivered.items) == 6
        assert world.loop.time() < 5

    run_in_world(story)


def test_waiting_dequeue_gets_the_items_of_a_late_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await restarted_with_items(world)
        caller = Caller(world, engine)
        answer = slow_shard(monkeypatch, 1, "ready_order_keys")
        first = await caller.get(count=100, wait_ms=20_000, timeout_s=30.0)
        waiting = asyncio.ensure_future(caller.get(count=100, wait_ms=20_000, timeout_s=30.0))
        await world.pass_s(5)
        assert not waiting.done()
        answer()
        start = world.loop.time()
        assert {seen.shard for seen in (await waiting).items} == {1}
        assert world.loop.time() - start < 1.5
        assert {seen.shard for seen in first.items} == {2}

    run_in_world(story)


def test_dequeue_whose_items_cannot_be_leased_in_time_ends_at_its_deadline() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.put()
        world.stall()
        before = world.loop.time()
        assert (await caller.get(wait_ms=9_000, timeout_s=0.5)).items == []
        assert world.loop.time() - before < 0.6
        world.resume()
        assert (await caller.one(wait_ms=2_000)).row.attempt == 1

    run_in_world(story)


def test_index_stays_within_its_limit_after_refills() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, ready_window_items_max=20, ready_index_items_max=30)
        engine = await world.engine(settings)
        for topic in range(10):
            await Caller(world, engine).put(f"t{topic}", 30)
        await engine.abort()
        engine = await world.engine(settings)
        caller = Caller(world, engine)
        for topic in range(10):
            assert len((await caller.get(f"t{topic}", 2)).items) == 2
            assert len(engine.shards[1].index) <= 30 + 10
        for topic in range(10):
            got = 0
            while items := (await caller.get(f"t{topic}", 100)).items:
                got += len(items)
            assert got == 28

    run_in_world(story)


def test_topic_without_items_is_forgotten_without_a_consumer() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        await Caller(world, engine).put(count=60, ttl_ms=2_000)
        await engine.abort()
        engine = await world.engine(engine_settings(1))
        assert engine.shards[1].index.topics() == [("default", "t")]
        await world.pass_s(3)
        assert world.rows() == []
        assert engine.shards[1].index.topics() == []

    run_in_world(story)


def test_draining_host_replies_to_long_polls_at_once() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        waiting = [asyncio.ensure_future(caller.get(topic, wait_ms=9_000)) for topic in ("a", "b", "b")]
        await world.pass_s(0.1)
        caller.queue.stop_long_polls()
        assert [(await each).items for each in waiting] == [[], [], []]
        assert world.loop.time() < 1
        await caller.put()
        assert len((await caller.get(wait_ms=9_000)).items) == 1
        assert (await caller.get(wait_ms=9_000)).items == []
        assert world.loop.time() < 1

    run_in_world(story)


def test_peek_pages_over_all_shards_in_order() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        for priority in (3, 1, 2):
            await caller.put(priority=priority, count=3)
        keys, cursor = [], None
        while True:
            page, cursor = await caller.queue.reads.peek(
                "default", "t", State.READY, cursor, 4, True, world.deadline_in(5)
            )
            keys += [seen.row.order_key for seen in page]
            if cursor is None:
                break
        assert len(keys) == 9
        assert keys == sorted(keys)
        seen = await caller.one()
        found = await caller.queue.reads.get_item("default", seen.shard, seen.row.id, world.deadline_in(5))
        assert found.row.state is State.LEASED

    run_in_world(story)


def test_items_of_several_shards_with_equal_keys_are_all_listed() -> None:
    async def story(world: World) -> None:
        # Two hosts that start at the same moment begin with the same number. The time is fixed.
        for engine in await asyncio.gather(*(world.engine(engine_settings(shard)) for shard in (1, 2))):
            await Caller(world, engine).put(deliver_after_ms=2_000_000_000_000, count=4)
            await engine.abort()
        caller = Caller(world, await world.engine())
        keys, cursor = [], None
        while True:
            page, cursor = await caller.queue.reads.peek(
                "default", "t", State.DEFERRED, cursor, 1, False, world.deadline_in(5)
            )
            keys += [(seen.row.order_key, seen.shard) for seen in page]
            if cursor is None:
                break
        assert len({key for key, _ in keys}) < 8, "some are equal"
        assert keys == sorted(set(keys))
        assert len(keys) == 8

    run_in_world(story)


def test_peek_ends_by_its_deadline_while_the_database_is_away() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        await caller.put()
        seen = await caller.one()
        world.stall()
        with pytest.raises(DeadlineExceeded):
            await caller.queue.reads.peek("default", "t", State.READY, None, 4, True, world.deadline_in(0.5))
        with pytest.raises(DeadlineExceeded):
            await caller.queue.reads.get_item("default", seen.shard, seen.row.id, world.deadline_in(0.5))
        world.resume()
        assert await caller.do(EventKind.ACK, [seen]) == [None]

    run_in_world(story)


def test_events_on_a_recovering_shard_can_be_retried() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        await caller.put()
        seen = await caller.one()
        shard = engine.shards.pop(seen.shard)
        (outcome,) = await caller.do(EventKind.ACK, [seen])
        assert isinstance(outcome, Unavailable)
        assert outcome.retry_after_ms
        engine.shards[seen.shard] = shard

    run_in_world(story)


def test_longest_possible_delay_is_stored_and_harms_no_timer() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        await caller.put("never", deliver_after_ms=253_402_300_799_999, ttl_ms=253_402_300_799_999)
        await caller.put("never", delay_ms=253_402_300_799_999)
        await caller.put("soon", delay_ms=100)
        assert (await caller.one("soon", wait_ms=1_000)).row.topic == "soon"
        assert (await caller.get("never")).items == []

    run_in_world(story)


def test_item_of_a_removed_namespace_still_follows_its_times() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        caller.namespace = "gone"
        await caller.put(ttl_ms=500)
        await caller.put(delay_ms=100)
        await world.pass_s(1)
        assert world.rows() == [("t", State.READY)]

    run_in_world(story)


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "0:0:1",
        "0:0:0:1",
        "0:0:1:1:1",
        " 0:1:1:1",
        "0:1_0:1:1",
        "+0:1:1:1",
        "0:01:1:1",
        "\u0660:1:1:1",
        "0:1:1:-1",
        f"{1 << 31}:0:1:1",
    ],
)
def test_cursor_in_another_spelling_is_refused(cursor: str) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        with pytest.raises(InvalidArgument) as caught:
            await caller.queue.reads.peek("default", "t", State.READY, cursor, 4, False, world.deadline_in(5))
        assert caught.value.field == "page.cursor"
        assert await caller.queue.reads.peek(
            "default", "t", State.READY, "0:1:1:1", 4, False, world.deadline_in(5)
        ) == (
            [],
            None,
        )

    run_in_world(story)
