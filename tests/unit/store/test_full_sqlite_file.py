"""A shard with a journal in a SQLite file that must not grow: consumers go on, and what they ack makes room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from foqs.core.flush.writes import LeaseUpdate
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.port import WriteRefused
from foqs.store.sqlite.sqlite_store import SqliteStore
from tests.support.aio import run
from tests.support.stores import Ownership, contents, make_row, opened

ITEMS, PER_FLUSH = 600, 30


class FullFile:
    """A store in a file, its time, and whether the file may grow."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = 0
        self.is_full = False
        self.reserve_bytes = 256 << 10
        self._path = folder / "shard.db"

    def store(self) -> JournaledStore:
        def limit(point: str) -> None:
            db = inner._db
            if point == "begin" and db is not None:
                (pages,) = db.execute("PRAGMA page_count").fetchone()
                db.execute(f"PRAGMA max_page_count = {pages if self.is_full else 1 << 30}")

        inner = SqliteStore(self._path, 1, limit)
        return JournaledStore(
            inner, JournalSettings(5_000, 2_000, lambda: self.now_ms, reserve_bytes=self.reserve_bytes)
        )

    async def filled(self) -> tuple[Ownership, int]:
        """Fill the file with young items, and then until it takes no more. Returns the number after the last one."""
        owned, number = await opened(self.store()), 1
        while number <= ITEMS:
            await owned.write(inserts=[make_row(number + i, payload=b"x" * 1_000) for i in range(PER_FLUSH)])
            number += PER_FLUSH
        self.is_full = True
        with pytest.raises(WriteRefused, match="full"):
            while True:
                await owned.write(inserts=[make_row(number, payload=b"x" * 1_000)])
                number += 1
        return owned, number


@pytest.mark.once
def test_young_items_are_acked_in_a_full_file_while_the_oldest_hundred_rows_of_its_journal_stay(tmp_path: Path) -> None:
    file = FullFile(tmp_path)
    file.reserve_bytes = 64 << 10

    async def story() -> None:
        owned = await opened(file.store())
        for first in range(1, 501, 5):
            await owned.write(inserts=[make_row(first + i, payload=b"x" * 1_000) for i in range(5)])
        for first in range(501, 3_501, PER_FLUSH):
            await owned.write(inserts=[make_row(first + i, payload=b"x" * 1_000) for i in range(PER_FLUSH)])
        file.is_full = True
        for number in range(501, 3_501, 5):
            file.now_ms += 10
            numbers = [*range(number, number + 5)]
            await owned.write(leases=[LeaseUpdate(10**9, 7, 1, numbers)])
            await owned.write(deletes=numbers)
        left = {*range(1, 501)}
        assert set(await contents(owned)) == left
        await owned.store.close()
        again = await opened(file.store(), 2)
        assert set(await contents(again)) == left
        await again.store.close()

    run(story())


@pytest.mark.parametrize("step", [10, -10], ids=["oldest first", "newest first"])
@pytest.mark.parametrize("keeps", [lambda number: False, lambda number: number % 10 == 0], ids=["all", "nine of ten"])
def test_young_items_are_leased_and_acked_in_a_full_file_and_new_ones_fit_then(
    tmp_path: Path, keeps: Callable[[int], bool], step: int
) -> None:
    file = FullFile(tmp_path)

    async def story() -> None:
        owned, end = await file.filled()
        for first in range(1, end, 10)[:: step // 10]:
            file.now_ms += 100
            numbers = [number for number in range(first, min(first + 10, end)) if not keeps(number)]
            await owned.write(leases=[LeaseUpdate(10**9, 7, 1, numbers)])
            await owned.write(deletes=numbers)
        file.now_ms += 2_000
        await owned.write()
        await owned.write(inserts=[make_row(end, payload=b"x" * 1_000)])
        left = {*filter(keeps, range(1, end)), end}
        assert set(await contents(owned)) == left
        await owned.store.close()
        again = await opened(file.store(), 2)
        assert set(await contents(again)) == left
        await again.store.close()

    run(story())


def test_rows_are_written_back_in_a_file_that_was_full_when_there_is_room(tmp_path: Path) -> None:
    file = FullFile(tmp_path)

    async def story() -> None:
        owned, end = await file.filled()
        file.is_full = False
        for _ in range(5):
            file.now_ms += 6_000
            await owned.write()
        status = owned.store.journal
        assert status is not None
        assert (status.dirty_items, status.rows) == (0, 1)
        assert set(await contents(owned)) == set(range(1, end))
        await owned.store.close()

    run(story())
