"""Three real hosts: each lists the topics of all, also after one was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from foqs_client import Client, Item, Topic
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.processes import RestartableHost
from tests.support.real_cluster import RealCluster
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(240)]

NAMES = ("one", "two", "three")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    server = MariaDb()
    server.start()
    with ZooKeeper() as zookeeper:
        cluster = RealCluster(tmp_path, zookeeper, server)
        cluster.init()
        yield cluster
    server.remove()


async def put(host: RestartableHost, topics: Mapping[str, int]) -> None:
    """Enqueue the given number of items of each topic at this host."""
    async with Client(host.address, automatic_keys=False) as client:
        for topic, count in topics.items():
            for result in await client.enqueue([Item(topic, b"x") for _ in range(count)]):
                result.require()


async def listed(host: RestartableHost) -> list[Topic]:
    """Return all topics as listed by the host at this address."""
    found: list[Topic] = []
    cursor: str | None = None
    async with Client(host.address) as client:
        while True:
            page = await client.topics(states=["ready", "leased", "deferred", "dead"], limit=7, cursor=cursor)
            found += page.topics
            cursor = page.next_cursor
            if cursor is None:
                return found


def test_topics_enqueued_anywhere_are_listed_by_any_host(cluster: RealCluster) -> None:
    with ExitStack() as stack:
        hosts = {name: stack.enter_context(cluster.host(name)) for name in NAMES}
        for host in hosts.values():
            host.launch()
        cluster.wait_until_served(NAMES)
        for host in hosts.values():
            host.wait_until_ready()
        expected: Counter[str] = Counter()
        for n, (name, host) in enumerate(hosts.items()):
            topics = {f"{name} {k}": 1 + k % 3 for k in range(10)} | {"everywhere": n + 1}
            run(put(host, topics), timeout=60)
            expected.update(topics)

        def agree(*asked: str) -> bool:
            for name in asked:
                found = run(listed(hosts[name]), timeout=60)
                if any(topic.counts_lag for topic in found) or {each.topic: each.ready for each in found} != expected:
                    return False
            return True

        until(lambda: agree(*NAMES), "all hosts list all topics", 60)
        hosts["two"].kill9()
        cluster.wait_until_served(["one", "three"])
        until(lambda: agree("one", "three"), "the others list what the killed one had", 60)
        assert "Traceback" not in "".join(host.log for host in hosts.values())
