"""A cluster of the older version becomes one of this version under load, goes back, comes again, and is contracted.

The older version is the installation of a commit (`tests.support.older_version`). In
each phase a host is killed. All follows the rules of `FaultScenario.play`: no item is lost
or done twice, every repeat has its cause, and the commits are in the order of epochs.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from foqs.dev import rolling_upgrade
from foqs.dev.host_process import PROGRAM, HostProcess, program_environment
from foqs.dev.local_cluster import DATABASE
from foqs.dev.mariadb_server import MariaDb
from foqs.dev.rolling_upgrade import upgrade_hosts
from foqs.dev.server_process import ServerNotAvailable
from foqs_client import BulkJob, Client, Item, ItemFilter, NotImplementedYet
from tests.support.aio import run
from tests.support.faulty_cluster import BACKGROUND_TOPIC, BOUNDS, SHARDS, FaultScenario, FaultyCluster, name_of
from tests.support.full_tables import fill_tables
from tests.support.mysql9 import MySql9InFolder
from tests.support.older_tables import NEWEST, OLDER_VERSION
from tests.support.older_version import OLDER_TABLES, installed
from tests.support.poll import eventually
from tests.support.ports import free_port

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper]

NEWER: Final = list(PROGRAM)
SESSION_MS: Final = 3_000
PATIENCE_MS: Final = 60_000
"""The time of a call. A slow machine needs longer than the usual ten seconds until another host serves a dead one's shards."""
STORY_TIMEOUT_S: Final = 3_600
PLANTED_TIMEOUT_S: Final = 90
RETRIED_ERRORS: Final = re.compile(
    r"(dequeue (UNAVAILABLE|UNKNOWN_OUTCOME|UNKNOWN|DEADLINE_EXCEEDED)"
    r"|(ack|nack|release) (STALE_LEASE|UNKNOWN_OUTCOME) of an entry) \d+(, )?"
)
"""What a `kill -9` causes: a dequeue is retried by the consumer's next one, and the item of a lease that ended meanwhile
is delivered again."""


@dataclass(slots=True)
class Replaced:
    """A host of the test, and the program that it shall run."""

    host: HostProcess
    program: Sequence[str]

    @property
    def name(self) -> str:
        return name_of(self.host)

    def replace(self) -> None:
        self.host.stop()
        self.host.command = list(self.program)
        self.host.start()


@dataclass(slots=True)
class Rolling:
    """The cluster of the story, and its steps."""

    on: FaultyCluster
    older: Sequence[str]
    said: list[str] = field(default_factory=list)

    async def roll(self, story: FaultScenario, program: Sequence[str], hosts: Sequence[HostProcess]) -> None:
        """Replace the programs of these hosts. The first one is killed afterwards, and comes back with the new program.

        Its shards go to hosts of the other version.
        """
        first, *others = hosts
        await upgrade_hosts(self.on.cluster.url, [Replaced(first, program)], self.said.append)
        await self.kill(story, first)
        await upgrade_hosts(self.on.cluster.url, [Replaced(host, program) for host in others], self.said.append)
        await story.wait_until_settled()

    async def kill(self, story: FaultScenario, host: HostProcess, program: Sequence[str] | None = None) -> None:
        """Kill a host under load, and start it when the others serve its shards, perhaps with another program."""
        await story.load.more(40)
        await story.killed(host)
        others = [other for other in self.on.cluster.hosts if other is not host]
        await story.wait_until(
            lambda: (
                set(self.on.owners(host).values()) <= {name_of(other) for other in others}
                and len(self.on.owners(host)) == SHARDS
            ),
            "the others serve its shards",
        )
        await story.load.more(40)
        host.command = list(program or host.command)
        await asyncio.to_thread(host.start)
        await story.wait_until_settled()

    def schema(self, *arguments: str, program: Sequence[str] = PROGRAM) -> subprocess.CompletedProcess[str]:
        """Run `foqs schema` with the configuration of the first host."""
        config = self.on.cluster.hosts[0].config
        return subprocess.run(
            [*program, "schema", *arguments, "--config", str(config)],
            capture_output=True,
            text=True,
            check=False,
            env=program_environment(program),
        )

    async def run_schema(self, *arguments: str, program: Sequence[str] = PROGRAM) -> str:
        """Run a command that must succeed; return its output."""
        done = await asyncio.to_thread(self.schema, *arguments, program=program)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async def phases(self) -> set[tuple[int, str]]:
        rows = json.loads(await self.run_schema("status", "-o", "json"))
        assert len(rows) == SHARDS
        return {(row["version"], row["phase"]) for row in rows}


