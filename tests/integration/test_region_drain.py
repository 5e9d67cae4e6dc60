"""Real hosts follow the primary of their database to another region and back while clients write, and nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from foqs_client import Client, Item
from perf.lib.dequeue_all import dequeue_all
from perf.lib.region_loss import Ledger
from perf.lib.running import running
from tests.support.aio import run
from tests.support.poll import eventually
from tests.support.processes import PROGRAM
from tests.support.real_cluster import RealCluster
from tests.support.region_servers import SCHEMA, RegionServers
from tests.support.zookeeper import Ensemble, ZooKeeper

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(300)]

_PRODUCERS: Final = 3
_SHARDS: Final = 4


class Site:
    """A host in each of two regions, and the servers of their database in three.

    Args:
        lost_primary_ms: the option of hosts. By default a server that stands still on a busy machine is not lost.
        max_lag_ms: the option of the database.
    """

    def __init__(
        self,
        folder: Path,
        zookeeper: ZooKeeper | Ensemble,
        servers: RegionServers,
        stack: ExitStack,
        lost_primary_ms: int = 120_000,
        max_lag_ms: int = 10_000,
    ) -> None:
        self.servers = servers
        self.max_lag_ms = max_lag_ms
        first = servers.servers["a"]
        servers.open("a")
        self.cluster = RealCluster(folder, zookeeper, first, shards=_SHARDS)
        self.cluster.init()
        password = folder / "replica-password"
        password.write_text("secret\n")
        password.chmod(0o600)
        options = {
            "databases.main.url": f"mysql://hosts@127.0.0.1:{first.port}/{SCHEMA}",
            "databases.main.servers": servers.addresses,
            "databases.main.promoter_user": "promoter",
            "cluster.lost_primary_ms": lost_primary_ms,
            "databases.main.max_lag_ms": max_lag_ms,
            "databases.main.replica_password_file": str(password),
        }
        self.hosts = [
            stack.enter_context(self.cluster.host(name, options={**options, "server.region": region}))
            for name, region in (("one", "r-a"), ("two", "r-b"))
        ]
        for host in self.hosts:
            host.launch()
        self.cluster.wait_until_served(["one", "two"])

    @property
    def address(self) -> str:
        return f"foqs://{','.join(f'127.0.0.1:{host.port}' for host in self.hosts)}"

    def command(self, *arguments: str) -> list[str]:
        return [str(PROGRAM), *arguments, "--config", str(self.hosts[-1].config)]

    async def foqs(self, *arguments: str) -> str:
        """Run a command to its end. Return what it said."""
        done = await self._run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stderr + done.stdout

    async def foqs_refused(self, *arguments: str) -> str:
        """Run a command that refuses. Return why."""
        return await self._said(2, *arguments)

    async def foqs_failed(self, *arguments: str) -> str:
        """Run a command that fails. Return why."""
        return await self._said(1, *arguments)

    async def _said(self, code: int, *arguments: str) -> str:
        done = await self._run(*arguments)
        assert done.returncode == code, done.stderr
        return done.stderr

    async def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments)
        return await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=120, check=False
        )

    async def doctor(self) -> str:
        """Return what doctor says, in one line."""
        done = await self._run("doctor")
        return " ".join((done.stdout + done.stderr).split())

    async def foqs_killed(self, word: str, *arguments: str) -> None:
        """Run a command, and kill it when it says a word."""
        process = await asyncio.create_subprocess_exec(*self.command(*arguments), stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None
        async for line in process.stderr:
            if word in line.decode():
                break
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    @asynccontextmanager
    async def logged(self, text: str) -> AsyncIterator[None]:
        """Wait at the end of the block until a host has written this into its log since the begin of the block."""

        def count() -> int:
            return sum(host.log.count(text) for host in self.hosts)

        async def is_logged() -> bool:
            return count() > before

        before = count()
        yield
        await eventually(is_logged, f"a host says: {text}", 60)

    async def served_by(self, host: str) -> None:
        await asyncio.to_thread(self.cluster.wait_until_served, [host])


class Load(Ledger):
    """Producers that go on whatever happens."""

    def __init__(self) -> None:
        super().__init__("t")
        self._acknowledged = asyncio.Condition()

    async def produce(self, client: Client) -> None:
        while True:
            if await self.enqueue(client) is None:
                async with self._acknowledged:
                    self._acknowledged.notify_all()

    async def wait_for_more(self) -> None:
        """Return when items were acknowledged that were sent after this call."""
        enough = len(self.acknowledged) + 2 * _PRODUCERS
        async with self._acknowledged:
            await self._acknowledged.wait_for(lambda: len(self.acknowledged) >= enough)

    def assert_nothing_is_lost(self, taken: list[bytes]) -> None:
        """Assert that these payloads of all acked deliveries have each acknowledged item, and each item once."""
        assert len(taken) == len(set(taken))
        assert self.acknowledged.keys() <= set(taken) <= self.sent_s.keys()

    def longest_gap_s(self, begin_s: float) -> float:
        """Return the longest time since a moment in which nothing was acknowledged."""
        moments = [begin_s, *(each for _, each in self.acknowledged.values() if each > begin_s)]
        return max(after - before for before, after in itertools.pairwise(moments))


@asynccontextmanager
async def load(client: Client) -> AsyncIterator[Load]:
    found = Load()
    async with running(found.produce(client) for _ in range(_PRODUCERS)):
        yield found


def test_region_is_drained_and_gets_its_primary_back_under_load_although_a_drain_is_killed(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        regions = [f"--region={name}=r-{name}" for name in "abc"]
        adopt = ("database", "adopt", "main", *regions, "--yes")
        assert "a accepts commits, which only the primary may" in await site.foqs_refused(*adopt, "--primary", "b")
        assert "none could acknowledge: b does not receive from a" in await site.foqs_refused(*adopt, "--primary", "a")
        site.servers.follow("a")
        said = await site.foqs(*adopt, "--primary", "a")
        assert "a in r-a is the primary in term 1" in said
        await site.served_by("one")
        async with Client(site.address) as client:
            (await client.enqueue([Item("held", b"held")]))[0].require()
            held = await client.dequeue({"held": 1}, wait_ms=5_000, lease_ms=200_000)
            async with load(client) as producers:
                await producers.wait_for_more()
                said = await site.foqs("region", "drain", "r-a", "--dry-run")
                assert "main: b in r-b would take the place of a; shards 0, 1, 2, 3 would move" in said
                await site.foqs_killed("draining", "region", "drain", "r-a")
                # The hosts go on with the drain, and may have ended it already.
                said = await site.foqs("region", "drain", "r-a")
                assert "r-a is drained" in said or "No primary is in r-a" in said
                await site.served_by("two")
                await producers.wait_for_more()
                assert "a in r-a is the primary in term 3" in await site.foqs("database", "move", "main", "--to", "r-a")
                await site.served_by("one")
                await producers.wait_for_more()
            for outcome in await client.ack(held):
                outcome.require()
            taken = await dequeue_all(client, "t")
        producers.assert_nothing_is_lost(taken)

    with ZooKeeper() as zookeeper, RegionServers("mariadb", 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack)), timeout=280)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_primary_moves_ten_times_under_load_and_every_held_lease_is_acked(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        regions = [f"--region={name}=r-{name}" for name in "abc"]
        site.servers.follow("a")
        await site.foqs("database", "adopt", "main", "--primary", "a", *regions, "--yes")
        await site.served_by("one")
        gaps_s: list[float] = []
        async with Client(site.address) as client, load(client) as producers:
            await producers.wait_for_more()
            for number in range(10):
                (await client.enqueue([Item("held", b"held")]))[0].require()
                held = await client.dequeue({"held": 1}, wait_ms=5_000, lease_ms=200_000)
                region, host = (("r-b", "two"), ("r-a", "one"))[number % 2]
                begun = time.monotonic()
                await site.foqs("database", "move", "main", "--to", region)
                await site.served_by(host)
                await producers.wait_for_more()
                gaps_s.append(producers.longest_gap_s(begun))
                for outcome in await client.ack(held):
                    outcome.require()
        print("no item was acknowledged for", ", ".join(f"{each:.1f}" for each in sorted(gaps_s)), "s")
        async with Client(site.address) as client:
            taken = await dequeue_all(client, "t")
        producers.assert_nothing_is_lost(taken)

    with ZooKeeper() as zookeeper, RegionServers("mariadb", 3) as servers, ExitStack() as stack:
        run(story(Site(tmp_path, zookeeper, servers, stack)), timeout=880)
