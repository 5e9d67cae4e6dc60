"""Real hosts that share shards: one is killed, frozen or stopped, and the others serve its shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from foqs_client import Client, Item
from perf.lib.dequeue_all import dequeue_all
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.processes import RestartableHost
from tests.support.real_cluster import RealCluster
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    server.start()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with ZooKeeper() as server:
        yield server


@pytest.fixture
def cluster(zookeeper: ZooKeeper, mariadb: MariaDb, tmp_path: Path) -> Iterator[RealCluster]:
    with zookeeper.client() as client:
        client.delete("/foqs", recursive=True) if client.exists("/foqs") else None
    cluster = RealCluster(tmp_path, zookeeper, mariadb)
    cluster.init()
    yield cluster


async def put(host: RestartableHost, count: int) -> set[bytes]:
    """Enqueue items at the host and return the payloads that it acknowledged, in any of its shards."""
    async with Client(host.address, automatic_keys=False) as client:
        payloads = [f"{host.port}-{number}".encode() for number in range(count)]
        for payload in payloads:
            [result] = await client.enqueue([Item("t", payload)])
            result.require()
        return set(payloads)


async def take(*hosts: RestartableHost) -> list[bytes]:
    """Dequeue and ack all READY items of these hosts. Return their payloads."""
    taken: list[bytes] = []
    for host in hosts:
        async with Client(host.address) as client:
            taken += await dequeue_all(client, "t")
    return taken


def test_other_hosts_serve_the_shards_of_a_killed_frozen_or_stopped_host(cluster: RealCluster) -> None:
    with ExitStack() as stack:
        one, two, three = hosts = [stack.enter_context(cluster.host(name)) for name in ("one", "two", "three")]
        for host in hosts:
            host.launch()
        cluster.wait_until_served(["one", "two", "three"])
        for host in hosts:
            host.wait_until_ready()

        written = set[bytes]().union(*[run(put(host, 20), timeout=60) for host in hosts])
        one.kill9()
        cluster.wait_until_served(["two", "three"])
        taken = run(take(two, three), timeout=60)
        assert sorted(taken) == sorted(written)

        one.start()
        cluster.wait_until_served(["one", "two", "three"])
        written = set[bytes]().union(*[run(put(host, 20), timeout=60) for host in hosts])
        two.freeze()
        cluster.wait_until_served(["one", "three"])
        taken = run(take(one, three), timeout=60)
        assert sorted(taken) == sorted(written)
        two.thaw()
        cluster.wait_until_served(["one", "two", "three"])
        until(lambda: run(take(two), timeout=60) == [], "the frozen host serves again, and has nothing that was acked")

        written = set[bytes]().union(*[run(put(host, 20), timeout=60) for host in hosts])
        assert three.stop() == 0
        cluster.wait_until_served(["one", "two"])
        taken = run(take(one, two), timeout=60)
        assert sorted(taken) == sorted(written)
        assert "Traceback" not in "".join(host.log for host in hosts)


def test_hosts_without_replies_of_zookeeper_stop_serving_and_recover_on_their_own(
    cluster: RealCluster, zookeeper: ZooKeeper
) -> None:
    with ExitStack() as stack:
        hosts = [stack.enter_context(cluster.host(name)) for name in ("one", "two")]
        for host in hosts:
            host.launch()
        cluster.wait_until_served(["one", "two"])
        written = set[bytes]().union(*[run(put(host, 20), timeout=60) for host in hosts])
        zookeeper.freeze()
        try:
            for host in hosts:
                until(lambda host=host: "cut off" in unready(host), "it serves nothing")  # type: ignore[misc]
                assert (
                    "the session state of this host is now suspended" in host.log
                )  # for a second or two: too short to check
        finally:
            zookeeper.thaw()
        cluster.wait_until_served(["one", "two"])
        for host in hosts:
            host.wait_until_ready()
        assert sorted(run(take(*hosts), timeout=60)) == sorted(written)


def unready(host: RestartableHost) -> str:
    """Return the unready parts that /readyz names."""
    answer = host.get("/readyz")
    return answer[1] if answer is not None and answer[0] != 200 else ""


def test_a_host_without_zookeeper_exits_with_one_line_that_says_so(mariadb: MariaDb, tmp_path: Path) -> None:
    with closing(ZooKeeper()) as zookeeper, RealCluster(tmp_path, zookeeper, mariadb).host("one") as host:
        host.launch()
        assert host.wait_for_exit() == 1
        assert zookeeper.hosts in host.log
        assert "Traceback" not in host.log
