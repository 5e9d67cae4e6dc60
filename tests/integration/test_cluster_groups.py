"""Strict groups on three hosts that are killed, and whose shards move.

The consumers' own records show each group in order, and never two of its items at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Final

import pytest
import uvloop

from foqs.dev.host_process import PROGRAM, HostProcess, program_environment
from foqs.dev.local_cluster import LocalCluster
from foqs.dev.server_process import run_program
from foqs_client import Client, Delivery, FoqsError, Item, Nack, StaleLease, Topic, TopicPolicy
from perf.lib.report import say
from tests.support.cluster import cluster
from tests.support.poll import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.mysql,
    pytest.mark.zookeeper,
    pytest.mark.long,
    pytest.mark.timeout(1_500),
]

GROUPS: Final = int(os.environ.get("FOQS_TEST_GROUPS", "2000"))
STEPS: Final = 100
CONSUMERS: Final = 6
PRODUCERS: Final = 4
SHARDS: Final = 8
TROUBLES: Final = 12
"""Half of them kill a host, the others move a shard."""
LEASE_MS: Final = 20_000
CALL_MS: Final = 5_000
CALL_ITEMS: Final = 100
NACKS: Final = 0.02
"""The share of deliveries that are given back, with and without a delay."""
TOPIC: Final = "orders"


@dataclass(slots=True)
class Received:
    """What a consumer knows of a delivery. Times are those of the loop's clock, in seconds.

    Attributes:
        until_s: when its lease was over at the earliest: the consumer sent its end, or its time had passed.
    """

    step: int
    at_s: float
    until_s: float
    is_acked: bool = False


@dataclass(slots=True)
class Records:
    """What all consumers received, by group, in the order in which they did."""

    groups: defaultdict[str, list[Received]] = field(default_factory=lambda: defaultdict(list))
    finished: set[str] = field(default_factory=set)
    acked: int = 0
    errors: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def is_complete(self) -> bool:
        return len(self.finished) == GROUPS

    def settled(self, delivery: Delivery, received: Received, already_gone: bool) -> None:
        """An item is gone. If it was gone already, an ack that seemed to fail, or another consumer's, has done it."""
        assert delivery.group is not None
        received.is_acked = not already_gone
        self.acked += 1
        if received.step == STEPS - 1:
            self.finished.add(delivery.group)

    def failed(self, error: FoqsError) -> None:
        self.errors[type(error).__name__] += 1

    def check(self) -> None:
        """Raises AssertionError if a group was out of order, lost an item, or was leased to two at once."""
        assert len(self.groups) == GROUPS
        for group, found in self.groups.items():
            steps = [received.step for received in found]
            assert steps == sorted(steps), f"{group} is out of order: {steps}"
            assert sorted(set(steps)) == list(range(STEPS)), f"{group} lost an item: {steps}"
            acked = [received.step for received in found if received.is_acked]
            assert len(acked) == len(set(acked)), f"an item of {group} was acked twice: {acked}"
            for former, latter in pairwise(found):
                assert former.until_s <= latter.at_s, f"two leases of {group} at once: {former}, {latter}"


@pytest.fixture
def running() -> Iterator[LocalCluster]:
    with cluster(shards=SHARDS, options={"cluster.session_timeout_ms": 6_000, "log.level": "info"}) as found:
        until(lambda: all(host.is_ok("/readyz") for host in found.hosts), "every host takes calls", 60)
        yield found


def test_strict_groups_stay_in_order_while_hosts_are_killed_and_shards_move(running: LocalCluster) -> None:
    records = Records()
    asyncio.run(set_policy(running.url))
    for host in running.hosts:  # One that has not read the policy delivers without it.
        until(lambda host=host: asyncio.run(knows_policy(host.address)), "the host knows the policy", 30)  # type: ignore[misc]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play(running, records))
    records.check()
    until(lambda: not asyncio.run(topics(running.url)), "no item is left", 60)
    for host in running.hosts:
        assert "Traceback" not in host.log_tail(), host.log_tail()
    repeats = sum(map(len, records.groups.values())) - GROUPS * STEPS
    say(f"{GROUPS * STEPS} items of {GROUPS} groups, {repeats} repeats, errors of calls: {dict(records.errors)}")


async def set_policy(url: str) -> None:
    async with Client(url, timeout_ms=CALL_MS) as client:
        await client.set_topic_policy(TopicPolicy(TOPIC, group_leases_max=1))


async def knows_policy(url: str) -> bool:
    async with Client(url, timeout_ms=CALL_MS) as client:
        return any(policy.topic == TOPIC for policy in await client.topic_policies())


