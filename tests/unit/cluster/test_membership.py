"""A host's membership in its cluster: the load that it announces, and which shards it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from random import Random

import pytest

from foqs.cluster import membership as membership_module
from foqs.cluster.membership import Membership, coarse_load, own_versions
from foqs.options.config import Config
from foqs.runtime.clock import SystemClock
from foqs_contract.errors import Unavailable
from shardmgr.agent import AgentPace
from shardmgr.model import Assignment, ClusterView, Layout, Plan, ShardSpec
from shardmgr.planner import PlannerPace
from shardmgr.registry.port import Registry, RegistryFailed
from tests.support.local_ensemble import LocalEnsemble
from tests.support.virtual_time import run_virtual


def new_membership() -> Membership:
    clock = SystemClock()
    registry = LocalEnsemble(None, clock.monotonic_ms).registry(6_000)
    config = Config.model_validate(
        {"cluster": {"zookeeper": "nowhere:1"}, "databases": {"then": {"url": "mysql://u@h/d"}}}
    )
    return Membership(config, registry, "nonce-one", clock, Random(1), lambda: 0.0, AgentPace(), PlannerPace(), {})


@pytest.mark.parametrize("items", [0, 1, 1_023])
def test_load_below_one_flush_is_announced_as_zero(items: float) -> None:
    assert coarse_load(items) == 0.0


@pytest.mark.parametrize("items", [1_024, 1_025.5, 4_095, 4_096, 70_000, 10_000_000])
def test_load_is_announced_within_a_factor_of_four(items: float) -> None:
    assert items / 4 < coarse_load(items) <= 4 * items


def test_similar_loads_are_announced_alike() -> None:
    assert len({coarse_load(items) for items in range(0, 1_000_000, 997)}) <= 7


@pytest.mark.parametrize(
    ("spec", "drained", "gone"),
    [
        (ShardSpec(1, "then"), (), ()),
        (ShardSpec(1, "then", weight=5), (), ()),
        (ShardSpec(1, "then", draining=True), {1}, ()),
        (ShardSpec(1, "now"), (), {1}),
        (ShardSpec(1, "now", draining=True), (), {1}),
        (ShardSpec(1, "then", tier="gold"), (), {1}),
        (None, (), {1}),
    ],
    ids=["as assigned", "weighs more", "drained", "of another database", "and drained", "of another tier", "removed"],
)
def test_draining_and_obsolete_shards_are_closed(
    spec: ShardSpec | None, drained: Collection[int], gone: Collection[int]
) -> None:
    """New items in an obsolete shard would be stored in tables that no host reads any more."""
    membership = new_membership()
    assert membership.closed_shards() == (frozenset(), frozenset())
    layout = Layout({2: ShardSpec(2, "then"), 3: ShardSpec(3, "then")} | ({} if spec is None else {1: spec}))
    mine = Assignment("one", "nonce-one", 4, "then")
    others = Assignment("two", "nonce-two", 4, "elsewhere")
    membership.agent.view = ClusterView(layout, Plan({1: mine, 2: mine, 3: others}, {1: 4, 2: 4, 3: 4}), ())
    assert membership.closed_shards() == (frozenset(drained), frozenset(gone))


def test_unserved_shards_are_found_once_for_each_reading_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    membership = new_membership()
    layout = Layout({number: ShardSpec(number, "then") for number in (3, 1, 2)})
    plan = Plan({2: Assignment("one", "nonce-one", 4, "then")}, {2: 4})
    membership.agent.view = ClusterView(layout, plan, ())
    assert list(membership.unserved_shards()) == [1, 3]
    with monkeypatch.context() as patch:
        patch.setattr(membership, "owners", lambda: pytest.fail("read again"))
        assert list(membership.unserved_shards()) == [1, 3]
    membership.agent.view = ClusterView(layout, Plan({}, {}), ())
    assert list(membership.unserved_shards()) == [1, 2, 3]


@pytest.mark.parametrize("answers", [True, False], ids=["fails", "does not answer"])
def test_older_hosts_are_unknown_while_the_registry_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """A policy that a host may not keep must not be stored because nobody could say so."""
    membership = new_membership()

    async def read(registry: Registry) -> None:
        if answers:
            raise RegistryFailed("there is no session")
        await asyncio.Event().wait()

    async def story() -> None:
        with pytest.raises(Unavailable, match="no session" if answers else "not answered") as failed:
            await membership.find_older_hosts(own_versions().documents)
        assert failed.value.retry_after_ms

    monkeypatch.setattr(membership_module, "read_cluster", read)
    run_virtual(story)
