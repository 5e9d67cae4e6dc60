"""Key slots in tables and catalog, on whole engines: recorded, divided, disputed, restored."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from foqs.catalog import changes
from foqs.catalog.document import EMPTY_DOCUMENT, Document
from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.catalog.port import CatalogConflict, CatalogFailed
from foqs.core.items.item import KeyedItem
from foqs.queue.engine import Engine, EngineSettings
from foqs.queue.port import Repeated
from foqs.store.in_memory.memory_store import MemoryStore
from foqs_contract.errors import InvalidArgument, Unavailable
from foqs_contract.key_slots import KEY_SLOT_COUNT
from tests.support.builders import catalog, engine_settings, keyed_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.method_gate import MethodGate, closed, restarted, start_task

EVEN = frozenset(range(0, KEY_SLOT_COUNT, 2))
ODD = frozenset(range(1, KEY_SLOT_COUNT, 2))
TWO = engine_settings(1, 2)


def in_slot(slot: int, name: str = "") -> KeyedItem:
    return keyed_item(f"~{slot:03x}{name}")


def tables(world: World) -> dict[int, set[int]]:
    return {number: table.key_slots for number, table in world.database.tables.items()}


async def recorded(world: World) -> Any:
    return (await world.catalog.load()).slots.get("default", {})


async def start_engine(world: World, settings: EngineSettings, *tier_shards: int) -> Engine:
    """Start an engine with some of the `tier_shards`."""
    engine = await world.engine(settings, sharing=tier_shards)
    await world.pass_s(0.1)
    return engine


# ------------------------------------------------------------ recorded, divided


def test_slots_of_a_new_tier_are_recorded_before_a_shard_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        gate = MethodGate(monkeypatch, MemoryCatalog, "replace", on_the_way_back=False)
        with closed(gate):
            starting = start_task(world.engine(TWO))
            await world.pass_s(0.5)
            assert gate.held == 1
            assert not starting.done()
            assert tables(world) == {1: set(), 2: set()}
        await starting
        assert await recorded(world) == tables(world) == {1: EVEN, 2: ODD}

    run_in_world(story)


def test_slots_in_tables_are_recorded_unchanged() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(TWO)
        (first,) = await Caller(world, engine).enqueue([in_slot(4)])
        await engine.abort()
        world.catalog = catalog()
        engine = await world.engine(engine_settings(1, 2, 3))
        assert await recorded(world) == {1: EVEN, 2: ODD, 3: frozenset()}
        (again,) = await Caller(world, engine).enqueue([in_slot(4)])
        assert isinstance(again, Repeated)
        assert again.id == ok(first)

    run_in_world(story)


def test_slots_are_divided_once_each_shard_of_the_tier_was_served_by_some_host() -> None:
    async def story(world: World) -> None:
        one = await start_engine(world, engine_settings(1), 1, 2)
        assert await recorded(world) == {1: frozenset()}
        (refused,) = await Caller(world, one).enqueue([in_slot(4)])
        assert isinstance(refused, Unavailable)
        await start_engine(world, engine_settings(2), 1, 2)
        await world.until(lambda: tables(world) == {1: EVEN, 2: ODD})
        assert ok((await Caller(world, one).enqueue([in_slot(4)]))[0])

    run_in_world(story)


def test_two_hosts_that_divide_slots_at_once_agree() -> None:
    async def story(world: World) -> None:
        class SlowCatalog(MemoryCatalog):
            async def load(self) -> Any:
                document = await super().load()
                await asyncio.sleep(0.2)
                return document

            async def replace(self, document: Any, before: Any = None) -> None:
                try:
                    await super().replace(document, before)
                except CatalogConflict:
                    conflicts.append(document)
                    raise

        conflicts: list[Any] = []
        world.catalog = SlowCatalog(await world.catalog.load())
        await asyncio.gather(
            start_engine(world, engine_settings(1), 1, 2), start_engine(world, engine_settings(2), 1, 2)
        )
        await world.until(lambda: tables(world) == {1: EVEN, 2: ODD})
        assert conflicts

    run_in_world(story)


def test_next_host_writes_slots_that_were_recorded_before_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        gate = MethodGate(monkeypatch, MemoryStore, "flush", on_the_way_back=False)
        with closed(gate):
            starting = start_task(world.engine(TWO))
            await world.pass_s(0.5)
            assert await recorded(world) == {1: EVEN, 2: ODD}
            starting.cancel()
            assert world.newest is not None
            await world.newest.abort()
        assert tables(world) == {1: set(), 2: set()}
        # The tier has one shard less, but recorded slots are not divided again.
        engine = await world.engine(engine_settings(1))
        assert engine.shards[1].key_slots == EVEN

    run_in_world(story)


def test_slots_are_not_assigned_until_the_catalog_can_record_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        class FailingCatalog(MemoryCatalog):
            broken = True

            async def replace(self, document: Any, before: Any = None) -> None:
                if self.broken:
                    raise CatalogFailed("the disk is full")
                await super().replace(document, before)

        world.catalog = failing = FailingCatalog(await world.catalog.load())
        engine = await world.engine(TWO)
        await Caller(world, engine).put()
        await world.pass_s(10)
        assert tables(world) == {1: set(), 2: set()}
        assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
            "key slots of this host's shards cannot be recorded in the catalog; trying again: the disk is full"
        ]
        failing.broken = False
        await world.until(lambda: tables(world) == {1: EVEN, 2: ODD}, within_s=3)

    run_in_world(story)


def test_slots_in_a_flush_are_recorded_in_a_catalog_that_was_wiped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else they could be divided among other shards and then be committed here."""

    async def story(world: World) -> None:
        gate = MethodGate(monkeypatch, MemoryStore, "flush", on_the_way_back=False)
        with closed(gate):
            starting = start_task(start_engine(world, engine_settings(1), 1))
            await world.pass_s(0.5)
            stored = await world.catalog.load()
            await world.catalog.replace(Document(stored.version + 1, stored.namespaces))
            await world.pass_s(0.5)
            assert await recorded(world) == {1: frozenset(range(KEY_SLOT_COUNT))}
        await starting
        assert tables(world) == {1: set(range(KEY_SLOT_COUNT))}

    run_in_world(story)


