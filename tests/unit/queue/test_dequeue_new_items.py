"""Direct deliveries of items that are inserted, and the order of waiters."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.flush.writes import Writes
from foqs.core.items.item import State, parse_id
from foqs.core.items.life import EventKind
from foqs.queue.dequeue import Dequeue
from foqs.queue.placement import ROTATION_S
from foqs.queue.port import LeasedItems
from foqs.shard.shard import OwnedShard
from foqs.shard.supervisor import ShardTakenOver
from foqs.store.in_memory.memory_store import MemoryReads, MemoryStore
from tests.support.builders import CACHE, engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, run_in_world
from tests.support.inner_parts import connection_of, writer_of
from tests.support.method_gate import MethodGate, closed, restarted, start_task, wait_until_idle


def record_direct_deliveries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of items of each direct delivery, from now on."""
    found: list[int] = []
    original = Dequeue.assign

    def assign(self: Dequeue, shard: OwnedShard, topic: Any, keys: Any) -> Any:
        found.append(len(keys))
        return original(self, shard, topic, keys)

    monkeypatch.setattr(Dequeue, "assign", assign)
    return found


def test_item_with_a_waiter_is_inserted_as_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        deliveries = record_direct_deliveries(monkeypatch)
        written: list[Writes] = []

        def refuse(writes: Writes) -> None:
            written.append(writes)

        world.database.refuse = refuse
        waiting = start_task(caller.get(count=2, wait_ms=5_000))
        await world.pass_s(0.1)
        await caller.put(count=3)
        delivered = await waiting
        assert deliveries == [2]
        (only,) = [writes for writes in written if writes.inserts or writes.leases]
        assert [row.state for row in only.inserts] == [State.LEASED, State.LEASED, State.READY]
        assert {seen.row.attempt for seen in delivered.items} == {1}
        assert await caller.do(EventKind.ACK, delivered.items) == [None, None]
        assert world.rows() == [("t", State.READY)]

    run_in_world(story)


def test_waiter_gets_its_reply_before_the_producer() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        ended: list[str] = []
        waiting = start_task(caller.get(wait_ms=5_000))
        waiting.add_done_callback(lambda _: ended.append("taken"))
        await world.pass_s(0.1)
        putting = start_task(caller.put())
        putting.add_done_callback(lambda _: ended.append("put"))
        await asyncio.gather(waiting, putting)
        assert ended == ["taken", "put"]

    run_in_world(story)


@pytest.mark.parametrize(("count", "is_first"), [(1, True), (3, False)])
def test_waiter_gets_its_reply_before_memory_is_updated_unless_more_items_remain(count: int, is_first: bool) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(engine_settings(1))
        caller = Caller(world, engine)
        replies: list[tuple[int, bool]] = []
        leased: list[int] = []

        def on_done(_: LeasedItems) -> None:
            topic = ("default", "t")
            replies.append(
                (
                    engine.queue.availability.ready_count(topic),
                    engine.queue.availability.best_priority(topic) is not None,
                )
            )
            leased.append(engine.shards[1].counts.count(topic, State.LEASED))

        engine.queue.dequeue("default", [("t", 1)], 5_000, None, world.deadline_in(10), on_done)
        await world.pass_s(0.1)
        await caller.put(count=count)
        assert replies == [(count - 1, count > 1)]
        assert leased == [0 if is_first else 1]
        assert engine.shards[1].counts.count(("default", "t"), State.LEASED) == 1

    run_in_world(story)


def test_waiter_of_a_repeated_key_gets_the_other_items_of_the_batch() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        key = keyed_item("~000once")
        await caller.enqueue([key])
        (first,) = (await caller.get()).items
        assert await caller.do(EventKind.ACK, [first]) == [None]
        waiting = start_task(caller.get(wait_ms=50))
        await world.pass_s(0.04)
        world.stall()
        putting = start_task(caller.enqueue([key, new_item()]))
        await world.pass_s(0.02)
        world.resume()
        await putting
        assert len((await waiting).items) == 1

    run_in_world(story)


