"""The rules of the timers, one test for each: without the rule, its test fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.flush.fence import Fence
from foqs.core.flush.writes import Writes
from foqs.core.items.item import DeliveryPolicy, State
from foqs.core.items.life import EventKind
from foqs.shard.shard import OwnedShard
from foqs.shard.shard_memory import TOPICS_PER_STEP
from foqs.shard.timer_service import LEASE_WALK_TOPICS, SWEEP_PAUSES
from foqs.store.in_memory.memory_store import MemoryReads, MemoryStore
from foqs.store.port import DueRow, StoreLost, WriteRefused
from tests.support.builders import CACHE, engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.inner_parts import store_of, timer_service_of
from tests.support.memory_check import differences

NEVER_MS = 10**9


def _watermark(shard: OwnedShard) -> int:
    found = shard.memory.timers.watermark_ms
    assert found is not None
    return found


def test_items_with_one_due_time_are_found_over_many_pages_by_due_and_id() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, timer_page_items=7, sweep_interval_ms=NEVER_MS))
        caller = Caller(world, engine)
        at_ms = engine.shards[1].now_ms() + 1_000
        await caller.put(count=100, deliver_after_ms=at_ms)
        await world.pass_s(3)
        assert world.rows() == [("t", State.READY)] * 100

    run_in_world(story)


def test_a_scan_reads_nothing_below_the_watermark() -> None:
    """Otherwise index entries that are deleted but not yet purged would be read again and again."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS))
        caller = Caller(world, engine)
        lower_bounds: list[int | None] = []
        due = MemoryStore.due_rows

        async def noted(
            self: MemoryStore, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int
        ) -> list[DueRow]:
            lower_bounds.append(low_ms)
            return await due(self, low_ms, high_ms, after, limit)

        MemoryStore.due_rows = noted  # type: ignore[method-assign]
        try:
            await world.pass_s(1)
            for _ in range(3):
                await caller.put(delay_ms=500)
                await world.pass_s(1)
        finally:
            MemoryStore.due_rows = due  # type: ignore[method-assign]
        assert len(lower_bounds) >= 3
        found = [low_ms for low_ms in lower_bounds if low_ms is not None]
        assert found == lower_bounds
        assert found == sorted(found)
        assert found[0] < found[-1]

    run_in_world(story)


def _add_stale_entry(world: World) -> None:
    """Add a second entry of the row that is due first, just before its own one. Only a bug could leave it."""
    table = world.database.tables[1]
    due_ms, number = min(table.timers)
    table.add_timer((due_ms - 1, number))


def test_a_stale_entry_beside_the_rows_own_one_delivers_no_item_twice() -> None:
    """There is no room in the row cache, and a consumer waits: the first event leases the item."""

    async def story(world: World) -> None:
        cache = replace(CACHE, written_items_max=0)
        engine = await world.counted_engine(engine_settings(1, sweep_interval_ms=NEVER_MS, cache=cache))
        caller = Caller(world, engine)
        await caller.put(delay_ms=2_000, policy=DeliveryPolicy.AT_MOST_ONCE)
        await caller.put("other", delay_ms=3_600_000)
        _add_stale_entry(world)
        assert len((await caller.get(wait_ms=4_000, timeout_s=6)).items) == 1
        await world.pass_s(0.5)
        assert (await caller.get()).items == []

    run_in_world(story)


@pytest.mark.parametrize("changes", [{"ttl_ms": 2_000}, {"delay_ms": 2_000}])
def test_a_stale_entry_beside_the_rows_own_one_leaves_the_counts_exact(changes: dict[str, Any]) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(engine_settings(1, sweep_interval_ms=NEVER_MS))
        shard, caller = engine.shards[1], Caller(world, engine)
        await caller.put(**changes)
        await caller.put("other", delay_ms=3_600_000)
        _add_stale_entry(world)
        await world.pass_s(1)
        shard.memory.cache.clear()
        await world.pass_s(4)
        assert differences(shard, world.database.tables[1]) == []

    run_in_world(story)


