"""Dequeues that wait while their namespace changes: each waits for one incarnation with one set of settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from foqs.catalog.document import Permission
from foqs.queue.engine import Engine
from foqs_contract.errors import NamespaceNotFound
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import start_task

Change = Callable[[Engine, float], Awaitable[object]]


async def update(engine: Engine, deadline: float) -> None:
    await engine.admin.update("orders", None, {"lease_ms_max": 40_000}, deadline)


async def delete(engine: Engine, deadline: float) -> None:
    await engine.admin.delete("orders", deadline)


async def update_another(engine: Engine, deadline: float) -> None:
    await engine.admin.update("default", None, {"lease_ms_max": 40_000}, deadline)


async def pause(engine: Engine, deadline: float) -> None:
    await engine.admin.pause("orders", "other", deadline, paused=True)


async def grant(engine: Engine, deadline: float) -> None:
    await engine.admin.grant("orders", "somebody", frozenset({Permission.CONSUME}), deadline)


@pytest.mark.parametrize(
    ("change", "ends"), [(update, True), (delete, True), (update_another, False), (pause, False), (grant, False)]
)
def test_a_wait_ends_when_its_namespace_is_deleted_or_has_other_settings(change: Change, ends: bool) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        await engine.admin.create("orders", None, {}, world.deadline_in(5))
        waiting = start_task(Caller(world, engine, "orders").get(wait_ms=20_000, timeout_s=30))
        await world.pass_s(1)
        await change(engine, world.deadline_in(5))
        await world.pass_s(0)
        assert waiting.done() is ends
        if ends:
            assert (await waiting).items == []
            assert len(engine.queue.waiters) == 0

    run_in_world(story)


def test_a_wait_takes_nothing_of_a_new_namespace_with_the_name_of_a_deleted_one() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine, "orders")
        await engine.admin.create("orders", None, {}, world.deadline_in(5))
        waiting = start_task(caller.get(wait_ms=20_000, timeout_s=30))
        await world.pass_s(1)
        await engine.admin.delete("orders", world.deadline_in(5))
        with pytest.raises(NamespaceNotFound):
            await caller.get()
        await engine.admin.create("orders", None, {}, world.deadline_in(5))
        await caller.put()
        assert (await caller.one(wait_ms=1_000)).row.attempt == 1
        assert (await waiting).items == []

    run_in_world(story)


def test_a_dequeue_whose_lease_fails_does_not_wait_for_a_namespace_that_has_changed() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine, "orders")
        await engine.admin.create("orders", None, {}, world.deadline_in(5))
        [id] = await caller.put()
        world.stall()
        cancelling = start_task(caller.cancel(id))
        await world.pass_s(0.01)
        leasing = start_task(caller.get(wait_ms=20_000, timeout_s=30))
        await world.pass_s(0.01)
        await update(engine, world.deadline_in(5))
        world.resume()
        await cancelling
        await world.pass_s(0.5)
        assert leasing.done()
        assert (await leasing).items == []

    run_in_world(story)


def test_a_consumer_of_a_paused_topic_waits_on_and_gets_the_item_when_it_is_resumed() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        waiting = start_task(caller.get(wait_ms=20_000, timeout_s=30))
        await world.pass_s(1)
        await engine.admin.pause("default", "t", world.deadline_in(5), paused=True)
        await caller.put()
        await world.pass_s(1)
        assert not waiting.done()
        await engine.admin.pause("default", "t", world.deadline_in(5), paused=False)
        assert len((await waiting).items) == 1

    run_in_world(story)
