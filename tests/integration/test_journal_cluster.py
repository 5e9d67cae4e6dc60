"""Hosts of a cluster begin to journal one by one under load, and end to journal one by one.

A host of each kind is killed while both are there, so each takes over from the other. All follows the rules of
`FaultScenario.play`: no item is lost or done twice, every repeat has its cause, and the commits are in the order of
epochs. At the end the rows are the items, as no journal has any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from foqs.dev.host_process import HostProcess, to_toml
from foqs.dev.local_cluster import DATABASE
from tests.integration.test_rolling_upgrade import KINDS, check_errors
from tests.support.faulty_cluster import SHARDS, FaultScenario, FaultyCluster, name_of

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper]

SESSION_MS = 3_000


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[FaultyCluster]:
    """A cluster on servers of the kind of the parameter."""
    with FaultyCluster({"cluster.session_timeout_ms": SESSION_MS}, KINDS[request.param]) as found:
        yield found


def journal_rows(cluster: FaultyCluster) -> int:
    """Return the number of rows of all journals, without their reserves."""
    found = [
        server.query(f"SELECT COUNT(*) FROM {DATABASE}.foqs_{shard}_journal WHERE position > 0")[0][0]
        for shard, server in cluster.databases.items()
    ]
    return sum(map(int, found))


async def restart(story: FaultScenario, host: HostProcess, *, journals: bool) -> None:
    """Hand the shards of a host over, and start it with another option."""
    await asyncio.to_thread(host.stop)
    host.options["store.journal"] = journals
    host.config.write_text(to_toml(host.options))
    await asyncio.to_thread(host.start)
    await story.wait_until_settled()
    await story.load.more(60)


async def kill(story: FaultScenario, host: HostProcess) -> None:
    """Kill a host, and start it when the others serve its shards."""
    await story.killed(host)
    others = {name_of(other) for other in story.on.cluster.hosts if other is not host}

    def are_served() -> bool:
        owners = story.on.owners(host)
        return len(owners) == SHARDS and set(owners.values()) <= others

    await story.wait_until(are_served, "the others serve its shards")
    await story.load.more(60)
    await asyncio.to_thread(host.start)
    await story.wait_until_settled()
    await story.load.more(60)


@pytest.mark.parametrize(
    ("cluster", "rate", "times"),
    [
        pytest.param("mariadb", 60.0, 1, id="mariadb", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
        pytest.param("mysql9", 60.0, 1, id="mysql9", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
        pytest.param("mariadb", 600.0, 5, id="long", marks=[pytest.mark.long, pytest.mark.timeout(1_500)]),
    ],
    indirect=["cluster"],
)
def test_hosts_begin_and_end_to_journal_one_by_one_under_load(cluster: FaultyCluster, rate: float, times: int) -> None:
    first, second, third = cluster.cluster.hosts

    async def story(scenario: FaultScenario) -> None:
        for _ in range(times):
            await restart(scenario, first, journals=True)
            await kill(scenario, first)
            await restart(scenario, second, journals=True)
            await kill(scenario, third)
            await restart(scenario, third, journals=True)
            assert await asyncio.to_thread(journal_rows, cluster) > 0, "nothing was journaled"
            await kill(scenario, second)
            for host in (second, first, third):
                await restart(scenario, host, journals=False)
            assert await asyncio.to_thread(journal_rows, cluster) == 0, (
                "a host without a journal serves a shard with one"
            )

    check_errors(FaultScenario(cluster, rate).play(story, 1_400))
