"""A real host that ZooKeeper does not reach, and one that does not reach its database while its shards are moved."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from foqs_client import Client, FoqsError, Item, Namespace, NamespaceNotFound
from perf.lib.dequeue_all import dequeue_all
from tests.support.aio import run
from tests.support.dropping_proxy import DroppingProxy
from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.processes import RestartableHost
from tests.support.real_cluster import RealCluster
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(240)]

_LEASE_MS = 600_000
_SHARDS = 4


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeper]:
    with ZooKeeper() as server:
        yield server


@pytest.fixture
def cluster(zookeeper: ZooKeeper, mariadb: MariaDb, tmp_path: Path) -> RealCluster:
    cluster = RealCluster(tmp_path, zookeeper, mariadb, _SHARDS)
    cluster.init()
    return cluster


async def put(client: Client, topic: str, count: int) -> dict[bytes, str]:
    """Enqueue items at the client's host and return the acknowledged ids by payload."""
    found = {}
    for payload in (b"%s-%d" % (topic.encode(), number) for number in range(count)):
        [result] = await client.enqueue([Item(topic, payload)])
        found[payload] = result.require()
    return found


def unready(host: RestartableHost) -> str:
    """Return the unready parts that /readyz names."""
    answer = host.get("/readyz")
    return answer[1] if answer is not None and answer[0] != 200 else ""


async def knows(host: RestartableHost, namespace: str) -> bool:
    async with Client(host.address) as client:
        with contextlib.suppress(NamespaceNotFound):
            return (await client.get_namespace(namespace)).name == namespace
        return False


def test_a_host_with_its_session_in_doubt_delivers_nothing_but_accepts_enqueues_and_acks(
    cluster: RealCluster, zookeeper: ZooKeeper
) -> None:
    async def passes(number: int, one: RestartableHost, client: Client, other: Client, proxy: DroppingProxy) -> bool:
        """Play the story with topics of this number. Return whether the session outlived it."""
        old_topic, new_topic, namespace = (f"{name}-{number}" for name in ("t", "new", "made-meanwhile"))
        ready = await put(client, old_topic, 10)
        leased = await client.dequeue({old_topic: 5}, wait_ms=10_000, lease_ms=_LEASE_MS)
        assert leased
        left = ready.keys() - {item.payload for item in leased}
        before = await asyncio.to_thread(cluster.view)
        proxy.drop()
        await asyncio.to_thread(until, lambda: "suspended" in unready(one), "its session is in doubt")
        polls = [asyncio.ensure_future(client.dequeue({topic: 5}, wait_ms=1_500)) for topic in (old_topic, new_topic)]
        try:
            new = await put(client, new_topic, 5)
            for outcome in await client.ack(leased):
                outcome.require()
                assert not outcome.already_gone
            assert await asyncio.gather(*polls) == [[], []]
            explanation = await client.explain(ready[min(left)])
            assert "coordination service does not answer" in " ".join(explanation.reasons)
            await other.create_namespace(Namespace(namespace))
        except (AssertionError, FoqsError):
            if "cut off" not in unready(one):
                raise
        outlives = "suspended" in unready(one)
        proxy.heal()
        await asyncio.gather(*polls, return_exceptions=True)
        await asyncio.to_thread(one.wait_until_ready)
        if not outlives:
            return False
        after = await asyncio.to_thread(cluster.view)
        assert after.plan.assignments == before.plan.assignments
        await asyncio.to_thread(until, lambda: run(knows(one, namespace)), "it has read what changed meanwhile")
        assert sorted(await dequeue_all(client, old_topic, new_topic)) == sorted(left | new.keys())
        return True

    async def story(one: RestartableHost, two: RestartableHost, proxy: DroppingProxy) -> None:
        async with (
            Client(one.address, automatic_keys=False) as client,
            Client(two.address, automatic_keys=False) as other,
        ):
            for number in range(3):
                if await passes(number, one, client, other, proxy):
                    return
                await asyncio.to_thread(cluster.wait_until_served, ["one", "two"])
            raise AssertionError("the session was over too soon for this test, three times")

    with ExitStack() as stack:
        proxy = stack.enter_context(DroppingProxy(zookeeper.port))
        patient = {"cluster.session_timeout_ms": 15_000}
        one = stack.enter_context(cluster.host("one", options={**patient, "cluster.zookeeper": proxy.hosts}))
        two = stack.enter_context(cluster.host("two", options=patient))
        for host in (one, two):
            host.launch()
        cluster.wait_until_served(["one", "two"])
        for host in (one, two):
            host.wait_until_ready()
        run(story(one, two, proxy), timeout=180)


def test_a_hanging_hand_over_ends_at_its_deadline_and_the_next_owner_has_all_written_items(
    cluster: RealCluster, mariadb: MariaDb
) -> None:
    async def story(one: RestartableHost, two: RestartableHost, proxy: DroppingProxy) -> None:
        async with (
            Client(one.address, automatic_keys=False) as client,
            Client(two.address, automatic_keys=False) as other,
        ):
            written = (await put(client, "t", 20)).keys() | (await put(other, "u", 20)).keys()
            proxy.drop()
            torn = [asyncio.ensure_future(client.enqueue([Item("t", b"torn")], timeout_ms=60_000)) for _ in range(10)]
            await other.drain_host("one")
            await asyncio.to_thread(cluster.wait_until_served, ["two"])
            for outcome in await asyncio.gather(*torn, return_exceptions=True):
                error = outcome[0].error if isinstance(outcome, list) else outcome
                assert isinstance(error, FoqsError)
                assert error.code in {"UNKNOWN_OUTCOME", "UNAVAILABLE", "NOT_OWNER"}
            assert sorted(await dequeue_all(other, "t", "u")) == sorted(written)
            proxy.heal()
            await other.undrain_host("one")
            await asyncio.to_thread(cluster.wait_until_served, ["one", "two"])
            await asyncio.to_thread(one.wait_until_ready)
            back = await put(client, "v", 5)
            assert sorted(await dequeue_all(client, "v")) == sorted(back)

    with ExitStack() as stack:
        proxy = stack.enter_context(DroppingProxy(mariadb.port))
        how: Any = {"options": {"cluster.session_timeout_ms": 15_000}, "planner": {"handover_timeout_ms": 1_000}}
        one = stack.enter_context(cluster.host("one", proxy.port, **how))
        two = stack.enter_context(cluster.host("two", **how))
        for host in (one, two):
            host.launch()
        cluster.wait_until_served(["one", "two"])
        for host in (one, two):
            host.wait_until_ready()
        run(story(one, two, proxy), timeout=180)
        assert "Traceback" not in one.log + two.log
