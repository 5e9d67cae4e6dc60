"""Dequeues that another host fills, under virtual time: three hosts, each of which knows what the others reported.

A client of one host is a thin one: it has one connection, and follows no map.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from foqs.cluster.forwarding.peer_dequeues import REPLY_TIMEOUT_S, RETRY_AFTER_S, UNRESPONSIVE_RETRY_AFTER_S
from foqs.core.items.item import State
from foqs.queue.suspension import WITHOUT_SESSION
from foqs_client import Client, InvalidArgument, NamespaceNotFound, Unavailable, UnknownOutcome
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod
from tests.support.dequeue_tier import DequeueTierHost, DequeueTierWorld, run_dequeue_tier
from tests.support.raw_calls import call_once

DEQUEUE = ThriftMethod("dequeue")


async def raw(client: Client, *topics: tuple[str, int], **more: Any) -> Any:
    """Make a dequeue, and return the whole reply."""
    counts = [ttypes.TopicCount(topic, count) for topic, count in topics]
    return await call_once(client, "dequeue", ttypes.DequeueRequest("default", counts, **more), 5_000)


async def waits(world: DequeueTierWorld, client: Client, host: DequeueTierHost, count: int = 1) -> asyncio.Future[Any]:
    """Start a dequeue of `t` that waits at this host for an item."""
    before = host.waiters
    waiting = asyncio.ensure_future(client.dequeue({"t": count}, wait_ms=20_000))
    await world.until(lambda: host.waiters == before + 1)
    return waiting


async def is_ready_again(world: DequeueTierWorld, host: DequeueTierHost, topic: str = "t") -> None:
    """Assert that one item is READY and that its earlier delivery does not count."""
    await world.until(lambda: host.engine.queue.availability.ready_count(("default", topic)) == 1)
    seen = await host.caller.one(topic)
    assert seen.row.attempt == 1


def test_dequeue_without_local_items_is_forwarded_to_the_host_with_the_best() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        await two.caller.put(priority=7)
        await three.caller.put(priority=3)
        async with world.client(one) as client:
            assert await client.dequeue({"t": 1}) == []
            one.gossip.ask("t")
            assert [delivery.priority for delivery in await client.dequeue({"t": 9})] == [3]
            [last] = await client.dequeue({"t": 9})
            assert (last.priority, last.incarnation) == (7, await client.incarnation())
            assert await client.dequeue({"t": 9}) == []
        assert one.peer_dequeues.forwarded_count == 2

    run_dequeue_tier(story)


def test_better_items_of_a_peer_come_first_and_equal_ones_are_local() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        here = await one.caller.put(priority=5)
        await two.caller.put(priority=4)
        alike = await two.caller.put(priority=5)
        one.gossip.ask("t")
        async with world.client(one) as client:
            [first] = await client.dequeue({"t": 1})
            assert first.priority == 4
            [second] = await client.dequeue({"t": 1})
            assert [second.id] == here
            [third] = await client.dequeue({"t": 1})
            assert [third.id] == alike
            assert [outcome.error for outcome in await client.ack([second])] == [None]

    run_dequeue_tier(story)


def test_host_delivers_its_own_items_of_a_relaxed_topic_though_a_peer_has_better_ones() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await one.caller.put(count=2, priority=5)
        await one.caller.put("exact", priority=5)
        await two.caller.put(priority=4)
        await two.caller.put("exact", priority=4)
        one.engine.namespaces.relaxed_topics = frozenset([("default", "t")])
        one.gossip.ask("t", "exact")
        async with world.client(one) as client:
            assert [delivery.priority for delivery in await client.dequeue({"t": 1})] == [5]
            assert one.peer_dequeues.forwarded_count == 0
            both = [await client.dequeue({"t": 1, "exact": 1}) for _ in range(2)]
            assert {(each.topic, each.priority) for part in both for each in part} >= {("t", 5), ("exact", 4)}
            # It asks the peer as soon as it has none.
            assert [each.priority for each in await client.dequeue({"t": 9})] == [4]

    run_dequeue_tier(story)


def test_stale_gossip_costs_one_call() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await one.caller.put(count=3, priority=5)
        await two.caller.put(priority=1)
        one.gossip.ask("t")
        assert len((await two.caller.get()).items) == 1
        async with world.client(one) as client:
            for _ in range(3):
                assert [delivery.priority for delivery in await client.dequeue({"t": 1})] == [5]
        assert one.peer_dequeues.forwarded_count == 1

    run_dequeue_tier(story)


def test_peer_that_delivered_nothing_is_asked_again_later_for_waiting_dequeues() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        one.gossip.ask("t")
        two.engine.queue.suspend(WITHOUT_SESSION)
        async with world.client(one) as client:
            for _ in range(5):
                with pytest.raises(Unavailable, match="host two could not deliver its items"):
                    await client.dequeue({"t": 1})
            assert one.peer_dequeues.forwarded_count == 1
            waiting = await waits(world, client, one)
            await world.pass_s(4 * RETRY_AFTER_S)
            assert 3 <= one.peer_dequeues.forwarded_count <= 6
            two.engine.queue.resume()
            [delivery] = await waiting
            assert delivery.attempt == 1

    run_dequeue_tier(story)


def test_waiting_dequeue_is_served_when_gossip_reports_items() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        async with world.client(one) as client:
            for other in (two, three):
                waiting = await waits(world, client, one)
                [id] = await other.caller.put()
                await world.pass_s(1)
                assert not waiting.done()
                one.gossip.ask("t")
                [delivery] = await waiting
                assert (delivery.id, one.waiters) == (id, 0)
        assert one.dequeues._waiting == {}

    run_dequeue_tier(story)


def test_one_report_serves_all_waiting_dequeues_but_forwards_no_more_than_there_are_items() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        async with world.client(one) as client:
            waiting = [await waits(world, client, one) for _ in range(6)]
            await two.caller.put(count=2)
            await three.caller.put(count=2)
            one.gossip.ask("t")
            await world.until(lambda: sum(each.done() for each in waiting) == 4)
            await world.pass_s(5)
            assert [each.done() for each in waiting] == [True] * 4 + [False] * 2
            assert one.peer_dequeues.forwarded_count <= 8
            await one.caller.put(count=2)
            assert all([len(await each) == 1 for each in waiting])

    run_dequeue_tier(story)


def test_waiting_dequeues_get_more_items_than_gossip_reported() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as client:
            waiting = [await waits(world, client, one) for _ in range(2)]
            world.stall()
            one.gossip.ask("t")
            more = asyncio.ensure_future(two.caller.put())
            await world.pass_s(0.01)
            world.resume()
            await more
            begun = world.loop.time()
            assert all([len(await each) == 1 for each in waiting])
            assert world.loop.time() - begun < RETRY_AFTER_S / 2

    run_dequeue_tier(story)


def test_local_item_is_delivered_during_a_forwarded_call_and_the_peer_s_item_is_released() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as client:
            waiting = await waits(world, client, one)
            world.stall()
            one.gossip.ask("t")
            here = asyncio.ensure_future(one.caller.put())
            await world.until(lambda: two.engine.queue.availability.best_priority(("default", "t")) is None)
            world.resume()
            [delivery] = await waiting
            [id] = await here
            await is_ready_again(world, two if delivery.id == id else one)
            await world.pass_s(1)
            assert one.peer_dequeues.released_count == (delivery.id == id)

    run_dequeue_tier(story)


def test_items_of_a_peer_are_released_if_local_items_came_first() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as client:
            waiting = await waits(world, client, one)
            world.network.partition(two.address)
            one.gossip.ask("t")
            [id] = await one.caller.put()
            [delivery] = await waiting
            assert delivery.id == id
            world.network.heal()
            await world.until(lambda: one.peer_dequeues.released_count == 1)
            await world.until(lambda: ("t", State.LEASED) in world.rows())
            await world.pass_s(0.1)
            await is_ready_again(world, two)

    run_dequeue_tier(story)


def test_local_delivery_is_released_if_items_of_a_peer_came_first() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as client:
            waiting = await waits(world, client, one)
            one.gossip.ask("t")
            await world.until(lambda: ("t", State.LEASED) in world.rows())
            world.network.partition(two.address)
            await world.pass_s(0.1)
            world.stall()
            here = asyncio.ensure_future(one.caller.put())
            await world.until(lambda: one.waiters == 0)  # its direct delivery is in a flush that is under way
            world.network.heal()
            [delivery] = await waiting
            world.resume()
            [id] = await here
            assert delivery.id != id
            await is_ready_again(world, one)

    run_dequeue_tier(story)


def test_items_leased_for_a_caller_that_left_are_released() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as client:
            await waits(world, client, one)
            world.stall()
            one.gossip.ask("t")
            await world.until(lambda: two.engine.queue.availability.best_priority(("default", "t")) is None)
        await world.until(lambda: one.server.calls_in_flight == 0)
        world.resume()
        await world.until(lambda: one.peer_dequeues.released_count == 1)
        await world.pass_s(0.1)
        await is_ready_again(world, two)

    run_dequeue_tier(story)


def test_dequeue_behind_a_caller_that_left_is_served() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as second:
            async with world.client(one) as first:
                await waits(world, first, one)
                waiting = await waits(world, second, one)
                world.stall()
                one.gossip.ask("t")
                await world.until(lambda: two.engine.queue.availability.best_priority(("default", "t")) is None)
            await world.until(lambda: one.server.calls_in_flight == 1)
            world.resume()
            await world.until(lambda: one.peer_dequeues.released_count == 1)
            await world.pass_s(0.1)
            one.gossip.ask("t")
            [delivery] = await waiting
            assert delivery.attempt == 1

    run_dequeue_tier(story)


def test_lost_reply_is_an_unknown_outcome_and_the_item_becomes_ready_again() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        await two.caller.put(lease_ms=3_000)
        await three.caller.put(priority=9)
        one.gossip.ask("t")
        async with world.client(one) as client:
            asking = asyncio.ensure_future(client.dequeue({"t": 1}))
            await world.until(lambda: ("t", State.LEASED) in world.rows())
            for connection in world.network.connections(one.address):
                if two.address in connection.hosts:
                    world.network.cut(connection)
            with pytest.raises(UnknownOutcome):
                await asking
            assert one.peer_dequeues.forwarded_count == 1
            assert world.rows().count(("t", State.LEASED)) == 1
            await world.until(lambda: two.engine.queue.availability.ready_count(("default", "t")) == 1)

    run_dequeue_tier(story)


def test_items_of_a_peer_that_replies_too_late_are_released() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put(lease_ms=600_000)
        one.gossip.ask("t")
        async with world.client(one) as client:
            asking = asyncio.ensure_future(client.dequeue({"t": 1}))
            await world.until(lambda: two.server.calls_in_flight == 1)
            world.network.partition(two.address)
            with pytest.raises(UnknownOutcome):
                await asking
            world.network.heal()
            await is_ready_again(world, two)
        assert one.peer_dequeues.released_count == 1

    run_dequeue_tier(story)


def test_host_that_stops_releases_what_its_peers_lease_for_it() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put(lease_ms=600_000)
        async with world.client(one) as client:
            await waits(world, client, one)
            one.gossip.ask("t")
            await world.until(lambda: two.server.calls_in_flight == 1)
        await world.until(lambda: one.server.calls_in_flight == 0)
        await one.peer_dequeues.finish()
        await one.peers.close()
        await is_ready_again(world, two)

    run_dequeue_tier(story)


def test_unresponsive_peer_delays_a_call_by_at_most_the_reply_timeout() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as client:
            waiting = await waits(world, client, one)
            await world.pass_s(0.1)
            one.gossip.ask("t")
            # The connection is there, and the request does not arrive.
            await world.until(lambda: one.peer_dequeues.forwarded_count == 1)
            world.network.partition(two.address)
            begun = world.loop.time()
            await world.pass_s(REPLY_TIMEOUT_S + RETRY_AFTER_S)
            [id] = await one.caller.put()
            [delivery] = await waiting
            assert delivery.id == id
            assert world.loop.time() - begun < REPLY_TIMEOUT_S + 1
            assert await client.dequeue({"t": 1}) == []
            assert one.peer_dequeues.forwarded_count == 1
            await world.pass_s(UNRESPONSIVE_RETRY_AFTER_S)
            with pytest.raises(UnknownOutcome):
                await client.dequeue({"t": 1}, timeout_ms=500)
            world.network.heal()

    run_dequeue_tier(story)


def test_unreachable_peer_counts_as_having_no_items() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        await two.caller.put(priority=1)
        await three.caller.put(priority=2)
        [here] = await one.caller.put(priority=3)
        one.gossip.ask("t")
        world.network.crash(two.address)
        async with world.client(one) as client:
            [first] = await client.dequeue({"t": 1})
            [second] = await client.dequeue({"t": 1})
            assert (first.id, second.priority) == (here, 2)
            assert await client.dequeue({"t": 1}) == []

    run_dequeue_tier(story)


def test_forwarded_call_is_not_forwarded_again() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        await three.caller.put()
        for host in (one, two):
            host.gossip.ask("t")
        async with world.client(one) as client:
            reply = await raw(client, ("t", 1), forwarded=True)
            assert (reply.items, reply.availability) == ([], [])
        assert one.peer_dequeues.forwarded_count == two.peer_dequeues.forwarded_count == 0

    run_dequeue_tier(story)


def test_topics_of_one_call_rotate_in_choosing_its_host() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await one.caller.put("near", count=6, priority=0)
        await two.caller.put("far", count=6, priority=9)
        one.gossip.ask("near", "far")
        async with world.client(one) as client:
            found = [await client.dequeue({"near": 1, "far": 1}) for _ in range(6)]
            assert sorted(delivery.topic for each in found for delivery in each) == ["far"] * 3 + ["near"] * 3

    run_dequeue_tier(story)


def test_only_topics_with_better_items_at_the_peer_are_forwarded() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await one.caller.put("a", priority=1)
        for topic in ("a", "b", "c"):
            await two.caller.put(topic, priority=5)
        one.gossip.ask("a", "b", "c")
        async with world.client(one) as client:
            found = [await client.dequeue({"a": 1, "b": 1, "c": 1}) for _ in range(3)]
            assert ["b", "c"] in [[delivery.topic for delivery in each] for each in found]

    run_dequeue_tier(story)


def test_paused_topic_is_not_forwarded_until_it_is_resumed() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as client:
            await client.pause_topic("t")
            await world.until(lambda: all(host.engine.queue.availability.is_paused(("default", "t")) for host in hosts))
            one.gossip.ask("t")
            waiting = await waits(world, client, one)
            await world.pass_s(2)
            assert (one.peer_dequeues.forwarded_count, waiting.done()) == (0, False)
            await client.resume_topic("t")
            assert len(await waiting) == 1

    run_dequeue_tier(story)


def test_reply_says_which_hosts_have_the_best_remaining_items() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await one.caller.put(count=2, priority=4)
        await two.caller.put(count=3, priority=6)
        one.gossip.ask("t")
        await world.pass_s(0.5)
        async with world.client(one) as client:
            reply = await raw(client, ("t", 1))
            assert len(reply.items) == 1
            best = {report.host.host: (report.topic, report.best_priority) for report in reply.availability}
            assert best == {one.address: ("t", 4), two.address: ("t", 6)}
            ages = {report.host.host: report.age_ms for report in reply.availability}
            assert ages[one.address] == 0
            assert 500 <= ages[two.address] < 600
            alone = await raw(client, ("t", 1), forwarded=True)
            assert alone.availability == []
            reply = await raw(client, ("t", 1))
            assert {report.host.host: report.ready for report in reply.availability} == {two.address: 2}
            assert {report.best_priority for report in reply.availability} == {6}

    run_dequeue_tier(story)


def test_host_without_peers_reports_no_peers() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        [one] = hosts
        await one.caller.put(count=2)
        async with world.client(one) as client:
            assert (await raw(client, ("t", 1))).availability is None

    run_dequeue_tier(story, hosts=1)


def test_malformed_call_is_refused_by_the_called_host() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        one.gossip.ask("t")
        async with world.client(one) as client:
            with pytest.raises(InvalidArgument) as wrong:
                await raw(client, ("u", 1), ("t", 0))
            assert wrong.value.field == "topics[1].count"
            with pytest.raises(InvalidArgument):
                await raw(client, ("", 1))
            client.namespace = "nobody's"
            with pytest.raises(NamespaceNotFound):
                await client.dequeue({"t": 1})
        assert len((await two.caller.get()).items) == 1

    run_dequeue_tier(story)


def test_time_of_a_forwarded_call_is_part_of_its_wait() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        one.gossip.ask("t")
        two.engine.queue.suspend(WITHOUT_SESSION)
        async with world.client(one) as client:
            with pytest.raises(Unavailable):
                await client.dequeue({"t": 1})  # there is a connection now
            await world.pass_s(RETRY_AFTER_S)
            world.network.partition(two.address)
            world.loop.call_later(0.6, world.network.heal)
            begun = world.loop.time()
            with pytest.raises(Unavailable):
                await client.dequeue({"t": 1}, wait_ms=1_000)
            assert 0.99 <= world.loop.time() - begun < 1.1

    run_dequeue_tier(story)


def test_stopping_host_answers_waiting_dequeues_that_are_being_forwarded() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as client:
            waiting = await waits(world, client, one)
            world.stall()
            one.gossip.ask("t")
            await world.until(lambda: two.engine.queue.availability.best_priority(("default", "t")) is None)
            one.engine.queue.stop_long_polls()
            await world.pass_s(0.05)
            assert not waiting.done()
            world.resume()
            assert len(await waiting) == 1

    run_dequeue_tier(story)
