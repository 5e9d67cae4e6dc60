"""The order meter over several hosts under virtual time: what a delivery passed over is counted at every host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from foqs.cluster.order_probe import REPLY_TIMEOUT_S, SAMPLES_IN_FLIGHT_MAX
from foqs.core.items.item import TopicName, pack_order_key
from foqs.core.items.life import EventKind
from foqs.core.memory.order_samples import Displacement, TopicOrder
from foqs.queue.order_meter import SAMPLE_PAUSE_S, TOPIC_PAUSE_S
from foqs.queue.suspension import WITHOUT_SESSION
from foqs_client import Client, InvalidArgument
from foqs_contract.idl import ttypes
from tests.support.dequeue_tier import DequeueTierHost, DequeueTierWorld, run_dequeue_tier
from tests.support.raw_calls import call_once

T = ("default", "t")


async def measured(world: DequeueTierWorld, host: DequeueTierHost, topic: str = "t") -> Displacement:
    """Deliver one item of this host alone, and return what the sample says of it."""
    await world.pass_s(TOPIC_PAUSE_S)
    samples = host.engine.queue.order_meter.samples
    before = samples.count
    seen: list[Displacement] = []
    add = samples.add

    def added(topic: tuple[str, str], displacement: Displacement, deliveries: int, now_s: float) -> None:
        seen.append(displacement)
        add(topic, displacement, deliveries, now_s)

    samples.add = added  # type: ignore[method-assign]
    await host.caller.one(topic)
    await world.until(lambda: samples.count == before + 1)
    samples.add = add  # type: ignore[method-assign]
    [displacement] = seen
    return displacement


def test_better_items_of_all_hosts_are_counted_with_the_wait_of_the_best() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        await two.caller.put(count=3, priority=1)
        await world.pass_s(5)
        await three.caller.put(count=2, priority=4)
        await three.caller.put(count=7, priority=9)
        await one.caller.put(count=2, priority=5)
        displacement = await measured(world, one)
        assert displacement[:2] == (5, 5)
        assert displacement.ready_age_ms == pytest.approx(6_000, abs=200)
        assert (await measured(world, three))[:2] == (3, 3)
        assert await measured(world, two) == Displacement(0, 0, 0)
        samples = one.engine.queue.order_meter.samples
        order = samples.of_topic(T, world.loop.time())
        assert order is not None
        assert order[:2] == (5, 5)

    run_dequeue_tier(story)


def test_older_items_of_the_same_priority_are_better_and_those_of_the_same_moment_are_not() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put(count=4)
        await world.pass_s(1)
        await one.caller.put(count=2)
        await two.caller.put(count=4)
        assert (await measured(world, one))[:2] == (4, 0)
        await one.caller.get("t", 9)
        [first, *_] = (await two.caller.get("t", 1)).items
        await two.caller.do(EventKind.RELEASE, [first])
        row = first.row
        assert two.state.ranking.passed_over(T, row.priority, row.deliver_after_ms) == Displacement(0, 0, 0)

    run_dequeue_tier(story, hosts=3)


def test_what_a_relaxed_order_costs_is_counted() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, _ = hosts
        await two.caller.put(count=3, priority=4)
        await one.caller.put(priority=5)
        one.engine.namespaces.relaxed_topics = frozenset([T])
        one.gossip.ask("t")
        samples = one.engine.queue.order_meter.samples
        async with world.client(one) as client:
            assert [delivery.priority for delivery in await client.dequeue({"t": 1})] == [5]
            await world.until(lambda: samples.count == 1)
        order = samples.of_topic(T, world.loop.time())
        assert order is not None
        assert order[:2] == (3, 3)

    run_dequeue_tier(story)


def test_item_that_cannot_be_delivered_was_not_passed_over() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        await two.caller.put(count=2, priority=-1)
        await two.caller.put(count=3, priority=-1, delay_ms=3_600_000)
        await three.caller.put(count=5, priority=-1)
        await one.caller.put(count=3)
        assert (await measured(world, one)).items == 7
        three.engine.queue.suspend(WITHOUT_SESSION)
        assert (await measured(world, one)).items == 2
        two.engine.namespaces.paused_topics = frozenset([T])
        assert (await measured(world, one)).items == 0

    run_dequeue_tier(story)


def test_host_that_does_not_answer_counts_as_empty_and_as_a_failure() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two, three = hosts
        await two.caller.put(count=2, priority=-1)
        await three.caller.put(count=5, priority=-1)
        await one.caller.put(count=2)
        await measured(world, one)
        world.network.partition(three.address)
        begun = world.loop.time()
        assert (await measured(world, one)).items == 2
        assert world.loop.time() - begun >= REPLY_TIMEOUT_S
        assert one.order_probe.failure_count == 1
        world.network.heal()

    run_dequeue_tier(story)


class Sink:
    """Passes on which items are sampled."""

    def __init__(self, on_sample: Callable[[TopicName, int], None]) -> None:
        self._on_sample = on_sample

    def on_sample(
        self, topic: TopicName, priority: int, deliver_after_ms: int, here: Displacement, deliveries: int
    ) -> None:
        self._on_sample(topic, priority)


def test_samples_are_rare() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        [one, *_] = hosts
        meter = one.engine.queue.order_meter
        seen: list[tuple[str, int]] = []
        meter._sink = Sink(lambda topic, priority: seen.append((topic[1], priority)))
        for topic in ("t", "u"):
            for priority in range(4):
                await one.caller.put(topic, 10, priority=priority)
        begun = world.loop.time()
        for _ in range(40):
            for topic in ("t", "u"):
                await one.caller.do(EventKind.RELEASE, (await one.caller.get(topic, 40)).items)
            await world.pass_s(0.2)
        seconds = world.loop.time() - begun
        for topic in ("t", "u"):
            own = [priority for name, priority in seen if name == topic]
            assert 1 <= len(own) <= seconds / TOPIC_PAUSE_S + 1
        assert len(seen) <= seconds / SAMPLE_PAUSE_S + 1

    run_dequeue_tier(story, hosts=2)


def test_every_place_of_a_call_has_its_turn() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        meter = hosts[0].engine.queue.order_meter
        picked: list[int] = []
        meter._sink = Sink(lambda topic, priority: picked.append(priority))
        keys = [pack_order_key(priority, 5, 1) for priority in range(4)]
        [shard, *_] = hosts[0].engine.shards.values()
        for number in range(8):
            meter.record(("default", f"t{number}"), [(shard, keys[:1]), (shard, keys[1:])], 4, number * SAMPLE_PAUSE_S)
        assert sorted(picked) == [0, 0, 1, 1, 2, 2, 3, 3]

    run_dequeue_tier(story, hosts=2)


def test_each_delivery_belongs_to_the_next_sample_of_its_topic() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two = hosts
        await two.caller.put(count=3, priority=-1)
        for topic in ("t", "u"):
            await one.caller.put(topic, 30)
        samples = one.engine.queue.order_meter.samples
        delivered = 0
        for number in range(12):
            for topic in ("t", "u"):
                count = 1 + number % 2
                delivered += len((await one.caller.get(topic, count)).items)
            await world.pass_s(TOPIC_PAUSE_S / 4)
        await world.pass_s(TOPIC_PAUSE_S)
        for topic in ("t", "u"):
            delivered += len((await one.caller.get(topic, 1)).items)
            await world.pass_s(SAMPLE_PAUSE_S)
        await world.until(lambda: samples.deliveries == delivered)
        assert samples.count < 12
        assert samples.by_priority == delivered // 2
        order = samples.of_topic(T, world.loop.time())
        assert order is not None
        assert order.passed_over_fraction == 1.0

    run_dequeue_tier(story, hosts=2)


def test_direct_delivery_is_sampled_too() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        one, two = hosts
        await two.caller.put(count=3, priority=-1)
        waiting = asyncio.ensure_future(one.caller.one(wait_ms=5_000))
        await world.until(lambda: one.waiters == 1)
        await one.caller.put(priority=7)
        await waiting
        samples = one.engine.queue.order_meter.samples
        await world.until(lambda: samples.count == 1)
        assert samples.by_priority == 1
        assert samples.items == 3

    run_dequeue_tier(story, hosts=2)


def test_slow_hosts_bound_the_samples_in_flight() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        [one, *_] = hosts
        for number in range(100):
            one.order_probe.on_sample(("default", f"t{number}"), 0, 0, Displacement(0, 0, 0), 1)
        samples = one.engine.queue.order_meter.samples
        await world.until(lambda: samples.count == SAMPLES_IN_FLIGHT_MAX)
        await world.pass_s(3)
        assert samples.count == SAMPLES_IN_FLIGHT_MAX
        assert samples.of_topic(("default", "t0"), world.loop.time()) == TopicOrder(0, 0, 0, 0, 0.0)

    run_dequeue_tier(story, hosts=2)


def test_nonsense_is_refused() -> None:
    async def story(world: DequeueTierWorld, hosts: Sequence[DequeueTierHost]) -> None:
        async with world.client(hosts[0]) as client:
            reply = await rank(client, ttypes.RankItemRequest("default", "t", 1, 5))
            assert (reply.items, reply.by_priority, reply.ready_age_ms) == (0, 0, 0)
            for request in (ttypes.RankItemRequest("default", "t", 1, -1), ttypes.RankItemRequest("default", "", 1, 1)):
                with pytest.raises(InvalidArgument):
                    await rank(client, request)

    run_dequeue_tier(story, hosts=2)


async def rank(client: Client, request: object) -> ttypes.RankItemReply:
    reply: ttypes.RankItemReply = await call_once(client, "rankItem", request, 5_000)
    return reply
