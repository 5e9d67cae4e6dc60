"""Tests a client of two hosts, one with a slow database or frozen, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest

from foqs.queue.port import PendingCall
from foqs.store.in_memory.memory_store import MemoryStore
from foqs_client import Client, FoqsError
from foqs_client.consumer import Consumer, Job
from tests.support.cluster_world import ClusterHost
from tests.support.frozen_dequeues import FrozenDequeues
from tests.support.rpc_tier import RpcTierWorld, run_rpc_tier

NAMES = ("one", "two")
URL = "foqs://" + ",".join(f"{name}.example" for name in NAMES)
FLUSHES_S = (0.02, 1.8, 4.0, 12.0)


async def two_hosts(world: RpcTierWorld) -> list[ClusterHost]:
    hosts = [await world.host(name) for name in NAMES]
    await world.wait_until_settled(*hosts)
    await world.pass_s(1)
    return hosts


@asynccontextmanager
async def client_with_routing(world: RpcTierWorld) -> AsyncIterator[Client]:
    """Yield a client that knows both hosts."""
    async with Client(URL, connect=world.network.connector("client"), rng=Random(1)) as client:
        await client.dequeue({"else": 1})
        assert client.hosts
        yield client


def slow_down(monkeypatch: pytest.MonkeyPatch, host: ClusterHost, flush_s: float) -> None:
    """Make every flush of this host's shards slower."""
    flush, shards = MemoryStore.flush, set(host.engine.shards)

    async def slow(self: MemoryStore, *arguments: Any) -> None:
        if self._shard in shards:
            await asyncio.sleep(flush_s)
        await flush(self, *arguments)

    monkeypatch.setattr(MemoryStore, "flush", slow)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("flush_s", FLUSHES_S)
def test_waiting_dequeue_gets_an_item_of_a_slow_host(
    flush_s: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await two_hosts(world)
        async with client_with_routing(world) as client:
            ids = await world.put([hosts[place]])
            slow_down(monkeypatch, hosts[place], flush_s)
            begun_s = world.loop.time()
            [delivery] = await client.dequeue({"t": 1}, wait_ms=20_000, timeout_ms=60_000)
            assert world.loop.time() - begun_s < flush_s + 1
            assert ids == {delivery.id}
            assert delivery.attempt == 1

    run_rpc_tier(story, shards=2)


@pytest.mark.parametrize("flush_s", FLUSHES_S)
def test_item_enqueued_at_a_slow_host_reaches_a_waiting_dequeue(
    flush_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await two_hosts(world)
        async with client_with_routing(world) as client:
            slow_down(monkeypatch, hosts[0], flush_s)
            asked = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=30_000, timeout_ms=60_000))
            await world.pass_s(1)
            assert await hosts[0].caller.put(timeout_s=60)
            assert len(await asked) == 1

    run_rpc_tier(story, shards=2)


