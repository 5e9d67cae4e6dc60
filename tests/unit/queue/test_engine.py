"""The life of an item on one host, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from foqs.core.flush.writes import Writes
from foqs.core.items.item import DeliveryPolicy, State, parse_id
from foqs.core.items.life import Event, EventKind
from foqs.core.limits.shard_positions import ALLOWANCE_MIN, ShardPositions
from foqs.queue.placement import ROTATION_S
from foqs.queue.port import ALREADY_GONE
from foqs.shard.supervisor import ShardTakenOver
from foqs.store.port import StoreLost
from foqs_contract.errors import (
    DeadlineExceeded,
    NamespaceNotFound,
    NotFound,
    NotOwner,
    Overloaded,
    StaleLease,
    Unavailable,
    UnknownOutcome,
)
from tests.support.builders import engine_settings, new_item
from tests.support.engines import Caller, World, run_in_world


def test_item_is_delivered_once_and_deleted_by_its_ack() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        (name,) = await caller.put(payload=b"hello")
        seen = await caller.one()
        assert seen.row.payload == b"hello"
        assert (seen.shard, seen.row.id) == parse_id(name, "id")
        assert (await caller.get()).items == []
        assert await caller.do(EventKind.ACK, [seen]) == [None]
        assert world.rows() == []
        assert await caller.do(EventKind.ACK, [seen]) == [ALREADY_GONE]

    run_in_world(story)


def test_items_are_delivered_by_priority_then_age_then_id_over_all_shards() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1, 2, 3)))
        for priority in (5, -3, 7, 0, 5, -3, 2_147_483_647, -2_147_483_648):
            await caller.put(priority=priority, count=7)
            await world.pass_s(ROTATION_S)
        delivered = await caller.get(count=100)
        keys = [seen.row.order_key for seen in delivered.items]
        assert len(keys) == 56
        assert keys == sorted(keys)

    run_in_world(story)


def test_dequeue_gets_at_most_its_count_of_each_topic() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        await caller.put("a", 5)
        await caller.put("b", 5)
        delivered = await caller.dequeue([("a", 2), ("b", 9)])
        assert [seen.row.topic for seen in delivered.items] == ["a"] * 2 + ["b"] * 5

    run_in_world(story)


def test_waiting_dequeue_gets_an_item_as_soon_as_it_is_committed() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        waiting = asyncio.ensure_future(caller.get(wait_ms=4_000))
        await world.pass_s(1.0)
        await caller.put()
        assert len((await waiting).items) == 1
        assert world.loop.time() < 1.2

    run_in_world(story)


def test_long_poll_without_items_ends_empty_at_its_time() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        start = world.loop.time()
        assert (await caller.get(wait_ms=700)).items == []
        assert 0.7 <= world.loop.time() - start < 0.8

    run_in_world(story)


def test_each_waiter_gets_one_of_many_items_that_arrive_together() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        waiting = [asyncio.ensure_future(caller.get(wait_ms=3_000)) for _ in range(20)]
        await world.pass_s(0.1)
        await caller.put(count=20)
        delivered = await asyncio.gather(*waiting)
        assert [len(one.items) for one in delivered] == [1] * 20
        assert world.loop.time() < 1

    run_in_world(story)


def test_item_of_a_cancelled_waiter_is_delivered_to_another() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        first = asyncio.ensure_future(caller.get(wait_ms=3_000))
        await world.pass_s(0.1)
        second = asyncio.ensure_future(caller.get(wait_ms=3_000))
        await world.pass_s(0.1)
        caller.queue.on_items_ready([("default", "t")])
        first.cancel()
        await caller.put()
        assert len((await second).items) == 1
        assert world.loop.time() < 1

    run_in_world(story)


def test_items_leased_to_a_consumer_that_left_are_released() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        await caller.put(count=3)
        for step in range(12):
            taking = asyncio.ensure_future(caller.get(count=3))
            await world.pass_s(step / 1000)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            if not taking.cancelled():
                taking.result().give_back()
        await world.pass_s(0.1)
        delivered = await caller.get(count=10)
        assert len(delivered.items) == 3
        assert {seen.row.attempt for seen in delivered.items} == {1}

    run_in_world(story)


def test_ended_lease_returns_the_item_and_counts_the_attempt() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        await caller.put(lease_ms=500)
        first = await caller.one()
        start = world.loop.time()
        second = await caller.one(wait_ms=4_000)
        assert 0.49 < world.loop.time() - start < 0.6
        assert second.row.attempt == 2
        assert second.row.token > first.row.token
        (stale,) = await caller.do(EventKind.ACK, [first])
        assert isinstance(stale, StaleLease)
        assert await caller.do(EventKind.ACK, [second]) == [None]

    run_in_world(story)


def test_late_ack_is_accepted_until_the_item_is_leased_again() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        await caller.put(lease_ms=100)
        seen = await caller.one()
        await world.pass_s(1)
        (late,) = await caller.do(EventKind.NACK, [seen], delay_ms=0)
        assert isinstance(late, StaleLease)
        assert await caller.do(EventKind.ACK, [seen]) == [None]
        assert (await caller.get()).items == []

    run_in_world(story)


def test_extended_lease_lasts_from_the_extension() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        await caller.put(lease_ms=500)
        seen = await caller.one()
        for _ in range(5):
            await world.pass_s(0.4)
            assert await caller.do(EventKind.EXTEND, [seen]) == [None]
        assert (await caller.get()).items == []
        assert (await caller.one(wait_ms=1_000)).row.attempt == 2

    run_in_world(story)


def test_nack_returns_the_item_at_once_later_or_by_backoff() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        await caller.put()
        seen = await caller.one()
        await caller.do(EventKind.NACK, [seen], delay_ms=0, metadata=b"half done")
        seen = await caller.one()
        assert (seen.row.attempt, seen.row.metadata) == (2, b"half done")
        await caller.do(EventKind.NACK, [seen], delay_ms=300)
        start = world.loop.time()
        seen = await caller.one(wait_ms=2_000)
        assert 0.29 < world.loop.time() - start < 0.4
        await caller.do(EventKind.NACK, [seen], jitter=0.0)
        start = world.loop.time()
        seen = await caller.one(wait_ms=2_000)
        assert 0.39 < world.loop.time() - start < 0.5
        assert seen.row.attempt == 4

    run_in_world(story)


def test_released_delivery_does_not_count_as_attempt() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        await caller.put(attempts_max=1)
        for _ in range(3):
            seen = await caller.one()
            assert seen.row.attempt == 1
            assert await caller.do(EventKind.RELEASE, [seen]) == [None]

    run_in_world(story)


def test_item_out_of_attempts_is_dead_until_its_retention_ends() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        await caller.put(attempts_max=2)
        for _ in range(2):
            await caller.do(EventKind.NACK, [await caller.one()], delay_ms=0)
        assert world.rows() == [("t", State.DEAD)]
        stats = await caller.stats()
        assert stats is not None
        assert (stats.ready, stats.dead) == (0, 1)
        await world.pass_s(61)
        assert world.rows() == []
        assert await caller.stats() is None

    run_in_world(story)


def test_at_most_once_item_is_deleted_when_its_lease_ends() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        await caller.put(policy=DeliveryPolicy.AT_MOST_ONCE, lease_ms=100, count=2)
        delivered = await caller.get(count=2)
        await caller.do(EventKind.NACK, delivered.items[:1], delay_ms=0)
        assert len(world.rows()) == 1
        await world.pass_s(0.2)
        assert world.rows() == []

    run_in_world(story)


def test_delayed_item_is_delivered_at_its_time_and_not_before() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1, 2, sweep_interval_ms=10**9)))
        await caller.put("late", delay_ms=2_000)
        await caller.put("later", delay_ms=365 * 86_400_000)
        start = world.loop.time()
        assert (await caller.get("late", wait_ms=1_900)).items == []
        await caller.one("late", wait_ms=4_000)
        assert 1.99 < world.loop.time() - start < 2.1
        await world.pass_s(200 * 86_400)
        assert (await caller.get("later")).items == []
        await world.pass_s(166 * 86_400)
        await caller.one("later")

    run_in_world(story, until_s=400 * 86_400)


def test_item_past_its_ttl_is_not_delivered() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        await caller.put(ttl_ms=500, count=3)
        seen = await caller.one()
        await world.pass_s(1)
        assert (await caller.get()).items == []
        assert len(world.rows()) == 1
        await caller.do(EventKind.RELEASE, [seen])
        assert world.rows() == []

    run_in_world(story)


def test_item_can_be_cancelled_in_any_state() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        ids = [*await caller.put(), *await caller.put(delay_ms=60_000), *await caller.put("leased")]
        leased = await caller.one("leased")
        assert await caller.cancel(*ids) == [None, None, None]
        assert world.rows() == []
        assert await caller.do(EventKind.ACK, [leased]) == [ALREADY_GONE]
        assert (await caller.get()).items == []

    run_in_world(story)


def test_another_namespace_sees_and_changes_nothing() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller, other = Caller(world, engine), Caller(world, engine, "other")
        (name,) = await caller.put()
        assert (await other.get()).items == []
        assert isinstance((await other.cancel(name))[0], NotFound)
        seen = await caller.one()
        for kind in (EventKind.ACK, EventKind.NACK, EventKind.EXTEND, EventKind.RELEASE):
            assert isinstance((await other.do(kind, [seen]))[0], NotFound)
        with pytest.raises(NotFound):
            await other.queue.reads.get_item("other", seen.shard, seen.row.id, world.deadline_in(1))
        with pytest.raises(NamespaceNotFound):
            other.queue.namespace_settings("third")

    run_in_world(story)


def test_unknown_id_is_not_found_and_foreign_shard_is_not_owned() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        (name,) = await caller.put()
        shard, number = parse_id(name, "id")
        events = [
            (shard, Event(EventKind.ACK, number + 5, "default", token=1)),
            (9, Event(EventKind.ACK, number, "default", token=1)),
        ]
        outcomes = await caller.apply(events, 1)
        assert [type(outcome) for outcome in outcomes] == [NotFound, NotOwner]

    run_in_world(story)


def test_topic_is_listed_while_it_holds_an_item() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        for topic in ("b", "a", "c"):
            await caller.put(topic, priority=3)
        await caller.put("deferred", delay_ms=9_000)
        page, cursor = await caller.queue.reads.list_topics("default", "", None, None, 2)
        assert ([stats.topic for stats in page], cursor) == (["a", "b"], "b")
        page, cursor = await caller.queue.reads.list_topics("default", "", None, cursor, 2)
        assert ([stats.topic for stats in page], cursor) == (["c"], None)
        assert page[0].best_priority == 3
        page, _ = await caller.queue.reads.list_topics("default", "", [State.DEFERRED], None, 9)
        assert [stats.topic for stats in page] == ["deferred"]
        await caller.do(EventKind.ACK, [await caller.one("c")])
        page, _ = await caller.queue.reads.list_topics("default", "c", None, None, 2)
        assert page == []

    run_in_world(story)


def test_backlog_larger_than_the_index_is_delivered_in_order() -> None:
    async def story(world: World) -> None:
        caller = Caller(
            world, await world.engine(engine_settings(1, 2, ready_window_items_max=10, ready_index_items_max=40))
        )
        for priority in range(30):
            await caller.put(priority=priority * 7 % 30, count=10)
        got = []
        while delivered := (await caller.get(count=23)).items:
            got += [seen.row.priority for seen in delivered]
            await caller.do(EventKind.ACK, delivered)
        assert got == sorted(got)
        assert len(got) == 300

    run_in_world(story)


def test_dequeue_reply_stays_within_its_limit_of_bytes() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1, 2, delivery_bytes_max=100_000)))
        await caller.put(count=50)
        first = await caller.get(count=50)
        assert 1 < len(first.items) < 10
        assert len((await caller.get(count=1)).items) == 1

    run_in_world(story)


def test_new_owner_recovers_all_items_from_rows() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        await caller.put("ready", 120)
        await caller.put("deferred", delay_ms=3_000)
        await caller.put("leased", lease_ms=2_000)
        leased = await caller.one("leased")
        await engine.abort()
        caller = Caller(world, await world.engine())
        stats = await caller.stats("ready")
        assert stats is not None
        assert stats.counts_lag
        while stats is not None and stats.counts_lag:
            await world.pass_s(0.001)
            stats = await caller.stats("ready")
        assert stats is not None
        assert stats.ready == 120
        got: set[tuple[int, int]] = set()
        while items := (await caller.get("ready", 500)).items:
            got |= {(seen.shard, seen.row.id) for seen in items}
        assert len(got) == 120
        assert await caller.do(EventKind.EXTEND, [leased]) == [None]
        await caller.one("deferred", wait_ms=4_000)
        assert (await caller.one("leased", wait_ms=4_000)).row.attempt == 2

    run_in_world(story)


def test_release_writes_queued_work_and_ends() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        putting = [asyncio.ensure_future(caller.put(count=50)) for _ in range(10)]
        await world.pass_s(0.0001)
        engine.on_release_requested()
        await engine.run()
        await asyncio.gather(*putting)
        assert len(world.rows()) == 500
        with pytest.raises(Unavailable):
            await caller.put()

    run_in_world(story)


def test_replaced_owner_is_fenced_and_names_the_new_owner() -> None:
    async def story(world: World) -> None:
        old = await world.engine()
        await Caller(world, old).put()
        new = await world.engine()
        (error,) = await Caller(world, old).enqueue([new_item()], 5)
        assert isinstance(error, NotOwner)
        with pytest.raises(ShardTakenOver, match="another host"):
            await old.run()
        await old.abort()
        assert len((await Caller(world, new).get(count=9)).items) == 1

    run_in_world(story)


@pytest.mark.parametrize("point", ["begin", "fenced", "read", "written", "committed"])
def test_item_is_written_once_if_the_connection_is_lost_at_any_point(point: str) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        failures = 3

        def fail(at: str) -> None:
            nonlocal failures
            if at == point and failures:
                failures -= 1
                raise StoreLost("the line is cut")

        world.faults = fail
        await caller.put(count=4)
        delivered = await caller.get(count=9)
        assert len(delivered.items) == 4
        assert {seen.row.attempt for seen in delivered.items} == {1}
        await caller.do(EventKind.ACK, delivered.items)
        assert world.rows() == []
        assert failures == 0

    run_in_world(story)


def test_calls_end_by_their_deadline_with_the_known_outcome_while_the_database_is_away() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        world.stall()
        started = asyncio.ensure_future(caller.enqueue([new_item(payload=b"1")], 1))
        await world.pass_s(0.1)
        queued = asyncio.ensure_future(caller.enqueue([new_item(payload=b"2")], 1))
        assert isinstance((await started)[0], UnknownOutcome)
        assert isinstance((await queued)[0], DeadlineExceeded)
        world.resume()
        delivered = await caller.get(count=9, wait_ms=1_000)
        assert [seen.row.payload for seen in delivered.items] == [b"1"]

    run_in_world(story)


def test_bad_row_fails_alone_and_delays_no_ack() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.put("good", 3)
        delivered = await caller.get("good", 3)

        def refuse(writes: Writes) -> str | None:
            return "no such luck" if any(row.payload == b"bad" for row in writes.inserts) else None

        world.database.refuse = refuse
        items = [new_item(payload=b"bad" if n == 5 else b"fine") for n in range(12)]
        putting = asyncio.ensure_future(caller.enqueue(items, 5))
        assert await caller.do(EventKind.ACK, delivered.items) == [None] * 3
        results = await putting
        assert [n for n, result in enumerate(results) if not isinstance(result, str)] == [5]
        assert len(world.rows()) == 11

    run_in_world(story)


def test_full_queue_is_overloaded_and_writes_nothing_of_the_call() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1, queue_items_max=50)))
        world.stall()
        first = asyncio.ensure_future(caller.put(count=20))
        await world.pass_s(0.1)
        second = asyncio.ensure_future(caller.put(count=20))
        await world.pass_s(0.1)
        with pytest.raises(Overloaded):
            await caller.put(count=20)
        world.resume()
        await asyncio.gather(first, second)
        assert len(world.rows()) == 40

    run_in_world(story)


def test_items_that_a_full_queue_refuses_do_not_count_as_accepted_since_the_last_publication() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, queue_items_max=50))
        caller = Caller(world, engine)
        [shard] = engine.shards.values()
        shard.positions = positions = ShardPositions(1, 0)
        positions.publication(0, 0, [])
        positions.on_published()
        world.stall()
        calls: list[asyncio.Future[list[str]]] = []
        for _ in range(2):
            calls.append(asyncio.ensure_future(caller.put(count=20)))
            await world.pass_s(0.1)
        for _ in range(ALLOWANCE_MIN // 20):
            with pytest.raises(Overloaded):
                await caller.put(count=20)
        positions.check(ALLOWANCE_MIN - 40, 0)
        world.resume()
        await asyncio.gather(*calls)

    run_in_world(story)


def test_idle_engine_does_nothing() -> None:
    async def story(world: World) -> int:
        caller = Caller(world, await world.engine(engine_settings(1, 2, sweep_interval_ms=3_600_000)))
        await caller.put(count=100, delay_ms=86_400_000)
        await world.pass_s(1)
        before = world.loop.steps  # type: ignore[attr-defined]
        await world.pass_s(600)
        return int(world.loop.steps - before)  # type: ignore[attr-defined]

    assert run_in_world(story) < 100
