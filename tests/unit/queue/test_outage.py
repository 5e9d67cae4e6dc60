"""Dequeues while shards cannot deliver: what an empty reply says, and when it comes."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.items.item import State
from foqs.queue.engine import Engine
from foqs.queue.outage import NothingDeliverable, Outage, with_given_up_lease
from foqs.queue.suspension import WITHOUT_SESSION
from foqs.shard.refused_writes import FULL_S
from foqs.shard.writer import STALLED_S
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.port import StoreError, StoreLost, WriteRefused
from tests.support.builders import engine_settings, new_item
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import MethodGate, start_task

WAIT_MS = 5_000


class Database:
    """Lets the database of some shards fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flush_count = 0
        self._errors: dict[int, StoreError] = {}
        flush, read_owner = MemoryStore.flush, MemoryStore.read_owner

        async def failing_flush(store: MemoryStore, *arguments: Any) -> None:
            self.flush_count += 1
            if (error := self._errors.get(store._shard)) is not None:
                raise error
            await flush(store, *arguments)

        async def failing_read(store: MemoryStore) -> Any:
            if isinstance(error := self._errors.get(store._shard), StoreLost):
                raise error
            return await read_owner(store)

        monkeypatch.setattr(MemoryStore, "flush", failing_flush)
        monkeypatch.setattr(MemoryStore, "read_owner", failing_read)

    def fail(self, error: StoreError, *shards: int) -> None:
        self._errors |= dict.fromkeys(shards, error)

    def heal(self) -> None:
        self._errors.clear()


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    return Database(monkeypatch)


async def until_away(world: World, database: Database, engine: Engine, *shards: int) -> None:
    """Let the database of these shards be away, and wait until the host has noticed."""
    database.fail(StoreLost("nobody listens there"), *shards)
    for number in shards:
        engine.shards[number]._writer.request_flush()
    await world.until(lambda: all(engine.shards[number].unavailable_reason for number in shards))


async def outage_of(world: World, caller: Caller, topic: str = "t", wait_ms: int = 0) -> Outage | None:
    """Dequeue, which must find nothing exactly at the end of its wait, and return the outage."""
    begun_s = world.loop.time()
    deliveries = await caller.get(topic, wait_ms=wait_ms)
    assert not deliveries.items
    assert wait_ms / 1_000 <= world.loop.time() - begun_s < wait_ms / 1_000 + 0.1
    return deliveries.outage


async def put_in_each_shard(caller: Caller, engine: Engine, topic: str = "t") -> None:
    while not all(shard.may_deliver(("default", topic)) for shard in engine.shards.values()):
        await caller.put(topic)


@pytest.mark.parametrize("wait_ms", [0, WAIT_MS])
def test_a_dequeue_ends_with_its_wait_and_says_that_no_shard_could_deliver(database: Database, wait_ms: int) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine()
        caller = Caller(world, engine)
        await put_in_each_shard(caller, engine)
        await until_away(world, database, engine, 1, 2)
        outage = await outage_of(world, caller, wait_ms=wait_ms)
        assert outage is not None
        assert (outage.shards, outage.is_whole) == (2, True)
        assert "nobody listens there" in outage.reason
        error = NothingDeliverable(outage)
        assert error.retryable_elsewhere
        assert "shard 1: nobody listens there (and 1 more)" in error.message

    run_in_world(story)


def test_a_short_outage_ends_no_wait(database: Database) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine()
        caller = Caller(world, engine)
        await put_in_each_shard(caller, engine)
        await until_away(world, database, engine, 1, 2)
        world.loop.call_later(2.0, database.heal)
        assert (await caller.get(wait_ms=WAIT_MS)).items

    run_in_world(story)


def test_a_lease_that_could_be_withdrawn_makes_a_whole_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    flushes = MethodGate(monkeypatch, MemoryStore, "flush", on_the_way_back=False)

    async def story(world: World) -> None:
        caller = Caller(world, await world.counted_engine(engine_settings(1)))
        await caller.put()
        flushes.close()
        other = start_task(caller.put("other"))
        await world.until(lambda: flushes.held == 1)
        outage = (await caller.get(timeout_s=STALLED_S / 2)).outage
        assert outage is not None
        assert (outage.is_whole, outage.reason) == (True, "shard 1: it did not write a lease in time")
        flushes.open()
        await other
        assert [row.attempt for row in world.database.tables[1].rows.values()] == [0, 0]

    run_in_world(story)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_lease_that_may_be_written_never_ends_as_unavailable(monkeypatch: pytest.MonkeyPatch, is_lost: bool) -> None:
    """The flush that leased the item would supersede the token of a consumer whose lease has ended."""
    flushes = MethodGate(monkeypatch, MemoryStore, "flush", on_the_way_back=False)

    async def story(world: World) -> None:
        engine = await world.counted_engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put()
        flushes.close()
        dequeue = start_task(caller.get(timeout_s=STALLED_S / 2))
        await world.until(lambda: flushes.held == 1)
        if is_lost:
            engine.shards[1].drop()
        outage = (await dequeue).outage
        assert outage is not None
        assert (outage.shards, outage.is_whole) == (1, False)
        flushes.open()

    run_in_world(story)