def test_the_search_for_the_next_due_ends_at_the_next_remembered_due_or_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would walk over the deleted entries of the TTLs of items that were acked lately."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS))
        shard, caller = engine.shards[1], Caller(world, engine)
        found: list[tuple[int, int]] = []
        next_due = MemoryStore.next_due_ms

        async def noted(self: MemoryStore, above_ms: int, below_ms: int) -> int | None:
            found.append((above_ms, below_ms))
            return await next_due(self, above_ms, below_ms)

        await world.pass_s(1)
        monkeypatch.setattr(MemoryStore, "next_due_ms", noted)
        await caller.put("leased", ttl_ms=30_000)
        leased_ms = shard.now_ms()
        assert await caller.do(EventKind.ACK, [await caller.one("leased")]) == [None]
        await caller.put("delayed", delay_ms=500)
        await world.pass_s(2)
        ((above_ms, below_ms),) = found
        assert above_ms < leased_ms + 29_000 < below_ms <= shard.now_ms() + 30_000
        await world.pass_s(60)
        (_, second) = found
        assert second == (second[0], second[0] + NEVER_MS)

    run_in_world(story)


def test_a_sweep_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=20_000))
        due_rows, failures = MemoryReads.due_rows, iter((StoreLost("a bad line"),))

        async def fail_once(
            self: MemoryReads, committed: Fence, high_ms: int, after: DueRow | None, limit: int
        ) -> list[DueRow]:
            for failure in failures:
                raise failure
            return await due_rows(self, committed, high_ms, after, limit)

        monkeypatch.setattr(MemoryReads, "due_rows", fail_once)
        timers = engine.shards[1].memory.timers
        await world.pass_s(1)
        first_ms = timers.last_sweep_ms
        await world.pass_s(22)
        assert timers.last_sweep_ms == first_ms
        await world.pass_s(20)
        assert timers.last_sweep_ms is not None
        assert first_ms is not None
        assert timers.last_sweep_ms > first_ms

    run_in_world(story)


def test_the_watermark_waits_for_refused_rows_which_delay_no_others() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS, retry_ms_max=200))
        shard, caller = engine.shards[1], Caller(world, engine)
        (bad,) = await caller.put("bad", delay_ms=500)
        await caller.put("good", count=3, delay_ms=500)
        number = int(bad.partition("-")[2])

        def refuse(writes: Writes) -> str | None:
            touched = {row.id for row in writes.updates} | {id_ for lease in writes.leases for id_ in lease.ids}
            return "a bad row" if number in touched else None

        world.database.refuse = refuse
        before = _watermark(shard)
        await world.pass_s(2)
        assert world.rows() == [("bad", State.DEFERRED), *[("good", State.READY)] * 3]
        assert _watermark(shard) == before
        world.database.refuse = lambda writes: None
        await caller.one("bad", wait_ms=1_000)
        await world.pass_s(0.1)
        assert _watermark(shard) > before

    run_in_world(story)


def test_a_due_row_below_the_watermark_is_found_by_the_sweep() -> None:
    """A bug could leave such a row: it is late, not lost."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=20_000))
        shard, caller = engine.shards[1], Caller(world, engine)
        await caller.put("lost", delay_ms=3_600_000)
        await world.pass_s(1)
        table = world.database.tables[1]
        (row,) = table.rows.values()
        lost_ms = _watermark(shard) - 1
        (entry,) = table.timers
        table.put(replace(row, due_ms=lost_ms, deliver_after_ms=lost_ms))
        table.remove_timer(entry)
        table.add_timer((lost_ms, row.id))
        shard.memory.cache.clear()
        await caller.put("other", delay_ms=100)
        await caller.one("other", wait_ms=1_000)
        assert (await caller.get("lost")).items == []
        await world.pass_s(21)
        await caller.one("lost")

    run_in_world(story)


def test_a_sweep_that_hangs_delays_no_check_of_the_ownership(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a snapshot held, a sweep may take hours. An idle host must learn meanwhile that it was replaced."""

    async def story(world: World) -> None:
        first = await world.engine(engine_settings(1, sweep_interval_ms=20_000))
        await world.pass_s(1)

        async def hang(self: MemoryReads, *_: object) -> list[DueRow]:
            await world.loop.create_future()
            return []

        monkeypatch.setattr(MemoryReads, "due_rows", hang)
        await world.pass_s(25)
        await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS))
        assert 1 in first.shards
        await world.pass_s(25)
        assert 1 not in first.shards

    run_in_world(story)


