"""Dequeues whose callers leave: no item stays leased for them. Whole hosts under virtual time.

A caller leaves at many moments of a delivery: while its dequeue waits, while the lease is written,
while the reply is on its way, and after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

import pytest

from foqs.core.items.item import DeliveryPolicy
from foqs_client import Client, Delivery, FoqsError, Unreachable
from tests.support.dequeue_tier import DequeueTierHost, DequeueTierWorld, run_dequeue_tier
from tests.support.two_hosts import wait_for_routing

MOMENTS_S: Final = [*(ms / 1_000 for ms in range(8)), *(8 / 1_000 + step / 10_000 for step in range(40))]
"""The item is committed after 8 to 10 ms; its reply then takes at most 1 ms."""

Leave = Callable[[Client, Sequence["asyncio.Task[list[Delivery]]"]], Coroutine[None, None, None]]


async def cancel(client: Client, calls: Sequence[asyncio.Task[list[Delivery]]]) -> None:
    for call in calls:
        call.cancel()


async def close(client: Client, calls: Sequence[asyncio.Task[list[Delivery]]]) -> None:
    await client.close()


async def cancel_and_close(client: Client, calls: Sequence[asyncio.Task[list[Delivery]]]) -> None:
    await cancel(client, calls)
    await client.close()


def old_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that do not know the call `abandonDequeues`."""

    async def nothing(*arguments: object) -> None:
        return None

    monkeypatch.setattr("foqs_client.abandoned_dequeues._abandon", nothing)


async def leaves(world: DequeueTierWorld, client: Client, call_count: int, after_s: float, leave: Leave) -> bool:
    """Start dequeues that wait, add an item, leave after a moment. Return whether a caller got the item."""
    [host] = world.tier
    calls = [asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=20_000)) for _ in range(call_count)]
    await world.until(lambda: host.waiters == 1)
    adding = asyncio.ensure_future(host.caller.put(policy=DeliveryPolicy.AT_MOST_ONCE))
    await asyncio.sleep(after_s)
    await leave(client, calls)
    await adding
    results = await asyncio.gather(*calls, return_exceptions=True)
    return any(isinstance(result, list) and result for result in results)


@pytest.mark.parametrize("leave", [cancel, close, cancel_and_close])
@pytest.mark.parametrize("call_count", [1, 2])
@pytest.mark.parametrize("knows_the_call", [True, False])
def test_an_item_is_not_lost_whenever_its_caller_leaves(
    knows_the_call: bool, call_count: int, leave: Leave, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not knows_the_call:
        old_host(monkeypatch)
    received: list[bool] = []

    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        [host] = hosts
        for after_s in MOMENTS_S:
            async with world.client(host) as client:
                got = await leaves(world, client, call_count, after_s, leave)
                received.append(got)
                if got:
                    continue
                view = await host.caller.one(wait_ms=1_000)
                assert view.row.attempt == 1
            await host.caller.cancel(f"{view.shard}-{view.row.id}")

    run_dequeue_tier(story, hosts=1)
    assert set(received) == {True, False}


def test_the_host_ends_a_dequeue_whose_caller_has_left() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        [host] = hosts
        async with world.client(host) as client:
            calls = [asyncio.ensure_future(client.dequeue({"t": 1, f"t{i}": 1}, wait_ms=20_000)) for i in range(3)]
            await world.until(lambda: host.waiters == 3)
            await cancel(client, calls[:2])
            await world.until(lambda: host.waiters == 1)
            assert host.server.calls_in_flight == 1
            await host.caller.put()
            [delivery] = await calls[2]
            assert delivery.attempt == 1

    run_dequeue_tier(story, hosts=1)


def test_a_shared_dequeue_ends_at_the_host_when_its_last_caller_has_left() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        [host] = hosts
        async with world.client(host) as client:
            calls = [asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=20_000)) for _ in range(3)]
            await world.until(lambda: host.waiters == 1)
            await cancel(client, calls[:2])
            await world.pass_s(0.1)
            assert host.waiters == 1
            await cancel(client, calls[2:])
            await world.until(lambda: host.waiters == 0)

    run_dequeue_tier(story, hosts=1)


def test_a_dequeue_that_is_cancelled_before_it_is_sent_is_not_sent() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        [host] = hosts
        async with world.client(host, coalesce=False) as client:
            await client.dequeue({"u": 1})
            first = asyncio.ensure_future(client.dequeue({"u": 1}, wait_ms=20_000))
            second = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=20_000))
            asyncio.get_running_loop().call_soon(second.cancel)
            await world.until(lambda: host.waiters == 1)
            await world.pass_s(0.1)
            assert host.server.calls_in_flight == 1
            await cancel(client, [first])

    run_dequeue_tier(story, hosts=1)


def test_items_of_a_reply_that_comes_after_the_time_of_the_call_are_released() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        [host] = hosts
        await host.caller.put()
        async with world.client(host) as client:
            await client.dequeue({"u": 1})
            call = asyncio.ensure_future(client.dequeue({"t": 1}, timeout_ms=1_000))
            await world.until(lambda: host.server.calls_in_flight == 1)
            world.network.partition(host.address)
            with pytest.raises(FoqsError):
                await call
            world.network.heal()
            view = await host.caller.one(wait_ms=5_000)
            assert view.row.attempt == 1

    run_dequeue_tier(story, hosts=1)


def test_polls_of_several_hosts_give_back_what_arrives_after_the_client_was_closed() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two = hosts
        received: list[bool] = []
        for after_s in MOMENTS_S:
            async with world.client(one, two) as client:
                await wait_for_routing(client)
                call = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=20_000))
                await world.until(lambda: one.waiters == two.waiters == 1)
                adding = asyncio.ensure_future(two.caller.put(policy=DeliveryPolicy.AT_MOST_ONCE))
                await asyncio.sleep(after_s)
                await client.close()
                await adding
                results = await asyncio.gather(call, return_exceptions=True)
            received.append(isinstance(results[0], list) and bool(results[0]))
            if not received[-1]:
                view = await two.caller.one(wait_ms=1_000)
                assert view.row.attempt == 1
                await two.caller.cancel(f"{view.shard}-{view.row.id}")
        assert set(received) == {True, False}

    run_dequeue_tier(story, hosts=2)


def test_a_closed_client_dequeues_nothing() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        [host] = hosts
        await host.caller.put()
        async with world.client(host) as client:
            await client.dequeue({"u": 1})
            closing = asyncio.ensure_future(client.close())
            await asyncio.sleep(0)
            with pytest.raises(Unreachable, match="closed"):
                await client.dequeue({"t": 1})
            await closing
        assert (await host.caller.one()).row.attempt == 1

    run_dequeue_tier(story, hosts=1)
