"""A primary that was lost has diverged when it comes back, is rebuilt from the next primary, and can take its place again.

Each step is one that docs/regions.md names.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pymysql
import pytest

from foqs.dev.server_process import find_program, give_to_user, unprivileged_user
from foqs_client import Client
from perf.lib.dequeue_all import dequeue_all
from tests.integration.test_region_drain import Site, load
from tests.integration.test_region_loss import adopt, row_of_main
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.poll import eventually
from tests.support.region_servers import RegionServers
from tests.support.zookeeper import ZooKeeper

pytestmark = [
    pytest.mark.process,
    pytest.mark.mysql,
    pytest.mark.zookeeper,
    pytest.mark.long,
    pytest.mark.timeout(300),
]


def rebuild_mariadb(server: MariaDb, primary: MariaDb, folder: Path) -> None:
    """Give a server a copy of the primary's data by mariadb-backup, and let it be known up to where."""
    backup = find_program("mariadb-backup", "mariadb-backup")
    server.stop()
    data = server.folder / "data"
    for step in (
        ("--backup", "--user=root", f"--socket={primary.socket}", f"--datadir={primary.folder / 'data'}"),
        ("--prepare",),
    ):
        subprocess.run([backup, *step, f"--target-dir={folder}"], check=True, capture_output=True, timeout=120)
    shutil.rmtree(data)
    data.mkdir()
    copy = [backup, "--copy-back", f"--target-dir={folder}", f"--datadir={data}"]
    subprocess.run(copy, check=True, capture_output=True, timeout=120)
    user = unprivileged_user("mysql")
    for path in (data, *data.rglob("*")):
        give_to_user(path, user)
    server.start()
    # Newer versions have another name for it.
    [position_file] = folder.glob("*_binlog_info")
    position = position_file.read_text().split("\t")[2].strip()
    [(of_primary,)] = primary.query("SELECT @@GLOBAL.gtid_binlog_state")
    server.query("RESET MASTER")
    server.query("SET GLOBAL gtid_binlog_state = %s", up_to(position, of_primary))
    server.query("SET GLOBAL gtid_slave_pos = %s", position)


def up_to(position: str, state: str) -> str:
    """Return the state of a primary's log, in which each origin of a position is only that far."""
    last = {entry.rpartition("-")[0]: entry for text in (state, position) for entry in text.split(",")}
    return ",".join(last.values())


def rebuild_mysql(server: MariaDb, primary: MariaDb, folder: Path) -> None:
    """Give a server a copy of the primary's data by CLONE."""
    donor = f"127.0.0.1:{primary.port}"
    primary.query("CREATE USER IF NOT EXISTS rebuilder@'127.0.0.1' IDENTIFIED BY 'secret'")
    primary.query("GRANT BACKUP_ADMIN ON *.* TO rebuilder@'127.0.0.1'")
    server.query("SET GLOBAL clone_valid_donor_list = %s", donor)
    server.query("SET GLOBAL super_read_only = 0")
    with pytest.raises(pymysql.MySQLError, match="Restart server failed"):
        server.query(f"CLONE INSTANCE FROM rebuilder@'127.0.0.1':{primary.port} IDENTIFIED BY 'secret'")
    server.stop()
    server.start()


@pytest.mark.parametrize(("kind", "rebuild"), [("mariadb", rebuild_mariadb), ("mysql9", rebuild_mysql)])
def test_lost_primary_that_has_diverged_is_rebuilt_and_replaces_the_next_one(
    tmp_path: Path, kind: str, rebuild: Callable[[MariaDb, MariaDb, Path], None]
) -> None:
    async def story(site: Site, servers: RegionServers) -> None:
        async def waits_alone() -> bool:
            return not servers.acknowledging("a") and servers.waits_for_ack("a")

        await adopt(site, "semi-sync")
        async with Client(site.address) as client:
            async with load(client) as producers:
                await producers.wait_for_more()
                servers.forbid_replication("a")
                await eventually(waits_alone, "a commit waits for an acknowledgement that does not come", 60)
                servers.servers["a"].kill9()
                await producers.wait_for_more()
                servers.servers["a"].start()
                said = await site.foqs_refused("database", "rejoin", "main", "a")
                _, _, primary, term, state, *_ = row_of_main(await site.foqs("region", "list"))
                assert f"a has diverged, it has transactions that {primary} lacks" in said
                assert f"rebuild it from {primary}" in said
                assert (term, state) == ("2", "serving")
                await asyncio.to_thread(rebuild, servers.servers["a"], servers.servers[primary], tmp_path / "backup")
                assert "main: a has all that it has" in await site.foqs("database", "rejoin", "main", "a")
                await producers.wait_for_more()
                [other] = {"b", "c"} - {primary}
                await site.foqs("database", "move", "main", "--to", f"r-{other}")
                await producers.wait_for_more()
                said = await site.foqs("database", "move", "main", "--to", "r-a")
                assert "a in r-a is the primary" in said
                await producers.wait_for_more()
            taken = await dequeue_all(client, "t")
        producers.assert_nothing_is_lost(taken)

    with ZooKeeper() as zookeeper, RegionServers(kind, 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack, 5_000), servers), timeout=280)
