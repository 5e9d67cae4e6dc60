"""Behaviour of the memory store alone: a COMMIT under way after its sender has died, a read during writes."""

from __future__ import annotations

import asyncio

import pytest

from foqs.core.flush.writes import Writes
from foqs.core.items.item import State
from foqs.store.in_memory.memory_store import MemoryDatabase, MemoryStore
from foqs.store.port import StoreLost, WriteRefused
from tests.support.aio import run
from tests.support.stores import OTHER, TOPIC, Ownership, contents, make_row, opened, reading


class SlowDatabase(MemoryDatabase):
    """A database whose COMMITs arrive when `arrive` is set."""

    def __init__(self) -> None:
        super().__init__(lambda: 1, self._wait)
        self.arrive = asyncio.Event()
        self.sent = asyncio.Event()
        self.owner: asyncio.Task[object] | None = None

    async def _wait(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        if "_apply" in str(task.get_coro()):
            self.sent.set()
            await self.arrive.wait()


async def _sent_commit(database: SlowDatabase) -> Ownership:
    """Return an owner whose first flush was cancelled after it sent COMMIT."""
    owned = await opened(database.store(1))
    flush = asyncio.ensure_future(owned.write(inserts=[make_row(1)]))
    await database.sent.wait()
    flush.cancel()
    await asyncio.wait([flush])
    assert flush.cancelled()
    return owned


def test_sent_commit_takes_effect_even_if_its_sender_dies() -> None:
    async def story() -> None:
        database = SlowDatabase()
        await _sent_commit(database)
        successor = database.store(1)
        await successor.open()
        takeover = asyncio.ensure_future(successor.take_over(2, OTHER))
        await asyncio.sleep(0)
        assert not takeover.done()
        database.arrive.set()
        assert (await takeover).epoch == 2
        assert set(await contents(Ownership(successor, 2, OTHER))) == {1}

    run(story())


def test_commit_that_has_not_arrived_neither_blocks_read_owner_nor_takes_effect_after_it() -> None:
    async def story() -> None:
        database = SlowDatabase()
        owned = await _sent_commit(database)
        assert (await owned.store.read_owner()).flush == 0
        database.arrive.set()
        await owned.write(inserts=[make_row(2)])
        assert set(await contents(owned)) == {2}
        assert (await owned.store.read_owner()).flush == 1

    run(story())


class SyncingDatabase(MemoryDatabase):
    """A database whose COMMITs become durable when `durable` is set."""

    def __init__(self) -> None:
        super().__init__(lambda: 1)
        self.durable = asyncio.Event()
        self.syncing = asyncio.Event()

    async def sync(self, connection: int) -> None:
        self.syncing.set()
        await self.durable.wait()


def test_commit_that_is_being_made_durable_survives_a_kill_and_read_owner_waits_for_it() -> None:
    async def story() -> None:
        database = SyncingDatabase()
        owned = await opened(database.store(1))
        connection = (await owned.store.read_owner()).connection
        flush = asyncio.ensure_future(owned.write(inserts=[make_row(1)]))
        await database.syncing.wait()
        flush.cancel()
        await asyncio.wait([flush])
        database.kill(connection)
        check = asyncio.ensure_future(owned.store.read_owner())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not check.done()
        database.durable.set()
        assert (await check).flush == 1
        owned.number = 2
        assert set(await contents(owned)) == {1}

    run(story())


def test_refused_writes_raise_the_given_reason() -> None:
    async def story() -> None:
        database = MemoryDatabase(lambda: 1)
        owned = await opened(database.store(1))
        database.refuse = lambda writes: "the disk is full" if writes.inserts else None
        with pytest.raises(WriteRefused, match="the disk is full"):
            await owned.write(inserts=[make_row(1)])
        await owned.store.flush(owned.fence, [], {}, [], lambda found, keys: Writes(deletes=[1]))
        assert await contents(owned) == {}

    run(story())


def test_killed_connection_is_lost_and_its_lock_free() -> None:
    async def story() -> None:
        database = MemoryDatabase(lambda: 1)
        owned = await opened(database.store(1))
        assert isinstance(owned.store, MemoryStore)
        database.kill((await owned.store.read_owner()).connection)
        with pytest.raises(StoreLost):
            await owned.write(inserts=[make_row(1)])
        await owned.store.read_owner()
        await owned.write(inserts=[make_row(1)])

    run(story())


class Steps:
    """A latency that holds a task and lets it continue with each call of `step`."""

    def __init__(self) -> None:
        self.held: asyncio.Task[object] | None = None
        self._go = asyncio.Semaphore(0)

    async def __call__(self) -> None:
        if asyncio.current_task() is self.held:
            await self._go.acquire()
        await asyncio.sleep(0)

    async def step(self) -> None:
        self._go.release()
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_read_sees_all_or_nothing_of_a_flush_that_commits_meanwhile(steps: int) -> None:
    """A read has two ways, there and back. It sees commits before the end of the first."""

    async def story() -> None:
        latency = Steps()
        database = MemoryDatabase(lambda: 1, latency)
        owned = await opened(database.store(1))
        async with reading(owned.store) as reads:
            await reads.rows(owned.past, [])
            read = asyncio.ensure_future(reads.rows(owned.past, [1]))
            latency.held = read
            await asyncio.sleep(0)
            for _ in range(steps):
                await latency.step()
            assert read.done() == (steps == 2)
            await owned.write(inserts=[make_row(1)])
            while not read.done():
                await latency.step()
            assert [row.id for row in await read] == ([1] if steps == 0 else [])

    run(story())


@pytest.mark.parametrize("steps", [0, 1])
def test_read_whose_connection_is_killed_under_way_is_lost(steps: int) -> None:
    async def story() -> None:
        latency = Steps()
        database = MemoryDatabase(lambda: 1, latency)
        owned = await opened(database.store(1))
        async with reading(owned.store) as reads:
            await reads.rows(owned.past, [])
            read = asyncio.ensure_future(reads.rows(owned.past, [1]))
            latency.held = read
            await asyncio.sleep(0)
            for _ in range(steps):
                await latency.step()
            for connection in range(1, 100):
                database.kill(connection)
            while not read.done():
                await latency.step()
            with pytest.raises(StoreLost):
                await read
            assert await reads.rows(owned.past, [1]) == []

    run(story())


def test_read_rows_are_copies() -> None:
    async def story() -> None:
        database = MemoryDatabase(lambda: 1)
        owned = await opened(database.store(1))
        await owned.write(inserts=[make_row(1)])
        async with reading(owned.store) as reads:
            for row in (
                *await reads.rows(owned.past, [1]),
                *await reads.list_rows(owned.past, TOPIC, State.READY, None, 1, with_payload=True),
            ):
                row.attempt = 99
        assert await contents(owned) == {1: make_row(1)}

    run(story())