@pytest.mark.parametrize("outage", [None, Outage(3, True, "c", 900), Outage(3, False, "c", 900)])
def test_an_outage_with_a_given_up_lease_is_not_whole(outage: Outage | None) -> None:
    marked = with_given_up_lease(outage)
    assert marked.shards == (3 if outage else 1)
    assert not marked.is_whole


def test_an_empty_reply_counts_the_shards_that_may_hold_items(database: Database) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine()
        caller = Caller(world, engine)
        await put_in_each_shard(caller, engine)
        assert len((await caller.get(count=99)).items) >= 2  # all are leased, and come due again
        assert await outage_of(world, caller) is None
        await until_away(world, database, engine, 1)
        outage = await outage_of(world, caller)
        assert outage is not None
        assert (outage.shards, outage.is_whole) == (1, False)
        assert await outage_of(world, caller, "of which no shard has items") is None
        database.heal()
        await world.until(lambda: engine.shards[1].unavailable_reason is None)
        assert await outage_of(world, caller) is None

    run_in_world(story)


def test_dead_items_and_paused_topics_make_no_outage(database: Database) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine()
        caller = Caller(world, engine)
        await caller.put("dead", attempts_max=1, lease_ms=1_000)
        await caller.get("dead")
        await world.until(lambda: ("dead", State.DEAD) in world.rows())
        await caller.put("paused")
        await engine.admin.pause("default", "paused", world.deadline_in(5), paused=True)
        await until_away(world, database, engine, 1, 2)
        assert await outage_of(world, caller, "dead") is None
        assert await outage_of(world, caller, "paused") is None

    run_in_world(story)


def test_a_shard_that_is_not_served_may_hold_anything(database: Database) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine()
        caller = Caller(world, engine)
        engine.shards[2].close()
        outage = await outage_of(world, caller, "never heard of")
        assert outage is not None
        assert (outage.shards, outage.is_whole) == (1, True)
        assert "shard 2 is not served now" in outage.reason

    run_in_world(story)


def test_a_suspended_host_can_deliver_nothing(database: Database) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine()
        engine.queue.suspend(WITHOUT_SESSION)
        outage = await outage_of(world, Caller(world, engine), wait_ms=WAIT_MS)
        assert outage is not None
        assert (outage.shards, outage.is_whole) == (2, True)

    run_in_world(story)


def test_a_full_disk_is_an_outage_and_the_host_is_not_ready_until_there_is_room(database: Database) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine()
        caller = Caller(world, engine)
        await put_in_each_shard(caller, engine)
        database.fail(WriteRefused("the disk is full", is_full=True), 1, 2)
        outage = await outage_of(world, caller)
        assert outage is not None
        assert outage.is_whole
        assert "the disk is full" in outage.reason
        assert not engine.is_ready
        reasons = engine.not_ready_reasons()
        assert reasons
        assert {*reasons.values()} == {"the disk is full"}
        await world.pass_s(10 * FULL_S)  # without a call, too
        assert not engine.is_ready
        database.heal()
        await world.until(lambda: engine.is_ready, within_s=2 * FULL_S)
        await world.until(lambda: all(shard.undeliverable_reason is None for shard in engine.shards.values()))
        assert (await caller.get(count=9, wait_ms=WAIT_MS)).items

    run_in_world(story)


def test_a_disk_that_is_almost_full_is_probed_once_a_second_and_the_host_stays_unready(database: Database) -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(engine_settings(1))
        caller = Caller(world, engine)
        for _ in range(20):
            database.fail(WriteRefused("the disk is full", is_full=True), 1)
            await caller.enqueue([new_item()])
            database.heal()
            await caller.put()
            assert not engine.is_ready
        database.fail(WriteRefused("the disk is full", is_full=True), 1)
        await world.pass_s(1.5)
        begun = database.flush_count
        await world.pass_s(10)
        assert database.flush_count - begun <= 15

    run_in_world(story)


@pytest.mark.parametrize("other", [None, Outage(2, True, "b", 900), Outage(3, False, "c")])
def test_outages_add_up(other: Outage | None) -> None:
    both = Outage(1, True, "a", 500).merged_with(other)
    assert both.shards == 1 + (0 if other is None else other.shards)
    assert both.is_whole is (other is None or other.is_whole)
    assert both.retry_after_ms == (900 if other is not None and other.is_whole else 500)