def test_direct_delivery_in_a_refused_flush_is_made_later_and_the_waiter_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        deliveries = record_direct_deliveries(monkeypatch)
        refusals = 1

        def refuse(writes: Writes) -> str | None:
            nonlocal refusals
            refusals -= bool(writes.inserts)
            return "not today" if writes.inserts and refusals >= 0 else None

        world.database.refuse = refuse
        waiting = start_task(caller.get(count=2, wait_ms=5_000))
        await world.pass_s(0.1)
        await caller.put(count=2)
        delivered = await waiting
        assert deliveries == [2]
        assert [seen.row.attempt for seen in delivered.items] == [1] * len(delivered.items)
        assert len(delivered.items) >= 1

    run_in_world(story)


def test_direct_delivery_to_a_consumer_that_left_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        deliveries = record_direct_deliveries(monkeypatch)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        waiting = start_task(caller.get(count=2, wait_ms=5_000))
        await world.pass_s(0.1)
        with closed(commits):
            putting = start_task(caller.put(count=2, attempts_max=1))
            await world.until(lambda: commits.held == 1)
            waiting.cancel()
            await world.pass_s(0.01)
        await putting
        assert deliveries == [2]
        delivered = await caller.get(count=9, wait_ms=1_000)
        assert [seen.row.attempt for seen in delivered.items] == [1, 1]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_direct_delivery_that_commits_too_late_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, delivery_wait_ms_max=50))
        caller = Caller(world, engine)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        waiting = start_task(caller.get(wait_ms=5_000))
        await world.pass_s(0.1)
        with closed(commits):
            putting = start_task(caller.put())
            assert (await waiting).items == []
        await putting
        assert (await caller.one(wait_ms=1_000)).row.attempt == 1
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_waiter_whose_shard_is_lost_is_served_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        deliveries = record_direct_deliveries(monkeypatch)
        waiting = start_task(caller.get(wait_ms=5_000))
        await world.pass_s(0.1)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        commits.close()
        putting = start_task(caller.enqueue([new_item()]))
        await world.until(lambda: commits.held == 1)
        (lost,) = [number for number, shard in engine.shards.items() if writer_of(shard)._sealed_batch]
        writer_of(engine.shards[lost]).give_up("a test says so")
        table = world.database.tables[lost]
        table.owner = type(table.owner)(table.owner.epoch + 1, "somebody", 0, 0, 0)
        world.database.kill(connection_of(engine.shards[lost]))
        commits.open()
        assert not isinstance((await putting)[0], str)
        assert deliveries == [1]
        assert not waiting.done()
        await caller.put()
        assert len((await waiting).items) == 1
        with pytest.raises(ShardTakenOver):
            await engine.run()

    run_in_world(story)


def test_deferred_item_is_not_delivered_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        deliveries = record_direct_deliveries(monkeypatch)
        waiting = start_task(caller.get(count=5, wait_ms=5_000))
        await world.pass_s(0.1)
        await caller.put(delay_ms=300)
        assert not waiting.done()
        assert deliveries == []
        before = world.loop.time()
        assert len((await waiting).items) == 1
        assert world.loop.time() - before >= 0.299

    run_in_world(story)


