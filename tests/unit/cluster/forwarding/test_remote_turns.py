"""Fair topics whose groups are at several hosts, and whose consumers are at one, under virtual time.

The hosts report only when a test asks them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

from foqs.cluster.gossip.gossip_view import PeerTopicStats
from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.items.item import NewItem, TopicName
from foqs_client import Client
from tests.support.dequeue_tier import DequeueTierWorld, GossipingHost, run_dequeue_tier
from tests.unit.shard.test_limited_topics import grouped, set_rules

TOPIC: Final[TopicName] = ("default", "t")
BY_ITEMS: Final = GroupRules(fair=Fairness.ITEMS)


async def put_group(host: GossipingHost, count: int) -> str:
    """Enqueue items of one group that is in a shard of this host. Return the group."""
    for number in range(1_000):
        name = f"{host.address} {number}"
        new: list[NewItem] = [grouped(name) for _ in range(count)]
        if all(isinstance(id, str) for id in await host.caller.enqueue(new)):
            return name
    raise AssertionError("no group is in a shard of this host")


async def make_fair(hosts: Sequence[GossipingHost], rules: GroupRules = BY_ITEMS) -> None:
    """Make a topic without items fair, and let all hosts find out that they have none."""
    for host in hosts:
        set_rules(host.engine, {"t": rules})
        assert not (await host.caller.get()).items


async def serve_one(client: Client) -> str:
    """Deliver and ack an item. Return its group."""
    [delivery] = await client.dequeue({"t": 1}, wait_ms=5_000)
    await client.ack([delivery])
    assert delivery.group is not None
    return delivery.group


def report(host: GossipingHost) -> PeerTopicStats:
    """Return what this host knows of the topic at the only peer that has it."""
    [stats] = host.tier.gossip.view.topic_stats(TOPIC)
    return stats


def test_report_says_since_when_the_next_group_has_waited() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[GossipingHost]) -> None:
        one, two, _ = hosts
        await make_fair(hosts)
        began_s = world.loop.time()
        await put_group(two, 5)
        await world.pass_s(3)
        await one.ask_peers()
        stats = report(one)
        assert (stats.ready, stats.deliverable) == (5, None), "no group holds any back"
        assert stats.turn_since_s is not None
        assert abs(stats.turn_since_s - began_s) < 0.5
        served_s = world.loop.time()
        assert (await two.caller.get()).items
        await one.ask_peers()
        assert (since_s := report(one).turn_since_s) is not None
        assert abs(since_s - served_s) < 0.5
        for host in hosts:
            set_rules(host.engine, {})
        await one.ask_peers()
        assert report(one).turn_since_s is None

    run_dequeue_tier(story, host_class=GossipingHost)


def test_group_of_another_host_is_asked_for_when_it_has_waited_clearly_longer_than_those_here() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[GossipingHost]) -> None:
        one, two, three = hosts
        await make_fair(hosts)
        here, there = await put_group(one, 500), await put_group(two, 50)
        elsewhere = await put_group(three, 50)
        counts: Counter[str] = Counter()
        async with world.client(one) as client:
            began_s = world.loop.time()
            while world.loop.time() < began_s + 20:
                counts[await serve_one(client)] += 1
                await asyncio.sleep(0.1)
                await one.ask_peers()
        # One of each in about two seconds and a round: not more, and not less.
        assert 7 <= counts[there] <= 11
        assert 7 <= counts[elsewhere] <= 11
        assert counts[here] > 100

    run_dequeue_tier(story, host_class=GossipingHost)


def test_better_priority_at_this_host_comes_before_a_group_that_has_waited_longer_elsewhere() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[GossipingHost]) -> None:
        one, two, _ = hosts
        await make_fair(hosts)
        there = await put_group(two, 3)
        await world.pass_s(10)
        for number in range(100):
            if isinstance((await one.caller.enqueue([grouped(f"better {number}", priority=-1)]))[0], str):
                break
        await one.ask_peers()
        async with world.client(one) as client:
            assert (await serve_one(client)).startswith("better")
            assert await serve_one(client) == there

    run_dequeue_tier(story, host_class=GossipingHost)


def test_host_that_reports_no_turn_is_asked_as_in_other_topics() -> None:
    """It is of an earlier version, or has not read the policy yet."""

    async def story(world: DequeueTierWorld, hosts: Sequence[GossipingHost]) -> None:
        one, two, _ = hosts
        await make_fair([one])
        here, there = await put_group(one, 3), await put_group(two, 3)
        await world.pass_s(10)
        await one.ask_peers()
        assert report(one).turn_since_s is None
        async with world.client(one) as client:
            assert [await serve_one(client) for _ in range(6)] == [here] * 3 + [there] * 3

    run_dequeue_tier(story, host_class=GossipingHost)
