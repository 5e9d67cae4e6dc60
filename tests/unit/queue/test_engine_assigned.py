"""An engine in a cluster: shards are assigned, released and dropped, also while calls are in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from foqs.catalog.administration import Administration
from foqs.catalog.key_slot_sync import KeySlotSync
from foqs.core.items.item import State, format_id, parse_id
from foqs.core.items.life import EventKind
from foqs.queue.engine import Engine
from foqs.queue.placement import ROTATION_S
from foqs.shard.observer import NullObserver
from foqs.store.in_memory.memory_store import MemoryReads, MemoryStore
from foqs.store.port import Store, StoreUnusable
from foqs_contract.errors import NotOwner, Unavailable, UnknownOutcome
from shardmgr.primary import Primary
from tests.support.builders import engine_settings, new_item
from tests.support.engines import Caller, World, make_engine, run_in_world, tier_of
from tests.support.inner_parts import store_of, writer_of
from tests.support.memory_check import is_at_rest
from tests.support.method_gate import MethodGate, closed
from tests.support.scripted_coordinator import ScriptedCoordinator


async def joined_engine(world: World, plan: dict[int, int], nonce: str = "first") -> tuple[Engine, ScriptedCoordinator]:
    """Start an engine that serves its assigned shards."""
    engine, coordinator = await started_engine(world, plan, nonce)
    engine.on_resumed()
    for shard in plan:
        engine.on_assigned(shard, "main")
    await world.until(lambda: engine.is_ready and len(engine.shards) == len(plan))
    await world.until(lambda: all(map(is_at_rest, engine.shards.values())))
    return engine, coordinator


async def started_engine(
    world: World, plan: dict[int, int], nonce: str = "first"
) -> tuple[Engine, ScriptedCoordinator]:
    """Start an engine of a tier whose shards are not known."""
    coordinator = ScriptedCoordinator(dict(plan))

    def open_store(shard: int, database: str, primary: Primary | None) -> Store:
        if database not in ("main", "other"):
            raise StoreUnusable(f"there is no database {database!r} in this host's configuration")
        return world.database.store(shard, lambda point: world.faults(point))

    settings = engine_settings(alone=False)
    engine = make_engine(
        settings, open_store, coordinator, world.catalog, world.clock, world.rng, NullObserver(), nonce, ()
    )
    await engine.open()
    engine.start()
    return engine, coordinator


def kinds(results: Sequence[object]) -> list[type]:
    return [type(result) for result in results]


def test_shard_is_served_from_its_assignment_to_its_release() -> None:
    async def story(world: World) -> None:
        engine, coordinator = await joined_engine(world, {3: 7})
        caller = Caller(world, engine)
        [item] = await caller.put()
        assert item.startswith("3-")
        assert world.database.tables[3].owner.epoch == 7
        engine.on_release_requested(3)
        engine.on_release_requested(3)
        with pytest.raises(Unavailable):
            await caller.put()
        await world.until(lambda: coordinator.states(3)[-1] == "free")
        assert coordinator.states(3) == ["acquiring", "recovering", "owned", "draining", "free"]
        assert engine.is_ready
        assert engine.not_ready_reasons() == {}
        engine.on_dropped(3)
        [outcome] = await caller.cancel(item)
        assert isinstance(outcome, NotOwner)
        assert engine.queue.shard_statuses() == []

    run_in_world(story)


def test_queued_work_is_written_when_a_shard_is_released() -> None:
    async def story(world: World) -> None:
        engine, coordinator = await joined_engine(world, {1: 1})
        world.stall()
        calls = [asyncio.ensure_future(Caller(world, engine).enqueue([new_item()], 9)) for _ in range(2)]
        await world.pass_s(0.1)
        engine.on_release_requested(1)
        await world.pass_s(0.1)
        assert coordinator.states(1)[-1] == "draining"
        world.resume()
        assert [kinds(await call) for call in calls] == [[str], [str]]
        await world.until(lambda: coordinator.states(1)[-1] == "free")

    run_in_world(story)


def test_release_does_not_wait_for_all_due_items(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine, coordinator = await joined_engine(world, {1: 1})
        caller = Caller(world, engine)
        await caller.put(count=1_000, delay_ms=1_000)
        await caller.put("purged", 1_000)
        flush = MemoryStore.flush

        async def slow(self: MemoryStore, *arguments: Any) -> None:
            await asyncio.sleep(0.1)
            await flush(self, *arguments)

        monkeypatch.setattr(MemoryStore, "flush", slow)
        await caller.queue.bulk.purge_topic("default", "purged", world.deadline_in(5))
        await world.pass_s(1.2)
        engine.on_release_requested(1)
        begun_s = world.loop.time()
        await world.until(lambda: coordinator.states(1)[-1] == "free", within_s=30)
        assert world.loop.time() - begun_s < 0.5
        assert len(world.database.tables[1].rows) > 800

    run_in_world(story)


def test_dropped_shard_replies_at_once_unknown_for_its_flush_and_not_owner_for_queued_calls() -> None:
    async def story(world: World) -> None:
        engine, _ = await joined_engine(world, {1: 1})
        caller = Caller(world, engine)
        world.stall()
        started_call = asyncio.ensure_future(caller.enqueue([new_item()], 9))
        await world.pass_s(0.1)
        queued = asyncio.ensure_future(caller.enqueue([new_item()], 9))
        await world.pass_s(0.1)
        at = world.loop.time()
        engine.on_dropped(1)
        assert kinds([*await started_call, *await queued]) == [UnknownOutcome, NotOwner]
        assert world.loop.time() == at
        world.resume()
        await world.pass_s(1)
        assert len(world.rows()) <= 1

    run_in_world(story)


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.1])
def test_dropped_shard_delivers_nothing(after_s: float) -> None:
    async def story(world: World) -> None:
        engine, _ = await joined_engine(world, {1: 1, 2: 1})
        caller = Caller(world, engine)
        await caller.put(count=4)
        world.database.tables[2].rows.clear()
        got = asyncio.ensure_future(caller.get(count=9, wait_ms=500))
        await world.pass_s(after_s)
        delivered = got.done()
        engine.on_dropped(1)
        items = (await got).items
        assert delivered or [seen.shard for seen in items if seen.shard == 1] == []

    run_in_world(story)


def test_dequeue_from_two_shards_replies_without_the_dropped_one() -> None:
    async def story(world: World) -> None:
        engine, _ = await joined_engine(world, {1: 1, 2: 1})
        caller = Caller(world, engine)
        await world.until(lambda: not any(shard.counts.is_lagging for shard in engine.shards.values()))
        ids = await caller.put()
        await world.pass_s(ROTATION_S)
        ids += await caller.put()
        assert {parse_id(each, "id")[0] for each in ids} == {1, 2}
        slow = asyncio.Event()
        store = store_of(engine.shards[2])
        assert isinstance(store, MemoryStore)
        flush = store.flush

        async def late(*arguments: object) -> None:
            await slow.wait()
            await flush(*arguments)  # type: ignore[arg-type]

        store.flush = late  # type: ignore[assignment,method-assign]
        got = asyncio.ensure_future(caller.get(count=9))
        await world.until(lambda: ("t", State.LEASED) in world.rows())
        await world.pass_s(0.05)
        engine.on_dropped(1)
        slow.set()
        assert [seen.shard for seen in (await got).items] == [2]

    run_in_world(story)


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.0015, 0.0025, 0.0035, 0.0045, 0.1])
def test_shard_dropped_at_any_moment_can_be_assigned_again_at_once(after_s: float) -> None:
    async def story(world: World) -> None:
        engine, coordinator = await started_engine(world, {1: 1})
        engine.on_resumed()
        engine.on_assigned(1, "main")
        await world.pass_s(after_s)
        engine.on_dropped(1)
        assert engine.queue.shard_statuses() == []
        coordinator.assign(1, 2)
        engine.on_assigned(1, "main")
        await world.until(lambda: engine.is_ready)
        await Caller(world, engine).put()
        assert world.database.tables[1].owner.epoch == 2

    run_in_world(story)


def test_shard_taken_over_by_another_host_waits_for_the_plan() -> None:
    async def story(world: World) -> None:
        engine, coordinator = await joined_engine(world, {1: 1})
        other, _ = await joined_engine(world, {1: 5}, "second")
        caller = Caller(world, engine)
        shard = engine.shards.get(1)
        if shard is not None:
            writer_of(shard).request_flush()
        await world.until(lambda: coordinator.wanted == {1: 1})
        [status] = engine.queue.shard_statuses()
        assert status.state == "acquiring"
        assert status.reason
        await world.pass_s(60)
        await Caller(world, other).put()
        coordinator.assign(1, 3)
        await world.until(lambda: coordinator.wanted == {1: 5})
        coordinator.assign(1, 6)
        await world.until(lambda: engine.is_ready)
        await caller.put()

    run_in_world(story)


def test_release_does_not_wait_for_an_epoch_that_is_not_planned() -> None:
    async def story(world: World) -> None:
        engine, coordinator = await started_engine(world, {})
        engine.on_assigned(1, "main")
        await world.until(lambda: coordinator.wanted == {1: 0})
        engine.on_release_requested(1)
        await world.until(lambda: coordinator.states(1)[-1] == "free", within_s=0.1)

    run_in_world(story)


def test_key_slots_are_checked_only_when_the_shards_of_the_tier_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        sharing = {1, 2}
        engine = await world.engine(sharing=sharing)
        engine.on_view_changed()
        checks: list[KeySlotSync] = []
        monkeypatch.setattr(KeySlotSync, "on_change", lambda slots: checks.append(slots))
        engine.on_view_changed()
        assert checks == []
        sharing.add(3)
        engine.on_view_changed()
        assert len(checks) == 1

    run_in_world(story)


def test_shards_of_different_databases_are_counted_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine, _ = await started_engine(world, {1: 1, 2: 1, 3: 1})
        counting = MethodGate(monkeypatch, MemoryReads, "counts", on_the_way_back=False)
        with closed(counting):
            for shard, database in ((1, "main"), (2, "main"), (3, "other")):
                engine.on_assigned(shard, database)
            await world.until(lambda: len(engine.shards) == 3)
            await world.pass_s(5)
            assert counting.held == 2
            assert [shard.counts.is_lagging for shard in engine.shards.values()] == [True] * 3
        await world.until(lambda: not any(shard.counts.is_lagging for shard in engine.shards.values()))

    run_in_world(story)


def test_missing_database_is_reported_and_does_not_stop_the_host() -> None:
    async def story(world: World) -> None:
        engine, _ = await joined_engine(world, {1: 1})
        engine.on_assigned(2, "elsewhere")
        await world.pass_s(10)
        status = engine.queue.shard_statuses()[1]
        assert (status.state, status.reason) == (
            "acquiring",
            "there is no database 'elsewhere' in this host's configuration",
        )
        assert not engine.is_ready
        assert list(engine.not_ready_reasons()) == ["shard 2"]
        await Caller(world, engine).put()
        engine.on_release_requested(2)
        await world.until(lambda: engine.is_ready, within_s=0.1)

    run_in_world(story)


@pytest.mark.parametrize("where", [(MemoryStore, "take_over"), (MemoryStore, "topics"), (KeySlotSync, "on_change")])
def test_unexpected_error_in_a_takeover_affects_only_its_shard(
    where: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        engine, coordinator = await joined_engine(world, {1: 1, 2: 1})
        engine.on_release_requested(2)
        await world.until(lambda: 2 not in engine.shards)
        engine.on_dropped(2)
        kind, name = where
        failures = 3
        original = getattr(kind, name)

        def fails(self: Any, *arguments: Any) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise IndexError("no such row")
            return original(self, *arguments)

        monkeypatch.setattr(kind, name, fails)
        engine.on_assigned(2, "main")
        await world.until(lambda: failures < 3)
        assert "no such row" in str(engine.not_ready_reasons())
        await Caller(world, engine).put()
        for epoch in (2, 3, 4):  # each failed takeover needs a higher epoch
            await world.pass_s(5)
            coordinator.assign(2, epoch)
        await world.until(lambda: engine.is_ready)
        assert sorted(engine.shards) == [1, 2]
        assert not engine._stopped.done()
        await world.until(lambda: all(map(is_at_rest, engine.shards.values())))

    run_in_world(story)


def test_other_callers_get_their_errors_if_a_callback_fails() -> None:
    async def story(world: World) -> None:
        engine, _ = await joined_engine(world, {1: 1})
        shard = engine.shards[1]

        def breaks(results: Any) -> None:
            raise RuntimeError("a fault of ours")

        world.stall()
        engine.queue.enqueue("default", [new_item()], world.deadline_in(9), breaks)
        await world.pass_s(0.1)
        queued = [asyncio.ensure_future(Caller(world, engine).enqueue([new_item()], 9)) for _ in range(2)]
        await world.pass_s(0.1)
        engine.queue.enqueue("default", [new_item()], world.deadline_in(9), breaks)
        queued.append(asyncio.ensure_future(Caller(world, engine).enqueue([new_item()], 9)))
        await world.pass_s(0.1)
        engine.on_dropped(1)
        async with asyncio.timeout(0.1):
            assert [kinds(await call) for call in queued] == 3 * [[NotOwner]]
        world.resume()
        await world.until(lambda: not engine._supervisor_tasks)
        assert not shard.is_serving
        assert engine.not_ready_reasons() == {}

    run_in_world(story)


def test_failed_background_task_is_logged_and_restarted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = 1
    original = Administration.change

    async def fails(self: Administration, *arguments: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("nobody foresaw this")
        return await original(self, *arguments)

    async def story(world: World) -> None:
        monkeypatch.setattr(Administration, "change", fails)
        engine = await world.engine(engine_settings(1, 2))
        assert failures == 0
        assert all(shard.key_slots for shard in engine.shards.values())

    run_in_world(story)
    [logged] = [record for record in caplog.records if "restarting it" in record.message]
    assert "KeySlotSync.run" in logged.message
    assert "nobody foresaw this" in str(logged.exc_info)


def test_engine_ends_when_all_shards_are_released_and_at_once_without_shards() -> None:
    async def story(world: World) -> None:
        for plan in ({}, {1: 1, 2: 1}):
            engine, _ = await joined_engine(world, plan)
            running = asyncio.ensure_future(engine.run())
            await world.pass_s(1)
            assert not running.done()
            engine.on_release_requested()
            engine.on_assigned(9, "main")
            async with asyncio.timeout(1):
                await running
            assert 9 not in world.database.tables

    run_in_world(story)


def test_suspended_host_delivers_nothing_but_accepts_items() -> None:
    async def story(world: World) -> None:
        engine, _ = await joined_engine(world, {1: 1})
        caller = Caller(world, engine)
        await caller.put(count=2)
        first = await caller.one()
        poll = asyncio.ensure_future(caller.get("u", wait_ms=4_000))
        short = asyncio.ensure_future(caller.get("u", wait_ms=300))
        await world.pass_s(0.1)
        engine.on_suspended()
        assert not engine.is_ready
        assert (await caller.get()).items == []
        await caller.put("u")
        assert kinds(await caller.do(EventKind.ACK, [first])) != [NotOwner]
        assert (await short).items == []
        await world.pass_s(1)
        assert not poll.done()
        assert world.rows() == [("t", State.READY), ("u", State.READY)]
        [second] = [row.id for row in world.database.tables[1].rows.values() if row.topic == "t"]
        explanation = await engine.queue.reads.explain("default", 1, second, world.deadline_in(1))
        assert any("delivers nothing" in reason for reason in explanation.reasons)
        engine.on_resumed()
        assert len((await poll).items) == 1
        assert len((await caller.get()).items) == 1
        explanation = await engine.queue.reads.explain("default", 1, second, world.deadline_in(1))
        assert not any("delivers nothing" in reason for reason in explanation.reasons)

    run_in_world(story)


def test_host_delivers_nothing_before_it_has_joined() -> None:
    async def story(world: World) -> None:
        engine, _ = await started_engine(world, {1: 1})
        engine.on_assigned(1, "main")
        await world.until(lambda: engine.not_ready_reasons() == {"shard 1": "acquiring"})
        await world.until(lambda: 1 in engine.shards)
        caller = Caller(world, engine)
        await caller.put()
        assert (await caller.get()).items == []
        assert not engine.became_ready.is_set()
        engine.on_resumed()
        assert engine.became_ready.is_set()
        assert len((await caller.get()).items) == 1

    run_in_world(story)


def test_not_owner_error_names_the_address_of_the_owner() -> None:
    async def story(world: World) -> None:
        engine, _ = await joined_engine(world, {1: 1})
        tier_of(engine).owners = {2: ("10.0.0.2", 7411)}
        caller = Caller(world, engine)
        owners = [
            outcome.owner
            for outcome in await caller.cancel(format_id(2, 1 << 50 | 1), format_id(3, 1 << 50 | 1))
            if isinstance(outcome, NotOwner)
        ]
        assert owners == [("10.0.0.2", 7411), None]
        with pytest.raises(NotOwner) as explanation:
            await engine.queue.reads.explain("default", 2, 5, world.deadline_in(1))
        assert explanation.value.owner == ("10.0.0.2", 7411)

    run_in_world(story)