def test_sweeps_that_take_long_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a held snapshot each sweep takes longer than the one before. All of them take a hundredth of the time."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=20_000))
        due_rows, durations_s = MemoryReads.due_rows, [0.0, 2.0, 0.1, 0.1]
        begun_s: list[int] = []

        async def slow(self: MemoryReads, *arguments: Any) -> list[DueRow]:
            begun_s.append(round(world.loop.time()))
            await asyncio.sleep(durations_s[len(begun_s) - 1])
            return await due_rows(self, *arguments)

        monkeypatch.setattr(MemoryReads, "due_rows", slow)
        await world.pass_s(265)
        first, second, third, *rest = begun_s
        assert (second - first, third - second, rest) == (20, 2 + 2 * SWEEP_PAUSES, [third + 20])
        assert engine.shards[1].memory.timers.last_sweep_ms is not None

    run_in_world(story)


def test_a_sweep_with_refused_rows_is_not_complete() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=20_000))
        shard, caller = engine.shards[1], Caller(world, engine)
        await caller.put("lost", delay_ms=3_600_000)
        await world.pass_s(1)
        table = world.database.tables[1]
        (row,) = table.rows.values()
        lost_ms = _watermark(shard) - 1
        (entry,) = table.timers
        table.put(replace(row, due_ms=lost_ms, deliver_after_ms=lost_ms))
        table.remove_timer(entry)
        table.add_timer((lost_ms, row.id))
        shard.memory.cache.clear()
        world.database.refuse = lambda writes: "a bad row" if writes.updates else None
        swept_ms = shard.memory.timers.last_sweep_ms
        await world.pass_s(21)
        assert shard.memory.timers.last_sweep_ms == swept_ms
        world.database.refuse = lambda writes: None
        await world.pass_s(20)
        assert shard.memory.timers.last_sweep_ms != swept_ms
        await caller.one("lost")

    run_in_world(story)


def test_rows_due_at_a_takeover_are_found_by_the_new_owners_first_scan() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, sweep_interval_ms=NEVER_MS)
        first = await world.engine(settings)
        caller = Caller(world, first)
        await caller.put("leased", lease_ms=500)
        await caller.one("leased")
        await caller.put("delayed", delay_ms=500)
        await first.abort()
        await world.pass_s(2)
        second = Caller(world, await world.engine(settings))
        for topic in ("leased", "delayed"):
            await second.one(topic, wait_ms=500)

    run_in_world(story)


def test_a_due_row_with_an_ack_under_way_is_decided_after_the_ack() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS))
        caller = Caller(world, engine)
        await caller.put(lease_ms=300)
        seen = await caller.one()
        world.stall()
        world.loop.call_later(0.6, world.resume)
        (outcome,) = await caller.do(EventKind.ACK, [seen])
        assert outcome is None
        await world.pass_s(2)
        assert world.rows() == []
        assert (await caller.get()).items == []

    run_in_world(story)


def test_an_expired_item_is_deleted_without_a_dequeue() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS))
        caller = Caller(world, engine)
        await caller.put("ready", ttl_ms=500)
        await caller.put("deferred", ttl_ms=500, delay_ms=3_600_000)
        await caller.put("leased", ttl_ms=500, lease_ms=1_500)
        (held,) = (await caller.get("leased")).items
        await world.pass_s(1)
        assert world.rows() == [("leased", State.LEASED)]
        await world.pass_s(1)
        assert world.rows() == []
        assert held.row.attempt == 1

    run_in_world(story)


