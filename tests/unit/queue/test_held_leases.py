"""Extensions without a token: of the lease that an item has when its flush is written, whatever happens beside them."""

from __future__ import annotations

import pytest

from foqs.core.items.item import parse_id
from foqs.core.items.life import Event, EventKind
from foqs.queue.port import Outcome, RowView
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.port import StoreLost
from foqs_contract.errors import NotFound, StaleLease
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import MethodGate, closed, restarted, start_task, wait_until_idle


async def extend(caller: Caller, *ids: str, lease_ms: int | None = None) -> list[Outcome]:
    """Extend leases as `extendHeldLeases` does."""
    named = [parse_id(name, "id") for name in ids]
    return await caller.apply(
        [
            (shard, Event(EventKind.EXTEND, number, caller.namespace, token=None, lease_ms=lease_ms))
            for shard, number in named
        ]
    )


def end_ms(world: World, seen: RowView) -> int | None:
    """Return when the lease of an item of shard 1 ends, as its row says."""
    return world.database.tables[1].rows[seen.row.id].due_ms


def test_extended_lease_lasts_from_the_extension_and_its_token_acks() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put(lease_ms=500)
        seen = await caller.one()
        for _ in range(5):
            await world.pass_s(0.4)
            assert await extend(caller, name) == [None]
        assert (await caller.get()).items == []
        await wait_until_idle(world, engine)
        assert await caller.do(EventKind.ACK, [seen]) == [None]
        [gone] = await extend(caller, name)
        assert isinstance(gone, NotFound)
        assert world.rows() == []

    run_in_world(story)


def test_extended_lease_ends_at_its_new_end() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=10**9))
        caller = Caller(world, engine)
        (name,) = await caller.put(lease_ms=500)
        await caller.one()
        started = world.loop.time()
        assert await extend(caller, name, lease_ms=3_000) == [None]
        assert (await caller.one(wait_ms=10_000)).row.attempt == 2
        assert 3.0 <= world.loop.time() - started < 3.2
        await wait_until_idle(world, engine)

    run_in_world(story)


@pytest.mark.parametrize("kind", [EventKind.ACK, EventKind.NACK, EventKind.RELEASE])
def test_lease_that_its_holder_ends_first_is_not_extended(kind: EventKind, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put()
        seen = await caller.one()
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            settling = start_task(caller.do(kind, [seen]))
            await world.until(lambda: commits.held == 1)
            extending = start_task(extend(caller, name))
            await world.pass_s(0.05)
        assert await settling == [None]
        [refused] = await extending
        assert type(refused) is (NotFound if kind is EventKind.ACK else StaleLease)
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_holder_that_extends_later_sets_the_end_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put()
        seen = await caller.one()
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            first = start_task(extend(caller, name, lease_ms=60_000))
            await world.until(lambda: commits.held == 1)
            second = start_task(caller.do(EventKind.EXTEND, [seen], lease_ms=5_000))
            await world.pass_s(0.05)
        assert (await first, await second) == ([None], [None])
        end = end_ms(world, seen)
        assert end is not None
        assert end - world.clock.wall_ms() <= 5_000
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_lease_of_the_next_holder_is_extended_and_the_former_token_stays_superseded() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put(lease_ms=300)
        first = await caller.one()
        second = await caller.one(wait_ms=2_000)
        assert await extend(caller, name, lease_ms=5_000) == [None]
        await world.pass_s(1)
        [stale] = await caller.do(EventKind.ACK, [first])
        assert isinstance(stale, StaleLease)
        assert await caller.do(EventKind.ACK, [second]) == [None]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_lease_that_is_being_written_is_extended_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put()
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            getting = start_task(caller.get(lease_ms=300, timeout_s=50))
            await world.until(lambda: commits.held == 1)
            extending = start_task(extend(caller, name, lease_ms=60_000))
            await world.pass_s(0.01)
        assert await extending == [None]
        (seen,) = (await getting).items
        await world.pass_s(1)
        assert await caller.do(EventKind.NACK, [seen], delay_ms=0) == [None]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_lease_that_has_ended_goes_on_if_nothing_has_written_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put(lease_ms=300)
        seen = await caller.one()
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            busy = start_task(caller.put("busy"))
            await world.until(lambda: commits.held == 1)
            extending = start_task(extend(caller, name, lease_ms=5_000))
            await world.pass_s(1)
        await busy
        assert await extending == [None]
        await world.pass_s(1)
        assert await caller.do(EventKind.RELEASE, [seen]) == [None]
        await wait_until_idle(world, engine)

    run_in_world(story)


@pytest.mark.parametrize("point", ["begin", "fenced", "read", "written", "committed"])
def test_extension_is_written_although_the_connection_is_lost(point: str) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put(lease_ms=2_000)
        seen = await caller.one()
        await wait_until_idle(world, engine)
        failures = 1

        def fail(at: str) -> None:
            nonlocal failures
            if at == point and failures:
                failures -= 1
                raise StoreLost("the line is cut")

        world.faults = fail
        assert await extend(caller, name, lease_ms=60_000) == [None]
        assert failures == 0
        await world.pass_s(5)
        assert (await caller.get()).items == []
        assert await caller.do(EventKind.ACK, [seen]) == [None]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_next_owner_keeps_the_new_end_and_extends_the_lease_by_its_row() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        (name,) = await Caller(world, engine).put(lease_ms=1_000)
        seen = await Caller(world, engine).one()
        assert await extend(Caller(world, engine), name, lease_ms=30_000) == [None]
        engine = await restarted(world, engine, settings)
        caller = Caller(world, engine)
        await world.pass_s(5)
        assert (await caller.get()).items == []
        assert await extend(caller, name, lease_ms=60_000) == [None]
        await world.pass_s(40)
        assert (await caller.get()).items == []
        assert await caller.do(EventKind.ACK, [seen]) == [None]
        await wait_until_idle(world, engine)

    run_in_world(story)
