"""What is the memory store's alone: a COMMIT on its way while its sender is gone."""

from __future__ import annotations

import asyncio

import pytest

from foqs.store.memory import MemoryDatabase, MemoryStore
from foqs.store.port import StoreLost, WriteRefused, Writes
from tests.support.aio import run
from tests.support.stores import OTHER, Ownership, contents, make_row, opened


class SlowDatabase(MemoryDatabase):
    """Its COMMITs arrive only when told; everything else is at once."""

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
    """An owner whose first flush was cancelled after it sent COMMIT."""
    owned = await opened(database.store(1))
    flush = asyncio.ensure_future(owned.write(inserts=[make_row(1)]))
    await database.sent.wait()
    flush.cancel()
    await asyncio.wait([flush])
    assert flush.cancelled()
    return owned


def test_commit_once_sent_takes_effect_though_its_sender_died() -> None:
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
        assert set(await contents(successor)) == {1}

    run(story())


def test_commit_still_on_its_way_neither_blocks_nor_outlives_the_check() -> None:
    async def story() -> None:
        database = SlowDatabase()
        owned = await _sent_commit(database)
        assert (await owned.store.owner()).flush == 0
        database.arrive.set()
        await owned.write(inserts=[make_row(2)])
        assert set(await contents(owned.store)) == {2}
        assert (await owned.store.owner()).flush == 1

    run(story())


def test_refused_writes_are_told_with_the_reason_given() -> None:
    async def story() -> None:
        database = MemoryDatabase(lambda: 1)
        owned = await opened(database.store(1))
        database.refuse = lambda writes: "the disk is full" if writes.inserts else None
        with pytest.raises(WriteRefused, match="the disk is full"):
            await owned.write(inserts=[make_row(1)])
        await owned.store.flush(owned.fence, [], [], lambda found: Writes(deletes=[1]))
        assert await contents(owned.store) == {}

    run(story())


def test_killed_connection_is_lost_and_its_lock_free() -> None:
    async def story() -> None:
        database = MemoryDatabase(lambda: 1)
        owned = await opened(database.store(1))
        assert isinstance(owned.store, MemoryStore)
        database.kill((await owned.store.owner()).connection)
        with pytest.raises(StoreLost):
            await owned.write(inserts=[make_row(1)])
        await owned.store.owner()
        await owned.write(inserts=[make_row(1)])

    run(story())
