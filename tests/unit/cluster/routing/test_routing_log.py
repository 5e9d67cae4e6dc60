"""Changes of the routing table: the log, the replies, and the table that a client builds from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.transport.TTransport import TMemoryBuffer

from foqs.cluster.routing.host_views import HostViews
from foqs.cluster.routing.registry_cluster import RegistryCluster
from foqs.cluster.routing.routing_log import STEPS_MAX, RoutingLog
from foqs.routing.port import HostView, RoutingTable, ShardView
from foqs.rpc.cluster_handlers import cluster_handlers
from foqs_client import conversion
from foqs_client.routing_change import apply_routing_change
from foqs_client.types import Routing as ClientRouting
from foqs_contract.idl import ttypes
from foqs_contract.key_slots import KEY_SLOT_COUNT
from shardmgr.model import Assignment, ClusterView, HeldShard, Layout, Member, Plan, ShardSpec
from tests.support.aio import run
from tests.support.example_counts import examples
from tests.support.local_ensemble import LocalEnsemble
from tests.support.recorded_call import RecordedCall

HOST: Final = HostView("h", ("h", 1), "default", "", 0, "nonce")
SHARD: Final = ShardView(1, "default", "", ("h", 1), "h", 1, "owned")


def drawn(version: int, hosts: Mapping[str, int], shards: Mapping[int, int]) -> RoutingTable:
    """A map of hosts by nonce and shards by number, each with something that may differ."""
    return RoutingTable(
        version,
        [replace(HOST, name=nonce, nonce=nonce, capacity=capacity) for nonce, capacity in sorted(hosts.items())],
        [replace(SHARD, shard=number, epoch=epoch) for number, epoch in sorted(shards.items())],
    )


def log_of(*maps: RoutingTable) -> RoutingLog:
    log = RoutingLog()
    for each in maps:
        log.add(each)
    return log


def test_the_newest_version_has_not_changed() -> None:
    change = log_of(drawn(1, {"a": 1}, {1: 1})).changes_since(1)
    assert change is not None
    assert (change.since_version, change.version) == (1, 1)
    assert not (change.hosts or change.shards or change.removed_hosts or change.removed_shards)


def test_only_changes_are_reported() -> None:
    log = log_of(drawn(1, {"a": 1, "b": 1}, {1: 1, 2: 1}), drawn(2, {"a": 1, "b": 2}, {1: 1, 2: 5}))
    change = log.changes_since(1)
    assert change is not None
    assert [(host.nonce, host.capacity) for host in change.hosts] == [("b", 2)]
    assert [(shard.shard, shard.epoch) for shard in change.shards] == [(2, 5)]


def test_removed_hosts_and_shards_are_named() -> None:
    change = log_of(drawn(1, {"a": 1, "b": 1}, {1: 1, 2: 1}), drawn(2, {"b": 1}, {2: 1, 3: 1})).changes_since(1)
    assert change is not None
    assert (change.removed_hosts, change.removed_shards) == (["a"], [1])
    assert [shard.shard for shard in change.shards] == [3]


def test_removed_and_added_again_is_reported_as_it_is_now() -> None:
    log = log_of(drawn(1, {"a": 1}, {1: 1}), drawn(2, {}, {}), drawn(3, {"a": 2}, {1: 9}))
    change = log.changes_since(1)
    assert change is not None
    assert (change.removed_hosts, change.removed_shards) == ([], [])
    assert [shard.epoch for shard in change.shards] == [9]


def test_a_version_that_came_again_counts_from_its_last_time() -> None:
    one, two = drawn(1, {}, {1: 1}), drawn(2, {}, {1: 2})
    change = log_of(one, two, one, drawn(3, {}, {1: 1, 7: 1})).changes_since(1)
    assert change is not None
    assert [shard.shard for shard in change.shards] == [7]


@pytest.mark.parametrize("log", [RoutingLog(), log_of(drawn(1, {}, {}))])
def test_forgotten_version_has_no_change(log: RoutingLog) -> None:
    assert log.changes_since(99) is None


def test_number_of_remembered_tables_is_limited() -> None:
    log = log_of(*(drawn(version, {}, {1: version}) for version in range(STEPS_MAX + 2)))
    assert log.changes_since(0) is None
    assert log.changes_since(1) is not None


def test_unchanged_table_uses_no_place_in_the_log() -> None:
    one, two = drawn(1, {}, {1: 1}), drawn(2, {}, {1: 2})
    assert log_of(one, two, *[two] * STEPS_MAX).changes_since(1) is not None


def test_loads_are_not_part_of_the_routing_table() -> None:
    quiet, busy = [RoutingTable(n, [replace(HOST, load=load)], []) for n, load in ((1, 0.0), (2, 900.0))]
    change = log_of(quiet, busy).changes_since(1)
    assert change is not None
    assert change.hosts == []


# ---------------------------------------------------------- over RPC and back


class Cluster:
    """A routing table, with a host that reports it."""

    def __init__(self, rng: Random, hosts: int, shards: int) -> None:
        self.rng = rng
        self.members = {f"{n:032x}": self._member(n) for n in range(hosts)}
        self.layout = Layout({number: ShardSpec(number, "main") for number in range(shards)})
        nonces = list(self.members)
        self.assigned = {n: Assignment("x", nonces[n % hosts], 1, "main") for n in range(shards)}
        per_shard = max(1, KEY_SLOT_COUNT // max(1, shards))
        self.slots = {
            n: frozenset(range(n * per_shard, (n + 1) * per_shard)) & set(range(KEY_SLOT_COUNT)) for n in range(shards)
        }
        self._made = hosts
        self.loads: dict[str, float] = {}
        self.service = self.host()

    def host(self) -> RegistryCluster:
        """Start a host that has reported nothing yet."""
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        self.read()
        hosts = HostViews(lambda: self.view, "")
        return RegistryCluster(
            registry, lambda: self.view, hosts, "", "default", list, lambda: self.slots, lambda: self.loads
        )

    def read(self) -> None:
        held: dict[str, dict[int, HeldShard]] = {}
        for number, each in self.assigned.items():
            held.setdefault(each.nonce, {})[number] = HeldShard(each.epoch, "owned")
        members = [replace(each, held_shards=held.get(nonce, {})) for nonce, each in self.members.items()]
        self.view = ClusterView(self.layout, Plan(dict(self.assigned), {}), members)

    def move(self, number: int) -> None:
        before = self.assigned[number]
        others = [nonce for nonce in self.members if nonce != before.nonce]
        self.assigned[number] = Assignment("x", self.rng.choice(others), before.epoch + 1, "main")

    def come(self) -> None:
        self._made += 1
        self.members[f"{self._made:032x}"] = self._member(self._made)

    def go(self) -> None:
        if len(self.members) > 2:
            gone = self.rng.choice(list(self.members))
            del self.members[gone]
            for number, each in list(self.assigned.items()):
                if each.nonce == gone:
                    self.move(number)

    def remove(self) -> None:
        number = self.rng.choice(list(self.layout.shards))
        if len(self.layout.shards) > 2:
            self.layout = replace(self.layout, shards={n: s for n, s in self.layout.shards.items() if n != number})

    def _member(self, number: int) -> Member:
        return Member(f"host{999 - number}", f"{number:032x}", f"10.0.0.{number % 250}:7411", load=float(number))


def ask(service: RegistryCluster, known: ClientRouting | None) -> Any:
    """Return a host's reply."""
    request = ttypes.GetRoutingRequest(None if known is None else known.version, changes=known is not None)
    call = RecordedCall("getRouting", request)

    async def main() -> None:
        pending: Any = cluster_handlers(service)["getRouting"](call)
        await pending.task

    run(main())
    return call.replies[0]


