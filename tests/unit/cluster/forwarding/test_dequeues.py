"""Dequeues that another host fills, under virtual time: three hosts of which each knows what it was told.

A client of one host is a thin one: it has one connection, and follows no map.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from foqs.cluster.forwarding.dequeues import REPLY_TIMEOUT_S, RETRY_AFTER_S, UNRESPONSIVE_RETRY_AFTER_S
from foqs.core.items.item import State
from foqs_client import Client, InvalidArgument, NamespaceNotFound, UnknownOutcome
from foqs_client.idl import ttypes
from foqs_client.thrift_messages import ThriftMethod
from tests.support.dequeue_tier import DequeueTierHost, DequeueTierWorld, run_dequeue_tier

DEQUEUE = ThriftMethod("dequeue", is_write=True)


async def raw(client: Client, *topics: tuple[str, int], **more: Any) -> Any:
    """The whole reply of a dequeue."""
    counts = [ttypes.TopicCount(topic, count) for topic, count in topics]
    return await client._call(DEQUEUE, ttypes.DequeueRequest("default", counts, **more), 5_000)


async def waits(world: DequeueTierWorld, client: Client, host: DequeueTierHost, count: int = 1) -> asyncio.Future[Any]:
    """A consumer that waits for `t` at this host, and whom nobody serves yet."""
    before = host.waiters
    waiting = asyncio.ensure_future(client.dequeue({"t": count}, wait_ms=20_000))
    await world.until(lambda: host.waiters == before + 1)
    return waiting


async def is_ready_again(world: DequeueTierWorld, host: DequeueTierHost, topic: str = "t") -> None:
    """One item is, whose earlier delivery does not count."""
    await world.until(lambda: host.engine.queue.availability.ready_count(("default", topic)) == 1)
    seen = await host.caller.one(topic)
    assert seen.row.attempt == 1


def test_what_this_host_has_none_of_comes_from_the_host_that_has_the_best() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        await two.caller.put(priority=7)
        await three.caller.put(priority=3)
        async with world.client(one) as client:
            assert await client.dequeue({"t": 1}) == []
            one.gossip.ask("t")
            assert [delivery.priority for delivery in await client.dequeue({"t": 9})] == [3]
            assert [delivery.priority for delivery in await client.dequeue({"t": 9})] == [7]
            assert await client.dequeue({"t": 9}) == []
        assert one.dequeues.forwarded_count == 2

    run_dequeue_tier(story)


def test_what_another_host_has_that_is_better_comes_first_and_what_is_alike_from_here() -> None:
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


def test_a_head_of_long_ago_costs_one_call_and_no_more() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await one.caller.put(count=3, priority=5)
        await two.caller.put(priority=1)
        one.gossip.ask("t")
        assert len((await two.caller.get()).items) == 1
        async with world.client(one) as client:
            for _ in range(3):
                assert [delivery.priority for delivery in await client.dequeue({"t": 1})] == [5]
        assert one.dequeues.forwarded_count == 1

    run_dequeue_tier(story)


def test_a_host_that_has_items_and_gives_none_is_asked_again_after_a_while_and_then_serves_who_waits() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        one.gossip.ask("t")
        two.engine.queue.suspend()
        async with world.client(one) as client:
            for _ in range(5):
                assert await client.dequeue({"t": 1}) == []
            assert one.dequeues.forwarded_count == 1
            waiting = await waits(world, client, one)
            await world.pass_s(4 * RETRY_AFTER_S)
            assert 3 <= one.dequeues.forwarded_count <= 6
            two.engine.queue.resume()
            [delivery] = await waiting
            assert delivery.attempt == 1

    run_dequeue_tier(story)


def test_who_waits_here_is_served_by_news_of_another_host() -> None:
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


def test_all_who_wait_are_served_by_one_piece_of_news_and_no_more_ask_than_there_are_items() -> None:
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
            assert one.dequeues.forwarded_count <= 8
            await one.caller.put(count=2)
            assert all([len(await each) == 1 for each in waiting])

    run_dequeue_tier(story)


def test_who_waits_is_served_at_once_by_more_than_a_head_promised() -> None:
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


def test_an_item_that_comes_here_while_another_host_is_asked_is_delivered_and_the_other_released() -> None:
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
            assert one.dequeues.released_count == (delivery.id == id)

    run_dequeue_tier(story)


def test_items_of_another_host_are_released_when_those_of_this_host_came_first() -> None:
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
            await world.until(lambda: one.dequeues.released_count == 1)
            await world.until(lambda: ("t", State.LEASED) in world.rows())
            await world.pass_s(0.1)
            await is_ready_again(world, two)

    run_dequeue_tier(story)


def test_a_hand_out_here_is_given_back_when_those_of_another_host_came_first() -> None:
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
            await world.until(lambda: one.waiters == 0)  # it is claimed, in a flush that is under way
            world.network.heal()
            [delivery] = await waiting
            world.resume()
            [id] = await here
            assert delivery.id != id
            await is_ready_again(world, one)

    run_dequeue_tier(story)


def test_what_is_leased_for_a_caller_who_has_left_is_released() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as client:
            await waits(world, client, one)
            world.stall()
            one.gossip.ask("t")
            await world.until(lambda: two.engine.queue.availability.best_priority(("default", "t")) is None)
        await world.until(lambda: one.wire.calls_in_flight == 0)
        world.resume()
        await world.until(lambda: one.dequeues.released_count == 1)
        await world.pass_s(0.1)
        await is_ready_again(world, two)

    run_dequeue_tier(story)


def test_who_waits_behind_a_caller_who_has_left_is_served() -> None:
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
            await world.until(lambda: one.wire.calls_in_flight == 1)
            world.resume()
            await world.until(lambda: one.dequeues.released_count == 1)
            await world.pass_s(0.1)
            one.gossip.ask("t")
            [delivery] = await waiting
            assert delivery.attempt == 1

    run_dequeue_tier(story)


def test_a_reply_that_is_lost_is_an_unknown_outcome_and_the_item_comes_back() -> None:
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
            assert one.dequeues.forwarded_count == 1
            assert world.rows().count(("t", State.LEASED)) == 1
            await world.until(lambda: two.engine.queue.availability.ready_count(("default", "t")) == 1)

    run_dequeue_tier(story)


def test_a_host_that_does_not_answer_delays_a_call_by_no_more_than_its_bound() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as client:
            waiting = await waits(world, client, one)
            await world.pass_s(0.1)
            one.gossip.ask("t")
            # The connection is there, and the request does not arrive.
            await world.until(lambda: one.dequeues.forwarded_count == 1)
            world.network.partition(two.address)
            begun = world.loop.time()
            await world.pass_s(REPLY_TIMEOUT_S + RETRY_AFTER_S)
            [id] = await one.caller.put()
            [delivery] = await waiting
            assert delivery.id == id
            assert world.loop.time() - begun < REPLY_TIMEOUT_S + 1
            assert await client.dequeue({"t": 1}) == []
            assert one.dequeues.forwarded_count == 1
            await world.pass_s(UNRESPONSIVE_RETRY_AFTER_S)
            with pytest.raises(UnknownOutcome):
                await client.dequeue({"t": 1}, timeout_ms=500)
            world.network.heal()

    run_dequeue_tier(story)


def test_a_host_that_cannot_be_reached_is_as_one_that_has_nothing() -> None:
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


def test_what_was_passed_on_is_not_passed_on_again() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        await three.caller.put()
        for host in (one, two):
            host.gossip.ask("t")
        async with world.client(one) as client:
            reply = await raw(client, ("t", 1), forwarded=True)
            assert (reply.items, reply.availability) == ([], [])
        assert one.dequeues.forwarded_count == two.dequeues.forwarded_count == 0

    run_dequeue_tier(story)


def test_topics_of_one_call_take_turns_in_choosing_its_host() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await one.caller.put("near", count=6, priority=0)
        await two.caller.put("far", count=6, priority=9)
        one.gossip.ask("near", "far")
        async with world.client(one) as client:
            found = [await client.dequeue({"near": 1, "far": 1}) for _ in range(6)]
            assert sorted(delivery.topic for each in found for delivery in each) == ["far"] * 3 + ["near"] * 3

    run_dequeue_tier(story)


def test_only_the_topics_that_are_better_there_are_asked_for_elsewhere() -> None:
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


def test_nothing_of_a_paused_topic_is_asked_for_until_it_is_resumed() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as client:
            await client.pause_topic("t")
            await world.until(lambda: all(host.engine.queue.availability.is_paused(("default", "t")) for host in hosts))
            one.gossip.ask("t")
            waiting = await waits(world, client, one)
            await world.pass_s(2)
            assert (one.dequeues.forwarded_count, waiting.done()) == (0, False)
            await client.resume_topic("t")
            assert len(await waiting) == 1

    run_dequeue_tier(story)


def test_a_reply_tells_where_the_best_is_left() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await one.caller.put(count=2, priority=4)
        await two.caller.put(count=3, priority=6)
        one.gossip.ask("t")
        await world.pass_s(0.5)
        async with world.client(one) as client:
            reply = await raw(client, ("t", 1))
            assert len(reply.items) == 1
            told = {head.host.host: (head.topic, head.best_priority) for head in reply.availability}
            assert told == {one.address: ("t", 4), two.address: ("t", 6)}
            ages = {head.host.host: head.age_ms for head in reply.availability}
            assert ages[one.address] == 0
            assert 500 <= ages[two.address] < 600
            alone = await raw(client, ("t", 1), forwarded=True)
            assert alone.availability == []
            reply = await raw(client, ("t", 1))
            assert {head.host.host: head.ready for head in reply.availability} == {two.address: 2}
            assert {head.best_priority for head in reply.availability} == {6}

    run_dequeue_tier(story)


def test_a_host_that_is_alone_tells_nothing_of_others() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        [one] = hosts
        await one.caller.put(count=2)
        async with world.client(one) as client:
            assert (await raw(client, ("t", 1))).availability is None

    run_dequeue_tier(story, hosts=1)


def test_a_wrong_call_is_told_so_by_the_host_that_was_asked() -> None:
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


def test_the_time_that_a_call_was_elsewhere_is_part_of_its_wait() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        one.gossip.ask("t")
        two.engine.queue.suspend()
        async with world.client(one) as client:
            assert await client.dequeue({"t": 1}) == []  # there is a connection now
            await world.pass_s(RETRY_AFTER_S)
            world.network.partition(two.address)
            world.loop.call_later(0.6, world.network.heal)
            begun = world.loop.time()
            assert await client.dequeue({"t": 1}, wait_ms=1_000) == []
            assert 0.99 <= world.loop.time() - begun < 1.1

    run_dequeue_tier(story)


def test_a_host_that_stops_answers_who_waits_though_another_is_asked_for_him() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        async with world.client(one) as client:
            waiting = await waits(world, client, one)
            world.stall()
            one.gossip.ask("t")
            await world.until(lambda: two.engine.queue.availability.best_priority(("default", "t")) is None)
            one.engine.queue.drain()
            await world.pass_s(0.05)
            assert not waiting.done()
            world.resume()
            assert len(await waiting) == 1

    run_dequeue_tier(story)
