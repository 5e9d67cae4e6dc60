"""A real primary that lost its proof, or its ackers, is not replaced: it says why, and goes on without a loss when they are back."""

from __future__ import annotations

import asyncio
import json
import subprocess
from contextlib import ExitStack
from math import inf
from pathlib import Path

import pymysql
import pytest

from foqs.store.mysql.mysql_driver import WrongServer
from foqs_client import Client, FoqsError
from perf.lib.dequeue_all import dequeue_all
from shardmgr.primary_changes import start_revoking
from shardmgr.primary_document import change_primary
from shardmgr.primary_moves import progress_text
from tests.integration.test_promotion import rounds_in_time, serving
from tests.integration.test_region_drain import Load, Site, load
from tests.integration.test_region_loss import adopt, assert_within_report, row_of_main
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.mysql9 import MYSQL9_IF_LONG
from tests.support.poll import eventually
from tests.support.region_servers import RegionServers
from tests.support.runbook import REGIONS, section
from tests.support.zookeeper import Ensemble, ZooKeeper

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(400)]

BLOCKED = "writes wait: commits of a need an ack of b or c, and none comes"


def metric(site: Site, name: str) -> float | None:
    """Return the greatest value of a metric of the database at the hosts; None: no host has it."""
    wanted = f'{name}{{database="main"}} '
    answers = [host.get("/metrics") for host in site.hosts if host.is_running]
    lines = [line for answer in answers if answer is not None for line in answer[1].splitlines()]
    return max((float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted)), default=None)


async def until_metric(site: Site, name: str, least: float, most: float) -> None:
    async def is_so() -> bool:
        value = await asyncio.to_thread(metric, site, name)
        return value is not None and least <= value <= most

    await eventually(is_so, f"{name} is {least} to {most}", 60)


async def assert_not_replaced(site: Site) -> None:
    """Kill the primary, and assert that it is the first one still, after the elected host has given it up."""
    async with site.logged("this host does not reach a server that it needs"):
        site.servers.servers["a"].kill9()
    assert row_of_main(await site.foqs("region", "list"))[2:5] == ["a", "1", "serving"]


async def assert_blocked(site: Site, producers: Load) -> None:
    """Wait until it is said that writes wait. Assert that they do."""
    await until_metric(site, "foqs_database_blocked", 1, 1)
    acknowledged = len(producers.acknowledged)
    said = await site.foqs("region", "list")
    assert f"main: {BLOCKED}; bring one of them back" in said
    assert row_of_main(said)[2:5] == ["a", "1", "serving"]
    assert f"Primary main bad {BLOCKED} bring one of them back" in await site.doctor()
    assert len(producers.acknowledged) == acknowledged


@pytest.mark.parametrize("kind", MYSQL9_IF_LONG)
def test_host_refuses_a_weakened_primary_and_its_promoter_mends_it_or_proves_nothing(kind: str) -> None:
    async def story(servers: RegionServers) -> None:
        async with serving(servers) as database:
            [promoter] = database.promoters
            entry = await database.entry()
            for setting in ("enabled = 0", "timeout = 1000"):
                servers.weaken("a", setting)
                with pytest.raises(WrongServer, match="a answers commits that no acker has; switch semi-sync on"):
                    await servers.connect_as_host("a", entry)
                done = await promoter.run_round()
                assert done is not None
                assert done.is_weakened
                assert all((await database.move(lambda: promoter)).ackers.values())
                await servers.connect_as_host("a", entry)
            # It is lost before it is mended.
            servers.weaken("a", "timeout = 1000")
            await promoter.run_round()
            servers.servers["a"].kill9()
            await change_primary(database.registry, "main", start_revoking)
            waits = "revoking: waits: b may lack what was acknowledged: it has not caught up"
            for _ in rounds_in_time():
                done = await promoter.run_round()
                assert done is not None
                if waits in progress_text(done):
                    break
            else:
                raise AssertionError(done)
            for _ in range(20):
                done = await promoter.run_round()
                assert done is not None
                assert done.entry.term == 1

    with RegionServers(kind, 3) as servers:
        run(story(servers), timeout=200)


@pytest.mark.long
def test_primary_that_was_weakened_or_lost_an_acker_is_not_replaced_and_doctor_says_why(tmp_path: Path) -> None:
    right = "REPLICATION MASTER ADMIN ON *.*"

    def as_root(server: MariaDb, statement: str) -> None:
        """Run a statement that is not replicated."""
        with pymysql.connect(user="root", autocommit=True, **server.connect_arguments) as root:
            root.cursor().execute("SET SESSION sql_log_bin = 0")
            root.cursor().execute(statement)

    async def story(site: Site, servers: RegionServers) -> None:
        primary, acker = servers.servers["a"], servers.servers["c"]
        await adopt(site, "semi-sync")
        async with Client(site.address) as client:
            async with load(client) as producers:
                await producers.wait_for_more()
                servers.weaken("a", "timeout = 1000")
                await until_metric(site, "foqs_semisync_weakened_total", 1, 1_000)
                await until_metric(site, "foqs_database_proven_ackers", 2, 2)

                acker.kill9()
                await until_metric(site, "foqs_database_proven_ackers", 1, 1)
                await producers.wait_for_more()
                assert "hosts would not replace it: c is not reached" in await site.doctor()
                await assert_not_replaced(site)
                primary.start()
                acker.start()
                await producers.wait_for_more()
                await until_metric(site, "foqs_database_proven_ackers", 2, 2)

                # Nobody can mend it: promoters lack the right.
                as_root(primary, f"REVOKE {right} FROM promoter@'127.0.0.1'")
                servers.end_connections("a", "promoter")
                async with site.logged("a answers commits that no acker has; switch semi-sync on"):
                    servers.weaken("a", "enabled = 0")
                    servers.end_connections("a", "hosts")
                await until_metric(site, "foqs_database_replaceable", 0, 0)
                said = await site.doctor()
                assert "a answers commits that no acker has switch semi-sync on, AFTER_SYNC, without a" in said
                assert "hosts would not replace it: b may lack what was acknowledged" in said
                await assert_not_replaced(site)
                primary.start()
                as_root(primary, f"GRANT {right} TO promoter@'127.0.0.1'")
                servers.end_connections("a", "promoter")
                await producers.wait_for_more()
            taken = await dequeue_all(client, "t")
        producers.assert_nothing_is_lost(taken)

    with ZooKeeper() as zookeeper, RegionServers("mariadb", 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack, 5_000), servers), timeout=380)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mariadb", "mysql9"])