@pytest.mark.once
@pytest.mark.parametrize("topics", [["t", "u"], ["*"]])
@pytest.mark.parametrize("slow", [(0,), (0, 1)])
@pytest.mark.parametrize("flush_s", FLUSHES_S)
def test_consumer_of_a_cluster_handles_every_item_once_with_slow_flushes(
    flush_s: float, slow: tuple[int, ...], topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await two_hosts(world)
        async with client_with_routing(world) as client:
            for topic in ("t", "u"):
                await world.put(hosts, topic, count=10)
            for place in slow:
                slow_down(monkeypatch, hosts[place], flush_s)
            handled: list[str] = []

            async def handle(job: Job) -> None:
                assert job.attempt == 1
                handled.append(job.id)

            consumer = Consumer(client, handle, topics, rng=Random(1))
            running = asyncio.ensure_future(consumer.run())
            await world.until(lambda: consumer.counts.done == 40, within_s=10 + 20 * flush_s)
            consumer.stop()
            await running
            assert len(handled) == 40

    run_rpc_tier(story, shards=2)


def test_item_leased_late_for_an_ended_call_is_given_to_a_larger_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await two_hosts(world)
        async with client_with_routing(world) as client:
            ids = await world.put(hosts[:1])
            slow_down(monkeypatch, hosts[0], 12.0)
            begun_s = world.loop.time()
            assert await client.dequeue({"t": 1}, wait_ms=1_000, timeout_ms=30_000) == []
            assert world.loop.time() - begun_s < 2
            found = await client.dequeue({"t": 5, "u": 5}, wait_ms=20_000, timeout_ms=60_000)
            assert world.loop.time() - begun_s < 13
            assert {delivery.id for delivery in found} == ids

    run_rpc_tier(story, shards=2)


@pytest.mark.parametrize("wants", [{"t": 1}, {"u": 1}, None])
def test_item_leased_late_for_an_ended_call_is_released_if_no_call_accepts_it(
    wants: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await two_hosts(world)
        async with client_with_routing(world) as client:
            ids = await world.put(hosts[:1])
            slow_down(monkeypatch, hosts[0], 12.0)
            assert await client.dequeue({"t": 1}, wait_ms=1_000, timeout_ms=30_000) == []
            if wants is not None:
                # It asks for another lease duration, or another topic.
                lease_ms = 7_000 if "t" in wants else None
                await client.dequeue(wants, wait_ms=12_000, lease_ms=lease_ms, timeout_ms=14_000)
            await world.pass_s(60)
            # Its flush may wait for the one before it.
            [delivery] = await client.dequeue({"t": 1}, wait_ms=30_000, timeout_ms=60_000)
            assert ids == {delivery.id}
            assert delivery.attempt == 1

    run_rpc_tier(story, shards=2)


def test_frozen_host_delays_no_dequeue_and_hides_no_item_of_another_host() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await two_hosts(world)
        async with client_with_routing(world) as client:
            FrozenDequeues(hosts[0].engine.queue)
            for wait_ms in (0, 1_000, 5_000):
                begun_s = world.loop.time()
                assert await client.dequeue({"t": 1}, wait_ms=wait_ms, timeout_ms=60_000) == []
                assert world.loop.time() - begun_s <= wait_ms / 1_000 + 1
            asked = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=30_000, timeout_ms=60_000))
            await world.pass_s(7)
            await world.put(hosts[1:])
            begun_s = world.loop.time()
            assert len(await asked) == 1
            assert world.loop.time() - begun_s < 0.1

    run_rpc_tier(story, shards=2)


def test_dequeue_ends_by_its_deadline_if_all_hosts_are_frozen() -> None:
    async def story(world: RpcTierWorld) -> None:
        hosts = await two_hosts(world)
        async with client_with_routing(world) as client:
            for host in hosts:
                FrozenDequeues(host.engine.queue)
            first = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=2_000, timeout_ms=60_000))
            await world.pass_s(1.5)
            first.cancel()
            begun_s = world.loop.time()
            with pytest.raises(FoqsError):  # though it takes over the polls of the first call
                await client.dequeue({"t": 1}, wait_ms=2_000, timeout_ms=3_000)
            assert world.loop.time() - begun_s < 5

    run_rpc_tier(story, shards=2)


def test_host_that_replies_empty_at_once_is_not_polled_without_a_pause() -> None:
    """A stopping host replies like this."""

    async def story(world: RpcTierWorld) -> None:
        hosts = await two_hosts(world)
        async with client_with_routing(world) as client:
            waits_ms: list[int] = []
            for host in hosts:

                def dequeue_at_once(
                    namespace: str, topics: Any, wait_ms: int, *rest: Any, real: Any = host.engine.queue.dequeue
                ) -> PendingCall:
                    waits_ms.append(wait_ms)
                    return cast(PendingCall, real(namespace, topics, 0, *rest))

                host.engine.queue.dequeue = dequeue_at_once  # type: ignore[assignment,method-assign]
            assert await client.dequeue({"t": 1}, wait_ms=10_000) == []
            assert 10 < len(waits_ms) < 100

    run_rpc_tier(story, shards=2)
