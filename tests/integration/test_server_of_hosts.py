"""The server that hosts use is told from another one, whatever names and numbers the two have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foqs.store.mysql.server_of_hosts import MysqlServerOfHosts
from foqs.store.sql_rows import OWNER_COLUMNS
from shardmgr.first_entry import SeenByHosts
from shardmgr.server_port import ServerFailed
from tests.support.aio import run
from tests.support.mysql9 import MYSQL9_IF_LONG
from tests.support.region_servers import SCHEMA, RegionServers

pytestmark = [pytest.mark.mysql]


@pytest.fixture(params=MYSQL9_IF_LONG)
def servers(request: pytest.FixtureRequest) -> Iterator[RegionServers]:
    with RegionServers(request.param, 2) as started:
        yield started


def test_server_of_hosts_is_the_one_to_which_their_url_leads(servers: RegionServers) -> None:
    first = servers.servers["a"]
    first.query("SET GLOBAL read_only = 0")
    columns = ", ".join(f"{name} BIGINT NOT NULL DEFAULT 7" for name in OWNER_COLUMNS)
    first.query(f"CREATE TABLE {SCHEMA}.foqs_3_owner (one INT, {columns})")
    first.query(f"INSERT INTO {SCHEMA}.foqs_3_owner (one) VALUES (1)")
    addresses = {name: ("127.0.0.1", server.port) for name, server in servers.servers.items()}

    async def story() -> None:
        by_port = first.settings(SCHEMA, user="hosts", unix_socket=None, port=first.port)
        hosts = MysqlServerOfHosts(by_port, addresses)
        assert await hosts.compare_server("a", [3, 4]) == SeenByHosts(True, {3: 7})
        assert await hosts.compare_server("b", [3, 4]) == SeenByHosts(False, {})
        assert await hosts.accepts_commits("a")
        assert not await hosts.accepts_commits("b")
        servers.servers["b"].kill9()
        assert not await hosts.accepts_commits("b")
        with pytest.raises(ServerFailed, match="b"):
            await hosts.compare_server("b", [4])

    run(story(), timeout=60)


def test_account_that_may_write_a_read_only_server_is_found(servers: RegionServers) -> None:
    first, second = servers.servers.values()
    addresses = {name: ("127.0.0.1", server.port) for name, server in servers.servers.items()}

    async def passes(user: str) -> list[bool]:
        hosts = MysqlServerOfHosts(first.settings(SCHEMA, user=user, unix_socket=None, port=first.port), addresses)
        return [
            await hosts.passes_read_only(name, is_read_only=is_read_only)
            for name in "ab"
            for is_read_only in (True, False)
        ]

    assert run(passes("hosts"), timeout=60) == [False] * 4
    if servers.kind == "mariadb":
        assert run(passes("promoter"), timeout=60) == [True] * 4
        second.query("GRANT ALL ON *.* TO hosts@'127.0.0.1'")
        assert run(passes("hosts"), timeout=60) == [False, False, True, True]
    else:
        assert run(passes("promoter"), timeout=60) == [False] * 4  # nobody passes super_read_only