def test_dead_items_are_deleted_when_their_retention_ends() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS))
        caller = Caller(world, engine)
        await caller.put()
        await caller.do(EventKind.NACK, [await caller.one()], dead=True)
        await world.pass_s(58)
        assert world.rows() == [("t", State.DEAD)]
        await world.pass_s(3)
        assert world.rows() == []

    run_in_world(story)


def test_a_scan_finds_its_rows_again_when_their_flush_was_refused() -> None:
    """The flush of a scan is refused three times."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS))
        caller = Caller(world, engine)
        await caller.put(delay_ms=500)
        refusals = 3

        def fault(point: str) -> None:
            nonlocal refusals
            if point == "written" and refusals:
                refusals -= 1
                raise WriteRefused("a deadlock", is_retryable=True)

        world.faults = fault
        await caller.one(wait_ms=5_000)
        assert refusals == 0

    run_in_world(story)


def test_leases_of_an_earlier_owner_end_in_time_for_the_next_one() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, sweep_interval_ms=NEVER_MS, clock_skew_ms_max=0)
        first = await world.engine(settings)
        caller = Caller(world, first)
        for number in range(130):
            await caller.put(f"t{number % 120}", lease_ms=20_000)
            await caller.one(f"t{number % 120}")
        await first.abort()
        await world.pass_s(1)
        await world.engine(settings)
        await world.pass_s(15)
        assert {state for _, state in world.rows()} == {State.LEASED}
        await world.pass_s(5)
        assert [state for _, state in world.rows()] == [State.READY] * 130

    run_in_world(story)


def test_a_walk_inspects_the_topics_in_steps_and_reads_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS))
        shard = engine.shards[1]
        await world.until(lambda: not shard.counts.is_lagging)
        topics = [("default", f"t{number}") for number in range(3 * TOPICS_PER_STEP)]
        for _ in shard.memory.recover(topics, (), ()):
            pass
        found: list[int] = []
        for step in shard.memory.topics_with_leases():
            found.append(len(step))
            if len(found) == 1:
                for topic in topics:
                    shard.counts.add(topic, State.LEASED, 1)
        assert found == [0, TOPICS_PER_STEP, TOPICS_PER_STEP]
        for topic in topics[250:]:
            shard.counts.add(topic, State.LEASED, -1)
        read: list[int] = []
        leases_of = MemoryReads.leases_of

        async def noted(self: MemoryReads, committed: Fence, topics: Any, limit: int) -> Any:
            read.append(len(topics))
            return await leases_of(self, committed, topics, limit)

        monkeypatch.setattr(MemoryReads, "leases_of", noted)
        await timer_service_of(shard)._walk_leases(store_of(shard).reads())
        assert read == [LEASE_WALK_TOPICS, LEASE_WALK_TOPICS, 50]

    run_in_world(story)


def test_leases_for_which_there_is_no_room_end_in_time() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS, lease_ranges_max=64))
        caller = Caller(world, engine)
        leases = engine.shards[1].memory.timers.leases
        walks_before = leases.lease_walk_count
        for number in range(60):
            await caller.put(f"t{number}", lease_ms=1_000 + 200 * number)
            await caller.one(f"t{number}")
        start_s = world.loop.time()
        for second in range(14):
            await world.pass_s(start_s + second - world.loop.time())
            ended = sum(state is State.READY for _, state in world.rows())
            assert abs(ended - 5 * (second - 1)) <= 8 or ended in (0, 60), (second, ended)
        assert [state for _, state in world.rows()] == [State.READY] * 60
        assert 2 <= leases.lease_walk_count - walks_before <= 60

    run_in_world(story)


def test_a_look_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS, retry_ms_max=200))
        caller = Caller(world, engine)
        leases_in, failures = MemoryReads.leases_in, iter((StoreLost("a bad line"), StoreLost("again")))

        async def fail_twice(self: MemoryReads, *arguments: Any) -> list[DueRow]:
            for failure in failures:
                raise failure
            return await leases_in(self, *arguments)

        monkeypatch.setattr(MemoryReads, "leases_in", fail_twice)
        await caller.put(lease_ms=500)
        await caller.one()
        before = _watermark(engine.shards[1])
        await world.pass_s(0.6)
        assert world.rows() == [("t", State.LEASED)]
        assert before <= _watermark(engine.shards[1]) < engine.shards[1].now_ms()
        await world.pass_s(0.6)
        assert world.rows() == [("t", State.READY)]

    run_in_world(story)


def test_a_look_whose_connection_was_closed_is_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server closes connections that are idle for its `wait_timeout`."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS, retry_ms_max=10_000))
        caller = Caller(world, engine)
        leases_in, failures = MemoryReads.leases_in, iter((StoreLost("the server closed the connection"),))

        async def fail_once(self: MemoryReads, *arguments: Any) -> list[DueRow]:
            for failure in failures:
                raise failure
            return await leases_in(self, *arguments)

        monkeypatch.setattr(MemoryReads, "leases_in", fail_once)
        await caller.put(lease_ms=500)
        await caller.one()
        await world.pass_s(0.6)
        assert world.rows() == [("t", State.READY)]

    run_in_world(story)


def test_a_look_that_hangs_delays_no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS))
        shard, caller = engine.shards[1], Caller(world, engine)

        async def hang(self: MemoryReads, *_: object) -> list[DueRow]:
            await world.loop.create_future()
            return []

        monkeypatch.setattr(MemoryReads, "leases_in", hang)
        await caller.put("leased", lease_ms=500)
        await caller.one("leased")
        (leased,) = world.database.tables[1].rows.values()
        await world.pass_s(1)
        await caller.put("delayed", delay_ms=500)
        await world.pass_s(1)
        assert ("delayed", State.READY) in world.rows()
        assert _watermark(shard) == leased.due_ms

    run_in_world(story)


def test_a_look_reads_no_row_that_was_acked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=NEVER_MS))
        caller = Caller(world, engine)
        looks: list[Any] = []
        leases_in = MemoryReads.leases_in

        async def noted(self: MemoryReads, committed: Fence, ranges: Any, last_ms: int) -> list[DueRow]:
            looks.append(ranges)
            return await leases_in(self, committed, ranges, last_ms)

        monkeypatch.setattr(MemoryReads, "leases_in", noted)
        await caller.put(count=50, lease_ms=3_000)
        found = (await caller.get(count=50)).items
        numbers = [item.row.id for item in found]
        assert await caller.do(EventKind.ACK, found[:20] + found[30:]) == [None] * 40
        await world.pass_s(2)
        assert await caller.do(EventKind.ACK, found[20:29]) == [None] * 9
        await world.pass_s(10)
        assert looks == [[(numbers[29], numbers[29])]]
        assert engine.shards[1].memory.timers.leases.cost == 0

    run_in_world(story)


def test_a_lost_lease_is_found_by_the_sweep() -> None:
    """A bug could forget it: it ends late, and is not lost."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=20_000))
        shard, caller = engine.shards[1], Caller(world, engine)
        await world.pass_s(1)
        await caller.put(lease_ms=2_000)
        lost = await caller.one()
        shard.memory.timers.leases.on_deleted([lost.row.id])
        await world.pass_s(10)
        assert world.rows() == [("t", State.LEASED)]
        await caller.put("other", delay_ms=100)
        await world.pass_s(11)
        assert ("t", State.READY) in world.rows()
        assert all("is forgotten" in broken for broken in world.broken)
        assert world.broken
        world.broken.clear()

    run_in_world(story)
