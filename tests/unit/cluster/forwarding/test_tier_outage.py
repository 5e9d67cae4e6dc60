"""What a host says of the whole tier when a dequeue finds nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from foqs.cluster.forwarding.peer_dequeues import REFUSAL_S
from foqs.queue.suspension import WITHOUT_SESSION
from foqs_client import Unavailable
from foqs_contract.idl import ttypes
from shardmgr import layout_changes
from tests.support.dequeue_tier import DequeueTierHost, DequeueTierWorld, run_dequeue_tier
from tests.support.raw_calls import call_once

TOPIC = ("default", "t")


async def raw(world: DequeueTierWorld, host: DequeueTierHost, **more: Any) -> Any:
    """Dequeue by one host, and return the whole reply."""
    async with world.client(host) as client:
        request = ttypes.DequeueRequest("default", [ttypes.TopicCount("t", 9)], **more)
        return await call_once(client, "dequeue", request, 5_000)


async def fails(world: DequeueTierWorld, host: DequeueTierHost, reason: str) -> None:
    with pytest.raises(Unavailable, match=reason):
        async with world.client(host) as client:
            await client.dequeue({"t": 1})


def test_a_peer_that_cannot_deliver_is_an_outage_until_it_can_again() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        one.gossip.ask("t")
        two.engine.queue.suspend(WITHOUT_SESSION)
        for _ in range(3):  # the peer is not asked each time
            await fails(world, one, "host two could not deliver its items")
        one.gossip.unavailable["two"] = 2
        await world.pass_s(REFUSAL_S)
        await fails(world, one, "host two")
        one.gossip.unavailable.clear()
        two.engine.queue.resume()
        await world.pass_s(REFUSAL_S)
        assert len((await raw(world, one)).items) == 1
        one.gossip.ask("t")
        assert (await raw(world, one)).unavailable_shards is None

    run_dequeue_tier(story)


def test_an_outage_is_not_whole_if_another_host_has_items_that_may_come_due() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        await two.caller.put()
        await one.caller.put()
        one.gossip.ask("t")
        assert len((await one.caller.get()).items) == 1  # its own item is leased now
        two.engine.queue.suspend(WITHOUT_SESSION)
        one.gossip.unavailable["two"] = 2
        reply = await raw(world, one)
        assert (reply.items, reply.unavailable_shards) == ([], 2)
        assert (await raw(world, three)).unavailable_shards is None, "it has not learned of the topic"

    run_dequeue_tier(story)


def test_a_forwarded_or_local_dequeue_is_about_its_host_alone() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put()
        one.gossip.ask("t")
        one.gossip.unavailable["two"] = 2
        for how in ("forwarded", "local_only"):
            assert (await raw(world, one, **{how: True})).unavailable_shards is None

    run_dequeue_tier(story)


def test_a_silent_host_may_hold_anything() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, *_ = hosts
        assert (await raw(world, one)).unavailable_shards is None
        one.gossip.silent.add("three")
        await fails(world, one, "host three does not answer \\(and 1 more\\)")

    run_dequeue_tier(story)


def test_a_shard_without_a_host_may_hold_anything_and_a_wait_lasts_until_it_is_served() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        await three.caller.put()
        world.network.crash(three.address)
        async with world.client(one) as client:
            waiting = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=30_000, timeout_ms=40_000))
            await world.pass_s(0.1)
            await three.die()
            await world.until(lambda: bool(one.membership.unserved_shards()))
            await fails(world, one, "is not served now")
            await world.until(lambda: not any(host.membership.unserved_shards() for host in (one, two)))
            one.gossip.ask("t")
            assert len(await waiting) == 1

    run_dequeue_tier(story)


def test_a_client_of_all_hosts_believes_no_empty_reply_while_one_cannot_deliver() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        two = hosts[1]
        async with world.client(*hosts) as client:
            await client.refresh_routing()
            assert await client.dequeue({"t": 1}) == []
            await two.caller.put()
            for host in hosts:
                host.gossip.ask("t")
            two.engine.queue.suspend(WITHOUT_SESSION)
            for wait_ms in (0, 0, 3_000, 0):
                with pytest.raises(Unavailable):
                    await client.dequeue({"t": 1}, wait_ms=wait_ms)
            waiting = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=20_000))
            await world.pass_s(5)
            two.engine.queue.resume()
            assert len(await waiting) == 1
            await world.pass_s(REFUSAL_S)
            for host in hosts:
                host.gossip.ask("t")
            assert (found := await client.dequeue({"t": 1})) == []
            assert found.unavailable_shards == 0

    run_dequeue_tier(story)


def test_a_layout_that_lost_its_shards_is_no_tier_without_items() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, *_ = hosts
        for number in sorted(one.membership.owners()):
            await layout_changes.remove_shard(world.administrator, number, force=True)
        await world.until(lambda: not one.membership.tier_shards())
        await fails(world, one, "the layout has no shard of tier default any more")

    run_dequeue_tier(story)
