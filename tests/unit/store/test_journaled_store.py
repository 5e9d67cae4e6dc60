"""Flushes of a store with a journal over a database that refuses what they write beside their own changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from foqs.core.flush.writes import Writes
from foqs.store.in_memory.memory_store import MemoryDatabase
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.port import StoreLost, WriteRefused
from tests.support.aio import run
from tests.support.stores import Ownership, contents, make_row, opened


class FullDisk:
    """A database without room for rows and payloads, and its time. It counts what it refused."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.is_full = False
        self.refusals = 0
        self.database = MemoryDatabase(lambda: self.now_ms)
        self.database.refuse = self._refuse
        self.settings = JournalSettings(100, 100, lambda: self.now_ms)

    def _refuse(self, writes: Writes) -> WriteRefused | None:
        journal_row = writes.journal_row
        if not self.is_full or not (writes.inserts or (journal_row is not None and journal_row.payloads)):
            return None
        self.refusals += 1
        return WriteRefused("the disk is full", is_full=True)

    async def owner(self, epoch: int, *, is_on: bool = True) -> Ownership:
        return await opened(JournaledStore(self.database.store(0), replace(self.settings, is_on=is_on)), epoch)


@pytest.fixture
def disk() -> FullDisk:
    return FullDisk()


def rows_of(disk: FullDisk) -> Callable[[], set[int]]:
    """Return a function that returns the numbers of the rows in the table."""
    return lambda: set(disk.database.tables[0].rows)


def test_full_disk_refuses_no_ack_because_of_items_that_are_due_to_be_written_back(disk: FullDisk) -> None:
    async def story() -> None:
        owned, rows = await disk.owner(1), rows_of(disk)
        await owned.write(inserts=[make_row(number) for number in range(1, 9)])
        disk.now_ms, disk.is_full = 200, True
        for number in range(1, 5):
            await owned.write(deletes=[number])
        assert disk.refusals == 1, "an ack tries again what has no room"
        with pytest.raises(WriteRefused, match="full"):
            await owned.write(inserts=[make_row(9)])
        assert (disk.refusals, rows()) == (2, set())
        disk.now_ms, disk.is_full = 2_000, False
        await owned.write()
        assert rows() == {5, 6, 7, 8}
        assert set(await contents(owned)) == {5, 6, 7, 8}

    run(story())


def test_row_that_had_no_room_is_not_held_to_be_refused(disk: FullDisk) -> None:
    async def story() -> None:
        owned, rows = await disk.owner(1), rows_of(disk)
        await owned.write(inserts=[make_row(1)])
        for flush in range(1, 6):
            disk.now_ms, disk.is_full = 2_000 * flush, flush < 5
            await owned.write()
        assert rows() == {1}
        assert disk.refusals == 4

    run(story())


def test_host_that_must_empty_a_journal_on_a_full_disk_says_so(disk: FullDisk) -> None:
    async def story() -> None:
        owned = await disk.owner(1)
        await owned.write(inserts=[make_row(1)])
        disk.is_full = True
        with pytest.raises(StoreLost, match="no room"):
            await disk.owner(2, is_on=False)
        disk.is_full = False
        assert set(await contents(await disk.owner(3, is_on=False))) == {1}

    run(story())


@pytest.mark.parametrize("is_bad_value", [True, False])
def test_refused_rows_are_carried_forward_and_tried_alone_and_three_times_if_the_columns_do_not_hold_them(
    disk: FullDisk, is_bad_value: bool
) -> None:
    tries: dict[int, int] = {}

    def refuse(writes: Writes) -> WriteRefused | None:
        bad = [row.id for row in writes.inserts if row.id <= 3]
        if bad and len(writes.inserts) == 1:
            tries[bad[0]] = tries.get(bad[0], 0) + 1
        return WriteRefused("it is too long", is_bad_value=is_bad_value) if bad else None

    async def story() -> None:
        owned, rows = await disk.owner(1), rows_of(disk)
        disk.database.refuse = refuse
        await owned.write(inserts=[make_row(number) for number in range(1, 9)])
        disk.now_ms = 100
        while rows() != {4, 5, 6, 7, 8}:
            await owned.write()
        for _ in range(20):
            disk.now_ms += 50
            await owned.write()
        assert isinstance(owned.store, JournaledStore)
        assert owned.store.memory.status().rows <= 10, "a refused row holds the floor"
        assert all(times == 3 if is_bad_value else times > 4 for times in tries.values())
        assert set(await contents(owned)) == set(range(1, 9))
        disk.database.refuse = lambda writes: None
        for _ in range(10):
            disk.now_ms += 50
            await owned.write()
        assert rows() == ({4, 5, 6, 7, 8} if is_bad_value else set(range(1, 9)))
        assert set(await contents(await disk.owner(2))) == set(range(1, 9))

    run(story())


@pytest.mark.parametrize("has_items", [True, False])
@pytest.mark.parametrize("is_retryable", [True, False])
def test_refusal_of_a_flush_that_empties_a_journal_is_repeated_or_ends_the_takeover(
    has_items: bool, is_retryable: bool
) -> None:
    """Without items, only the trim of the journal is left to write."""

    async def story() -> None:
        database = MemoryDatabase(lambda: 0)
        settings = JournalSettings(100, 100, lambda: 0)
        owned = await opened(JournaledStore(database.store(0), settings))
        await owned.write(inserts=[make_row(1)])
        if not has_items:
            await owned.write(deletes=[1])
        refusals = 0

        def refuse(writes: Writes) -> WriteRefused | None:
            nonlocal refusals
            refusals += 1
            return WriteRefused("a deadlock", is_retryable=is_retryable) if refusals <= 3 else None

        database.refuse = refuse
        store = JournaledStore(database.store(0), replace(settings, is_on=False))
        await store.open()
        if is_retryable:
            await store.take_over(2, "other")
            assert store.journal is None
            assert set(database.tables[0].rows) == ({1} if has_items else set())
            assert database.tables[0].journal == {}
        elif not has_items:
            with pytest.raises(StoreLost, match="cannot be emptied"):
                await store.take_over(2, "other")

    run(story())
