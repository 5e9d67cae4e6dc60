"""The servers of a database receive from each other over TLS, and check whose certificate it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from foqs.dev.server_process import give_to_user, unprivileged_user
from foqs.store.mysql.mysql_server import MysqlServers
from foqs.store.mysql.replication_sql import ReplicationTls
from shardmgr.primary import ServerReport
from shardmgr.promotion import SendCommand, ServerCommand
from tests.support.aio import run
from tests.support.certificates import Authority
from tests.support.mysql9 import MYSQL9_IF_LONG
from tests.support.region_servers import SCHEMA, RegionServers

pytestmark = [pytest.mark.mysql]


@pytest.fixture(params=MYSQL9_IF_LONG)
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RegionServers, Path, Path]]:
    """Two servers with certificates of one CA, the file of this CA, and that of another one."""
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    signed = authority.sign("db")
    with RegionServers(request.param, 2) as started:
        copies: dict[str, Path] = {}
        for name, file in {"ca": authority.file, "other": other.file, "cert": signed.cert, "key": signed.key}.items():
            copies[name] = started.servers["a"].folder / f"{name}.pem"
            shutil.copy(file, copies[name])
            give_to_user(copies[name], unprivileged_user("mysql"))
        for server in started.servers.values():
            server.kill9()
            server.start(f"--ssl-cert={copies['cert']}", f"--ssl-key={copies['key']}")
        yield started, copies["ca"], copies["other"]


def test_servers_receive_over_tls_and_refuse_a_certificate_of_another_authority(
    servers: tuple[RegionServers, Path, Path],
) -> None:
    started, ca, other = servers
    primary = started.servers["a"]
    started.open("a")
    primary.query("ALTER USER replica_b@'127.0.0.1' REQUIRE SSL")

    async def connects(tls: ReplicationTls | None) -> bool:
        """Return whether `b` connects to `a`; otherwise it says why not."""
        accesses = {name: replace(access, tls=tls) for name, access in started.for_promoter()._accesses.items()}
        connection = await MysqlServers(SCHEMA, accesses).connect("b")
        try:
            await connection.carry_out(SendCommand("b", ServerCommand.FOLLOW, "a"))
            while True:
                report: ServerReport = await connection.report(await connection.standing())
                if report.heard or report.complaint:
                    return report.heard != ""
        finally:
            connection.close()

    async def story() -> None:
        assert await connects(ReplicationTls())
        assert await connects(ReplicationTls(str(ca), checks_name=True))
        assert not await connects(ReplicationTls(str(other), checks_name=True))

    run(story(), timeout=100)
