"""A takeover frees no commit that waits for the ack of a replica, and is itself acknowledged before it is believed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.flush.fence import Owner
from foqs.store.mysql.mysql_driver import MysqlSettings
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import StoreLost
from tests.integration.test_promotion import serving
from tests.support.aio import run
from tests.support.mysql9 import MYSQL9_IF_LONG
from tests.support.poll import until
from tests.support.region_servers import SCHEMA, RegionServers
from tests.support.stores import OTHER, make_row, opened

pytestmark = [pytest.mark.mysql]


@pytest.fixture(params=MYSQL9_IF_LONG)
def servers(request: pytest.FixtureRequest) -> Iterator[RegionServers]:
    with RegionServers(request.param, 2) as started:
        yield started


def test_takeover_waits_for_the_ack_of_the_former_owner(servers: RegionServers) -> None:
    async def story() -> None:
        async with serving(servers):
            server = servers.servers["a"]
            settings = server.settings(SCHEMA, user="hosts", unix_socket=None, port=server.port)
            former = await opened(MysqlStore(settings, 1))
            servers.stop_replication("b", "IO_THREAD")
            flush = asyncio.ensure_future(former.write(inserts=[make_row(1)]))
            await asyncio.to_thread(until, lambda: servers.waits_for_ack("a"), "the flush waits for an ack")
            next_owner = MysqlStore(replace(settings, lock_wait_timeout_s=1), 1)
            await next_owner.open()
            with pytest.raises(StoreLost, match="stays locked; if SHOW PROCESSLIST has a commit that waits for an ack"):
                await next_owner.take_over(9, OTHER)
            assert servers.waits_for_ack("a")
            assert not flush.done()
            assert server.query(f"SELECT COUNT(*) FROM {SCHEMA}.foqs_1_item") == [(0,)]
            servers.start_replication("b", "IO_THREAD")
            await flush
            await next_owner.open()
            assert (await next_owner.take_over(9, OTHER)).epoch == 9
            assert server.query(f"SELECT COUNT(*) FROM {SCHEMA}.foqs_1_item") == [(1,)]
            for store in (former.store, next_owner):
                await store.close()

    run(story(), timeout=150)


class RecordingLink:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def run(self, *statements: bytes) -> list[Any]:
        self.sent += statements
        return []


def test_takeover_that_finds_its_own_row_changes_it_all_the_same() -> None:
    """Its commit would prove nothing otherwise: it would wait for no ack."""

    async def story() -> None:
        store = MysqlStore(MysqlSettings("foqs", unsafe_durability=True), 1)
        link, found = RecordingLink(), Owner(3, "n", 5, 0, 7)
        store._connection_id = found.connection
        assert await store._write_owner(link, found) == found  # type: ignore[arg-type]
        first, second, commit = link.sent
        assert b"connection = 0 " in first
        assert b"connection = 7 " in second
        assert commit == b"COMMIT"
        link.sent.clear()
        store._connection_id = 8
        await store._write_owner(link, found)  # type: ignore[arg-type]
        assert len(link.sent) == 2

    run(story(), timeout=10)