def test_slots_assigned_during_a_flush_of_others_are_written_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        stored = await world.catalog.load()
        world.catalog = MemoryCatalog(changes.record_slots(stored, "default", {1: frozenset({5})}, []))
        gate = MethodGate(monkeypatch, MemoryStore, "flush", on_the_way_back=False)
        with closed(gate):
            starting = start_task(world.engine(engine_settings(1)))
            await world.pass_s(0.5)
            stored = await world.catalog.load()
            await world.catalog.replace(changes.record_slots(stored, "default", {1: frozenset({9})}, []))
            await world.pass_s(0.5)
            assert world.newest is not None
            assert world.newest.shards[1].assigned_key_slots == {5}
        await starting
        await world.until(lambda: tables(world) == {1: {5, 9}})

    run_in_world(story)


# -------------------------------------------------------------------- disputes


def test_slot_in_two_tables_is_served_by_its_recorded_shard_and_the_other_reports_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(TWO)
        await engine.abort()
        world.database.tables[2].key_slots.update({4, 6})
        engine = await world.engine(TWO)
        caller = Caller(world, engine)
        assert engine.shards[2].key_slots == ODD
        assert ok((await caller.enqueue([in_slot(4)]))[0]).startswith("1-")
        assert ok((await caller.enqueue([in_slot(5)]))[0]).startswith("2-")
        assert await recorded(world) == {1: EVEN, 2: ODD}
        assert tables(world)[2] == ODD | {4, 6}
        reasons = {status.shard: status.reason for status in engine.queue.shard_statuses()}
        assert reasons[1] is None
        assert "slots 4, 6 of shard 2 are recorded as those of shard 1" in (reasons[2] or "")
        [line] = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        assert "docs/runbook.md" in line

    run_in_world(story)


def test_later_dispute_removes_the_slot_from_the_shard_that_served_it() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(TWO)
        caller = Caller(world, engine)
        assert ok((await caller.enqueue([in_slot(5)]))[0]).startswith("2-")
        stored = await world.catalog.load()
        other = Document(stored.version + 1, stored.namespaces, {"default": {7: frozenset({5}), 1: EVEN}})
        await world.catalog.replace(other)
        await world.until(lambda: engine.admin.document().slots == other.slots)
        assert isinstance((await caller.enqueue([in_slot(5, "x")]))[0], Unavailable)
        await world.catalog.replace(Document(other.version + 1, stored.namespaces, stored.slots))
        await world.until(lambda: engine.admin.document().slots == stored.slots)
        assert ok((await caller.enqueue([in_slot(5, "x")]))[0]).startswith("2-")

    run_in_world(story)


# ------------------------------------------------------------ export and import


def test_import_into_a_wiped_catalog_keeps_all_keys_and_slots() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(TWO)
        (first,) = await Caller(world, engine).enqueue([in_slot(4)])
        text = engine.admin.export()
        before = await recorded(world)
        world.catalog.document = EMPTY_DOCUMENT  # type: ignore[attr-defined]
        await engine.admin.restore(text, world.deadline_in(5))
        assert await recorded(world) == before
        engine = await restarted(world, engine, TWO)
        (again,) = await Caller(world, engine).enqueue([in_slot(4)])
        assert isinstance(again, Repeated)
        assert again.id == ok(first)

    run_in_world(story)


def test_import_into_a_wiped_catalog_does_not_divide_slots_that_are_held() -> None:
    """An export from before the division records shards without slots."""

    async def story(world: World) -> None:
        one = await start_engine(world, engine_settings(1), 1, 2)
        text = one.admin.export()
        assert '"1": []' in text
        two = await start_engine(world, engine_settings(2), 1, 2)
        await world.until(lambda: tables(world) == {1: EVEN, 2: ODD})
        await one.abort()
        await two.abort()
        world.catalog = MemoryCatalog()
        three = await start_engine(world, engine_settings(3), 1, 3)
        await three.admin.restore(text, world.deadline_in(5))
        await world.pass_s(3)
        assert tables(world) == {1: EVEN, 2: ODD, 3: set()}

    run_in_world(story)


def test_import_that_contradicts_recorded_slots_is_refused_and_changes_nothing() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(TWO)
        text = engine.admin.export()
        before = await world.catalog.load()
        await engine.admin.restore(text, world.deadline_in(5))
        with pytest.raises(InvalidArgument, match=r"shard 2.*leave `slots` out"):
            await engine.admin.restore(text.replace('"0-1022/2"', "").replace("1-1023/2", "0-4"), world.deadline_in(5))
        assert await world.catalog.load() is before

    run_in_world(story)
