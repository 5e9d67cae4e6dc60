"""Updates of stored items: new priorities and delays, and how memory follows them."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.items.item import State, parse_id
from foqs.core.items.life import Event, EventKind
from foqs.queue.port import Outcome
from foqs.shard.observer import NullObserver
from foqs.store.in_memory.memory_store import MemoryReads, MemoryStore
from foqs_contract.errors import InvalidArgument, NotFound
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import MethodGate, closed, restarted, start_task, wait_until_idle


async def change(caller: Caller, *ids: str, kind: EventKind = EventKind.UPDATE, **changes: Any) -> list[Outcome]:
    named = [parse_id(name, "id") for name in ids]
    return await caller.apply([(shard, Event(kind, number, caller.namespace, **changes)) for shard, number in named])


def test_item_is_delivered_by_its_new_priority() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        first, second, third = await caller.put(count=3)
        assert await change(caller, third, priority=-1) == [None]
        assert await change(caller, first, priority=1) == [None]
        await wait_until_idle(world, engine)
        ids = [f"{seen.shard}-{seen.row.id}" for seen in (await caller.get(count=3)).items]
        assert ids == [third, second, first]

    run_in_world(story)


def test_delay_defers_a_ready_item_and_no_delay_makes_a_deferred_one_ready() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put()
        assert await change(caller, name, delay_ms=60_000) == [None]
        await wait_until_idle(world, engine)
        assert (await caller.get()).items == []
        assert world.rows() == [("t", State.DEFERRED)]
        waiting = start_task(caller.one(wait_ms=50_000))
        await world.pass_s(1)
        assert await change(caller, name, delay_ms=0) == [None]
        assert (await waiting).row.attempt == 1
        assert world.clock.wall_ms() - (await waiting).now_ms < 1_000

    run_in_world(story)


def test_delay_ends_on_time() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put(delay_ms=3_600_000)
        await world.pass_s(1)
        started = world.loop.time()
        assert await change(caller, name, delay_ms=2_000) == [None]
        await caller.one(wait_ms=50_000)
        assert 2.0 <= world.loop.time() - started < 2.1

    run_in_world(story)


def test_ready_item_updated_to_now_keeps_its_place() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        (first,) = await caller.put()
        await world.pass_s(1)
        await caller.put()
        assert await change(caller, first, delay_ms=0, metadata=b"new") == [None]
        seen = await caller.one()
        assert (f"{seen.shard}-{seen.row.id}", seen.row.metadata) == (first, b"new")

    run_in_world(story)


def test_update_of_a_leased_item_changes_metadata_and_keeps_the_lease() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put(metadata=b"old")
        seen = await caller.one()
        assert await change(caller, name, metadata=b"new", priority=4) == [None]
        [refused] = await change(caller, name, delay_ms=5)
        assert isinstance(refused, InvalidArgument)
        assert refused.field == "change.delay_ms"
        assert await caller.do(EventKind.NACK, [seen], delay_ms=0) == [None]
        again = await caller.one()
        assert (again.row.metadata, again.row.priority, again.row.attempt) == (b"new", 4, 2)
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_updated_dead_item_keeps_its_time_of_death_and_is_redriven_as_updated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    died: list[int] = []
    monkeypatch.setattr(NullObserver, "items_dead_lettered", lambda facts, items: died.append(items))

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put(ttl_ms=50_000)
        await caller.do(EventKind.NACK, [await caller.one()], dead=True)
        await world.pass_s(10)
        (dead,) = world.database.tables[1].rows.values()
        assert await change(caller, name, priority=-3) == [None]
        (changed,) = world.database.tables[1].rows.values()
        assert (changed.state, changed.due_ms) == (State.DEAD, dead.due_ms)
        assert await change(caller, name, kind=EventKind.REDRIVE) == [None]
        seen = await caller.one()
        assert (seen.row.priority, seen.row.attempt) == (-3, 1)
        assert died == [1]
        [alive] = await change(caller, name, kind=EventKind.REDRIVE)
        assert isinstance(alive, NotFound)

    run_in_world(story)


@pytest.mark.parametrize("changes", [{"priority": -1}, {"delay_ms": 60_000}])
def test_item_updated_during_a_refill_has_its_new_place(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        names = await Caller(world, engine).put(count=6)
        engine = await restarted(world, engine, settings)
        caller = Caller(world, engine)
        reads = MethodGate(monkeypatch, MemoryReads, "ready_order_keys", on_the_way_back=True)
        with closed(reads):
            getting = start_task(caller.get(count=1))
            await world.until(lambda: reads.held == 1)
            assert await change(caller, names[4], **changes) == [None]
        taken = (await getting).items
        await wait_until_idle(world, engine)
        remaining = (await caller.get(count=9)).items
        ids = [f"{seen.shard}-{seen.row.id}" for seen in [*taken, *remaining]]
        expected = [name for name in names if name != names[4]]
        assert ids == (expected if "delay_ms" in changes else [names[4], *expected])

    run_in_world(story)


def test_item_updated_while_reserved_is_judged_by_its_new_state(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        names = await caller.put(count=2)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            updating = start_task(change(caller, names[0], delay_ms=60_000))
            await world.until(lambda: commits.held == 1)
            getting = start_task(caller.get(count=2))
            await world.pass_s(0.05)
        assert await updating == [None]
        assert [f"{seen.shard}-{seen.row.id}" for seen in (await getting).items] == [names[1]]
        await wait_until_idle(world, engine)
        assert world.rows() == [("t", State.DEFERRED), ("t", State.LEASED)]

    run_in_world(story)
