"""The shard clock in an engine: leases and delays when the database's clock jumps, and across takeovers."""

from __future__ import annotations

import pytest

from foqs.core.items.item import TIME_MS_MAX
from foqs.queue.engine import EngineSettings
from foqs.store.in_memory.memory_store import MemoryStore
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import MethodGate, start_task

HOUR_MS = 3_600_000


def _settings(skew_ms: int = 0) -> EngineSettings:
    return engine_settings(1, clock_sample_interval_ms=200, clock_skew_ms_max=skew_ms)


def _step(world: World, ms: int) -> None:
    """Make the database's clock jump."""
    now_ms = world.database.now_ms
    world.database.now_ms = lambda: now_ms() + ms


@pytest.mark.parametrize("hours", [5, -5])
def test_a_lease_and_a_delay_keep_their_length_when_the_database_clock_jumps_by_hours(hours: int) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(_settings()))
        await caller.put("leased", lease_ms=10_000)
        await caller.one("leased")
        await caller.put("delayed", delay_ms=10_000)
        _step(world, hours * HOUR_MS)
        assert (await caller.dequeue([("leased", 1), ("delayed", 1)], wait_ms=9_400, timeout_s=20)).items == []
        for topic in ("leased", "delayed"):
            await caller.one(topic, wait_ms=1_300)

    run_in_world(story)


def test_the_shard_clock_returns_to_the_database_clock() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(_settings())
        _step(world, 1_000)
        await world.pass_s(10)
        assert -600 < engine.shards[1].now_ms() - world.database.now_ms() < -400
        await world.pass_s(12)
        assert abs(engine.shards[1].now_ms() - world.database.now_ms()) <= 5

    run_in_world(story)


@pytest.mark.parametrize("hours", [5, -5])
def test_a_new_owner_continues_the_former_owners_time_not_the_database_clock(hours: int) -> None:
    async def story(world: World) -> None:
        first = await world.engine(_settings())
        caller = Caller(world, first)
        _step(world, hours * HOUR_MS)
        await world.pass_s(1)
        await caller.put("leased", lease_ms=10_000)
        await caller.one("leased")
        was_ms = first.shards[1].now_ms()
        await first.abort()
        second = Caller(world, await world.engine(_settings()))
        assert world.newest is not None
        assert 0 <= world.newest.shards[1].now_ms() - was_ms < 2_000
        assert (await second.get("leased", wait_ms=8_000, timeout_s=20)).items == []
        await second.one("leased", wait_ms=3_000)

    run_in_world(story)


@pytest.mark.parametrize("ahead_ms", [-500, 500])
def test_a_lease_does_not_end_early_when_the_next_owner_finds_another_server(ahead_ms: int) -> None:
    async def story(world: World) -> None:
        first = await world.engine(_settings(500))
        caller = Caller(world, first)
        await caller.put("leased", lease_ms=2_000)
        await caller.one("leased")
        leased_s = world.loop.time()
        await first.abort()
        _step(world, ahead_ms)
        second = Caller(world, await world.engine(_settings(500)))
        await second.one("leased", wait_ms=4_000)
        # The shard clock approaches the other server's clock at its slew rate at most.
        assert 1.89 <= world.loop.time() - leased_s <= 2.7

    run_in_world(story)


def test_a_slow_read_of_the_database_clock_at_a_takeover_ends_no_lease_early_at_the_next_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = MethodGate(monkeypatch, MemoryStore, "now_ms", on_the_way_back=True)
    settings = engine_settings(1, clock_sample_interval_ms=10**9)

    async def story(world: World) -> None:
        gate.close()
        opening = start_task(world.engine(settings))
        await world.until(lambda: gate.held == 1)
        await world.pass_s(5)
        gate.open()
        first = await opening
        caller = Caller(world, first)
        await caller.put("leased", lease_ms=4_000)
        await caller.one("leased")
        await first.abort()
        second = Caller(world, await world.engine(settings))
        assert (await second.get("leased", wait_ms=3_700)).items == []
        await second.one("leased", wait_ms=10_000)

    run_in_world(story)


def test_shard_time_does_not_go_back_when_the_database_clock_does_between_two_owners() -> None:
    async def story(world: World) -> None:
        first = await world.engine(_settings())
        await Caller(world, first).put()
        was_ms = world.database.tables[1].owner.clock_ms
        await first.abort()
        _step(world, -HOUR_MS)
        second = await world.engine(_settings())
        assert 0 <= second.shards[1].now_ms() - was_ms < 1_000

    run_in_world(story)


def test_a_timer_is_not_late_after_the_machine_slept() -> None:
    """The event loop's clock stops during the sleep; the boot-time clock does not."""

    async def story(world: World) -> None:
        caller = Caller(
            world, await world.engine(engine_settings(1, sweep_interval_ms=10**9, clock_sample_interval_ms=200))
        )
        await caller.put("delayed", delay_ms=600_000)
        await world.pass_s(1)
        world.clock.suspend(599_000)
        _step(world, 599_000)
        await caller.one("delayed", wait_ms=1_000)

    run_in_world(story)


def test_an_item_may_wait_until_the_largest_time() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(_settings()))
        await caller.put("last", deliver_after_ms=TIME_MS_MAX)
        await caller.put("longest", delay_ms=TIME_MS_MAX)
        assert (await caller.dequeue([("last", 1), ("longest", 1)], wait_ms=100)).items == []
        (row,) = [row for row in world.database.tables[1].rows.values() if row.topic == "last"]
        assert row.due_ms == row.deliver_after_ms == TIME_MS_MAX
        _step(world, TIME_MS_MAX - world.database.now_ms())
        assert world.newest is not None
        await world.newest.abort()
        later = Caller(world, await world.engine(_settings()))
        for topic in ("last", "longest"):
            await later.one(topic, wait_ms=100)

    run_in_world(story)
