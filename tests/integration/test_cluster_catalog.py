"""Configuration by calls on a real cluster: all hosts see it, and it is restored after ZooKeeper has lost everything."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError

from foqs_client import Client, Item, Namespace
from perf.lib.dequeue_all import dequeue_all
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.processes import PROGRAM, RestartableHost
from tests.support.real_cluster import RealCluster, initialise_again
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(240)]

_SHARDS = 4


@pytest.fixture
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
def hosts(zookeeper: ZooKeeper, mariadb: MariaDb, tmp_path: Path) -> Iterator[list[RestartableHost]]:
    """Two hosts whose ZooKeeper data needs their credentials."""
    secret = tmp_path / "zookeeper"
    secret.write_text("foqs:secret\n")
    secret.chmod(0o600)
    cluster = RealCluster(tmp_path, zookeeper, mariadb, _SHARDS)
    options = {"cluster.credentials_file": str(secret)}
    with ExitStack() as stack:
        found = [stack.enter_context(cluster.host(name, options=options)) for name in ("one", "two")]
        initialise(found[0])
        for host in found:
            host.launch()
        until_served(found)
        yield found


def foqs(*arguments: str) -> str:
    """Run a command that must succeed. Return its output."""
    done = call_foqs(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def call_foqs(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROGRAM), *arguments], capture_output=True, text=True, check=False, timeout=60)


def initialise(host: RestartableHost) -> None:
    foqs("cluster", "init", "--config", str(host.config), "--shards", str(_SHARDS), "--yes")


def until_served(hosts: Sequence[RestartableHost]) -> None:
    """Wait until all hosts are members and each serves some of the shards."""

    def served() -> bool:
        done = call_foqs("cluster", "status", "-o", "json", "--address", hosts[0].address)
        if done.returncode != 0:  # it has no session yet, and is asked again
            return False
        status: dict[str, Any] = json.loads(done.stdout)
        states = {shard["state"] for shard in status["shards"]}
        owners = {shard["owner"] for shard in status["shards"]}
        return states == {"owned"} and len(owners) == len(hosts)

    for host in hosts:
        host.wait_until_ready()
    until(served, "every host serves some shards", 60)


async def knows(host: RestartableHost, name: str) -> bool:
    async with Client(host.address) as client:
        return name in [namespace.name for namespace in (await client.list_namespaces()).namespaces]


def test_a_change_through_any_host_is_seen_by_all(hosts: list[RestartableHost], zookeeper: ZooKeeper) -> None:
    async def create(host: RestartableHost, name: str) -> None:
        async with Client(host.address) as client:
            await client.create_namespace(Namespace(name))

    for number, host in enumerate(hosts):
        name = f"made-{number}"
        run(create(host, name))
        for other in hosts:
            until(lambda other=other, name=name: run(knows(other, name)), f"{name} is known")  # type: ignore[misc]
    with zookeeper.client() as stranger, pytest.raises(NoAuthError):
        stranger.get("/foqs/v1/catalog")


async def put(client: Client) -> dict[str, str]:
    """Enqueue items and return their ids by idempotency key. Known keys return the same ids."""
    found = {}
    for key in map("key-{}".format, range(40)):
        [result] = await client.enqueue([Item("t", key.encode(), idempotency_key=key)], timeout_ms=30_000)
        found[key] = result.require()
    return found


async def take(hosts: Sequence[RestartableHost], namespace: str, topic: str) -> list[bytes]:
    taken: list[bytes] = []
    for host in hosts:
        async with Client(host.address, namespace=namespace) as client:
            taken += await dequeue_all(client, topic)
    return taken


def test_an_export_restores_an_empty_zookeeper_and_no_item_is_lost(
    hosts: list[RestartableHost], zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    address = f"{hosts[0].address},127.0.0.1:{hosts[1].port}"

    async def configure() -> None:
        async with Client(hosts[0].address, namespace="orders") as client:
            await client.create_namespace(Namespace("orders", payload_bytes_max=2_000))
            await client.set_grant("alice", ["enqueue"])
            await client.pause_topic("held")

    async def work() -> dict[str, str]:
        async with Client(address, namespace="orders") as client:
            [result] = await client.enqueue([Item("held", b"held")])
            result.require()
            return await put(client)

    async def again() -> dict[str, str]:
        async with Client(address, namespace="orders") as client:
            return await put(client)

    def until_known() -> None:
        for host in hosts:
            until(lambda host=host: run(knows(host, "orders")), "the namespace is known")  # type: ignore[misc]

    run(configure())
    until_known()
    ids = run(work())
    export = tmp_path / "export.json"
    export.write_text(foqs("config", "export", "--address", hosts[0].address))
    zookeeper.stop()
    shutil.rmtree(zookeeper.folder / "data")
    # One host continues with the catalog that it has read; the other is restarted and finds none.
    hosts[1].kill9()
    zookeeper.start()
    initialise_again(hosts[0].config, str(_SHARDS))
    hosts[1].launch()
    until_served(hosts)
    until(lambda: not run(knows(hosts[0], "orders")), "the stored catalog is in force", 60)
    foqs("config", "import", str(export), "--yes", "--address", hosts[1].address)
    until_known()
    after = json.loads(foqs("config", "export", "--address", hosts[0].address))
    before = json.loads(export.read_text())
    assert (after["namespaces"], after["slots"]) == (before["namespaces"], before["slots"])
    assert run(again()) == ids
    assert run(take(hosts, "orders", "held")) == []
    assert sorted(run(take(hosts, "orders", "t"))) == sorted(key.encode() for key in ids)
    for host in hosts:
        assert "Traceback" not in host.log