def test_no_direct_delivery_if_the_topic_may_have_better_items(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        await Caller(world, engine).put(priority=-5, payload=b"better")
        engine = await restarted(world, engine, settings)
        caller = Caller(world, engine)
        deliveries = record_direct_deliveries(monkeypatch)
        reads = MethodGate(monkeypatch, MemoryReads, "ready_order_keys", on_the_way_back=False)
        with closed(reads):
            waiting = start_task(caller.get(wait_ms=5_000))
            await world.pass_s(0.1)
            await caller.put(priority=3)
        assert [seen.row.payload for seen in (await waiting).items] == [b"better"]
        assert deliveries == []

    run_in_world(story)


@pytest.mark.parametrize("spurious", [0, 3])
def test_waiters_are_served_in_order(spurious: int) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        order: list[int] = []
        waiting = []

        async def wait(place: int) -> None:
            await caller.get(wait_ms=9_000)
            order.append(place)

        for place in range(6):
            waiting.append(start_task(wait(place)))
            await world.pass_s(0.01)
        for _ in range(spurious):
            caller.queue.on_items_ready([("default", "t")])
        for _ in range(6):
            await caller.put()
        await asyncio.gather(*waiting)
        assert order == list(range(6))

    run_in_world(story)


def test_items_that_return_at_once_serve_all_waiters() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.put(count=3)
        delivered = await caller.get(count=3)
        waiting = [start_task(caller.get(wait_ms=9_000)) for _ in range(3)]
        await world.pass_s(0.1)
        await caller.do(EventKind.RELEASE, delivered.items)
        before = world.loop.time()
        assert [len((await each).items) for each in waiting] == [1, 1, 1]
        assert world.loop.time() - before < 0.1

    run_in_world(story)


def test_no_dequeue_waits_while_there_are_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many consumers of several topics over several shards, with windows that need many refills."""

    async def story(world: World) -> None:
        settings = engine_settings(
            1,
            2,
            3,
            ready_window_items_max=4,
            ready_index_items_max=10,
            cache=replace(CACHE, written_items_max=5, prefetched_items_max=5),
        )
        engine = await world.engine(settings)
        for topic in "abc":
            for _ in range(6):
                await Caller(world, engine).put(topic, 20, priority=world.rng.randint(0, 3))
        engine = await restarted(world, engine, settings)
        caller = Caller(world, engine)
        got: list[Any] = []

        async def consume(wants: list[tuple[str, int]]) -> None:
            while len(got) < 3 * 240:
                before = world.loop.time()
                delivered: LeasedItems = await caller.dequeue(wants, wait_ms=20_000, timeout_s=30.0)
                assert world.loop.time() - before < 2
                got.extend(delivered.items)
                await caller.do(EventKind.ACK, delivered.items)

        async def produce() -> None:
            for _ in range(120):
                for topic in "abc":
                    await caller.put(topic)
                await world.pass_s(0.01)

        wants = [[("a", 2)], [("b", 1), ("a", 1)], [("c", 7)], [("c", 1), ("b", 3), ("a", 5)]]
        consuming = [start_task(consume(each)) for each in wants * 3]
        await produce()
        await world.until(lambda: len(got) == 3 * 240, within_s=20)
        for each in consuming:
            each.cancel()
        assert len({(seen.shard, seen.row.id) for seen in got}) == 3 * 240
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_failing_shard_is_skipped_until_it_responds() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        for _ in range(4):
            await caller.put(count=2)
            await world.pass_s(ROTATION_S)
        writer_of(engine.shards[1]).unavailable_reason = "it does not answer"
        assert {seen.shard for seen in (await caller.get(count=9)).items} == {2}
        ids = [parse_id(name, "id")[0] for _ in range(4) for name in await caller.put("other")]
        assert set(ids) == {2}
        waiting = start_task(caller.get(count=9, wait_ms=5_000))
        await world.pass_s(0.1)
        assert not waiting.done()
        writer_of(engine.shards[1]).unavailable_reason = None
        engine.shards[1].memory.on_store_recovered()
        assert {seen.shard for seen in (await waiting).items} == {1}

    run_in_world(story)


def test_drain_replies_to_all_waiters_also_those_of_a_refill(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, 2)
        engine = await world.engine(settings)
        await Caller(world, engine).put("a", 3)
        engine = await restarted(world, engine, settings)
        caller = Caller(world, engine)
        reads = MethodGate(monkeypatch, MemoryReads, "ready_order_keys", on_the_way_back=False)
        reads.close()
        waiting = [start_task(caller.dequeue([(t, 1) for t in topics], 9_000)) for topics in ("a", "b", "ab", "ba")]
        await world.pass_s(0.1)
        before = world.loop.time()
        caller.queue.stop_long_polls()
        assert [(await each).items for each in waiting] == [[]] * 4
        assert world.loop.time() - before < 0.1
        assert len(caller.queue.waiters) == 0

    run_in_world(story)
