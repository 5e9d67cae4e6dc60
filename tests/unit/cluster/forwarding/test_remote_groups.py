"""Groups with a limit whose consumers wait at another host than the owner of the group, under virtual time.

The hosts report only when a test asks them, so what happens between two reports is seen apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from foqs.cluster.forwarding import dequeues, peer_dequeues
from foqs.cluster.gossip.gossip_view import PeerTopicStats
from foqs.core.groups.group_rules import GroupRules
from foqs.core.items.item import NewItem, TopicName
from foqs.core.items.life import EventKind
from foqs.queue.suspension import WITHOUT_SESSION
from foqs_client import Client, Unavailable
from tests.support.dequeue_tier import DequeueTierWorld, GossipingHost, run_dequeue_tier
from tests.unit.shard.test_limited_topics import grouped

TOPIC: TopicName = ("default", "t")


@pytest.fixture
def endless_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked again because a pause has passed."""
    for module in (peer_dequeues, dequeues):
        monkeypatch.setattr(module, "RETRY_AFTER_S", 1e6)


def limit(hosts: Sequence[GossipingHost], leases_max: int) -> None:
    for host in hosts:
        host.engine.namespaces.group_rules = {TOPIC: GroupRules(leases_max)}
        for shard in host.engine.shards.values():
            shard.follow_group_rules()


async def limit_at_all(hosts: Sequence[GossipingHost], leases_max: int) -> None:
    """Limit the leases of a topic without items, and let all hosts find out that they have none."""
    limit(hosts, leases_max)
    for host in hosts:
        assert not (await host.caller.get()).items


async def put_group(host: GossipingHost, count: int) -> list[str]:
    """Enqueue items of one group that is in a shard of this host. Return their ids."""
    for number in range(100):
        new: list[NewItem] = [grouped(f"g{number}") for _ in range(count)]
        ids = await host.caller.enqueue(new)
        if all(isinstance(id, str) for id in ids):
            return [str(id) for id in ids]
    raise AssertionError("no group is in a shard of this host")


async def waits(world: DequeueTierWorld, client: Client, host: GossipingHost) -> asyncio.Future[Any]:
    """Start a dequeue that waits at this host, and asks no peer now."""
    before, asked = host.waiters, host.peer_dequeues.forwarded_count
    waiting = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=20_000))
    await world.until(lambda: host.waiters == before + 1)
    await world.until(lambda: not any(call.is_forwarding for call in host.dequeues._waiting.values()))
    assert host.peer_dequeues.forwarded_count <= asked + 1
    return waiting


def report(host: GossipingHost) -> PeerTopicStats:
    """Return what this host knows of the topic at the only peer that has it."""
    [stats] = host.tier.gossip.view.topic_stats(TOPIC)
    return stats


@pytest.mark.usefixtures("endless_pause")
def test_waiting_dequeue_at_another_host_gets_the_next_item_when_the_former_is_acked() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[GossipingHost]) -> None:
        one, two, _ = hosts
        await limit_at_all(hosts, 1)
        ids = await put_group(two, 4)
        await one.ask_peers()
        async with world.client(one) as client, world.client(one) as other:
            [delivery] = await client.dequeue({"t": 1})
            for before, after in pairwise(ids):
                assert delivery.id == before
                waiting = await waits(world, other, one)
                assert not waiting.done()
                assert [outcome.error for outcome in await client.ack([delivery])] == [None]
                [delivery] = await waiting
                assert delivery.id == after
        assert one.tier.gossip.exchange.reply_count == 2, "no report was needed"

    run_dequeue_tier(story, host_class=GossipingHost)


@pytest.mark.usefixtures("endless_pause")
def test_two_consumers_at_another_host_handle_a_strict_group_without_a_report() -> None:
    """The one without an item asks beside the other one, gets nothing, and is served after the next ack."""

    async def story(world: DequeueTierWorld, hosts: Sequence[GossipingHost]) -> None:
        one, two, _ = hosts
        await limit_at_all(hosts, 1)
        ids = await put_group(two, 10)
        await one.ask_peers()
        handled: list[str] = []
        async with world.client(one) as client, world.client(one) as other:

            async def consume(client: Client) -> int:
                before = len(handled)
                while deliveries := await client.dequeue({"t": 1}, wait_ms=1_000):
                    handled.extend([delivery.id for delivery in deliveries])
                    await client.ack(deliveries)
                return len(handled) - before

            assert all(await asyncio.gather(consume(client), consume(other)))
        assert handled == ids
        assert one.tier.gossip.exchange.reply_count == 2
        assert one.peer_dequeues.forwarded_count <= 2 * len(ids) + 2

    run_dequeue_tier(story, host_class=GossipingHost)


