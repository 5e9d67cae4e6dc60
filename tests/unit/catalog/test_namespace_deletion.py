"""The deletion of a namespace on one engine in virtual time: refusals and races."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foqs.catalog import changes
from foqs.catalog.document import Document
from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.catalog.namespaces import Namespaces
from foqs.core.items.life import EventKind
from foqs_contract.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NamespaceNotFound,
    Unavailable,
    UnknownOutcome,
)
from tests.support.builders import engine_settings
from tests.support.catalogs import install_gated_catalog, pause
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import start_task


def test_namespace_with_items_in_any_state_is_not_deleted() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        for delay_ms in (0, 60_000):
            [name] = await caller.put(delay_ms=delay_ms)
            with pytest.raises(InvalidArgument, match="holds 1 item;"):
                await engine.admin.delete("default", world.deadline_in(5))
            await caller.cancel(name)
        await caller.put()
        seen = await caller.one()
        with pytest.raises(InvalidArgument):
            await engine.admin.delete("default", world.deadline_in(5))
        await caller.do(EventKind.NACK, [seen], dead=True)
        with pytest.raises(InvalidArgument):
            await engine.admin.delete("default", world.deadline_in(5))
        await caller.cancel(f"{seen.shard}-{seen.row.id}")
        await engine.admin.delete("default", world.deadline_in(5))
        with pytest.raises(NamespaceNotFound):
            engine.queue.namespace_settings("default")

    run_in_world(story)


def test_namespace_with_an_item_in_a_flush_is_not_deleted() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        world.stall()
        putting = start_task(caller.put())
        await asyncio.sleep(0)
        deleting = start_task(engine.admin.delete("default", world.deadline_in(5)))
        await world.pass_s(0.1)
        with pytest.raises(Unavailable, match="being deleted"):
            engine.queue.namespace_settings("default")
        world.resume()
        assert await putting
        with pytest.raises(InvalidArgument):
            await deleting
        engine.queue.namespace_settings("default")

    run_in_world(story)


def test_host_whose_shards_were_taken_over_deletes_nothing() -> None:
    """It counts no item of the new owner."""

    async def story(world: World) -> None:
        replaced = await world.counted_engine()
        owner = await world.counted_engine()
        assert await Caller(world, owner).put()
        with pytest.raises(Unavailable):
            await replaced.admin.delete("default", world.deadline_in(5))
        assert "default" in (await world.catalog.load()).namespaces

    run_in_world(story)


def test_deletion_has_an_unknown_outcome_if_a_shard_was_taken_over_before_it_was_stored() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        replaced = await world.counted_engine()
        catalog.gate.clear()
        deleting = start_task(replaced.admin.delete("default", world.deadline_in(60)))
        await world.until(lambda: catalog.replacing > 0)
        owner = await world.counted_engine()
        assert await Caller(world, owner).put()
        catalog.gate.set()
        with pytest.raises(UnknownOutcome, match="taken a shard over"):
            await deleting

    run_in_world(story)


def test_change_of_another_host_applies_during_a_deletion_and_survives_it() -> None:
    async def story(world: World) -> None:
        one = await world.engine(engine_settings(1))
        two = await world.engine(engine_settings(2))
        world.stall()
        putting = start_task(Caller(world, one).put())
        await asyncio.sleep(0)
        deleting = start_task(one.admin.delete("other", world.deadline_in(5)))
        await world.pass_s(0.1)
        await pause(two, "t")
        await world.until(lambda: ("default", "t") in one.namespaces.paused_topics, within_s=0.1)
        assert not deleting.done()
        world.resume()
        await putting
        await deleting
        for engine in (one, two):
            await world.until(lambda engine=engine: "other" not in engine.admin.document().namespaces)  # type: ignore[misc]
            assert ("default", "t") in engine.namespaces.paused_topics

    run_in_world(story)


def test_document_read_before_a_change_is_not_applied_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        read, go_on = asyncio.Event(), asyncio.Event()
        load, apply = MemoryCatalog.load, Namespaces.apply
        versions: list[int] = []

        async def late(self: MemoryCatalog) -> Document:
            document = await load(self)
            if not read.is_set():
                read.set()
                await go_on.wait()
            return document

        def noted(self: Namespaces, document: Document) -> Any:
            versions.append(document.version)
            return apply(self, document)

        monkeypatch.setattr(MemoryCatalog, "load", late)
        monkeypatch.setattr(Namespaces, "apply", noted)
        await world.catalog.replace(changes.pause(engine.admin.document(), "default", "a", paused=True))
        await read.wait()
        await pause(engine, "b")
        go_on.set()
        await world.pass_s(0.1)
        assert versions == sorted(versions)
        assert {("default", "a"), ("default", "b")} <= engine.namespaces.paused_topics

    run_in_world(story)


def test_enqueue_during_a_deletion_is_refused() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.counted_engine()
        catalog.gate.clear()
        deleting = start_task(engine.admin.delete("default", world.deadline_in(5)))
        await world.until(lambda: catalog.replacing == 1)
        with pytest.raises(Unavailable):
            engine.queue.namespace_settings("default")
        catalog.gate.set()
        await deleting
        with pytest.raises(NamespaceNotFound):
            engine.queue.namespace_settings("default")

    run_in_world(story)


def test_namespace_is_not_deleted_while_counts_lag() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        [shard, *_] = engine.shards.values()
        shard.counts.is_lagging = True
        with pytest.raises(Unavailable, match="counted"):
            await engine.admin.delete("default", world.deadline_in(5))
        shard.counts.is_lagging = False
        world.stall()
        putting = start_task(Caller(world, engine).put())
        await asyncio.sleep(0)
        with pytest.raises((DeadlineExceeded, UnknownOutcome)):
            await engine.admin.delete("default", world.deadline_in(1))
        world.resume()
        await putting
        del engine.shards[shard.number]
        with pytest.raises(Unavailable, match="not every shard"):
            await engine.admin.delete("default", world.deadline_in(5))
        engine.shards[shard.number] = shard
        engine.queue.namespace_settings("default")

    run_in_world(story)
