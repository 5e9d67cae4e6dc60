"""A region dies under load: hosts of the other regions promote a replica by themselves, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from foqs_client import Client
from perf.lib.dequeue_all import dequeue_all
from perf.lib.region_loss import RegionLoss, judged
from tests.integration.test_region_drain import Load, Site, load
from tests.support.aio import run
from tests.support.mysql9 import MYSQL9_IF_LONG
from tests.support.poll import eventually
from tests.support.region_servers import RegionServers
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(300)]


def row_of_main(listing: str) -> list[str]:
    """Return the row of the database in the output of region list."""
    [row] = [line.split() for line in listing.splitlines() if line.startswith("main ")]
    return row


def assert_within_report(
    producers: Load, taken: Sequence[bytes], rows: Sequence[Mapping[str, Any]], max_lag_ms: float
) -> RegionLoss:
    """Assert that a loss is within its bound and these rows of region report, and that each item came once. Return it."""
    found = judged(producers, taken, rows, max_lag_ms)
    reported = f"{found.reported_min} to {found.reported_max} by the report"
    print(f"{found.lost} of {found.acknowledged} acknowledged items were lost, {reported}")
    assert found.faults == []
    assert found.reported_max is not None
    return found


async def adopt(site: Site, policy: str) -> None:
    regions = [f"--region={name}=r-{name}" for name in "abc"]
    site.servers.follow("a")
    await site.foqs("database", "adopt", "main", "--primary", "a", *regions, "--policy", policy, "--yes")
    await site.served_by("one")


@pytest.mark.parametrize("kind", MYSQL9_IF_LONG)
def test_region_that_dies_is_replaced_by_hosts_of_another_one_and_nothing_acknowledged_is_lost(
    tmp_path: Path, kind: str
) -> None:
    async def story(site: Site, servers: RegionServers) -> None:
        await adopt(site, "semi-sync")
        async with Client(site.address) as client:
            async with load(client) as producers:
                await producers.wait_for_more()
                begun = time.monotonic()
                servers.servers["a"].kill9()
                site.hosts[0].kill9()
                await producers.wait_for_more()
                print(f"the first item was acknowledged {time.monotonic() - begun:.1f} s after the death of the region")
                database, region, _, term, state, *_ = row_of_main(await site.foqs("region", "list"))
                assert (database, state) == ("main", "serving")
                assert int(term) >= 2
                assert region in ("r-b", "r-c")
                if kind == "mariadb":
                    servers.servers["a"].start("--init-rpl-role=SLAVE")
                    assert "main: a has all that it has" in await site.foqs("database", "rejoin", "main", "a")
                    await producers.wait_for_more()
            taken = await dequeue_all(client, "t")
        producers.assert_nothing_is_lost(taken)

    with ZooKeeper() as zookeeper, RegionServers(kind, 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack, 5_000), servers), timeout=280)


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_primary_is_lost_ten_times_and_the_lost_one_rejoins_each_time(tmp_path: Path) -> None:
    async def lose_primary(site: Site, servers: RegionServers, producers: Load, term: int) -> float:
        """Kill the primary, and let it rejoin. Return how long no item was acknowledged."""
        _, region, primary, found_term, state, *_ = row_of_main(await site.foqs("region", "list"))
        assert (region, found_term, state) == (f"r-{primary}", str(term), "serving")
        begun = time.monotonic()
        servers.servers[primary].kill9()
        await producers.wait_for_more()
        away_s = time.monotonic() - begun
        servers.servers[primary].start("--init-rpl-role=SLAVE")
        said = await site.foqs("database", "rejoin", "main", primary)
        assert f"main: {primary} has all that it has" in said
        return away_s

    async def story(site: Site, servers: RegionServers) -> None:
        await adopt(site, "semi-sync")
        async with Client(site.address) as client, load(client) as producers:
            await producers.wait_for_more()
            away_s = [await lose_primary(site, servers, producers, term) for term in range(1, 11)]
            print("no item was acknowledged for", ", ".join(f"{each:.1f}" for each in sorted(away_s)), "s")
        async with Client(site.address) as client:
            taken = await dequeue_all(client, "t")
        producers.assert_nothing_is_lost(taken)

    with ZooKeeper() as zookeeper, RegionServers("mariadb", 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack, 5_000), servers), timeout=1_180)


@pytest.mark.long
def test_primary_that_stands_still_is_replaced_and_acknowledges_nothing_when_it_goes_on(tmp_path: Path) -> None:
    async def story(site: Site, servers: RegionServers) -> None:
        await adopt(site, "semi-sync")
        async with Client(site.address) as client, load(client) as producers:
            await producers.wait_for_more()
            begun = time.monotonic()
            servers.servers["a"].freeze()
            await site.served_by("two")
            await producers.wait_for_more()
            print(f"the first item was acknowledged {time.monotonic() - begun:.1f} s after the server stood still")
            servers.servers["a"].thaw()
            await producers.wait_for_more()
            assert "a accepts commits; end it with SIGKILL" in await site.foqs_refused(
                "database", "rejoin", "main", "a"
            )
        async with Client(f"foqs://127.0.0.1:{site.hosts[1].port}") as client:
            taken = await dequeue_all(client, "t")
        producers.assert_nothing_is_lost(taken)
        # It waits for acks, and nobody receives from it: no commit of a host that has its old entry returns.
        [(_, acknowledging)] = servers.servers["a"].query("SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'")
        [(_, waits)] = servers.servers["a"].query("SHOW STATUS LIKE 'Rpl_semi_sync_master_status'")
        assert (acknowledging, waits) == ("0", "ON")

    with ZooKeeper() as zookeeper, RegionServers("mariadb", 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack, 5_000), servers), timeout=280)


@pytest.mark.long
def test_async_primary_that_dies_is_replaced_when_an_administrator_accepts_the_loss(tmp_path: Path) -> None:
    begun = datetime.now(UTC)

    async def story(site: Site, servers: RegionServers) -> None:
        await adopt(site, "async")
        async with Client(site.address) as client, load(client) as producers:
            await producers.wait_for_more()
            servers.servers["a"].kill9()
            assert "repeat with the loss accepted" in await site.foqs_refused(
                "database", "promote", "main", "--lost", "a"
            )
            # A host's estimate of the database's clock may be ahead by a round trip.
            lost = datetime.now(UTC)
            assert row_of_main(await site.foqs("region", "list"))[3:5] == ["1", "serving"]
            before = set(producers.acknowledged)
            accept = ("--accept-loss", "--to", "r-b", "--yes")
            said = await site.foqs("database", "promote", "main", "--lost", "a", *accept)
            assert "b in r-b is the primary in term 2" in said
            said = await site.foqs("region", "report", "-o", "json")
            left = json.loads(said[said.index("[") :])
            assert [(row["term"], row["server"], row["shard"]) for row in left] == [
                (2, "b", shard) for shard in range(4)
            ]
            assert sum(row["flush"] for row in left) > 0
            # A shard that got no item by then was never written, only taken over.
            assert all(row["written"] for row in left if row["flush"])
            written = [datetime.fromisoformat(row["written"]) for row in left if row["written"]]
            assert begun <= min(written)
            assert max(written) <= lost
            await site.served_by("two")
            await producers.wait_for_more()
        async with Client(f"foqs://127.0.0.1:{site.hosts[1].port}") as client:
            taken = await dequeue_all(client, "t")
        assert producers.acknowledged.keys() - before <= set(taken)
        assert_within_report(producers, taken, left, site.max_lag_ms)

    with ZooKeeper() as zookeeper, RegionServers("mariadb", 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack, 5_000), servers), timeout=280)


@pytest.mark.long
def test_async_database_accepts_nothing_more_while_no_replica_is_near_and_loses_no_more_than_its_bound(
    tmp_path: Path,
) -> None:
    max_lag_ms = 3_000

    async def until_refused(client: Client, producers: Load) -> str:
        """Return why no new items are accepted, once they are not."""
        while True:
            if "max_lag_ms" in (refusal := str(await producers.enqueue(client, timeout_ms=1_000))):
                return refusal

    async def story(site: Site, servers: RegionServers) -> None:
        await adopt(site, "async")
        async with Client(site.address) as client, load(client) as producers:
            await producers.wait_for_more()
            servers.forbid_replication("a")
            assert f"max_lag_ms is {max_lag_ms}; acks go on" in await until_refused(client, producers)
            taken = await client.dequeue({"t": 3}, wait_ms=5_000)
            for outcome in await client.ack(taken):
                outcome.require()
            acked = [delivery.payload for delivery in taken]
            servers.allow_replication("a")
            await producers.wait_for_more()
            servers.forbid_replication("a")
            await until_refused(client, producers)
            servers.servers["a"].kill9()
            said = await site.foqs("database", "promote", "main", "--lost", "a", "--accept-loss", "--yes")
            assert "is the primary in term 2" in said
            said = await site.foqs("region", "report", "-o", "json")
            rows = json.loads(said[said.index("[") :])
            await producers.wait_for_more()
        async with Client(f"foqs://127.0.0.1:{site.hosts[1].port}") as client:
            left = await dequeue_all(client, "t")
        assert assert_within_report(producers, [*acked, *left], rows, max_lag_ms).lost

    with ZooKeeper() as zookeeper, RegionServers("mariadb", 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack, 5_000, max_lag_ms), servers), timeout=280)


@pytest.mark.long
def test_acker_that_is_away_is_removed_once_its_account_is_locked_and_hosts_replace_the_primary_when_it_has_rejoined(
    tmp_path: Path,
) -> None:
    def ackers(listing: str) -> tuple[list[str], list[str]]:
        [row] = json.loads(listing[listing.index("[") :])
        return row["ackers"], row["proven"]

    async def story(site: Site, servers: RegionServers) -> None:
        remove = ("database", "remove-acker", "main", "c", "--yes")
        await adopt(site, "semi-sync")
        async with Client(site.address) as client, load(client) as producers:
            await producers.wait_for_more()
            servers.servers["c"].kill9()
            said = await site.foqs_failed(*remove)
            assert "b: c can still receive from it with its account; as root at b, for each host name of this" in said
            assert ackers(await site.foqs("region", "list", "-o", "json"))[0] == ["b", "c"]
            for name in "ab":
                servers.lock_accounts(name, "c")
            said = await site.foqs(*remove)
            assert "main: c acknowledges no more; proven are: b" in said
            alone = "no other server that is reached could acknowledge for b"
            assert f"hosts would not replace a by themselves if it were lost now: {alone}" in said
            await producers.wait_for_more()
            assert ackers(await site.foqs("region", "list", "-o", "json")) == (["b"], ["b"])
            servers.servers["c"].start()
            # A promotion could not end: the removed server is closed and has nothing of its own, but may not log in.
            async with site.logged("this host does not reach a server that it needs"):
                servers.servers["a"].kill9()
            servers.servers["a"].start()
            await producers.wait_for_more()
            assert row_of_main(await site.foqs("region", "list"))[2:5] == ["a", "1", "serving"]
            assert "account of c is still locked at a" in await site.foqs_refused("database", "rejoin", "main", "c")
            for name in "ab":
                servers.lock_accounts(name, "c", word="UNLOCK")
            assert "main: c has all that it has" in await site.foqs("database", "rejoin", "main", "c")
            await producers.wait_for_more()
            servers.servers["a"].kill9()
            await producers.wait_for_more()
            assert int(row_of_main(await site.foqs("region", "list"))[3]) >= 2
        async with Client(site.address) as client:
            taken = await dequeue_all(client, "t")
        producers.assert_nothing_is_lost(taken)

    with ZooKeeper() as zookeeper, RegionServers("mariadb", 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack, 5_000), servers), timeout=280)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mariadb", "mysql9"])
def test_server_that_was_removed_acknowledges_for_the_last_acker_after_the_primary_is_lost_for_good(
    tmp_path: Path, kind: str
) -> None:
    """Each step is one that docs/regions.md names for three servers."""

    async def story(site: Site, servers: RegionServers) -> None:
        async def is_locked() -> bool:
            return servers.is_locked("b", "c")

        async def is_unlocked() -> bool:
            return not servers.is_locked("c", "c")

        await adopt(site, "semi-sync")
        async with Client(site.address) as client:
            async with load(client) as producers:
                await producers.wait_for_more()
                servers.servers["c"].kill9()
                await asyncio.to_thread(servers.lock_account_everywhere, "a", "c")
                await eventually(is_locked, "the lock is replicated", 60)
                said = await site.foqs("database", "remove-acker", "main", "c", "--yes")
                assert "main: c acknowledges no more; proven are: b" in said
                await producers.wait_for_more()
                servers.servers["a"].kill9()
                # It begins the promotion and waits: nobody acknowledges for b. The hosts go on.
                await site.foqs_killed(
                    "no acker is connected to b", "database", "promote", "main", "--lost", "a", "--yes"
                )
                servers.servers["c"].start()
                said = await site.foqs_refused("database", "rejoin", "main", "c")
                assert "the replication account of c is still locked at b" in said
                await asyncio.to_thread(servers.lock_accounts, "b", ["c"], "UNLOCK")
                assert "main: c has all that it has" in await site.foqs("database", "rejoin", "main", "c")
                await producers.wait_for_more()
                assert row_of_main(await site.foqs("region", "list"))[2:5] == ["b", "2", "serving"]
                # The lock is in the log as well, so the server that was removed has it in its copy by now.
                await asyncio.to_thread(servers.unlock_account_everywhere, "b", "c")
                await eventually(is_unlocked, "the account is unlocked in the copy, too", 60)
                if kind == "mariadb":
                    # The lost server comes back after all, and has the lock in its copy.
                    servers.servers["a"].start("--init-rpl-role=SLAVE")
                    said = await site.foqs_refused("database", "rejoin", "main", "a")
                    assert "the replication accounts of c are locked at a" in said
                    await asyncio.to_thread(servers.lock_accounts, "a", ["c"], "UNLOCK")
                    assert "main: a has all that it has" in await site.foqs("database", "rejoin", "main", "a")
                    await producers.wait_for_more()
                    servers.servers["b"].kill9()
                    await producers.wait_for_more()
                    assert row_of_main(await site.foqs("region", "list"))[3:5] == ["3", "serving"]
            taken = await dequeue_all(client, "t")
        producers.assert_nothing_is_lost(taken)

    with ZooKeeper() as zookeeper, RegionServers(kind, 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack, 5_000), servers), timeout=280)


@pytest.mark.long
def test_database_loses_its_entry_under_load_and_is_adopted_again(tmp_path: Path) -> None:
    async def story(site: Site, servers: RegionServers) -> None:
        await adopt(site, "semi-sync")
        async with Client(site.address) as client, load(client) as producers:
            await producers.wait_for_more()
            assert "hosts use a by their configuration" in await site.foqs("database", "forget", "main", "--yes")
            # Nobody acknowledges any more.
            for name in "bc":
                servers.servers[name].kill9()
            await producers.wait_for_more()
            assert "main" not in await site.foqs("region", "list")
            for name in "bc":
                servers.servers[name].start()
            await adopt(site, "semi-sync")
            assert row_of_main(await site.foqs("region", "list"))[3:5] == ["2", "serving"]
            await producers.wait_for_more()
        async with Client(site.address) as client:
            taken = await dequeue_all(client, "t")
        producers.assert_nothing_is_lost(taken)

    with ZooKeeper() as zookeeper, RegionServers("mariadb", 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack), servers), timeout=280)