@pytest.mark.usefixtures("endless_pause")
def test_dequeue_after_an_ack_asks_the_host_of_the_group_though_the_group_was_locked_in_its_last_reply() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[GossipingHost]) -> None:
        one, two, _ = hosts
        await limit_at_all(hosts, 1)
        ids = await put_group(two, 3)
        await one.ask_peers()
        async with world.client(one) as client:
            for id in ids:
                [delivery] = await client.dequeue({"t": 1})
                assert delivery.id == id
                assert await client.dequeue({"t": 1}) == []
                assert await client.dequeue({"t": 1}) == []
                await client.ack([delivery])
            assert await client.dequeue({"t": 1}) == []
        assert one.peer_dequeues.forwarded_count <= 2 * len(ids) + 1
        assert one.peer_dequeues._leases == {}

    run_dequeue_tier(story, host_class=GossipingHost)


@pytest.mark.usefixtures("endless_pause")
def test_report_of_a_deliverable_item_ends_the_pause_of_its_host() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[GossipingHost]) -> None:
        one, two, _ = hosts
        await limit_at_all(hosts, 1)
        ids = await put_group(two, 2)
        await one.ask_peers()
        [leased] = (await two.caller.get()).items
        assert leased.row.item_group is not None
        async with world.client(one) as client:
            waiting = await waits(world, client, one)
            assert one.peer_dequeues.forwarded_count == 1
            for _ in range(3):
                await two.caller.enqueue([grouped(leased.row.item_group.decode())])
                await one.ask_peers()
                await world.pass_s(1)
            assert one.peer_dequeues.forwarded_count == 1, "the group is locked, however many items wait"
            await two.caller.do(EventKind.ACK, [leased])
            await one.ask_peers()
            [delivery] = await waiting
            assert delivery.id == ids[1]
            assert one.peer_dequeues.forwarded_count == 2

    run_dequeue_tier(story, host_class=GossipingHost)


@pytest.mark.usefixtures("endless_pause")
def test_pause_of_a_host_that_could_not_deliver_outlasts_its_reports() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[GossipingHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        await one.ask_peers()
        two.engine.queue.suspend(WITHOUT_SESSION)
        async with world.client(one) as client:
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await client.dequeue({"t": 1})
                await two.caller.put()
                await one.ask_peers()
        assert one.peer_dequeues.forwarded_count == 1

    run_dequeue_tier(story, host_class=GossipingHost)


def test_host_that_delivers_nothing_is_asked_once_for_each_report() -> None:
    """Its consumers take all items, in a topic without a limit."""

    async def story(world: DequeueTierWorld, hosts: Sequence[GossipingHost]) -> None:
        one, two, _ = hosts
        async with world.client(one) as client:
            for reports in range(1, 4):
                await two.caller.put()
                await one.ask_peers()
                await two.caller.get()
                for _ in range(10):
                    assert await client.dequeue({"t": 1}) == []
                assert one.peer_dequeues.forwarded_count == reports

    run_dequeue_tier(story, host_class=GossipingHost)


def test_report_counts_all_ready_items_and_says_which_no_group_holds_back() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[GossipingHost]) -> None:
        one, two, _ = hosts
        await put_group(two, 5)
        await one.ask_peers()
        assert (report(one).ready, report(one).deliverable) == (5, None)
        limit(hosts, 2)
        await one.ask_peers()
        assert (report(one).ready, report(one).deliverable) == (5, 1), "its groups are not read yet"
        first = (await two.caller.get(count=5)).items
        await one.ask_peers()
        assert (report(one).ready, report(one).leased, report(one).deliverable) == (3, 2, 0)
        await two.caller.do(EventKind.ACK, first[:1])
        await one.ask_peers()
        assert (report(one).ready, report(one).leased, report(one).deliverable) == (3, 1, 1)
        limit(hosts, 5)
        await one.ask_peers()
        assert report(one).deliverable == 3
        [stats], _ = await one.tier.gossip.tier_topics.list_topics("default", "", None, None, 10)
        assert (stats.ready, stats.leased, stats.deliverable) == (3, 1, 3)
        limit(hosts, 1)
        await two.caller.get()
        await one.ask_peers()
        for host in hosts[:2]:
            [stats], _ = await host.tier.gossip.tier_topics.list_topics("default", "", None, None, 10)
            assert (stats.ready, stats.leased, stats.deliverable) == (3, 1, 0)

    run_dequeue_tier(story, host_class=GossipingHost)


def test_number_of_remembered_leases_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_dequeues, "LEASES_MAX", 2)

    async def story(world: DequeueTierWorld, hosts: Sequence[GossipingHost]) -> None:
        one, two, _ = hosts
        await limit_at_all(hosts, 5)
        ids = await put_group(two, 5)
        await one.ask_peers()
        async with world.client(one) as client:
            deliveries = await client.dequeue({"t": 5})
            assert [delivery.id for delivery in deliveries] == ids
            assert [*one.peer_dequeues._leases] == [id.encode() for id in ids[-2:]]
            await client.ack(deliveries)
        assert one.peer_dequeues._leases == {}

    run_dequeue_tier(story, host_class=GossipingHost)
