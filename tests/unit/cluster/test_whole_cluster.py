"""A cluster of whole hosts: which host serves which shard while hosts join, leave, die and are cut off.

In every story no two hosts serve one shard at a time, and no epoch has two owners; see `tests.support.cluster_world`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from foqs.core.items.item import parse_id
from foqs.core.items.life import EventKind
from foqs.telemetry.cluster_samples import cluster_samples
from foqs.telemetry.metric_table import CLUSTER_METRICS
from foqs_contract.errors import FoqsError, NotOwner, Unavailable, UnknownOutcome
from shardmgr import layout_changes
from shardmgr.model import ShardSpec
from tests.support.builders import keyed_item, new_item
from tests.support.cluster_world import SESSION_MS, ClusterHost, ClusterWorld, run_in_cluster
from tests.support.engines import ok
from tests.support.example_counts import examples


async def three(world: ClusterWorld) -> list[ClusterHost]:
    hosts = [await world.host(name) for name in ("one", "two", "three")]
    await world.wait_until_settled(*hosts)
    return hosts


def test_three_hosts_share_the_shards_evenly_and_their_slots() -> None:
    async def story(world: ClusterWorld) -> None:
        hosts = await three(world)
        held = [len(shard.key_slots) for host in hosts for shard in host.engine.shards.values()]
        assert held == [1024 // 8] * 8
        for host in hosts:
            await host.caller.put()
        results = await hosts[0].caller.enqueue([keyed_item(f"k{n}") for n in range(64)])
        taken = [result for result in results if not isinstance(result, FoqsError)]
        assert 0 < len(taken) < 64

    run_in_cluster(story)


def test_host_of_another_cluster_takes_no_shard_of_the_same_tables() -> None:
    async def story(world: ClusterWorld) -> None:
        one = await world.host("one")
        await world.wait_until_settled(one)
        before = {number: table.owner.nonce for number, table in world.database.tables.items()}
        other = ClusterWorld(shards=world.shard_count)
        other.database = world.database
        await other.set_up()
        stranger = await other.host("stranger")

        def refused() -> bool:
            reasons = [status.reason or "" for status in stranger.engine.statuses.values()]
            return len(reasons) == world.shard_count and all("belong to the cluster" in reason for reason in reasons)

        await world.until(refused)
        await world.pass_s(30)
        assert stranger.is_serving() == set()
        assert {number: table.owner.nonce for number, table in world.database.tables.items()} == before
        await one.caller.put()
        await stranger.stop()

    run_in_cluster(story)


def test_draining_shard_accepts_only_its_keyed_items_and_delivers_its_items() -> None:
    async def story(world: ClusterWorld) -> None:
        one, _, _ = await three(world)
        drained, *others = sorted(one.is_serving())

        async def taken() -> list[int]:
            """Return the shards of new items, enough that each shard would have some."""
            shards = []
            for _ in range(20):
                shards += [parse_id(id, "id")[0] for id in await one.caller.put()]
                await world.pass_s(0.3)
            return shards

        before = await taken()
        assert drained in before
        await layout_changes.drain_shard(world.administrator, drained)
        await world.pass_s(1)
        after = await taken()
        assert set(after) == set(others)
        assert len((await one.caller.get(count=100)).items) == len(before) + len(after)
        keyed = [
            ok(result)
            for result in await one.caller.enqueue([keyed_item(f"k{n}") for n in range(64)])
            if not isinstance(result, FoqsError)
        ]
        assert drained in {parse_id(id, "id")[0] for id in keyed}
        for other in others:
            await layout_changes.drain_shard(world.administrator, other)
        await world.pass_s(1)
        with pytest.raises(Unavailable, match="drained"):
            await one.caller.put()
        await layout_changes.drain_shard(world.administrator, drained, drain=False)
        await world.pass_s(1)
        assert set(await taken()) == {drained}

    run_in_cluster(story)


@pytest.mark.parametrize("back", [False, True], ids=["removed", "added again, of another database"])
def test_removed_shard_accepts_no_new_items_while_it_is_still_owned(back: bool) -> None:
    async def story(world: ClusterWorld) -> None:
        one = await world.host("one")
        await world.wait_until_settled(one)
        one.stop_planner()  # it is not asked to hand shards over
        await layout_changes.remove_shard(world.administrator, 0, force=True)
        if back:
            await layout_changes.add_shard(world.administrator, ShardSpec(0, "elsewhere"))
        await world.pass_s(0.1)
        assert one.is_serving() == {0, 1}
        shards = []
        for _ in range(20):
            shards += [parse_id(id, "id")[0] for id in await one.caller.put()]
            await world.pass_s(0.3)
        assert set(shards) == {1}
        results = await one.caller.enqueue([keyed_item(f"k{n}") for n in range(64)])
        assert {parse_id(ok(result), "id")[0] for result in results if not isinstance(result, FoqsError)} == {1}
        refused = [result for result in results if isinstance(result, FoqsError)]
        assert refused
        assert {type(result) for result in refused} == {Unavailable}

        one.start_planner()
        if not back:
            await world.until(lambda: one.is_serving() == {1})
            return
        first = world.database.tables[0].owner.epoch
        await world.until(lambda: one.is_serving() == {0, 1} and world.database.tables[0].owner.epoch > first)
        await world.wait_until_settled(one)
        for _ in range(20):
            shards += [parse_id(id, "id")[0] for id in await one.caller.put()]
            await world.pass_s(0.3)
        assert set(shards) == {0, 1}
        results = await one.caller.enqueue([keyed_item(f"m{n}") for n in range(64)])
        assert {parse_id(ok(result), "id")[0] for result in results} == {0, 1}

    run_in_cluster(story, shards=2)


def test_a_host_shows_its_cluster_and_what_moved() -> None:
    async def story(world: ClusterWorld) -> None:
        hosts = [one, two, _] = await three(world)

        def shown(host: ClusterHost) -> dict[tuple[str, ...], float]:
            found = cluster_samples(host.membership, "default")
            assert set(found) == {each.name for each in CLUSTER_METRICS}
            return {(name, *labels): value for name, rows in found.items() for labels, value in rows}

        await world.pass_s(1)
        for host in hosts:
            found = shown(host)
            assert found["foqs_cluster_session_state", "serving"] == 1
            assert found["foqs_cluster_session_state", "cut off"] == 0
            assert found["foqs_cluster_hosts",] == 3
            assert found["foqs_cluster_shards", "owned"] == 8
            assert found["foqs_cluster_sessions",] == 1
            assert found["foqs_plan_failing",] == 0
            assert 0 < found["foqs_cluster_serving_left_seconds",] < SESSION_MS / 1_000
        assert len({shown(host)["foqs_plan_version",] for host in hosts}) == 1
        assert sum(shown(host)["foqs_planner_elected",] for host in hosts) == 1
        before, version = len(one.facts.acquired), shown(one)["foqs_plan_version",]
        shards = two.is_serving()
        await two.stop()
        await world.wait_until_settled(one, hosts[2])
        assert len(two.facts.handed_over) == len(shards)
        assert len(one.facts.acquired) > before
        assert all(0 <= seconds < 5 for seconds in (*one.facts.acquired, *two.facts.handed_over))
        await world.pass_s(1)
        assert shown(one)["foqs_plan_version",] > version
        assert shown(one)["foqs_cluster_hosts",] == 2
        one.disconnect()
        await world.until(lambda: not one.is_serving())
        assert shown(one)["foqs_cluster_session_state", "cut off"] == 1
        assert shown(one)["foqs_cluster_serving_left_seconds",] == 0

    run_in_cluster(story)


def test_shards_of_a_dead_host_are_served_by_others_without_loss() -> None:
    async def story(world: ClusterWorld) -> None:
        one, two, three_ = await three(world)
        ids = await two.caller.put(count=10)
        died = world.loop.time()
        await two.die()
        await world.wait_until_settled(one, three_)
        assert world.loop.time() - died < SESSION_MS / 1000 + 2
        got = [*(await one.caller.get(count=20)).items, *(await three_.caller.get(count=20)).items]
        assert len(got) == len(ids)

    run_in_cluster(story)


def test_partitioned_host_stops_before_others_take_over_and_returns() -> None:
    async def story(world: ClusterWorld) -> None:
        hosts = await three(world)
        one, two, three_ = hosts
        shards = two.is_serving()
        two.disconnect()
        await world.pass_s(0.1)
        assert two.is_serving() == shards
        assert two.membership.not_ready_reason is not None
        assert two.membership.not_ready_reason.startswith("suspended")
        await two.caller.put()
        assert (await two.caller.get()).items == []
        await world.until(lambda: not two.is_serving())
        assert two.membership.not_ready_reason.startswith("cut off")
        assert all(not host.is_serving() & shards for host in (one, three_))
        await world.wait_until_settled(one, three_)
        two.reconnect()
        await world.wait_until_settled(*hosts)
        assert two.membership.not_ready_reason is None

    run_in_cluster(story)


def test_short_partition_moves_no_shard() -> None:
    async def story(world: ClusterWorld) -> None:
        hosts = await three(world)
        before = {host.nonce: host.is_serving() for host in hosts}
        epochs = set(world.epochs)
        hosts[1].disconnect()
        await world.pass_s(3)
        hosts[1].reconnect()
        await world.pass_s(1)
        await world.wait_until_settled(*hosts)
        assert {host.nonce: host.is_serving() for host in hosts} == before
        assert set(world.epochs) == epochs

    run_in_cluster(story)


def test_lost_session_gives_every_shard_a_new_epoch() -> None:
    async def story(world: ClusterWorld) -> None:
        hosts = await three(world)
        for host in (hosts[1], hosts[1], hosts[0]):
            world.ensemble.expire(host.registry)
            await world.pass_s(0.5)
            await world.wait_until_settled(*hosts)

    run_in_cluster(story)


def test_a_host_that_stops_hands_its_shards_over_and_loses_no_call() -> None:
    async def story(world: ClusterWorld) -> None:
        one, two, three_ = await three(world)
        written: list[str] = []
        refused: list[FoqsError] = []

        async def produce() -> None:
            while True:
                for result in await two.caller.enqueue([new_item("u")], 1):
                    (refused if isinstance(result, FoqsError) else written).append(result)  # type: ignore[arg-type]
                await asyncio.sleep(0.001)

        producing = asyncio.ensure_future(produce())
        await world.pass_s(0.1)
        begun = world.loop.time()
        await two.stop()
        assert world.loop.time() - begun < 2
        producing.cancel()
        await asyncio.gather(producing, return_exceptions=True)
        assert {type(error) for error in refused} <= {Unavailable, NotOwner}
        await world.wait_until_settled(one, three_)
        got = [*(await one.caller.get("u", 2_000)).items, *(await three_.caller.get("u", 2_000)).items]
        assert sorted(f"{seen.shard}-{seen.row.id}" for seen in got) == sorted(written)

    run_in_cluster(story)


def test_the_last_host_can_stop_and_the_next_one_finds_everything() -> None:
    async def story(world: ClusterWorld) -> None:
        one = await world.host("one")
        await world.wait_until_settled(one)
        await one.caller.put(count=3)
        await one.stop()
        again = await world.host("one")
        await world.wait_until_settled(again)
        assert len((await again.caller.get(count=9)).items) == 3

    run_in_cluster(story)


def test_hanging_hand_over_is_fenced() -> None:
    async def story(world: ClusterWorld) -> None:
        one = await world.host("one")
        await world.wait_until_settled(one)
        for shard in one.engine.shards.values():
            # It accepts nothing more, but its writer is not closed.
            shard.close = partial(setattr, shard, "_is_open", False)  # type: ignore[method-assign]
        two = await world.host("two")
        await world.until(lambda: len(two.is_serving()) == world.shard_count // 2, within_s=60)
        await world.wait_until_settled(one, two)

    run_in_cluster(story)


def test_move_brings_a_shard_to_the_named_host() -> None:
    async def story(world: ClusterWorld) -> None:
        one, _, three_ = await three(world)
        number = min(one.is_serving())
        shard = one.engine.shards[number]
        [seen] = [await one.caller.one() for _ in await one.caller.put()]
        await layout_changes.move_shard(world.administrator, number, "three")
        await world.until(lambda: number in three_.is_serving())
        assert not shard.is_serving
        await world.pass_s(0.1)
        [outcome] = await one.caller.do(EventKind.ACK, [replace(seen, shard=number)])
        assert isinstance(outcome, NotOwner)
        assert outcome.owner == ("three.example", 7411)

    run_in_cluster(story)


def test_drained_host_hands_its_shards_over_and_serves_again_when_undrained() -> None:
    async def story(world: ClusterWorld) -> None:
        one, two, three_ = hosts = await three(world)
        await layout_changes.drain_host(world.administrator, "two")
        await world.until(lambda: not two.is_serving())
        await world.wait_until_settled(one, three_)
        await layout_changes.undrain_host(world.administrator, "two")
        await world.wait_until_settled(*hosts)

    run_in_cluster(story)


def test_wiped_registry_repeats_no_epoch_and_loses_no_item() -> None:
    async def story(world: ClusterWorld) -> None:
        hosts = await three(world)
        ids = [item for host in hosts for item in await host.caller.put(count=2)]
        shards = {parse_id(item, "id")[0] for item in ids}
        assert len(shards) == 3
        world.ensemble.wipe()
        for registry in [host.registry for host in hosts]:
            world.ensemble.expire(registry)
        await world.until(lambda: not any(host.is_serving() for host in hosts))
        await layout_changes.create_layout(
            world.administrator, [ShardSpec(number, "main") for number in range(world.shard_count)]
        )
        await world.wait_until_settled(*hosts)
        got = [seen for host in hosts for seen in (await host.caller.get(count=9)).items]
        assert len(got) == len(ids)

    run_in_cluster(story)


@pytest.mark.parametrize("seed", range(examples(3)))
def test_hosts_that_come_and_go_at_any_time_lose_nothing_and_never_overlap(seed: int) -> None:
    async def story(world: ClusterWorld) -> None:
        rng = Random(seed)
        hosts = await three(world)
        written: list[str] = []
        unknown = 0
        for step in range(25):
            host = rng.choice(hosts)
            match rng.randrange(6):
                case 0:
                    host.disconnect()
                    await world.pass_s(rng.uniform(0, 8))
                    host.reconnect()
                case 1:
                    world.ensemble.expire(host.registry)
                case 2:
                    await host.die()
                    hosts.remove(host)
                    hosts.append(await world.host(f"new{step}"))
                case 3:
                    stopping = asyncio.ensure_future(host.stop())
                    await world.pass_s(rng.uniform(0, 0.05))
                    hosts.remove(host)
                    hosts.append(await world.host(f"new{step}"))
                    await stopping
                case _:
                    number = rng.randrange(world.shard_count)
                    await layout_changes.move_shard(world.administrator, number, None)
            await world.pass_s(rng.choice([0.0, 0.02, 0.5, 3.0]))
            for host in hosts:
                try:
                    for result in await host.caller.enqueue([new_item()], 3):
                        if isinstance(result, UnknownOutcome):
                            unknown += 1
                        elif not isinstance(result, FoqsError):
                            written.append(ok(result))
                except Unavailable:
                    pass
        await world.wait_until_settled(*hosts)
        got = [f"{seen.shard}-{seen.row.id}" for host in hosts for seen in (await host.caller.get(count=500)).items]
        assert set(written) <= set(got)
        assert len(written) <= len(got) <= len(written) + unknown
        assert len(written) > 20

    run_in_cluster(story)
