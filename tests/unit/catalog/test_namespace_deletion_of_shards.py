"""The deletion of a namespace in a cluster: from all shards, or from none."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from foqs.catalog import changes
from foqs.catalog.document import EMPTY_DOCUMENT, Document
from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.catalog.namespace_deletion import MARKED_S_MAX
from foqs.catalog.port import CatalogFailed
from foqs.queue.engine import Engine
from foqs.store.in_memory.memory_store import MemoryStore
from foqs_contract.errors import DeadlineExceeded, InvalidArgument, NamespaceNotFound, Unavailable, UnknownOutcome
from shardmgr.local_coordinator import LocalCoordinator
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, make_engine, run_in_world
from tests.support.method_gate import MethodGate, closed, start_task

QUIET_MS = 3_600_000
TIER = (1, 2)


class UnnotifiedCatalog(MemoryCatalog):
    """A catalog that does not report changes to its host."""

    def __init__(self, original: MemoryCatalog) -> None:
        self._catalog = original

    async def load(self) -> Document:
        return await self._catalog.load()

    async def replace(self, document: Document, expected: Document | None = None) -> None:
        await self._catalog.replace(document, expected)

    async def wait_for_change(self, known_version: int) -> None:
        await asyncio.sleep(10**6)


async def host(world: World, *shards: int) -> Engine:
    return await world.engine(engine_settings(*shards, sweep_interval_ms=QUIET_MS), sharing=TIER)


async def two_hosts(world: World) -> tuple[Engine, Engine]:
    one, two = await host(world, 1), await host(world, 2)
    await world.until(lambda: bool(one.shards[1].key_slots and two.shards[2].key_slots))
    return one, two


async def mark(world: World) -> None:
    await world.catalog.replace(changes.start_deletion(await world.catalog.load(), "other"))


async def marked(world: World) -> bool:
    return (await world.catalog.load()).namespaces["other"].deleting is not None


def test_namespace_without_items_is_deleted_at_all_hosts() -> None:
    async def story(world: World) -> None:
        one, two = await two_hosts(world)
        await one.admin.delete("other", world.deadline_in(5))
        await world.pass_s(0.5)
        for engine in (one, two):
            with pytest.raises(NamespaceNotFound):
                engine.queue.namespace_settings("other")
        await two.admin.create("other", None, {}, world.deadline_in(5))
        await Caller(world, two, "other").put()

    run_in_world(story)


def test_namespace_with_an_item_at_another_host_is_not_deleted() -> None:
    async def story(world: World) -> None:
        one, two = await two_hosts(world)
        [name] = await Caller(world, two, "other").put()
        with pytest.raises(InvalidArgument, match="'other' holds items"):
            await one.admin.delete("other", world.deadline_in(5))
        assert not await marked(world)
        await world.until(lambda: not two.namespaces.names_being_deleted(), within_s=1)
        await Caller(world, two, "other").cancel(name)
        await one.admin.delete("other", world.deadline_in(5))

    run_in_world(story)


def test_namespace_with_an_item_in_a_flush_of_another_host_is_not_deleted() -> None:
    async def story(world: World) -> None:
        one, two = await two_hosts(world)
        world.stall()
        putting = start_task(Caller(world, two, "other").put())
        await asyncio.sleep(0)
        deleting = start_task(one.admin.delete("other", world.deadline_in(5)))
        await world.until(lambda: bool(two.namespaces.names_being_deleted()))
        with pytest.raises(Unavailable, match="being deleted"):
            two.queue.namespace_settings("other")
        world.resume()
        assert await putting
        with pytest.raises(InvalidArgument):
            await deleting

    run_in_world(story)


def test_deletion_fails_while_a_shard_is_not_served_and_the_namespace_stays_usable() -> None:
    async def story(world: World) -> None:
        one, two = await two_hosts(world)
        await two.abort()
        deleting = start_task(one.admin.delete("other", world.deadline_in(5)))
        await world.until(lambda: bool(one.namespaces.names_being_deleted()))
        with pytest.raises(Unavailable, match="being deleted"):
            await one.admin.create("other", None, {}, world.deadline_in(1))
        await world.pass_s(0.5)  # its own shard was inspected
        with pytest.raises(Unavailable, match="being deleted"):
            one.queue.namespace_settings("other")
        with pytest.raises(DeadlineExceeded, match="not every shard"):
            await deleting
        assert not await marked(world)
        await Caller(world, one, "other").put()

    run_in_world(story)


def test_deletion_whose_mark_cannot_be_removed_has_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        one, two = await two_hosts(world)
        await two.abort()
        deleting = start_task(one.admin.delete("other", world.deadline_in(5)))
        await world.until(lambda: bool(one.namespaces.names_being_deleted()))

        async def unreached(self: MemoryCatalog) -> Document:
            raise CatalogFailed("nobody answers")

        with monkeypatch.context() as patch:
            patch.setattr(MemoryCatalog, "load", unreached)
            with pytest.raises(UnknownOutcome, match="nobody answers"):
                await deleting
        assert await marked(world)
        await world.pass_s(MARKED_S_MAX + 2)
        assert not await marked(world)

    run_in_world(story)


def test_shard_that_moves_after_it_was_reported_empty_accepts_no_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new owner reads the catalog after the takeover, even if it knew a version before."""

    async def story(world: World) -> None:
        assert isinstance(world.catalog, MemoryCatalog)
        one, two = await two_hosts(world)
        del one
        gate = MethodGate(monkeypatch, MemoryStore, "take_over", on_the_way_back=False)
        with closed(gate):
            original, world.catalog = world.catalog, UnnotifiedCatalog(world.catalog)
            starting = start_task(host(world, 2))
            await world.until(lambda: gate.held == 1)
            world.catalog = original
            await mark(world)
            await two.abort()
        three = await starting
        with pytest.raises(Unavailable, match="being deleted"):
            three.queue.namespace_settings("other")

    run_in_world(story)


