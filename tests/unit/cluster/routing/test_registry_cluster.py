"""The routing table of a cluster and its administration, on a registry inside the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

import pytest

from foqs.cluster.routing.host_views import HostViews
from foqs.cluster.routing.registry_cluster import RegistryCluster
from foqs.routing.port import RoutingTable, ShardView
from foqs.shard.host_shards import ShardStatus
from foqs.testing.virtual_loop import VirtualClock
from foqs_contract.errors import ErrorCode, FoqsError, InvalidArgument, Unavailable, UnknownOutcome
from shardmgr import layout_changes
from shardmgr.documents import MEMBERS, render_member
from shardmgr.model import Assignment, ClusterView, HeldShard, Layout, MalformedDocument, Member, Plan, ShardSpec
from shardmgr.registry.port import RegistryConflict, RegistryFailed, RegistryOutcomeUnknown
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry
from tests.support.virtual_time import run_virtual

MINE: Final = Member(
    "host1", "n1", "10.0.0.1:7411", capacity=2, held_shards={0: HeldShard(5, "owned"), 1: HeldShard(2, "owned")}
)
OTHER: Final = Member(
    "host2", "n2", "[::1]:7413", region="eu", load=0.5, leaving=True, held_shards={2: HeldShard(7, "owned")}
)
LAYOUT: Final = Layout(
    {n: ShardSpec(n, f"db{n % 2}") for n in range(5)} | {5: ShardSpec(5, "db1", "gold", 3, "eu", True)},
    frozenset({"host2"}),
    {1: "host1"},
)
PLAN: Final = Plan(
    {
        0: Assignment("host1", "n1", 5, "db0"),
        1: Assignment("host1", "n1", 3, "db1"),
        2: Assignment("host2", "n2", 7, "db0"),
        3: Assignment("host3", "n3", 4, "db1"),
    },
    {0: 5, 1: 3, 2: 7, 3: 4, 4: 9},
)
SLOTS: Final = {0: frozenset({3, 1_023})}
VIEW: Final = ClusterView(LAYOUT, PLAN, [OTHER, MINE])
STATUSES: Final = [ShardStatus(0, "owned", 5, 11, None), ShardStatus(1, "acquiring", 3, 0, "the database is away")]


def cluster(view: ClusterView | None, statuses: list[ShardStatus] | None = None, nonce: str = "n1") -> RegistryCluster:
    registry = LocalEnsemble(None, lambda: 0).registry(6_000)
    hosts = HostViews(lambda: view, nonce, "9")
    return RegistryCluster(registry, lambda: view, hosts, nonce, "default", lambda: statuses or [], lambda: SLOTS)


def by_number(routing: RoutingTable) -> dict[int, ShardView]:
    assert [shard.shard for shard in routing.shards] == sorted(shard.shard for shard in routing.shards)
    return {shard.shard: shard for shard in routing.shards}


# ------------------------------------------------------------------------ telling


def test_hosts_are_listed_by_name_with_their_planned_shards() -> None:
    first, second = cluster(VIEW).routing().hosts
    assert (first.name, first.address, first.shard_count, first.capacity, first.drained, first.version) == (
        "host1", ("10.0.0.1", 7411), 2, 2, False, "9",
    )  # fmt: skip
    assert (second.name, second.address, second.region, second.shard_count, second.load) == (
        "host2",
        ("::1", 7413),
        "eu",
        1,
        0.5,
    )
    assert (second.drained, second.leaving, second.version) == (True, True, "")


def test_state_of_a_shard_is_what_its_owner_reports_for_the_issued_epoch() -> None:
    shards = by_number(cluster(VIEW, STATUSES).routing())
    served = shards[0]
    assert (served.owner, served.owner_name, served.epoch, served.state) == (("10.0.0.1", 7411), "host1", 5, "owned")
    assert (served.queued_items, served.reason, served.database) == (11, None, "db0")
    # A report about the former epoch is ignored.
    assert (shards[1].state, shards[1].epoch, shards[1].reason) == ("acquiring", 3, "the database is away")
    assert shards[1].pinned_to == "host1"
    assert (shards[2].state, shards[2].queued_items, shards[2].reason) == ("owned", None, None)


def test_shard_of_a_lost_host_has_no_address() -> None:
    gone = by_number(cluster(VIEW).routing())[3]
    assert (gone.owner, gone.owner_name, gone.epoch, gone.state) == (None, "host3", 4, "lost")
    assert "host3 is gone" in (gone.reason or "")


def test_shard_without_an_owner_has_a_reason_and_keeps_its_last_epoch() -> None:
    shards = by_number(cluster(VIEW).routing())
    assert (shards[4].state, shards[4].epoch, shards[4].owner) == ("free", 9, None)
    assert shards[4].reason == "the planner will assign it to a host soon"
    assert "no host of tier gold" in (shards[5].reason or "")
    assert (shards[5].weight, shards[5].region, shards[5].draining, shards[5].epoch) == (3, "eu", True, 0)
    drained = replace(LAYOUT, drained=frozenset({"host1", "host2"}))
    assert "no host of tier default" in (by_number(cluster(replace(VIEW, layout=drained)).routing())[4].reason or "")


def test_hosts_with_the_same_reading_report_the_same_version() -> None:
    mine = cluster(VIEW, STATUSES).routing()
    others = cluster(replace(VIEW, members=[MINE, OTHER]), [ShardStatus(2, "owned", 7, 99, "busy")], "n2").routing()
    assert mine.version == others.version
    assert 0 < mine.version < 1 << 63


@pytest.mark.parametrize(
    "other",
    [
        replace(VIEW, plan=replace(PLAN, assignments={**PLAN.assignments, 0: Assignment("host1", "n1", 6, "db0")})),
        replace(VIEW, plan=replace(PLAN, assignments={**PLAN.assignments, 0: Assignment("host2", "n2", 5, "db0")})),
        replace(VIEW, layout=replace(LAYOUT, drained=frozenset())),
        replace(VIEW, layout=replace(LAYOUT, pins={})),
        replace(VIEW, layout=replace(LAYOUT, shards={**LAYOUT.shards, 9: ShardSpec(9, "db1")})),
        replace(VIEW, members=[MINE]),
        replace(VIEW, members=[MINE, replace(OTHER, address="10.0.0.9:1")]),
        replace(VIEW, members=[replace(MINE, held_shards={0: HeldShard(5, "draining")}), OTHER]),
    ],
)
def test_different_routing_table_has_another_version(other: ClusterView) -> None:
    assert cluster(other).routing().version != cluster(VIEW).routing().version


def test_host_without_a_reading_is_unavailable() -> None:
    with pytest.raises(Unavailable) as caught:
        cluster(None).routing()
    assert caught.value.retry_after_ms


# ----------------------------------------------------------------------- changing

Story = Callable[[RegistryCluster, LocalRegistry], Coroutine[Any, Any, None]]


def run_story(story: Story) -> Layout:
    """Plays a story on a cluster of shards 0 and 1 and the hosts of `VIEW`; the layout in the end."""
    found: list[Layout] = []

    async def play() -> None:
        registry = LocalEnsemble(None, VirtualClock(asyncio.get_running_loop()).monotonic_ms).registry(6_000)
        await registry.open()
        await layout_changes.create_layout(registry, [ShardSpec(0, "db0"), ShardSpec(1, "db1")])
        for member in (MINE, replace(OTHER, leaving=False)):
            await registry.announce(MEMBERS, member.nonce, render_member(member))
        hosts = HostViews(lambda: VIEW, "n1")
        names = {"db0", "db1", "another"}
        cluster = RegistryCluster(registry, lambda: VIEW, hosts, "n1", "default", list, databases=names)
        await story(cluster, registry)
        found.append((await layout_changes.read_cluster_view(registry)).layout)

    run_virtual(play)
    return found[0]


def soon() -> float:
    return asyncio.get_running_loop().time() + 5


def test_every_change_is_recorded_in_the_layout() -> None:
    async def story(cluster: RegistryCluster, registry: LocalRegistry) -> None:
        await cluster.add_shard(ShardSpec(7, "db1", weight=2), soon())
        await cluster.drain_shard(7, soon(), draining=True)
        await cluster.move_shard(0, "host2", soon())
        await cluster.move_shard(1, ("10.0.0.1", 7411), soon())
        await cluster.drain_host("10.0.0.1:7411", soon(), drained=True)

    layout = run_story(story)
    assert layout.shards[7] == ShardSpec(7, "db1", weight=2, draining=True)
    assert layout.pins == {0: "host2", 1: "host1"}
    assert layout.drained == frozenset({"host1"})


def test_every_change_can_be_undone() -> None:
    async def story(cluster: RegistryCluster, registry: LocalRegistry) -> None:
        await cluster.move_shard(0, ("::1", 7413), soon())
        await cluster.move_shard(0, None, soon())
        await cluster.drain_host(("::1", 7413), soon(), drained=True)
        await cluster.drain_host("host2", soon(), drained=False)
        await cluster.drain_shard(0, soon(), draining=True)
        await cluster.drain_shard(0, soon(), draining=False)
        await cluster.drain_shard(1, soon(), draining=True)
        await cluster.remove_shard(1, soon(), force=False)

    assert run_story(story) == Layout({0: ShardSpec(0, "db0")})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda c: c.add_shard(ShardSpec(0, "another"), soon()), "shard"),
        (lambda c: c.add_shard(ShardSpec(7, "unknown"), soon()), "database_name"),
        (lambda c: c.remove_shard(0, soon(), force=False), "shard"),
        (lambda c: c.remove_shard(9, soon(), force=True), "shard"),
        (lambda c: c.drain_shard(9, soon(), draining=True), "shard"),
        (lambda c: c.move_shard(9, "host1", soon()), "shard"),
        (lambda c: c.move_shard(0, "host9", soon()), "target_name"),
        (lambda c: c.move_shard(0, ("h", 1), soon()), "target"),
        (lambda c: c.drain_host("host9", soon(), drained=True), "host_name"),
        (lambda c: c.drain_host(("h", 1), soon(), drained=False), "host"),
    ],
)
def test_impossible_change_is_refused_with_its_field(
    change: Callable[[RegistryCluster], Coroutine[Any, Any, None]], field: str
) -> None:
    async def story(cluster: RegistryCluster, registry: LocalRegistry) -> None:
        with pytest.raises(InvalidArgument) as caught:
            await change(cluster)
        assert caught.value.field == field

    assert run_story(story) == Layout({0: ShardSpec(0, "db0"), 1: ShardSpec(1, "db1")})


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (RegistryFailed("it is away"), ErrorCode.UNAVAILABLE),
        (RegistryOutcomeUnknown("no answer"), ErrorCode.UNKNOWN_OUTCOME),
        (RegistryConflict("another came first"), ErrorCode.UNAVAILABLE),
        (MalformedDocument("layout", "no JSON"), ErrorCode.UNAVAILABLE),
    ],
)
def test_only_an_unknown_outcome_may_hide_a_change(
    failure: Exception, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*arguments: Any) -> int:
        raise failure

    async def story(cluster: RegistryCluster, registry: LocalRegistry) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(registry, "replace", fail)
            with pytest.raises(FoqsError) as caught:
                await cluster.drain_shard(0, soon(), draining=True)
        assert caught.value.number is code

    run_story(story)


def test_unanswered_change_has_an_unknown_outcome_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: RegistryCluster, registry: LocalRegistry) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(registry, "replace", lambda *arguments: asyncio.Event().wait())
            deadline = soon()
            with pytest.raises(UnknownOutcome):
                await cluster.drain_shard(0, deadline, draining=True)
            assert asyncio.get_running_loop().time() == deadline

    run_story(story)
