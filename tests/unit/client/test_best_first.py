"""Tests that a client with a routing table gets the best items first, from any host; under virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from random import Random

import pytest

from foqs.queue.port import PendingCall
from foqs.rpc.call import Call
from foqs_client import Client, Delivery, FoqsError
from foqs_client.long_polls import HOLD_S, DequeueKind
from foqs_contract.errors import ERROR_BY_CODE
from tests.support.builders import new_item
from tests.support.dequeue_tier import DequeueTierHost, DequeueTierWorld, run_dequeue_tier
from tests.support.inner_parts import polls_of, releases_of


async def wait_for_routing(client: Client) -> None:
    """Wait until the client has read the routing table."""
    assert await client.dequeue({"nothing": 1}) == []
    assert client.hosts


def record_dequeues(host: DequeueTierHost, asked: list[str]) -> None:
    """Make a host record each dequeue that reaches it."""
    local = host.local

    def note(call: Call) -> PendingCall | None:
        asked.append(host.name)
        return local(call)

    host.local = note


def test_single_consumer_gets_items_of_random_priorities_nearly_in_order() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        rng = Random(5)
        order: dict[str, tuple[int, int]] = {}
        for batch in range(150):
            # Each host has a part of the items: asking one host after the other would mix up the order.
            priorities = [batch % 3 * 2 + rng.randint(0, 5) for _ in range(10)]
            items = [new_item("t", priority=priority) for priority in priorities]
            ids = await hosts[batch % 3].caller.enqueue(items)
            order.update(
                {
                    str(id): (priority, len(order) + n)
                    for n, (id, priority) in enumerate(zip(ids, priorities, strict=True))
                }
            )
        place = {id: at for at, id in enumerate(sorted(order, key=lambda id: order[id]))}
        taken: list[str] = []
        async with world.client(*hosts) as client:
            while found := await client.dequeue({"t": 3}):
                taken += [delivery.id for delivery in found]
        assert len(taken) == len(place)
        displaced = [abs(at - place[id]) for at, id in enumerate(taken)]
        assert sum(displaced) / len(displaced) <= 0.01 * len(place)

    run_dequeue_tier(story)


def test_urgent_item_at_a_host_with_a_detached_poll_is_next_and_costs_no_attempt() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        async with world.client(*hosts) as client:
            await wait_for_routing(client)
            waiting = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=10_000))
            await world.until(lambda: all(host.waiters for host in hosts))
            await one.caller.put(count=9, priority=5)
            assert len(await waiting) == 1
            # The polls at the other hosts are detached now. An item of one of them is released.
            [urgent] = await two.caller.put(priority=0)
            await world.until(lambda: two.engine.queue.availability.ready_count(("default", "t")) == 1)
            await world.pass_s(0.05)
            [delivery] = await client.dequeue({"t": 1}, wait_ms=10_000)
            assert (delivery.id, delivery.attempt) == (urgent, 1)
            [delivery] = await client.dequeue({"t": 1}, wait_ms=10_000)
            assert delivery.priority == 5

    run_dequeue_tier(story)


def test_item_of_a_detached_poll_is_next_after_the_consumer_was_busy_for_a_moment() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await one.caller.put(count=9, priority=5)
        async with world.client(*hosts) as client:
            await wait_for_routing(client)
            # An empty host has a poll, although another host always has items.
            for _ in range(4):
                assert len(await client.dequeue({"t": 1}, wait_ms=10_000)) == 1
            await world.until(lambda: two.waiters == 1)
            [urgent] = await two.caller.put(priority=0)
            await world.pass_s(HOLD_S / 2)
            begun = world.loop.time()
            [delivery] = await client.dequeue({"t": 1}, wait_ms=10_000)
            assert (delivery.id, delivery.attempt) == (urgent, 1)
            assert world.loop.time() == begun

    run_dequeue_tier(story)


async def deliver_to_detached_poll(world: DequeueTierWorld, client: Client, hosts: Sequence[DequeueTierHost]) -> None:
    """Make a detached poll at the second host get an item."""
    waiting = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=10_000))
    await world.until(lambda: all(host.waiters for host in hosts))
    await hosts[0].caller.put()
    await waiting
    await hosts[1].caller.put()
    await world.until(lambda: polls_of(client).has_deliveries(DequeueKind((("t", 1),), None, None, is_long_poll=True)))


def test_held_item_is_released_when_the_client_closes() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        _, two, _ = hosts
        async with world.client(*hosts) as client:
            await wait_for_routing(client)
            await deliver_to_detached_poll(world, client, hosts)
        await world.pass_s(0.05)
        assert (await two.caller.one()).row.attempt == 1

    run_dequeue_tier(story)


def test_unwanted_item_is_released_when_the_client_closes_right_after() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, _, _ = hosts
        await one.caller.put()
        async with world.client(*hosts) as client:
            await wait_for_routing(client)
            releases_of(client).start(await client.dequeue({"t": 1}))
        await world.pass_s(0.05)
        assert (await one.caller.one()).row.attempt == 1

    run_dequeue_tier(story)


def test_item_released_by_a_closing_client_is_given_to_no_call() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        async with world.client(*hosts) as client:
            await wait_for_routing(client)
            await deliver_to_detached_poll(world, client, hosts)
            closing = asyncio.ensure_future(client.close())
            await asyncio.sleep(0)
            begun = world.loop.time()
            found: list[Delivery] = []
            with contextlib.suppress(FoqsError):
                found = await client.dequeue({"t": 1}, wait_ms=50)
            assert found == [] or world.loop.time() > begun
            await closing

    run_dequeue_tier(story)


def test_host_with_a_detached_poll_is_not_polled_again() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        async with world.client(*hosts) as client:
            await wait_for_routing(client)
            waiting = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=10_000))
            await world.until(lambda: all(host.waiters for host in hosts))
            await one.caller.put()
            await waiting
            asked: list[str] = []
            for host in hosts:
                record_dequeues(host, asked)
            again = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=1_000))
            await world.until(lambda: one.waiters == 1)
            assert set(asked) == {"one"}
            assert two.waiters == three.waiters == 1
            await again

    run_dequeue_tier(story)


def test_item_at_an_empty_host_is_found_while_another_host_always_has_some() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await one.caller.put(count=400, priority=5)
        async with world.client(*hosts) as client:
            for _ in range(5):
                await client.dequeue({"t": 1}, wait_ms=100)
            [urgent] = await two.caller.put(priority=0)
            begun = world.loop.time()
            while (await client.dequeue({"t": 1}, wait_ms=100))[0].id != urgent:
                await world.pass_s(0.05)
            assert world.loop.time() - begun < 3

    run_dequeue_tier(story)


@pytest.mark.parametrize("kind", ERROR_BY_CODE.values(), ids=lambda kind: kind.code)
def test_waiting_dequeue_that_every_host_refused_asks_again_exactly_if_the_error_allows_it(
    kind: type[FoqsError],
) -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        refused: list[str] = []

        def refuse_first(host: DequeueTierHost) -> None:
            local = host.local

            def serve(call: Call) -> PendingCall | None:
                if host.name not in refused:
                    refused.append(host.name)
                    raise kind("this host refuses")
                return local(call)

            host.local = serve

        for host in hosts:
            await host.caller.put()
        async with world.client(*hosts) as client:
            await client.refresh_routing()
            for host in hosts:
                refuse_first(host)
            dequeue = client.dequeue({"t": 1}, wait_ms=1_000)
            if kind("m").may_succeed_elsewhere:
                assert len(await dequeue) == 1
            else:
                with pytest.raises(kind):
                    await dequeue
        assert len(refused) == len(hosts)

    run_dequeue_tier(story)