async def play(running: LocalCluster, records: Records) -> None:
    names = [f"customer-{number}" for number in range(GROUPS)]
    async with asyncio.TaskGroup() as tasks:
        for number in range(PRODUCERS):
            tasks.create_task(produce(running.url, names[number::PRODUCERS], records))
        for number in range(CONSUMERS):
            tasks.create_task(consume(running.url, number, records))
        tasks.create_task(disturb(running, records))


async def topics(url: str) -> list[Topic]:
    async with Client(url, timeout_ms=CALL_MS) as client:
        return (await client.topics()).topics


async def produce(url: str, names: Sequence[str], records: Records) -> None:
    """Enqueue all steps of these groups. The next step of a group is sent when the one before it is durable."""
    async with Client(url, timeout_ms=CALL_MS) as client:
        for step in range(STEPS):
            for start in range(0, len(names), CALL_ITEMS):
                waiting = list(names[start : start + CALL_ITEMS])
                while waiting:
                    items = [Item(TOPIC, b"%d" % step, group=name, idempotency_key=f"step {step}") for name in waiting]
                    try:
                        results = await client.enqueue(items)
                    except FoqsError as error:
                        records.failed(error)
                        continue
                    waiting = [name for name, result in zip(waiting, results, strict=True) if result.error is not None]


async def consume(url: str, number: int, records: Records) -> None:
    rng = Random(number)
    loop = asyncio.get_running_loop()
    async with Client(url, timeout_ms=CALL_MS) as client:
        while not records.is_complete:
            asked_s = loop.time()
            try:
                deliveries = await client.dequeue({TOPIC: CALL_ITEMS}, wait_ms=1_000, lease_ms=LEASE_MS)
            except FoqsError as error:
                records.failed(error)
                continue
            over_s = asked_s + LEASE_MS / 1_000
            received = {}
            for delivery in deliveries:
                assert delivery.group is not None
                received[delivery.id] = one = Received(int(delivery.payload), loop.time(), over_s)
                records.groups[delivery.group].append(one)
            await asyncio.sleep(0)  # Others get their deliveries meanwhile.
            bad = [delivery for delivery in deliveries if rng.random() < NACKS]
            await give_back(client, bad, received, rng, records)
            await ack(client, [delivery for delivery in deliveries if delivery not in bad], received, records)


async def give_back(
    client: Client, deliveries: Sequence[Delivery], received: dict[str, Received], rng: Random, records: Records
) -> None:
    if not deliveries:
        return
    end(deliveries, received)
    with suppress(FoqsError):
        await client.nack(
            [Nack(delivery.id, delivery.token, delay_ms=rng.choice([0, 50, 300])) for delivery in deliveries]
        )


async def ack(client: Client, deliveries: list[Delivery], received: dict[str, Received], records: Records) -> None:
    """Ack the items, and repeat it for those whose outcome is not known."""
    end(deliveries, received)
    while deliveries:
        try:
            outcomes = await client.ack(deliveries)
        except FoqsError as error:
            records.failed(error)
            continue
        unknown = []
        for delivery, outcome in zip(deliveries, outcomes, strict=True):
            if outcome.error is None:
                records.settled(delivery, received[delivery.id], outcome.already_gone)
            elif not isinstance(outcome.error, StaleLease):
                records.failed(outcome.error)
                unknown.append(delivery)
        deliveries = unknown


def end(deliveries: Sequence[Delivery], received: dict[str, Received]) -> None:
    """From now on another consumer may have these items."""
    now_s = asyncio.get_running_loop().time()
    for delivery in deliveries:
        one = received[delivery.id]
        one.until_s = min(one.until_s, now_s)


async def disturb(running: LocalCluster, records: Records) -> None:
    """Kill a host or move a shard whenever another part of the items is acked."""
    for number in range(TROUBLES):
        wanted = GROUPS * STEPS * (number + 1) // (TROUBLES + 2)
        await asyncio.to_thread(until, lambda wanted=wanted: records.acked >= wanted, "more is acked", 600)  # type: ignore[misc]
        host = running.hosts[number // 2 % len(running.hosts)]
        if number % 2 == 0:
            await asyncio.to_thread(kill, host)
        else:
            await asyncio.to_thread(move, running, number % SHARDS, host)


def kill(host: HostProcess) -> None:
    host.stop(signal.SIGKILL)
    host.start()
    until(lambda: host.is_ok("/readyz"), "the host takes calls again", 90)


def move(running: LocalCluster, shard: int, host: HostProcess) -> None:
    command = [*PROGRAM, "shard", "move", str(shard), str(host.options["server.name"])]
    run_program([*command, "--address", running.url], env=program_environment(PROGRAM))
