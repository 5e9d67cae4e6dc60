"""Tests of the changes to the layout: effects, refusals and concurrent changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from foqs.testing.virtual_loop import VirtualClock
from shardmgr import layout_changes
from shardmgr.documents import LAYOUT, MEMBERS, PLAN, render_member, render_plan
from shardmgr.layout_changes import (
    SHARDS_MAX,
    ChangeRefused,
    add_shard,
    create_layout,
    drain_host,
    drain_shard,
    move_shard,
    raise_epochs,
    read_cluster_view,
    remove_shard,
    undrain_host,
)
from shardmgr.model import Assignment, Layout, MalformedDocument, Member, Plan, ShardSpec
from shardmgr.plan import next_plan
from shardmgr.registry.port import RegistryFailed
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry
from tests.support.plan_following import make_member
from tests.support.virtual_time import run_virtual

ONE, TWO = ShardSpec(1, "east"), ShardSpec(2, "west", region="eu")


def run_story(
    story: Callable[[LocalRegistry], Coroutine[Any, Any, None]], *, shards: tuple[ShardSpec, ...] = ()
) -> None:
    """Plays a story on a registry under virtual time, with a layout of these shards if there are any."""

    async def play() -> None:
        registry = LocalEnsemble(None, VirtualClock(asyncio.get_running_loop()).monotonic_ms).registry(6_000)
        await registry.open()
        if shards:
            assert await create_layout(registry, shards)
        await story(registry)

    run_virtual(play)


async def joins(registry: LocalRegistry, member: Member) -> None:
    await registry.announce(MEMBERS, member.nonce, render_member(member))


async def layout_of(registry: LocalRegistry) -> Layout:
    return (await read_cluster_view(registry)).layout


async def version_of(registry: LocalRegistry) -> int:
    entry = await registry.read(LAYOUT)
    assert entry is not None
    return entry.version


async def refused(doing: Coroutine[Any, Any, object], field: str, words: str) -> None:
    with pytest.raises(ChangeRefused, match=words) as found:
        await doing
    assert found.value.field == field


def test_new_cluster_has_its_initial_shards() -> None:
    async def story(registry: LocalRegistry) -> None:
        assert await create_layout(registry, [TWO, ONE])
        assert await layout_of(registry) == Layout({1: ONE, 2: TWO})

    run_story(story)


def test_equal_layout_can_be_created_again_and_a_different_one_is_refused() -> None:
    async def story(registry: LocalRegistry) -> None:
        assert not await create_layout(registry, [ONE, TWO])
        await refused(create_layout(registry, [ONE]), "cluster", "there is already a different layout")
        assert await version_of(registry) == 0

    run_story(story, shards=(ONE, TWO))


@pytest.mark.parametrize(
    ("shards", "field", "words"),
    [
        ([], "shards", "at least one"),
        ([ONE, replace(ONE, database="other")], "shards", "same number"),
        ([replace(ONE, weight=0)], "shards.1.weight", "greater than or equal to 1, not 0"),
        ([replace(ONE, database="")], "shards.1.database", "a printable name"),
        ([replace(ONE, database="\ud800")], "byte 39", "UTF-8"),
        ([ShardSpec(-1, "db")], "shards.-1", "from 0 to"),
        ([ShardSpec(number, "db") for number in range(SHARDS_MAX + 1)], "shard", "at most 1,000"),
    ],
)
def test_invalid_layout_is_refused(shards: list[ShardSpec], field: str, words: str) -> None:
    async def story(registry: LocalRegistry) -> None:
        await refused(create_layout(registry, shards), field, words)
        assert await registry.read(LAYOUT) is None

    run_story(story)


def test_every_change_without_a_layout_is_refused() -> None:
    async def story(registry: LocalRegistry) -> None:
        for doing in (
            read_cluster_view(registry),
            add_shard(registry, ONE),
            remove_shard(registry, 1),
            move_shard(registry, 1, None),
        ):
            await refused(doing, "cluster", "foqs cluster init")

    run_story(story)


def test_view_holds_layout_plan_and_members() -> None:
    async def story(registry: LocalRegistry) -> None:
        await joins(registry, make_member("b"))
        await joins(registry, make_member("a"))
        await registry.announce(MEMBERS, "broken", b"{}")
        plan = Plan({1: Assignment("a", "nonce-a", 1, ONE.database)}, {1: 1})
        await registry.replace(PLAN, render_plan(plan), None)
        view = await read_cluster_view(registry)
        assert (view.layout, view.plan, list(view.members)) == (
            Layout({1: ONE}),
            plan,
            [make_member("a"), make_member("b")],
        )

    run_story(story, shards=(ONE,))


def test_a_shard_is_added_once() -> None:
    async def story(registry: LocalRegistry) -> None:
        await add_shard(registry, TWO)
        await add_shard(registry, TWO)
        assert await version_of(registry) == 1
        assert await layout_of(registry) == Layout({1: ONE, 2: TWO})
        await refused(add_shard(registry, replace(TWO, weight=2)), "shard", "another shard 2")
        await refused(add_shard(registry, ShardSpec(3, "")), "shards.3.database", "a printable name")

    run_story(story, shards=(ONE,))


def test_shard_that_accepts_new_items_is_removed_only_with_force() -> None:
    async def story(registry: LocalRegistry) -> None:
        await joins(registry, make_member("a"))
        await move_shard(registry, 2, "a")
        await refused(remove_shard(registry, 2), "shard", "drain it first")
        await drain_shard(registry, 2)
        await remove_shard(registry, 2)
        assert await layout_of(registry) == Layout({1: ONE})
        await remove_shard(registry, 1, force=True)
        assert await layout_of(registry) == Layout()

    run_story(story, shards=(ONE, TWO))


def test_a_shard_is_drained_and_undrained() -> None:
    async def story(registry: LocalRegistry) -> None:
        await drain_shard(registry, 1)
        assert await layout_of(registry) == Layout({1: replace(ONE, draining=True), 2: TWO})
        await drain_shard(registry, 1, drain=False)
        assert await layout_of(registry) == Layout({1: ONE, 2: TWO})

    run_story(story, shards=(ONE, TWO))


def test_missing_shard_is_named() -> None:
    async def story(registry: LocalRegistry) -> None:
        for doing in (remove_shard(registry, 7), drain_shard(registry, 7), move_shard(registry, 7, None)):
            await refused(doing, "shard", "there is no shard 7")

    run_story(story, shards=(ONE,))


def test_shard_is_pinned_only_to_a_host_that_may_own_it() -> None:
    async def story(registry: LocalRegistry) -> None:
        await joins(registry, make_member("a"))
        await joins(registry, make_member("big", tier="big"))
        await joins(registry, make_member("stops", leaving=True))
        await joins(registry, make_member("drained"))
        await drain_host(registry, "drained")
        await refused(move_shard(registry, 1, "b"), "host", "running are: a, big, drained, stops")
        await refused(move_shard(registry, 1, "big"), "host", "tier")
        await refused(move_shard(registry, 1, "stops"), "host", "is stopping")
        await refused(move_shard(registry, 1, "drained"), "host", "undrain it first")
        await move_shard(registry, 1, "a")
        assert (await layout_of(registry)).pins == {1: "a"}
        await move_shard(registry, 1, None)
        assert (await layout_of(registry)).pins == {}

    run_story(story, shards=(ONE,))


def test_a_host_is_drained_and_undrained_by_name() -> None:
    async def story(registry: LocalRegistry) -> None:
        await joins(registry, make_member("a"))
        await joins(registry, make_member("b"))
        await drain_host(registry, "a")
        await drain_host(registry, "a")
        assert await version_of(registry) == 1
        assert (await layout_of(registry)).drained == {"a"}
        await undrain_host(registry, "a")
        await undrain_host(registry, "a")
        assert (await layout_of(registry)).drained == frozenset()

    run_story(story, shards=(ONE,))


def test_the_last_host_of_a_tier_is_drained_only_when_forced() -> None:
    async def story(registry: LocalRegistry) -> None:
        for member in (
            make_member("a"),
            make_member("b"),
            make_member("stops", leaving=True),
            make_member("other", tier="big"),
        ):
            await joins(registry, member)
        await drain_host(registry, "other")  # there is no shard that only it could have
        await drain_host(registry, "a")
        await refused(
            drain_host(registry, "b"),
            "host",
            "b is the last host that may own shards of tier default: no host would serve 2 shards",
        )
        await drain_host(registry, "a")
        await undrain_host(registry, "a")
        await drain_host(registry, "b")
        await drain_host(registry, "a", force=True)
        assert (await layout_of(registry)).drained == {"a", "b", "other"}

    run_story(story, shards=(ONE, TWO))


def test_missing_host_is_drained_only_with_force() -> None:
    async def story(registry: LocalRegistry) -> None:
        await refused(drain_host(registry, "away"), "host", "running are: none")
        await drain_host(registry, "away", force=True)
        assert (await layout_of(registry)).drained == {"away"}
        await undrain_host(registry, "away")
        await refused(undrain_host(registry, "away"), "host", "no host named away")
        await refused(drain_host(registry, "", force=True), "drained[0]", "a printable name")

    run_story(story, shards=(ONE,))


class Busy(LocalRegistry):
    """A registry in which the layout changes between each read and the following replacement."""

    others = 0

    async def replace(self, name: str, data: bytes, version: int | None) -> int:
        if self.others:
            self.others -= 1
            entry = await self.read(name)
            assert entry is not None
            await super().replace(name, entry.data, entry.version)
        return await super().replace(name, data, version)


@pytest.mark.parametrize("others", [1, 9, 10])
def test_change_is_repeated_after_a_concurrent_change(others: int) -> None:
    async def play() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        registry = Busy(LocalEnsemble(None, clock.monotonic_ms), 6_000, clock.monotonic_ms)
        await registry.open()
        await create_layout(registry, [ONE])
        registry.others = others
        if others < layout_changes.ATTEMPTS_MAX:
            await add_shard(registry, TWO)
            assert await layout_of(registry) == Layout({1: ONE, 2: TWO})
        else:
            with pytest.raises(RegistryFailed, match="try again"):
                await add_shard(registry, TWO)
            assert await layout_of(registry) == Layout({1: ONE})

    run_virtual(play)


def test_malformed_layout_stays_as_it_is() -> None:
    async def story(registry: LocalRegistry) -> None:
        await registry.replace(LAYOUT, b"{}", None)
        for doing in (create_layout(registry, [ONE]), add_shard(registry, ONE), drain_host(registry, "a", force=True)):
            with pytest.raises(MalformedDocument, match=r"^layout: format: "):
                await doing
        assert await version_of(registry) == 0

    run_story(story)


def test_raised_epoch_is_issued_next_and_owners_stay() -> None:
    async def story(registry: LocalRegistry) -> None:
        one = make_member("one")
        await joins(registry, one)
        owned = Assignment("one", one.nonce, 3, ONE.database)
        await registry.replace(PLAN, render_plan(Plan({1: owned}, {1: 3, 2: 9})), None)
        await raise_epochs(registry, (1, 2), 5)
        found = await read_cluster_view(registry)
        assert found.plan == Plan({1: owned}, {1: 5, 2: 9})
        planned = next_plan(found.layout, found.plan, found.members, frozenset(), 1)
        assert planned.assignments[1] == owned
        assert planned.assignments[2].epoch == 10

    run_story(story, shards=(ONE, TWO))
