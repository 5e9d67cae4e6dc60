"""Tests of a rolling upgrade, with a cluster that is only a routing table."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from foqs.dev import rolling_upgrade
from foqs.dev.rolling_upgrade import upgrade_hosts
from foqs.dev.server_process import ServerNotAvailable
from foqs_client import Host, InvalidArgument, Routing, Shard, Unavailable
from tests.support.aio import run
from tests.support.virtual_time import run_virtual


@dataclass(slots=True)
class FakeCluster:
    """Hosts and shards. A drained host has no shard. Records what happens."""

    names: list[str]
    drained: set[str] = field(default_factory=set)
    events: list[str] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    def client(self, url: str, timeout_ms: int) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def routing(self) -> Routing:
        if self.failures:
            raise self.failures.pop()
        owners = [name for name in self.names if name not in self.drained]
        shards = [
            Shard(number, None, ("h", 1), 1, "owned", None, None, None, owners[number % len(owners)])
            for number in range(4)
        ]
        hosts = [Host("h", 1, None, None, 1, name in self.drained, None, None, name) for name in self.names]
        return Routing(1, hosts, shards)

    async def drain_host(self, name: str) -> None:
        self.events.append(f"drain {name}")
        self.drained.add(name)

    async def undrain_host(self, name: str) -> None:
        self.events.append(f"undrain {name}")
        self.drained.discard(name)


@dataclass(slots=True)
class FakeHost:
    cluster: FakeCluster
    name: str
    error: Exception | None = None

    def replace(self) -> None:
        self.cluster.events.append(f"replace {self.name}")
        if self.error is not None:
            raise self.error


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    found = FakeCluster(["a", "b"])
    monkeypatch.setattr(rolling_upgrade, "Client", found.client)
    yield found


def upgrade(*hosts: FakeHost, upgraded: Collection[str] = ()) -> None:
    said: list[str] = []
    run(upgrade_hosts("foqs://a,b", hosts, said.append, upgraded))


def test_each_host_is_drained_replaced_and_undrained_before_the_next(cluster: FakeCluster) -> None:
    upgrade(FakeHost(cluster, "a"), FakeHost(cluster, "b"))
    assert cluster.events == ["drain a", "replace a", "undrain a", "drain b", "replace b", "undrain b"]


def test_the_only_host_is_replaced_without_a_drain(cluster: FakeCluster) -> None:
    cluster.names = ["a"]
    upgrade(FakeHost(cluster, "a"))
    assert cluster.events == ["replace a"]


def test_a_host_that_an_interrupted_upgrade_left_drained_is_undrained_first(cluster: FakeCluster) -> None:
    cluster.names.append("c")
    cluster.drained |= {"a", "c"}
    upgrade(FakeHost(cluster, "b"), upgraded=["a"])
    assert cluster.events == ["undrain a", "drain b", "replace b", "undrain b"]
    assert cluster.drained == {"c"}, "an administrator drained it"


def test_a_host_that_does_not_start_is_undrained_and_ends_the_upgrade(cluster: FakeCluster) -> None:
    with pytest.raises(ServerNotAvailable, match="it ended with 3"):
        upgrade(FakeHost(cluster, "a", ServerNotAvailable("it ended with 3")), FakeHost(cluster, "b"))
    assert cluster.events == ["drain a", "replace a", "undrain a"]


def test_a_call_that_may_succeed_later_is_repeated_and_another_failure_is_reported(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Any] = [InvalidArgument("no such host", field="host"), Unavailable("not now")]

    async def drain(self: FakeCluster, name: str) -> None:
        self.events.append("tried")
        raise errors.pop()

    monkeypatch.setattr(FakeCluster, "drain_host", drain)
    with pytest.raises(ServerNotAvailable, match="no such host"):
        run_virtual(lambda: upgrade_hosts("foqs://a,b", [FakeHost(cluster, "a")], lambda _: None))
    assert cluster.events == ["tried", "tried"]


def test_a_cluster_that_does_not_settle_is_reported_with_the_reason(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling_upgrade, "STEP_TIMEOUT_S", -1.0)
    cluster.failures = [Unavailable("no host answers")]
    with pytest.raises(ServerNotAvailable, match=r"every shard is served \(.*no host answers\): look at foqs cluster"):
        upgrade(FakeHost(cluster, "a"))