def size(reply: Any) -> int:
    buffer = TMemoryBuffer()
    reply.write(TBinaryProtocolAccelerated(buffer, fallback=False))
    return len(buffer.getvalue())


@pytest.mark.parametrize("seed", range(examples(12)))
def test_client_that_follows_changes_has_the_complete_table(seed: int) -> None:
    """It asks one of two hosts, and misses some maps; each host has its own memory."""
    rng = Random(seed)
    cluster = Cluster(rng, 4, 9)
    hosts: Sequence[RegistryCluster] = (cluster.host(), cluster.host())
    known: ClientRouting | None = None
    steps = (lambda: cluster.move(rng.choice(list(cluster.assigned))), cluster.come, cluster.go, cluster.remove)
    for _ in range(60):
        rng.choice(steps)()
        cluster.read()
        for host in hosts:
            if rng.random() < 0.9:
                host.routing()
        if rng.random() < 0.5:
            reply = ask(rng.choice(hosts), known)
            known = apply_routing_change(known, reply)
            assert known == conversion.routing(ask(cluster.host(), None))
    assert known is not None


def test_change_from_another_table_is_not_applied() -> None:
    cluster = Cluster(Random(1), 3, 4)
    first = apply_routing_change(None, ask(cluster.service, None))
    assert first is not None
    reply = ask(cluster.service, first)
    assert reply.since == first.version
    assert apply_routing_change(replace(first, version=first.version + 1), reply) is None
    assert apply_routing_change(None, reply) is None


def test_reply_without_changes_is_understood() -> None:
    cluster = Cluster(Random(1), 3, 4)
    first = apply_routing_change(None, ask(cluster.service, None))
    assert apply_routing_change(first, ttypes.GetRoutingReply(version=1)) is first
    assert apply_routing_change(first, ask(cluster.host(), None)) == first


def test_loads_come_with_every_reply() -> None:
    cluster = Cluster(Random(1), 3, 4)
    first = apply_routing_change(None, ask(cluster.service, None))
    assert first is not None
    assert [host.load for host in first.hosts] == [2.0, 1.0, 0.0]  # by name
    cluster.loads[f"{1:032x}"] = 77.0
    second = apply_routing_change(first, ask(cluster.service, first))
    assert second is not None
    assert [host.load for host in second.hosts] == [2.0, 77.0, 0.0]
    assert second.version == first.version
    assert [host.load for host in conversion.routing(ask(cluster.service, None)).hosts] == [2.0, 77.0, 0.0]


def test_move_of_one_of_a_thousand_shards_is_a_small_reply() -> None:
    cluster = Cluster(Random(1), 50, 1_000)
    known = apply_routing_change(None, ask(cluster.service, None))
    full_bytes = size(ask(cluster.service, None))
    nothing = size(ask(cluster.service, known))
    cluster.move(17)
    cluster.read()
    moved = ask(cluster.service, known)
    assert [info.shard for info in moved.shards] == [17]
    assert len(moved.hosts) == 2  # how many they own
    assert nothing <= 600
    assert size(moved) <= 1_200
    assert full_bytes >= 100_000
