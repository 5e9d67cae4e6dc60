"""Hosts with authentication and TLS: they authenticate each other, and only a host may mark a call as forwarded."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from foqs.cli import root
from foqs_client import Client, Enqueued, Item, NotOwner, PermissionDenied, Tls
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod
from tests.support.aio import run
from tests.support.certificates import Authority, secret_file
from tests.support.console import Browser
from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.ports import free_port
from tests.support.processes import RestartableHost
from tests.support.raw_calls import call_once, enqueue_once
from tests.support.real_cluster import RealCluster
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(300)]

NAMES = ("one", "two", "three")
SHARDS = 6
SHOWN = {"one": "secret-of-the-hosts", "two": "", "three": "secret-of-nobody"}
"""The token that each host sends to the others: a valid one, none beside its certificate, and an unknown one."""
CONSOLE_PORTS = {name: free_port() for name in NAMES}
BOSS, ORDERS = "secret-of-the-boss", "secret-of-orders"
ENQUEUE = ThriftMethod("enqueue")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def hosts(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RestartableHost]]:
    """Wait until each host serves its part of the shards."""
    folder = tmp_path_factory.mktemp("hosts")
    with ExitStack() as stack:
        mariadb = MariaDb()
        mariadb.start()
        stack.callback(mariadb.remove)
        cluster = RealCluster(folder, stack.enter_context(ZooKeeper()), mariadb, SHARDS)
        cluster.init()
        made = {name: stack.enter_context(guarded(cluster, name, authority, folder)) for name in NAMES}
        for host in made.values():
            host.launch()
        cluster.wait_until_served(NAMES)
        for host in made.values():
            host.wait_until_ready()
            until(lambda host=host: run(knows_owners(host, authority)), "it knows all owners")  # type: ignore[misc]
        yield made


def guarded(cluster: RealCluster, name: str, authority: Authority, folder: Path) -> RestartableHost:
    """Prepare a folder for a host with the administrators `boss`, `hosts` and `two`, and the principal `orders`."""
    files = authority.sign(name)
    secrets = {"boss": BOSS, "hosts": SHOWN["one"], "orders": ORDERS}
    known = {who: secret_file(folder / f"{name}-knows-{who}", secret.encode()) for who, secret in secrets.items()}
    options = {
        "auth.enabled": True,
        "auth.principals.boss.admin": True,
        "auth.principals.hosts.admin": True,
        "auth.principals.two.admin": True,
        **{f"auth.principals.{who}.token_file": str(file) for who, file in known.items()},
        "server.tls_cert_file": str(files.cert),
        "server.tls_key_file": str(files.key),
        "server.tls_client_ca_file": str(authority.file),
        "cluster.ca_file": str(authority.file),
        "server.console": True,
        "server.console_port": CONSOLE_PORTS[name],
    }
    if SHOWN[name]:
        options["cluster.token_file"] = str(secret_file(folder / f"{name}-shows", SHOWN[name].encode()))
    return cluster.host(name, options=options)


def client_of(host: RestartableHost, authority: Authority, token: str) -> Client:
    """Return a client that uses only one host."""
    address = host.address.replace("foqs://", "foqss://")
    return Client(address, token=token, tls=Tls(str(authority.file)), automatic_keys=False)


async def knows_owners(host: RestartableHost, authority: Authority) -> bool:
    """Return whether a host has learned who owns each shard, which it does a moment after the registry."""
    async with client_of(host, authority, BOSS) as client:
        shards = (await client.routing()).shards
    return len(shards) == SHARDS and all(shard.owner is not None and shard.state == "owned" for shard in shards)


async def send(client: Client, *keys: str) -> list[Enqueued]:
    """Enqueue items with these keys in one attempt."""
    items = [Item("t", key.encode(), idempotency_key=key) for key in keys]
    return await enqueue_once(client, *items)


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_keyed_item_reaches_its_slot_through_authenticated_hosts(
    hosts: dict[str, RestartableHost], authority: Authority, name: str
) -> None:
    async def story() -> None:
        keys = [f"{name}-{number}" for number in range(40)]
        async with client_of(hosts[name], authority, BOSS) as client:
            # The host may learn a moment after the registry who owns a shard, and says so: the client tries again.
            results = await client.enqueue([Item("t", key.encode(), idempotency_key=key) for key in keys])
            shards = {result.require().partition("-")[0] for result in results}
            assert len(shards) == SHARDS

    run(story())
    assert "as an administrator" not in hosts[name].log
    assert "asked anything: UNAUTHENTICATED" not in hosts[name].log


def test_a_host_that_others_refuse_says_so_and_serves_alone(
    hosts: dict[str, RestartableHost], authority: Authority
) -> None:
    async def story() -> None:
        async with client_of(hosts["three"], authority, BOSS) as client:
            results = await send(client, *[f"three-{number}" for number in range(40)])
            refused = [result.error for result in results if result.error is not None]
            assert 0 < len(refused) < 40
            assert all(isinstance(error, NotOwner) and error.owner is not None for error in refused)

    run(story())
    for other in ("one", "two"):
        until(lambda other=other: f"{other} cannot be called" in hosts["three"].log, f"it says so of {other}")  # type: ignore[misc]
    assert SHOWN["three"] not in hosts["three"].log


def test_a_tenant_that_marks_its_call_as_forwarded_is_refused(
    hosts: dict[str, RestartableHost], authority: Authority
) -> None:
    async def story() -> None:
        async with client_of(hosts["one"], authority, BOSS) as boss:
            await boss.set_grant("orders", ["enqueue"])
        for host in hosts.values():
            async with client_of(host, authority, ORDERS) as tenant:
                request = ttypes.EnqueueRequest("default", [ttypes.NewItem("t", payload=b"x")], forwarded=True)
                while True:
                    with pytest.raises(PermissionDenied) as caught:
                        await call_once(tenant, "enqueue", request, 10_000)
                    if caught.value.field == "forwarded":  # else the host has not read the grant yet
                        break
                if host is not hosts["three"]:
                    results = await send(tenant, *[f"tenant-{host.port}-{number}" for number in range(40)])
                    assert all(result.require() for result in results)

    run(story())


def test_hosts_accept_each_others_sessions_until_all_sessions_are_ended(
    hosts: dict[str, RestartableHost], authority: Authority
) -> None:
    context = ssl.create_default_context(cafile=str(authority.file))

    def browser(name: str, cookies: dict[str, str]) -> Browser:
        return Browser(CONSOLE_PORTS[name], context, dict(cookies))

    first = browser("one", {})
    assert first.get("/cluster").status == 303
    assert first.post("/login", token=BOSS, next="/cluster").status == 200
    for name in NAMES:
        assert browser(name, first.cookies).get("/cluster").status == 200, name

    hosts["two"].stop()
    hosts["two"].start()
    assert browser("two", first.cookies).get("/cluster").status == 200, "a restart ends no session"

    done = CliRunner().invoke(root, ["console", "end-sessions", "--config", str(hosts["three"].config)])
    assert done.exit_code == 0, done.output

    def everywhere(status: int) -> bool:
        return all(browser(name, first.cookies).get("/cluster").status == status for name in NAMES)

    until(lambda: everywhere(303), "all hosts refuse the sessions")
    assert first.post("/login", token=BOSS, next="/cluster").status == 200
    until(lambda: everywhere(200), "all hosts know the new secret")
