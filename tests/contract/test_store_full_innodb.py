"""A shard with a journal in a tablespace that is full: consumers go on with the room of the reserve, and make more.

InnoDB gives the room of deleted rows back when it has purged them, and counts it in extents. Until then flushes are
refused, for some seconds at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from foqs.core.flush.writes import LeaseUpdate
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import WriteRefused
from tests.support.aio import run
from tests.support.mysql9 import BOTH, running
from tests.support.poll import eventually
from tests.support.stores import Ownership, contents, make_row, opened

PER_FLUSH: Final = 100
"""Payloads of 100 KB: the server takes them although it would refuse a new page by then."""
LEASED_AT_ONCE: Final = 50
FULL: Final = ("--innodb-data-file-path=ibdata1:12M;ibdata2:52M", "--innodb-file-per-table=OFF")
"""One tablespace for all tables, which does not grow."""
UNDO_APART: Final = {"mariadb": ("--innodb-undo-tablespaces=3",)}
"""By default MariaDB 10.11 has its undo logs in that tablespace, too. If payloads leave no room for a new one, the reserve
cannot be deleted. MySQL has them elsewhere."""


def all_from_the_oldest(count: int) -> list[int]:
    return [*range(1, count + 1)]


def nine_of_ten_from_the_newest(count: int) -> list[int]:
    """What stays is in every row of the journal, so no extent is free as a whole until it is carried forward."""
    return [number for number in range(count, 0, -1) if number % 10]


async def write(owned: Ownership, **writes: Any) -> int:
    """Write, and repeat a flush while it is refused for want of room. Returns how often it was refused."""
    refusals = 0

    async def is_written() -> bool:
        nonlocal refusals
        try:
            await owned.write(**writes)
        except WriteRefused as refused:
            assert refused.is_full
            refusals += 1
            return False
        return True

    await eventually(is_written, f"a flush has room: {writes}", 60)
    return refusals


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("chosen", [all_from_the_oldest, nine_of_ten_from_the_newest])
def test_young_items_are_leased_and_acked_in_a_full_tablespace_until_it_has_room_again(
    kind: str, chosen: Callable[[int], list[int]]
) -> None:
    async def story(place: Any) -> None:
        settings = JournalSettings(3_600_000, 2_000, lambda: time.monotonic_ns() // 1_000_000)
        owned, count = await opened(JournaledStore(MysqlStore(place, 1), settings)), 0
        with pytest.raises(WriteRefused, match="full"):
            while True:
                await owned.write(inserts=[make_row(count + 1 + i, payload=b"x" * 1_000) for i in range(PER_FLUSH)])
                count += PER_FLUSH
        taken, refusals = chosen(count), 0
        for at in range(0, len(taken), LEASED_AT_ONCE):
            numbers = taken[at : at + LEASED_AT_ONCE]
            refusals += await write(owned, leases=[LeaseUpdate(10**9, 7, 1, numbers)])
            refusals += await write(owned, deletes=numbers)
        assert refusals > 0, "the tablespace was not full"
        await write(owned, inserts=[make_row(count + 1)])
        assert set(await contents(owned)) == {*range(1, count + 2)} - {*taken}
        await owned.store.close()

    with running(kind, *FULL, *UNDO_APART.get(kind, ())) as server:
        run(story(server.settings(server.database())), 800)
