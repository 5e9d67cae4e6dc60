"""A shard with a journal on a MariaDB whose tablespace is full: consumers go on with the room of the reserve.

InnoDB gives the room of deleted rows back when it has purged them. Until then flushes are refused, for some seconds at
most.
"""

from __future__ import annotations

import time
from typing import Any, Final

import pytest

from foqs.core.flush.writes import LeaseUpdate
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import WriteRefused
from tests.support.aio import run
from tests.support.mysql9 import running
from tests.support.poll import eventually
from tests.support.stores import Ownership, contents, make_row, opened

PER_FLUSH: Final = 30
ACKED: Final = 301
FULL: Final = ("--innodb-data-file-path=ibdata1:12M;ibdata2:24M", "--innodb-file-per-table=OFF")
"""One tablespace for all tables, which does not grow."""


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

    await eventually(is_written, "a flush that ends or leases items has room", 60)
    return refusals


@pytest.mark.long
@pytest.mark.mysql
def test_some_hundred_young_items_are_leased_and_acked_in_a_full_tablespace() -> None:
    async def story(place: Any) -> None:
        settings = JournalSettings(3_600_000, 2_000, lambda: time.monotonic_ns() // 1_000_000)
        owned, number = await opened(JournaledStore(MysqlStore(place, 1), settings)), 1
        with pytest.raises(WriteRefused, match="full"):
            while True:
                await owned.write(inserts=[make_row(number + i, payload=b"x" * 1_000) for i in range(PER_FLUSH)])
                number += PER_FLUSH
        refusals = 0
        for first in range(1, ACKED, 10):
            numbers = [*range(first, first + 10)]
            refusals += await write(owned, leases=[LeaseUpdate(10**9, 7, 1, numbers)])
            refusals += await write(owned, deletes=numbers)
        assert refusals > 0, "the tablespace was not full"
        assert set(await contents(owned)) == set(range(ACKED, number))
        await owned.store.close()

    with running("mariadb", *FULL) as server:
        run(story(server.settings(server.database())), 280)