def test_takeover_waits_for_a_readable_catalog_but_not_for_a_wiped_one() -> None:
    async def story(world: World) -> None:
        assert isinstance(world.catalog, MemoryCatalog)
        settings = replace(engine_settings(1), standalone_shards=None)
        one = make_engine(
            settings,
            lambda shard, *_: world.database.store(shard),
            LocalCoordinator(world.book),
            world.catalog,
            world.clock,
            world.rng,
            world.checked(lambda: one),
            "nonce",
            TIER,
        )
        await one.open()
        one.start()
        one.on_resumed()
        original = world.catalog.load

        async def fails() -> Document:
            raise CatalogFailed("nobody answers")

        world.catalog.load = fails  # type: ignore[method-assign]
        one.on_assigned(1, "")
        await world.pass_s(5)
        assert not one.shards
        [status] = one.queue.shard_statuses()
        assert "the catalog cannot be read: nobody answers" in (status.reason or "")
        world.catalog.load = original  # type: ignore[method-assign]
        world.catalog.document = EMPTY_DOCUMENT
        await world.until(lambda: bool(one.shards), within_s=5)

    run_in_world(story)


def test_owner_that_was_replaced_unnoticed_does_not_report_its_shard() -> None:
    async def story(world: World) -> None:
        assert isinstance(world.catalog, MemoryCatalog)
        one, two = await two_hosts(world)
        original, world.catalog = world.catalog, UnnotifiedCatalog(world.catalog)
        three = await host(world, 2)
        await Caller(world, three, "other").put()
        world.catalog = original
        assert two.shards[2].is_serving
        with pytest.raises(DeadlineExceeded):
            await one.admin.delete("other", world.deadline_in(5))
        assert not await marked(world)

    run_in_world(story)


def test_shard_in_inspection_accepts_no_items_even_if_the_mark_was_removed() -> None:
    """The mark could be set again before the report is stored."""

    async def story(world: World) -> None:
        one, _ = await two_hosts(world)
        world.stall()
        await mark(world)
        await world.until(lambda: bool(one.namespaces.names_being_deleted()))
        await world.pass_s(0.1)
        await world.catalog.replace(changes.cancel_deletion(await world.catalog.load(), "other"))
        await world.until(lambda: not one.namespaces.names_being_deleted())
        with pytest.raises(Unavailable, match="being deleted"):
            one.queue.namespace_settings("other")
        world.resume()
        await world.pass_s(1)
        await Caller(world, one, "other").put()
        assert not await marked(world)

    run_in_world(story)


def test_old_mark_is_removed() -> None:
    async def story(world: World) -> None:
        one = await host(world, 1)
        await mark(world)
        await world.until(lambda: bool(one.namespaces.names_being_deleted()), within_s=1)
        await world.pass_s(MARKED_S_MAX - 5)
        assert await marked(world)
        await world.pass_s(10)
        assert not await marked(world)
        one.queue.namespace_settings("other")

    run_in_world(story)


def test_deletion_is_completed_after_its_caller_died() -> None:
    async def story(world: World) -> None:
        one, _ = await two_hosts(world)
        await mark(world)
        await world.until(lambda: "other" not in one.admin.document().namespaces, within_s=5)

    run_in_world(story)


def test_namespace_is_not_deleted_while_counts_lag() -> None:
    async def story(world: World) -> None:
        one, two = await two_hosts(world)
        two.shards[2].counts.is_lagging = True
        with pytest.raises(DeadlineExceeded):
            await one.admin.delete("other", world.deadline_in(3))
        two.shards[2].counts.is_lagging = False
        await one.admin.delete("other", world.deadline_in(3))

    run_in_world(story)


def test_import_in_a_cluster_deletes_no_namespace() -> None:
    async def story(world: World) -> None:
        one, _ = await two_hosts(world)
        text = one.admin.export()
        await one.admin.create("more", None, {}, world.deadline_in(5))
        with pytest.raises(InvalidArgument, match="foqs namespace delete more"):
            await one.admin.restore(text, world.deadline_in(5))
        await one.admin.delete("more", world.deadline_in(5))
        await one.admin.restore(text, world.deadline_in(5))

    run_in_world(story)
