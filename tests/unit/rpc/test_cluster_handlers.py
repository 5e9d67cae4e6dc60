"""The calls about hosts and shards, from the client over RPC to the cluster and back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from foqs.routing.port import (
    ClusterService,
    HostIdentity,
    HostRef,
    HostView,
    RoutingChange,
    RoutingTable,
    ShardView,
    StandaloneCluster,
)
from foqs.rpc.cluster_handlers import cluster_handlers
from foqs.shard.host_shards import ShardStatus
from foqs_client import Client, FoqsError, Host, NotImplementedYet, Shard
from foqs_contract.errors import InvalidArgument as Refusal
from foqs_contract.idl import ttypes
from shardmgr.model import ShardSpec
from tests.support.aio import run
from tests.support.fake_queue import FakeQueue
from tests.support.raw_calls import call_once
from tests.support.rpc_server import serve_queue

HOSTS = [
    HostView(f"host{n:04}", ("h", n + 1), "gold", "eu", 2, f"nonce{n}", 3, 0.5, n == 0, n == 1, "9") for n in range(3)
]
SHARDS = [
    ShardView(0, "gold", "eu", ("h", 1), "host0000", 7, "owned", "db1", 2, True, "host0000", 11, None),
    ShardView(5, "gold", "", None, "", 0, "free", "db2", reason="no host fits"),
]


class Recording:
    """A cluster that answers from two lists and records the requested changes."""

    tier = "gold"

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.map = RoutingTable(42, HOSTS, SHARDS)
        self.change: RoutingChange | None = None

    @property
    def version(self) -> int:
        return self.map.version

    def routing(self) -> RoutingTable:
        return self.map

    def changes_since(self, version: int) -> RoutingChange | None:
        return self.change

    def host_loads(self) -> Sequence[float]:
        return [0.5, 0.5, 0.5]

    async def add_shard(self, spec: ShardSpec, deadline: float) -> None:
        self.asked.append(("add", spec))

    async def remove_shard(self, shard: int, deadline: float, *, force: bool) -> None:
        if shard == 99:
            raise Refusal("there is no shard 99", field="shard")
        self.asked.append(("remove", shard, force))

    async def drain_shard(self, shard: int, deadline: float, *, draining: bool) -> None:
        self.asked.append(("drain", shard, draining))

    async def move_shard(self, shard: int, target: HostRef | None, deadline: float) -> None:
        self.asked.append(("move", shard, target))

    async def drain_host(self, host: HostRef, deadline: float, *, drained: bool) -> None:
        self.asked.append(("host", host, drained))


@asynccontextmanager
async def asked(cluster: ClusterService) -> AsyncIterator[Client]:
    async with serve_queue(FakeQueue(), calls=cluster_handlers(cluster)) as host, Client(host.url) as client:
        yield client


def test_hosts_and_shards_are_returned_with_all_fields() -> None:
    async def story() -> None:
        async with asked(Recording()) as client:
            routing = await client.routing()
            assert routing.version == 42
            assert routing.hosts[1] == Host(
                "h", 2, "eu", "gold", 2, False, 0.5, "9", "host0001", "nonce1", 3, leaving=True
            )
            assert [host.draining for host in routing.hosts] == [True, False, False]
            assert routing.shards == [
                Shard(0, "gold", ("h", 1), 7, "owned", 11, "eu", None, "host0000", "db1", 2, True, "host0000"),
                Shard(5, "gold", None, 0, "free", None, None, "no host fits", None, "db2", 1, False, None),
            ]
            assert await client.list_hosts() == routing.hosts
            assert await client.list_shards() == routing.shards

    run(story())


def test_lists_longer_than_a_page_are_complete_and_in_order() -> None:
    async def story() -> None:
        cluster = Recording()
        hosts = [HostView(f"host{n:04}", ("h", 1), "gold", "", 0) for n in range(1_201)]
        shards = [ShardView(n * 2, "gold", "", None, "", 0, "free") for n in range(1_201)]
        cluster.map = RoutingTable(1, hosts, shards)
        async with asked(cluster) as client:
            assert [host.name for host in await client.list_hosts()] == [host.name for host in hosts]
            assert [shard.shard for shard in await client.list_shards()] == [shard.shard for shard in shards]

    run(story())


def test_every_change_reaches_the_cluster() -> None:
    async def story() -> None:
        cluster = Recording()
        async with asked(cluster) as client:
            await client.add_shard(7, "db1")
            await client.add_shard(8, "db2", tier="t", weight=3, region="eu")
            await client.remove_shard(7)
            await client.remove_shard(8, force=True)
            await client.drain_shard(1)
            await client.undrain_shard(1)
            await client.move_shard(1, "host2")
            await client.move_shard(1, ("h", 7))
            await client.move_shard(1, None)
            await client.drain_host("host2")
            await client.undrain_host(("h", 7))
        assert cluster.asked == [
            ("add", ShardSpec(7, "db1", "gold")),
            ("add", ShardSpec(8, "db2", "t", 3, "eu")),
            ("remove", 7, False),
            ("remove", 8, True),
            ("drain", 1, True),
            ("drain", 1, False),
            ("move", 1, "host2"),
            ("move", 1, ("h", 7)),
            ("move", 1, None),
            ("host", "host2", True),
            ("host", ("h", 7), False),
        ]

    run(story())


BAD_REQUESTS: list[tuple[str, Any, str, str]] = [
    ("addShard", ttypes.AddShardRequest(database_name="d"), "INVALID_ARGUMENT", "shard"),
    ("addShard", ttypes.AddShardRequest(-1, "d"), "INVALID_ARGUMENT", "shard"),
    ("addShard", ttypes.AddShardRequest(65_536, "d"), "LIMIT_EXCEEDED", "shard"),
    ("addShard", ttypes.AddShardRequest(1), "INVALID_ARGUMENT", "database_name"),
    ("addShard", ttypes.AddShardRequest(1, "d", tier=""), "INVALID_ARGUMENT", "tier"),
    ("addShard", ttypes.AddShardRequest(1, "d", weight=0), "INVALID_ARGUMENT", "weight"),
    ("addShard", ttypes.AddShardRequest(1, "d", weight=1_000_001), "LIMIT_EXCEEDED", "weight"),
    ("addShard", ttypes.AddShardRequest(1, "d", region="a\0"), "INVALID_ARGUMENT", "region"),
    ("removeShard", ttypes.ShardRequest(), "INVALID_ARGUMENT", "shard"),
    ("removeShard", ttypes.ShardRequest(99), "INVALID_ARGUMENT", "shard"),
    ("moveShard", ttypes.ShardRequest(target_name="h"), "INVALID_ARGUMENT", "shard"),
    ("moveShard", ttypes.ShardRequest(1, ttypes.HostAddress("h", 1), None, "h"), "INVALID_ARGUMENT", "target"),
    ("moveShard", ttypes.ShardRequest(1, ttypes.HostAddress(port=1)), "INVALID_ARGUMENT", "target.host"),
    ("moveShard", ttypes.ShardRequest(1, ttypes.HostAddress("h")), "INVALID_ARGUMENT", "target.port"),
    ("moveShard", ttypes.ShardRequest(1, ttypes.HostAddress("h", 0)), "INVALID_ARGUMENT", "target.port"),
    ("moveShard", ttypes.ShardRequest(1, target_name=""), "INVALID_ARGUMENT", "target_name"),
    ("drainShard", ttypes.ShardRequest(), "INVALID_ARGUMENT", "shard"),
    ("undrainShard", ttypes.ShardRequest(-5), "INVALID_ARGUMENT", "shard"),
    ("drainHost", ttypes.HostRequest(), "INVALID_ARGUMENT", "host"),
    ("drainHost", ttypes.HostRequest(host_name="x" * 256), "INVALID_ARGUMENT", "host_name"),
    ("undrainHost", ttypes.HostRequest(ttypes.HostAddress("h", 70_000)), "LIMIT_EXCEEDED", "host.port"),
    ("listHosts", ttypes.ListRequest(ttypes.Page(0)), "INVALID_ARGUMENT", "page.limit"),
    ("listShards", ttypes.ListRequest(ttypes.Page(cursor="x")), "INVALID_ARGUMENT", "page.cursor"),
]


def test_a_bad_request_is_refused_and_changes_nothing() -> None:
    async def story() -> None:
        cluster = Recording()
        async with asked(cluster) as client:
            for method, request, code, field in BAD_REQUESTS:
                with pytest.raises(FoqsError) as caught:
                    await call_once(client, method, request)
                assert (caught.value.code, caught.value.field) == (code, field), request
        assert cluster.asked == []

    run(story())


def test_host_without_a_cluster_lists_itself() -> None:
    statuses = [ShardStatus(4, "acquiring", 0, 0, "waits"), ShardStatus(3, "owned", 2, 7, None)]
    routing = StandaloneCluster(HostIdentity("h", 7411, 42, "eu", "gold", "9", "host1"), lambda: statuses).routing()
    assert routing.version == 42
    assert routing.hosts == [HostView("host1", ("h", 7411), "gold", "eu", 2, version="9")]
    assert [(s.shard, s.owner, s.owner_name, s.epoch, s.state, s.queued_items, s.reason) for s in routing.shards] == [
        (3, ("h", 7411), "host1", 2, "owned", 7, None),
        (4, ("h", 7411), "host1", 0, "acquiring", 0, "waits"),
    ]


def test_host_without_a_cluster_refuses_changes_with_a_remedy() -> None:
    async def story() -> None:
        async with asked(StandaloneCluster(HostIdentity("h", 1, 1), list)) as client:
            for change in (
                client.add_shard(1, "d"),
                client.remove_shard(1),
                client.drain_shard(1),
                client.undrain_shard(1),
                client.move_shard(1, "h"),
                client.drain_host("h"),
                client.undrain_host("h"),
            ):
                with pytest.raises(NotImplementedYet, match=r"no cluster.*cluster\.zookeeper"):
                    await change

    run(story())
