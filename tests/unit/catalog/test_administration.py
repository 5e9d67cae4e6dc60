"""Configuration calls on an engine in virtual time: when a change applies, at which hosts, and races with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from foqs.catalog import changes
from foqs.catalog.document import EMPTY_DOCUMENT, Document, Permission, parse
from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.catalog.namespaces import Namespaces
from foqs.core.items.item import State
from foqs.core.items.life import EventKind
from foqs.queue.engine import Engine
from foqs_contract.errors import (
    FoqsError,
    InvalidArgument,
    LimitExceeded,
    NamespaceNotFound,
    Unavailable,
)
from tests.support.builders import engine_settings
from tests.support.catalogs import install_gated_catalog, pause
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import start_task


async def update(world: World, engine: Engine, **settings: int) -> None:
    await engine.admin.update("default", None, settings, world.deadline_in(5))


# ------------------------------------------------------------------- the start


def test_new_catalog_gets_the_default_namespace_once() -> None:
    async def story(world: World) -> None:
        world.catalog = MemoryCatalog()
        engine = await world.engine()
        assert list((await world.catalog.load()).namespaces) == ["default"]
        await Caller(world, engine).put()
        with pytest.raises(NamespaceNotFound, match="createNamespace"):
            engine.queue.namespace_settings("other")
        await engine.abort()
        stored = await world.catalog.load()
        engine = await world.engine()
        assert await world.catalog.load() is stored

    run_in_world(story)


def test_two_hosts_that_start_on_a_new_catalog_agree() -> None:
    async def story(world: World) -> None:
        class OvertakenCatalog(MemoryCatalog):
            async def replace(self, document: Document, before: Document | None = None) -> None:
                if document.version == 1:
                    await super().replace(changes.create(EMPTY_DOCUMENT, "theirs", None, {}))
                await super().replace(document, before)

        world.catalog = OvertakenCatalog()
        engine = await world.engine()
        assert list(engine.admin.document().namespaces) == ["theirs"]

    run_in_world(story)


def test_calls_are_unavailable_until_the_catalog_was_read() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        with pytest.raises(Unavailable):
            Namespaces(engine.namespaces.default_settings).settings_of("default")

    run_in_world(story)


# -------------------------------------------------------------------- settings


def test_change_applies_at_once_and_to_running_shards() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        [shard, *_] = engine.shards.values()
        await update(world, engine, payload_bytes_max=5, weight=7, backoff_ms_min=9_000, backoff_ms_max=9_000)
        assert engine.queue.namespace_settings("default").payload_bytes_max == 5
        assert shard._weight("default") == 7
        await caller.put()
        seen = await caller.one()
        assert await caller.do(EventKind.NACK, [seen], jitter=1.0) == [None]
        await world.pass_s(4)
        assert not (await caller.get()).items
        await world.pass_s(1)
        assert (await caller.get()).items
        assert engine.admin.namespace("default").settings["weight"] == 7
        assert engine.queue.namespace_settings("other").payload_bytes_max == 10_240

    run_in_world(story)


def test_change_survives_a_restart_and_reaches_other_hosts() -> None:
    async def story(world: World) -> None:
        one = await world.engine(engine_settings(1))
        two = await world.engine(engine_settings(2))
        await update(world, one, weight=5)
        await world.until(lambda: two.namespaces.weight_of("default") == 5, within_s=0.1)
        await one.abort()
        assert (await world.engine(engine_settings(1))).namespaces.weight_of("default") == 5

    run_in_world(story)


def test_concurrent_changes_of_two_hosts_all_apply() -> None:
    async def story(world: World) -> None:
        engines = [await world.engine(engine_settings(number)) for number in (1, 2)]
        creates = [
            engines[number % 2].admin.create(f"n{number}", None, {}, world.deadline_in(5)) for number in range(20)
        ]
        await asyncio.gather(*creates)
        for engine in engines:
            await world.until(lambda engine=engine: len(engine.admin.document().namespaces) == 22)  # type: ignore[misc]

    run_in_world(story)


def test_change_is_repeated_on_a_copy_that_was_restored_meanwhile() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        catalog.gate.clear()
        changing = start_task(pause(engine, "t"))
        await world.until(lambda: catalog.replacing == 1)
        stored = await catalog.load()
        copy = changes.create(stored, "restored", None, {})
        catalog.restore(Document(stored.version, copy.namespaces))  # same version, other content
        catalog.gate.set()
        await changing
        stored = await catalog.load()
        assert "restored" in stored.namespaces
        assert stored.namespaces["default"].paused == {"t"}

    run_in_world(story)


def test_change_is_repeated_after_a_concurrent_change() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        catalog.gate.clear()
        changing = start_task(pause(engine, "t"))
        await world.until(lambda: catalog.replacing == 1)
        await MemoryCatalog.replace(catalog, changes.create(await catalog.load(), "theirs", None, {}))
        catalog.gate.set()
        await changing
        stored = await catalog.load()
        assert "theirs" in stored.namespaces
        assert stored.namespaces["default"].paused == {"t"}

    run_in_world(story)


@pytest.mark.parametrize(
    ("settings", "kind", "field"),
    [
        ({"lease_ms_default": 50_000_000}, InvalidArgument, "settings.lease_ms_default"),
        ({"backoff_ms_min": 20_000}, InvalidArgument, "settings.backoff_ms_min"),
        ({"weight": 0}, InvalidArgument, "settings.weight"),
        ({"payload_bytes_max": 2 << 20}, LimitExceeded, "settings.payload_bytes_max"),
        ({"payload_bytes_max": 1 << 20}, InvalidArgument, "settings.payload_bytes_max"),
        ({"key_window_ms": 120_000}, InvalidArgument, "settings.key_window_ms"),
    ],
)
def test_invalid_settings_are_refused_and_not_stored(
    settings: dict[str, int], kind: type[FoqsError], field: str
) -> None:
    async def story(world: World) -> None:
        host = engine_settings(1)
        calls = replace(host.calls, timeout_ms_max=120_000)
        engine = await world.engine(replace(host, item_bytes_max=100_000, calls=calls))
        before = await world.catalog.load()
        for call in (engine.admin.update("default", None, settings, 5), engine.admin.create("x", None, settings, 5)):
            with pytest.raises(kind) as caught:
                await call
            assert caught.value.field == field
        assert await world.catalog.load() is before

    run_in_world(story)


# ----------------------------------------------------------------------- pause


def test_paused_topic_is_not_delivered_but_others_are() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        await caller.put("t", 3)
        await caller.put("u", 1)
        await pause(engine, "t")
        assert [seen.row.topic for seen in (await caller.dequeue([("t", 5), ("u", 5)])).items] == ["u"]
        assert not (await caller.get("t", wait_ms=1_000)).items
        stats = await caller.stats("t")
        assert stats is not None
        assert (stats.paused, stats.ready) == (True, 3)
        await pause(engine, "t", paused=False)
        assert len((await caller.get("t", 5)).items) == 3
        stats = await caller.stats("t")
        assert stats is not None
        assert not stats.paused

    run_in_world(story)


def test_pause_does_not_affect_the_same_topic_of_another_namespace() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        await pause(engine, "t")
        await Caller(world, engine, "other").put("t")
        assert (await Caller(world, engine, "other").get("t")).items

    run_in_world(story)


def test_waiter_of_a_paused_topic_gets_an_item_only_after_resume() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        waiting = start_task(caller.get("t", wait_ms=4_000))
        await asyncio.sleep(0)
        await pause(engine, "t")
        await caller.put("t")
        await caller.put("t", delay_ms=500)
        await world.pass_s(2)
        assert world.rows() == [("t", State.READY), ("t", State.READY)]
        assert not waiting.done()
        await pause(engine, "t", paused=False)
        async with asyncio.timeout(0.1):
            assert len((await waiting).items) == 1

    run_in_world(story)


def test_waiter_of_a_paused_topic_and_another_is_served_from_the_other() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        await pause(engine, "t")
        waiting = start_task(caller.dequeue([("t", 1), ("u", 1)], wait_ms=4_000))
        await caller.put("t")
        await caller.put("u")
        assert [seen.row.topic for seen in (await waiting).items] == ["u"]

    run_in_world(story)


def test_pause_survives_empty_topic_and_restart_and_resume_finds_items_outside_memory() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        await pause(engine, "t")
        [name] = await caller.put("t")
        await caller.cancel(name)
        await world.pass_s(10)
        await caller.put("t", 200)
        await engine.abort()
        engine = await world.engine()
        caller = Caller(world, engine)
        waiting = start_task(caller.get("t", 5, wait_ms=4_000))
        await world.pass_s(1)
        assert not waiting.done()
        await pause(engine, "t", paused=False)
        async with asyncio.timeout(1):
            assert (await waiting).items

    run_in_world(story)


def test_no_rows_are_read_for_a_consumer_of_a_paused_topic() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        await Caller(world, engine).put("t", 5)
        await pause(engine, "t")
        await engine.abort()
        engine = await world.engine()
        assert not (await Caller(world, engine).get("t")).items
        await world.pass_s(1)
        assert not any(shard.index.peek(("default", "t"), 1) for shard in engine.shards.values())

    run_in_world(story)


def test_resume_at_one_host_wakes_waiters_at_another() -> None:
    async def story(world: World) -> None:
        one, two = await world.engine(engine_settings(1)), await world.engine(engine_settings(2))
        await pause(one, "t")
        await world.until(lambda: bool(two.namespaces.paused_topics))
        caller = Caller(world, two)
        await caller.put("t")
        waiting = start_task(caller.get("t", wait_ms=4_000))
        await world.pass_s(0.5)
        assert not waiting.done()
        await pause(one, "t", paused=False)
        async with asyncio.timeout(0.5):
            assert (await waiting).items

    run_in_world(story)


def test_namespace_created_again_has_no_paused_topics() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine()
        await pause(engine, "t")
        await engine.admin.delete("default", world.deadline_in(5))
        await engine.admin.create("default", None, {}, world.deadline_in(5))
        await Caller(world, engine).put("t")
        assert (await Caller(world, engine).get("t")).items

    run_in_world(story)


# ------------------------------------------------------- looking, export, import


def test_usage_counts_items_and_topics_of_all_shards() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        for namespace in ("default", "other"):
            for topic in ("a", "a", "b"):
                await Caller(world, engine, namespace).put(topic, 4)
                await world.pass_s(0.3)
        await Caller(world, engine).get("a", 3)
        usage = engine.admin.usage("default")
        assert (usage.items, usage.topics) == (12, {"a", "b"})
        with pytest.raises(NamespaceNotFound):
            engine.admin.usage("none")

    run_in_world(story)


def test_import_restores_an_export_also_into_a_wiped_catalog() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine()
        await engine.admin.create("orders", None, {"weight": 4}, world.deadline_in(5))
        await engine.admin.grant("orders", "p", frozenset({Permission.CONSUME}), world.deadline_in(5))
        await engine.admin.pause("orders", "t", world.deadline_in(5), paused=True)
        text = engine.admin.export()
        await engine.admin.delete("orders", world.deadline_in(5))
        await engine.admin.restore(text, world.deadline_in(5))
        restored, exported = engine.admin.document().namespaces, parse(text).namespaces
        assert restored["orders"].incarnation not in (0, exported["orders"].incarnation)
        assert restored == {
            **exported,
            "orders": replace(exported["orders"], incarnation=restored["orders"].incarnation),
        }
        assert engine.namespaces.permissions_of("p", "orders") == {Permission.CONSUME}
        assert engine.namespaces.permissions_of("p", "default") == frozenset()
        assert engine.namespaces.permissions_of("q", "orders") == frozenset()
        world.catalog.document = EMPTY_DOCUMENT  # type: ignore[attr-defined]
        with pytest.raises(Unavailable, match="config import"):
            await pause(engine, "t")
        await Caller(world, engine, "orders").put("u")
        await engine.admin.restore(text, world.deadline_in(5))
        assert (await world.catalog.load()).namespaces == parse(text).namespaces

    run_in_world(story)


def test_import_does_not_remove_a_namespace_that_another_host_just_created() -> None:
    async def story(world: World) -> None:
        catalog = await install_gated_catalog(world)
        engine = await world.engine()
        text = engine.admin.export()
        catalog.document = changes.create(await catalog.load(), "late", None, {})  # not reported to any host yet
        await Caller(world, engine, "late").put()
        with pytest.raises(InvalidArgument, match="'late' holds 1 item;"):
            await engine.admin.restore(text, world.deadline_in(5))
        assert "late" in (await catalog.load()).namespaces

    run_in_world(story)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1"),
        (
            '{"format": 1, "version": 1, "namespaces": {"a": {"settings": {"weight": 0}}}}',
            "namespaces.a.settings.weight",
        ),
        (
            '{"format": 1, "version": 1, "namespaces": {"a": {"settings": {"backoff_ms_min": 20000}}}}',
            "namespaces.a.settings.backoff_ms_min",
        ),
        ('{"format": 1, "version": 1, "namespaces": {}}', "'default' holds 1 item;"),
    ],
)
def test_invalid_import_is_refused_with_the_place(text: str, words: str) -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        await Caller(world, engine).put()
        before = await world.catalog.load()
        with pytest.raises(InvalidArgument) as caught:
            await engine.admin.restore(text, world.deadline_in(5))
        assert words in caught.value.message
        assert await world.catalog.load() is before
        engine.queue.namespace_settings("default")

    run_in_world(story)
