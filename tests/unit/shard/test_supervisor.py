"""A shard on one host: acquired, released, lost, and under faults."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from foqs.core.items.item import EPOCH_MAX, SEQUENCE_MAX
from foqs.queue.engine import Engine
from foqs.shard.observer import NullObserver
from foqs.shard.supervisor import ShardTakenOver
from foqs.store.in_memory.memory_store import MemoryReads, MemoryStore
from foqs.store.port import StoreLost, StoreUnusable
from foqs_contract.errors import NotOwner, Unavailable, UnknownOutcome
from shardmgr.local_coordinator import FileEpochBook, LocalCoordinator
from shardmgr.port import CoordinatorFailed
from tests.support.builders import MemoryEpochBook, engine_settings, new_item
from tests.support.engines import Caller, World, make_engine, run_in_world


async def started(world: World, book: Any = None) -> Engine:
    """Start an engine of one shard, without waiting until it is ready."""
    engine = make_engine(
        engine_settings(1),
        lambda shard, *_: world.database.store(shard, lambda point: world.faults(point)),
        LocalCoordinator(book or world.book),
        world.catalog,
        world.clock,
        world.rng,
        NullObserver(),
        "first",
    )
    await engine.open()
    engine.start()
    return engine


class StubbornBook(MemoryEpochBook):
    """A book that cannot be written until `writable` is set."""

    writable = False

    def save(self, epochs: dict[int, int]) -> None:
        if not self.writable:
            raise CoordinatorFailed("cannot write the book: the disk is full")
        super().save(epochs)


def test_a_shard_is_served_as_soon_as_the_coordinator_can_write_again() -> None:
    async def story(world: World) -> None:
        book = StubbornBook()
        engine = await started(world, book)
        await world.pass_s(3)
        (status,) = engine.queue.shard_statuses()
        assert (status.state, status.reason) == ("acquiring", "cannot write the book: the disk is full")
        with pytest.raises(Unavailable):
            await Caller(world, engine).put()
        book.writable = True
        await world.until(lambda: engine.is_ready, within_s=1.0)
        await Caller(world, engine).put()

    run_in_world(story)


@pytest.mark.parametrize("wait_s", [0.0, 0.0005, 0.0015, 0.0025, 0.0035, 0.0045, 0.1])
def test_a_release_at_any_moment_of_an_acquisition_ends_it(wait_s: float) -> None:
    async def story(world: World) -> None:
        engine = await started(world)
        await world.pass_s(wait_s)
        engine.on_release_requested()
        engine.on_release_requested()
        async with asyncio.timeout(2):
            await engine.run()
        (status,) = engine.queue.shard_statuses()
        assert status.state == "free"
        with pytest.raises(Unavailable):
            await Caller(world, engine).put()
        assert not any(map(world.database.is_alive, range(100))), "a connection was left open"

    run_in_world(story)


def test_a_release_while_the_database_is_away_ends_the_acquisition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        async def away(self: MemoryStore) -> None:
            raise StoreLost("nobody answers")

        monkeypatch.setattr(MemoryStore, "open", away)
        engine = await started(world)
        await world.pass_s(5)
        engine.on_release_requested()
        await engine.run()
        assert engine.queue.shard_statuses()[0].state == "free"

    run_in_world(story)


def test_a_takeover_during_a_hand_over_answers_every_caller_with_not_owner() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        world.stall()
        flushing = asyncio.ensure_future(Caller(world, engine).enqueue([new_item()], 9))
        await world.pass_s(0.1)
        queued = asyncio.ensure_future(Caller(world, engine).enqueue([new_item()], 9))
        await world.pass_s(0.1)
        engine.on_release_requested()
        owner = world.database.tables[1].owner
        world.database.tables[1].owner = type(owner)(owner.epoch + 1, "second", 0, 0, 0)
        world.resume()
        with pytest.raises(ShardTakenOver):
            await engine.run()
        assert world.loop.time() < 2
        assert [type(result) for result in await flushing + await queued] == [NotOwner, NotOwner]
        assert world.rows() == []

    run_in_world(story)


def test_a_shard_that_always_fails_does_not_use_up_its_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        async def broken(self: MemoryStore, *arguments: Any) -> None:
            raise RuntimeError("a bug")

        engine = await world.engine(engine_settings(1))
        monkeypatch.setattr(MemoryStore, "flush", broken)
        (result,) = await Caller(world, engine).enqueue([new_item()], 5)
        assert isinstance(result, UnknownOutcome)
        await world.pass_s(60)
        assert 10 < world.book.epochs[1] < 300

    run_in_world(story)


@pytest.mark.parametrize("step", ["take_over", "topics"])
def test_an_acquisition_that_fails_again_and_again_uses_one_epoch(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    async def story(world: World) -> None:
        attempts = 0
        works = getattr(MemoryStore, step)

        async def fails(self: MemoryStore, *arguments: Any) -> Any:
            nonlocal attempts
            attempts += 1
            await works(self, *arguments)  # it takes effect, and its reply is lost
            raise StoreLost("the line is cut")

        monkeypatch.setattr(MemoryStore, step, fails)
        engine = await started(world)
        await world.pass_s(600)
        assert attempts > 50
        assert world.book.epochs == {1: 1}
        monkeypatch.setattr(MemoryStore, step, works)
        await world.until(lambda: engine.is_ready)
        await Caller(world, engine).put()
        assert (world.database.tables[1].owner.epoch, world.book.epochs) == (1, {1: 1})

    run_in_world(story)


def test_a_damaged_store_ends_the_host_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        async def damaged(self: MemoryStore, *arguments: Any) -> None:
            raise StoreUnusable("the file is damaged; restore it from a backup")

        engine = await world.engine(engine_settings(1))
        monkeypatch.setattr(MemoryStore, "read_owner", damaged)
        monkeypatch.setattr(MemoryStore, "open", damaged)
        lost = iter([True])

        def fail(point: str) -> None:
            if next(lost, False):
                raise StoreLost("the line is cut")

        world.faults = fail
        (result,) = await Caller(world, engine).enqueue([new_item()], 5)
        assert isinstance(result, UnknownOutcome)
        with pytest.raises(StoreUnusable, match="restore it"):
            await engine.run()

    run_in_world(story)


def test_a_shard_without_epochs_left_is_not_served() -> None:
    async def story(world: World) -> None:
        world.book.epochs[1] = EPOCH_MAX
        with pytest.raises(StoreUnusable, match="epochs"):
            await (await started(world)).run()

    run_in_world(story)


def test_a_given_up_shard_is_taken_over_again_with_a_higher_epoch() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=3)
        owner = world.database.tables[1].owner
        world.database.tables[1].owner = type(owner)(owner.epoch, owner.nonce, owner.flush - 1, 0, 0)
        (result,) = await caller.enqueue([new_item()], 5)
        assert isinstance(result, NotOwner)
        await world.until(lambda: engine.is_ready)
        assert world.database.tables[1].owner.epoch == owner.epoch + 1
        assert len((await caller.get(count=9)).items) == 3

    run_in_world(story)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"[]", b'{"epochs": {"1": 1e999}}', b'{"epochs": {"x": 1}}'])
def test_an_invalid_epoch_file_is_named_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "epochs"
    path.write_bytes(content)
    with pytest.raises(CoordinatorFailed, match="move it away"):
        FileEpochBook(path).load()


def test_an_epoch_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CoordinatorFailed, match="cannot be read"):
        FileEpochBook(tmp_path).load()


def test_a_shard_whose_ids_are_used_up_is_taken_over_again() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put()
        shard = engine.shards[1]
        used = shard.numbers.next_number & SEQUENCE_MAX
        shard.numbers.assign_sealed(SEQUENCE_MAX - 1_000_000 - used)
        await caller.put(count=1)
        with pytest.raises(Unavailable, match="starts a new one"):
            await caller.put(count=1)
        await world.until(lambda: engine.shards.get(1) not in (None, shard) and engine.is_ready)
        await caller.put()
        assert len((await caller.get(count=9)).items) == 3
        assert world.book.epochs[1] == 2

    run_in_world(story)


def test_a_shard_whose_timers_fail_is_taken_over_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(lease_ms=500)
        await caller.one()
        shard = engine.shards[1]

        async def broken(*_: object) -> None:
            monkeypatch.undo()
            raise RuntimeError("a bug")

        monkeypatch.setattr(MemoryReads, "leases_in", broken)
        assert (await caller.one(wait_ms=4_000)).row.attempt == 2
        assert engine.shards[1] is not shard

    run_in_world(story)
