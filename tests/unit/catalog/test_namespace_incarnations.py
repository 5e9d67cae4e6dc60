"""A namespace that is created again shares nothing with the deleted one of the same name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foqs.catalog import changes
from foqs.catalog.document import EMPTY_DOCUMENT, Document, NamespaceRecord, parse, render
from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.catalog.namespaces import Namespaces
from foqs.catalog.topic_keys import NO_TOPIC_KEYS
from foqs.core.items.idempotency_keys import item_digest
from foqs.options.options import NamespaceOptions
from foqs.queue.engine import Engine
from foqs.queue.port import EnqueueOutcome, Repeated
from foqs.rpc import request_structs
from foqs_contract.errors import KeyConflict, RateLimited
from foqs_contract.idl import ttypes
from tests.support.aio import call_result
from tests.support.builders import engine_settings
from tests.support.cluster_world import ClusterWorld, run_in_cluster
from tests.support.engines import Caller, World, run_in_world


async def put(world: World, engine: Engine, namespace: str, payload: bytes = b"p", key: bytes = b"k") -> EnqueueOutcome:
    """Enqueue an item with a key, as the RPC handler does."""
    raw = ttypes.NewItem(topic=b"t", payload=payload, idempotency_key=key)
    settings = engine.queue.namespace_settings(namespace)
    items, errors = request_structs.parse_new_items([raw], namespace, settings, NO_TOPIC_KEYS)
    assert not errors
    [result] = await call_result(lambda done: engine.queue.enqueue(namespace, items, world.deadline_in(5), done))
    return result  # type: ignore[no-any-return]


async def recreate(world: World, engine: Engine, name: str) -> None:
    await engine.admin.delete(name, world.deadline_in(20))
    await engine.admin.create(name, None, {}, world.deadline_in(5))


@pytest.mark.parametrize("name", ["default", "other"])
def test_key_of_a_deleted_namespace_is_free_when_it_is_created_again(name: str) -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        await world.until(lambda: not any(shard.counts.is_lagging for shard in engine.shards.values()))
        caller = Caller(world, engine, name)
        for _ in range(3):
            first = await put(world, engine, name)
            assert isinstance(first, str)
            assert await put(world, engine, name) == Repeated(first)
            assert isinstance(await put(world, engine, name, b"another"), KeyConflict)
            assert (await caller.one()).row.id
            await caller.cancel(first)
            assert await put(world, engine, name) == Repeated(first)
            await recreate(world, engine, name)

    run_in_world(story)


def test_key_is_free_in_a_namespace_created_again_in_a_cluster() -> None:
    async def story(world: ClusterWorld) -> None:
        one, two = await world.host("one"), await world.host("two")
        await world.wait_until_settled(one, two)

        def both_know(name: str) -> bool:
            return all(name in host.engine.namespaces.document.namespaces for host in (one, two))

        await one.engine.admin.create("brief", None, {}, world.deadline_in(5))
        await world.until(lambda: both_know("brief"))

        async def at_its_host(key: bytes) -> EnqueueOutcome:
            for host in (one, two):
                result = await put(world, host.engine, "brief", key=key)
                if isinstance(result, str | Repeated):
                    return result
            raise AssertionError(result)

        keys = [b"key-%d" % number for number in range(16)]
        ids = [await at_its_host(key) for key in keys]
        for name in ids:
            assert isinstance(name, str)
            for host in (one, two):
                await Caller(world, host.engine, "brief").cancel(name)
        await recreate(world, two.engine, "brief")
        await world.until(lambda: both_know("brief") and not one.engine.namespaces.names_being_deleted())
        again = [await at_its_host(key) for key in keys]
        assert all(isinstance(result, str) for result in again)
        assert not set(again) & set(ids)

    run_in_cluster(story)


def test_namespace_without_incarnation_keeps_its_keys() -> None:
    text = '{"format": 1, "version": 3, "namespaces": {"other": {}}}'
    assert parse(text).namespaces["other"].incarnation == 0
    assert item_digest(b"t", 0, b"p", b"", None) == item_digest(b"t", 0, b"p", b"", None, b"")

    async def story(world: World) -> None:
        engine = await world.engine()
        first = await put(world, engine, "other")
        await engine.admin.update("other", None, {"weight": 2}, world.deadline_in(5))
        assert await put(world, engine, "other") == Repeated(str(first))

    run_in_world(story)


def test_restart_keeps_the_keys_of_a_namespace_created_again() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        await world.until(lambda: not any(shard.counts.is_lagging for shard in engine.shards.values()))
        await recreate(world, engine, "other")
        first = await put(world, engine, "other")
        await engine.abort()
        engine = await world.engine(engine_settings(1))
        assert await put(world, engine, "other") == Repeated(str(first))

    run_in_world(story)


@pytest.mark.parametrize("sharing", [None, (1, 2)], ids=["alone", "cluster"])
def test_key_of_a_deleted_namespace_is_free_after_an_import(sharing: tuple[int, ...] | None) -> None:
    """The deletion in a cluster once dropped the identity of the catalog, so the import looked like one of another catalog."""

    async def story(world: World) -> None:
        world.catalog = MemoryCatalog(replace(changes.new_catalog("default", 4_711), unknown={"newer": {"a": 1}}))
        engine = await world.engine(sharing=sharing)
        engine.on_resumed()
        await world.until(lambda: not any(shard.counts.is_lagging for shard in engine.shards.values()))
        await engine.admin.create("brief", None, {}, world.deadline_in(5))
        first = await put(world, engine, "brief")
        await Caller(world, engine, "brief").cancel(str(first))
        exported = engine.admin.document()
        await engine.admin.delete("brief", world.deadline_in(20))
        assert world.catalog.document.identity == 4_711
        assert world.catalog.document.unknown == {"newer": {"a": 1}}
        await engine.admin.restore(render(replace(exported, unknown={})), world.deadline_in(5))
        again = await put(world, engine, "brief")
        assert isinstance(again, str)
        assert again != first

    run_in_world(story)


def test_import_of_a_deleted_namespace_gives_it_a_new_incarnation() -> None:
    exported = changes.create(EMPTY_DOCUMENT, "a", None, {}, incarnation=5)
    deleted = changes.delete(exported, "a")
    assert changes.restore(deleted, exported, incarnation=6).namespaces["a"].incarnation == 6


def test_import_keeps_the_incarnation_of_an_existing_namespace() -> None:
    exported = changes.create(EMPTY_DOCUMENT, "a", None, {}, incarnation=5)
    recreated = changes.create(changes.delete(exported, "a"), "a", None, {}, incarnation=6)
    assert changes.restore(recreated, exported, incarnation=7).namespaces["a"].incarnation == 6


def test_import_into_a_lost_catalog_keeps_the_exported_incarnations() -> None:
    exported = Document(2, {"a": NamespaceRecord(incarnation=5)}, identity=1)
    new = changes.new_catalog("default", 2)
    with_slots = changes.record_slots(new, "default", {1: frozenset()}, [1])
    older_than_export = changes.pause(with_slots, "default", "t", paused=True)
    for lost in (EMPTY_DOCUMENT, new, with_slots, older_than_export, changes.new_catalog("a", 2)):
        restored = changes.restore(lost, exported, incarnation=6)
        assert restored.namespaces["a"].incarnation == 5
        assert restored.identity == 1
        deleted = changes.delete(restored, "a")
        assert changes.restore(deleted, exported, incarnation=6).namespaces["a"].incarnation == 6


def test_each_incarnation_of_each_catalog_has_a_number_of_its_own() -> None:
    first, second, older = (
        Document(
            1, {"a": NamespaceRecord(), "b": NamespaceRecord(), "c": NamespaceRecord(incarnation=7)}, identity=identity
        )
        for identity in (1, 2, 0)
    )
    numbers = [document.incarnation_number(name) for document in (first, second, older) for name in "ab"]

    assert len(set(numbers)) == 6
    assert all(0 < number < 1 << 63 for number in numbers)
    assert first.incarnation_number("c") == second.incarnation_number("c") == 7
    restored = changes.restore(changes.new_catalog("a", 2), first, incarnation=9)
    assert [restored.incarnation_number(name) for name in "ab"] == numbers[:2]


def test_settings_follow_the_identity_that_a_catalog_gets_by_an_import() -> None:
    namespaces = Namespaces(NamespaceOptions())
    own = {"a": NamespaceRecord()}
    for identity in (1, 2):
        document = Document(identity, own, identity=identity)
        namespaces.apply(document)
        assert namespaces.settings_of("a").incarnation_number == document.incarnation_number("a")


def test_namespace_created_again_has_its_full_rate() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        await world.until(lambda: not any(shard.counts.is_lagging for shard in engine.shards.values()))
        caller = Caller(world, engine, "brief")
        for _ in range(2):
            await engine.admin.create("brief", None, {"enqueues_per_minute": 1}, world.deadline_in(5))
            await caller.cancel(*await caller.put())
            with pytest.raises(RateLimited):
                await caller.put()
            assert engine.admin.usage("brief").enqueues_last_minute == 1
            await engine.admin.delete("brief", world.deadline_in(5))

    run_in_world(story)