KINDS: Final[dict[str, Callable[[Path], MariaDb]]] = {
    "mariadb": lambda folder: MariaDb(folder, free_port()),
    "mysql9": lambda folder: MySql9InFolder(folder, free_port()),
}


@pytest.fixture
def rolling(request: pytest.FixtureRequest) -> Iterator[Rolling]:
    """A cluster of older hosts on servers of the kind of the parameter."""
    older = [str(installed(request.config, OLDER_TABLES).program)]
    # An open breaker would refuse new items, too.
    options = {"cluster.session_timeout_ms": SESSION_MS, "shard.breaker_latency_ms_max": 60_000}
    with FaultyCluster(options, KINDS[request.param], older) as found:
        yield Rolling(found, older)


@pytest.mark.parametrize(
    ("rolling", "rate", "rows"),
    [
        pytest.param("mariadb", 60.0, 0, id="mariadb", marks=pytest.mark.timeout(600)),
        pytest.param("mysql9", 60.0, 0, id="mysql9", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
        pytest.param(
            "mariadb", 300.0, 10_000_000, id="long", marks=[pytest.mark.long, pytest.mark.timeout(STORY_TIMEOUT_S)]
        ),
    ],
    indirect=["rolling"],
)
def test_hosts_of_two_versions_alternate_under_load_and_the_older_one_ends(
    rolling: Rolling, rate: float, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = rolling.on.cluster.hosts

    async def story(scenario: FaultScenario) -> None:
        await rolling.run_schema("apply")
        assert await rolling.phases() == {(OLDER_VERSION, "expanded")}
        await rolling.roll(scenario, NEWER, hosts)
        await rolling.kill(scenario, hosts[1], rolling.older)
        refused = await asyncio.to_thread(rolling.schema, "apply", "--contract", "--yes")
        assert refused.returncode == 1
        assert f"hosts of an older version are members of the cluster: {name_of(hosts[1])}." in refused.stderr
        if rows:
            await rolling.roll(scenario, rolling.older, [hosts[2], hosts[0]])
            await rolling.roll(scenario, NEWER, [hosts[0], hosts[2]])
        await rolling.kill(scenario, hosts[1], NEWER)
        await contract(scenario)
        assert await rolling.phases() == {(NEWEST, "stable")}
        refused = await asyncio.to_thread(rolling.schema, "apply", program=rolling.older)
        assert refused.returncode == 1
        assert f"has schema version {NEWEST}, and this program knows versions up to {OLDER_VERSION}" in refused.stderr
        await scenario.load.more(40)

    async def contract(scenario: FaultScenario) -> None:
        """The command is killed, and repeated while a host is killed."""
        command = [*PROGRAM, "schema", "apply", "--contract", "--yes", "--config", str(hosts[0].config)]
        begun = await asyncio.to_thread(
            subprocess.Popen, command, stderr=subprocess.DEVNULL, env=program_environment(PROGRAM)
        )
        try:
            await scenario.wait_until(lambda: excluded() > 0 or begun.poll() is not None, "the contraction has begun")
        finally:
            begun.send_signal(signal.SIGKILL)
            await asyncio.to_thread(begun.wait)
        await scenario.killed(hosts[1])
        await scenario.load.more(20)
        await rolling.run_schema("apply", "--contract", "--yes")
        await asyncio.to_thread(hosts[1].start)
        await scenario.wait_until_settled()

    def excluded() -> int:
        """Return how many shards refuse older hosts."""
        found = [
            server.query(f"SELECT COUNT(*) FROM {DATABASE}.foqs_schema WHERE version = {NEWEST}")[0][0]
            for server in rolling.on.cluster.databases
        ]
        return sum(map(int, found))

    if rows:
        rolling.on.audit.remove()
        for shard, server in rolling.on.databases.items():
            fill_tables(server, f"{DATABASE}.foqs_{shard}_item", BACKGROUND_TOPIC, rows // SHARDS)
        rolling.on.audit.install()
    bounds = replace(BOUNDS, older_hosts=True)
    scenario = FaultScenario(rolling.on, rate, bounds=bounds, patience_ms=PATIENCE_MS)
    figures = scenario.play(story, STORY_TIMEOUT_S)
    with capsys.disabled():
        print("\n" + "\n".join(f"  {name:<18} {value}" for name, value in figures.items()))
    check_errors(figures)


def check_errors(figures: dict[str, Any]) -> None:
    """No call failed that a retry mends, but those that the next delivery mends."""
    assert figures["refused"] == "none", "an enqueue failed although a retry was possible"
    assert figures["all_not_done"] == 0
    assert RETRIED_ERRORS.sub("", figures["errors"]) in ("", "none"), figures["errors"]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("rolling", ["mariadb"], indirect=True)
def test_new_host_works_on_bulk_jobs_beside_older_ones(rolling: Rolling) -> None:
    first, *older = rolling.on.cluster.hosts
    only = ItemFilter("jobs")

    async def refused_by_older_hosts() -> None:
        async with Client(rolling.on.cluster.url, timeout_ms=20_000) as client:
            for result in await client.enqueue([Item("jobs", b"%d" % number) for number in range(500)]):
                result.require()
            with pytest.raises(NotImplementedYet, match="upgrade the hosts first"):
                await client.start_bulk_job("cancel", only)

    async def ended(client: Client, job: BulkJob) -> BulkJob:
        async def is_settled() -> bool:
            return (await client.bulk_job(job.id)).is_settled

        await eventually(is_settled, "the job has ended", timeout_s=60)
        return await client.bulk_job(job.id)

    async def beside_older_hosts() -> None:
        async with Client(f"foqs://127.0.0.1:{first.port}", timeout_ms=20_000) as client:
            moved = await ended(client, await client.start_bulk_job("move", only, move_to="other"))
            assert (moved.state, "upgrade the hosts first" in (moved.problem or "")) == ("failed", True)
            left = (await client.count(only)).items
            assert left == 500 - moved.changed > 0
            job = await ended(client, await client.start_bulk_job("cancel", only))
            assert (job.state, job.changed, job.at_least) == ("done", left, False)
            assert (await client.count(only)).items == 0
            page = await client.audit()
            assert [entry.call for entry in page.entries].count("startBulkJob") == 2
            assert sorted(page.missing_hosts) == sorted(map(name_of, older))

    async def story() -> None:
        await refused_by_older_hosts()
        await rolling.run_schema("apply")
        await upgrade_hosts(rolling.on.cluster.url, [Replaced(first, NEWER)], rolling.said.append)
        await beside_older_hosts()

    run(story(), timeout=300)


# --------------------------------------------------------------- planted mistakes

PLANTS: Final = {
    "a column is dropped early": """
from dataclasses import replace
from foqs.store.mysql import mysql_migrations
*before, newest = mysql_migrations.MIGRATIONS
newest = replace(newest, statements=(*newest.statements, "ALTER TABLE {item} DROP COLUMN metadata, ALGORITHM = INPLACE"))
mysql_migrations.MIGRATIONS = (*before, newest)
""",
    "a message has a new required field": """
from foqs.rpc import queue_handlers
from foqs_contract.errors import InvalidArgument
nack = queue_handlers.QueueHandlers.nack
def with_reason(self, call):
    if getattr(call.request, "reason", None) is None:
        raise InvalidArgument("this is missing", field="reason")
    return nack(self, call)
queue_handlers.QueueHandlers.nack = with_reason
""",
    "a document's key is renamed": """
from shardmgr import agent
render = agent.render_member
agent.render_member = lambda member: render(member).replace(b'"holdings"', b'"held_shards"')
""",
}
"""Mistakes of a newer version: what its program does before it starts."""
EVIDENCE: Final = {
    "a column is dropped early": "Unknown column 'metadata'",
    "a message has a new required field": "nack INVALID_ARGUMENT",
    "a document's key is renamed": "held_shards: there is no such field",
}
"""What the failure of the story, or a log of a host, says."""


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("rolling", ["mariadb"], indirect=True)
@pytest.mark.parametrize("mistake", PLANTS)
def test_a_planted_mistake_of_the_newer_version_ends_the_story(
    rolling: Rolling, mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "foqs"
    planted.write_text(f"#!{sys.executable}\n{PLANTS[mistake]}\nfrom foqs.cli import main\nmain()\n")
    planted.chmod(0o755)
    monkeypatch.setattr(rolling_upgrade, "STEP_TIMEOUT_S", 20.0)

    async def story(scenario: FaultScenario) -> None:
        await rolling.run_schema("apply", program=[str(planted)])
        await scenario.load.more(40)
        first = Replaced(rolling.on.cluster.hosts[0], [str(planted)])
        await upgrade_hosts(rolling.on.cluster.url, [first], rolling.said.append)
        await scenario.load.more(400)

    with pytest.raises((AssertionError, TimeoutError, ServerNotAvailable, ExceptionGroup)) as caught:
        bounds = replace(BOUNDS, older_hosts=True)
        check_errors(FaultScenario(rolling.on, 60.0, bounds=bounds, spoil=0.3).play(story, PLANTED_TIMEOUT_S))
    found = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert re.search(EVIDENCE[mistake], found), found