def test_writes_wait_while_two_regions_are_lost_and_go_on_without_a_loss_when_they_are_back(
    tmp_path: Path, kind: str
) -> None:
    async def story(site: Site, servers: RegionServers, voters: list[ZooKeeper]) -> None:
        ackers = [servers.servers[name] for name in "bc"]
        await adopt(site, "semi-sync")
        async with Client(site.address) as client:
            async with load(client) as producers:
                await producers.wait_for_more()
                for acker in ackers:
                    acker.freeze()
                await assert_blocked(site, producers)
                for acker in ackers:
                    acker.thaw()
                await producers.wait_for_more()
                await until_metric(site, "foqs_database_blocked", 0, 0)
                for acker in ackers:
                    acker.kill9()
                await assert_blocked(site, producers)
                async with site.logged("the session state of this host is now cut off"):
                    for voter in voters[:2]:
                        voter.stop()
                acknowledged = len(producers.acknowledged)
                for voter in voters[:2]:
                    voter.start_process()
                for voter in voters:
                    await asyncio.to_thread(voter.wait_until_ready, voter.is_ready)
                assert row_of_main(await site.foqs("region", "list"))[2:5] == ["a", "1", "serving"]
                assert len(producers.acknowledged) == acknowledged
                for acker in ackers:
                    acker.start()
                await producers.wait_for_more()
                await until_metric(site, "foqs_database_proven_ackers", 2, 2)
                assert row_of_main(await site.foqs("region", "list"))[2:5] == ["a", "1", "serving"]
            taken = await dequeue_all(client, "t")
        producers.assert_nothing_is_lost(taken)

    with Ensemble() as zookeeper, RegionServers(kind, 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack, 5_000), servers, zookeeper.servers), timeout=380)


@pytest.mark.long
@pytest.mark.parametrize("left", ["a", "b"])
def test_region_that_is_left_of_three_serves_alone_after_the_steps_of_the_documentation(
    tmp_path: Path, left: str
) -> None:
    lines = section("Two regions are lost", REGIONS).replace(" --config host.toml", "").splitlines()
    raise_epochs, promote, report, forget = (line.split()[1:] for line in lines if line.strip().startswith("foqs "))

    async def story(site: Site, servers: RegionServers, voters: list[ZooKeeper]) -> None:
        await adopt(site, "semi-sync")
        async with Client(site.address) as client:
            async with load(client) as producers:
                await producers.wait_for_more()
                await asyncio.to_thread(lose_regions, site, servers, voters)
                with pytest.raises(FoqsError):  # nobody answers any more, and all replies were read
                    await client.topics("t", limit=1, timeout_ms=1_000)
                before = set(producers.acknowledged)
                site.hosts = [site.hosts[0 if left == "a" else 1]]
                await asyncio.to_thread(follow_steps, site, servers, voters)
                if left != "a":
                    await site.foqs_killed("no acker is connected to b", *promote, "--yes")
                    said = await site.foqs(*report, "-o", "json")
                    rows = json.loads(said[said.index("[") :])
                said = await site.foqs(*forget, "--yes")
                assert f"hosts use {left} by their configuration" in said
                await producers.wait_for_more()
            taken = await dequeue_all(client, "t")
        if left == "a":
            producers.assert_nothing_is_lost(taken)
        else:
            assert_within_report(producers, taken, rows, inf)  # only the policy async has a bound
            assert producers.acknowledged.keys() - before <= set(taken)
            assert before & set(taken)

    def lose_regions(site: Site, servers: RegionServers, voters: list[ZooKeeper]) -> None:
        """Kill the other servers and voters, and all hosts."""
        for name in sorted({"a", "b", "c"} - {left}):
            servers.servers[name].kill9()
        for host in site.hosts:
            host.kill9()
        for voter in voters[1:]:
            voter.stop()

    def follow_steps(site: Site, servers: RegionServers, voters: list[ZooKeeper]) -> None:
        """Do what the page says of ZooKeeper and of the configuration of the host that is left."""
        voters[0].stop()
        voters[0].start_alone()
        [host] = site.hosts
        written = host.config.read_text()
        urls = [f"mysql://hosts@127.0.0.1:{servers.servers[name].port}/" for name in ("a", left)]
        for old, new in ((",".join(voter.hosts for voter in voters), voters[0].hosts), urls):
            assert old in written
            written = written.replace(old, new)
        host.config.write_text(written)
        subprocess.run(site.command(*raise_epochs, "--yes"), check=True, timeout=120)
        host.launch()

    with Ensemble() as zookeeper, RegionServers("mariadb", 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack, 5_000), servers, zookeeper.servers), timeout=380)
