"""A namespace belongs to one tier: hosts of other tiers accept no items of it, and it is deleted from all tiers or none."""

from __future__ import annotations

import pytest

from foqs.catalog import changes
from foqs.catalog.document import EMPTY_DOCUMENT, Document, NamespaceRecord, render
from foqs.catalog.registry_catalog import DOCUMENT_NAME as CATALOG
from foqs_contract.errors import InvalidArgument, NamespaceNotFound
from tests.support.cluster_world import ClusterWorld, run_in_cluster
from tests.support.engines import Caller

TIERS = ("fast", "slow")


async def two_tiers(world: ClusterWorld) -> tuple[Caller, Caller]:
    """Start one host per tier, with half of the shards each."""
    fast, slow = [await world.host(tier) for tier in TIERS]
    await world.wait_until_settled(fast, slow)
    return Caller(world, fast.engine, "orders"), Caller(world, slow.engine, "orders")


def play_tiers(story: object) -> None:
    run_in_cluster(story, shards=4, tiers=TIERS)  # type: ignore[arg-type]


async def create(world: ClusterWorld, at: int) -> None:
    """Create the namespace at a host, and wait until all hosts know it."""
    await world.hosts[at].engine.admin.create("orders", None, {}, world.deadline_in(5))
    await world.until(
        lambda: all("orders" in host.engine.namespaces.document.namespaces for host in world.hosts), within_s=5
    )


def test_creation_records_the_tier_of_a_namespace() -> None:
    async def story(world: ClusterWorld) -> None:
        await two_tiers(world)
        await create(world, at=1)
        assert world.hosts[0].engine.admin.namespace("orders").tier == "slow"

    play_tiers(story)


def test_host_of_another_tier_refuses_new_items_and_names_the_tier() -> None:
    async def story(world: ClusterWorld) -> None:
        fast, slow = await two_tiers(world)
        await create(world, at=0)
        with pytest.raises(InvalidArgument, match="'orders' belongs to tier 'fast'"):
            await slow.put()
        await fast.put()

    play_tiers(story)


async def older_namespace(world: ClusterWorld) -> None:
    """Create a namespace without a tier, as older versions did."""
    document = Document(1, {"default": NamespaceRecord(), "orders": NamespaceRecord()})
    await world.administrator.replace(CATALOG, render(document).encode(), None)


@pytest.mark.parametrize("holder", [0, 1])
@pytest.mark.parametrize("deleter", [0, 1])
def test_namespace_with_an_item_in_any_tier_is_not_deleted(holder: int, deleter: int) -> None:
    async def story(world: ClusterWorld) -> None:
        await older_namespace(world)
        callers = await two_tiers(world)
        admin = world.hosts[deleter].engine.admin
        [name] = await callers[holder].put()
        with pytest.raises(InvalidArgument, match="'orders' holds items"):
            await admin.delete("orders", world.deadline_in(10))
        await callers[holder].cancel(name)
        await admin.delete("orders", world.deadline_in(10))
        with pytest.raises(NamespaceNotFound):
            world.hosts[deleter].engine.queue.namespace_settings("orders")

    play_tiers(story)


def test_items_that_a_wrong_tier_holds_can_still_be_consumed() -> None:
    async def story(world: ClusterWorld) -> None:
        await older_namespace(world)
        _, slow = await two_tiers(world)
        await slow.put()
        await world.hosts[0].engine.admin.update("orders", "fast", {}, world.deadline_in(5))
        await world.until(lambda: "orders" in world.hosts[1].engine.namespaces.foreign_tiers, within_s=5)
        with pytest.raises(InvalidArgument, match="tier"):
            await slow.put()
        assert (await slow.one()).row.namespace == "orders"

    play_tiers(story)


def test_recorded_tier_does_not_change() -> None:
    document = changes.create(EMPTY_DOCUMENT, "a", "fast", {})
    assert changes.update(document, "a", None, {"weight": 2}).namespaces["a"].tier == "fast"
    assert changes.create(document, "a", "fast", {}) is document
    for change in (changes.update, changes.create):
        with pytest.raises(InvalidArgument, match="belongs to tier 'fast'"):
            change(document, "a", "slow", {})


def test_creating_a_namespace_without_tier_again_changes_nothing() -> None:
    document = changes.create(EMPTY_DOCUMENT, "a", None, {})
    assert changes.create(document, "a", "fast", {}) is document
