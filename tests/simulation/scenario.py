"""A short, fixed scenario whose host is killed at a given step.

`main` plays it once for every step, so the host is killed at every await. The
scenario is small enough for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from foqs_client import Client, FoqsError, Item, Nack
from tests.simulation.cluster import BOUNDS, URL, SimulatedCluster
from tests.simulation.faults import Faults
from tests.simulation.principals import OPERATOR, token
from tests.support.checker import check
from tests.support.history import History
from tests.support.recording_client import RecordingClient
from tests.support.virtual_time import SimulatedLoop, run_virtual

TOPICS = ("a", "b", "c")

ROUNDS = 12
"""The number of dequeues: two end before the host serves, ten are enough to ack everything."""

OPERATIONS = {"enqueue", "dequeue", "extend", "nack", "ack", "release", "purge"}


@dataclass
class Play:
    """The result of one run of the scenario."""

    steps: int
    """The number of steps until `healed`."""

    operations: set[str]
    """The operations that were called until `healed`."""

    violations: list[str]


def play(kill_at: int | None) -> Play:
    """Play the scenario once. The host is killed at step `kill_at`, if given."""
    steps = 0
    operations: set[str] = set()
    events: list[dict[str, object]] = []
    differences: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        cluster = SimulatedCluster(loop, 1, wild=False)
        cluster.heal()
        history = History(lambda: loop.time() * 1000)

        def on_step(step: int) -> None:
            if step == kill_at:
                cluster.kill(cluster.running()[0])
                loop.call_later(0.05, cluster.restart_elsewhere)

        loop.on_step = on_step
        cluster.start("alpha")
        await asyncio.gather(_produce(cluster, history), _consume(cluster, history), _purge(cluster, history))
        nonlocal steps
        steps = loop.steps
        operations.update(str(event["op"]) for event in history.events if event["event"] == "invoke")
        loop.on_step = None
        while not any(each.ready for each in cluster.running()):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.05)
        await asyncio.sleep(3)
        while not cluster.is_at_rest():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.05)
        differences.extend(cluster.differences())
        history.healed()
        await _drain(cluster, history)
        history.present(cluster.rows())
        events.extend(history.events)

    with Faults() as faults:
        run_virtual(main, until_s=600)
    return Play(
        steps, operations, [*faults.found, *differences, *(str(violation) for violation in check(events, BOUNDS))]
    )


def _client(cluster: SimulatedCluster, history: History, name: str) -> RecordingClient:
    client = Client(
        f"foqs://{URL}",
        timeout_ms=1_000,
        token=token(OPERATOR),
        connect=cluster.connector(name, Random(name)),
        rng=Random(name),
    )
    return RecordingClient(client, history, name, cluster.clock.wall_ms)


async def _produce(cluster: SimulatedCluster, history: History) -> None:
    client = _client(cluster, history, "producer")
    await _try(client.enqueue([Item(topic="a", payload=b"1"), Item(topic="b", payload=b"2", lease_ms=100)]))
    await _try(client.enqueue([Item(topic="a", payload=b"3", delay_ms=30), Item(topic="a", payload=b"4", priority=-1)]))
    await client.client.close()


async def _consume(cluster: SimulatedCluster, history: History) -> None:
    """Extend, nack, release and ack every item of "a"; let the lease of the item of "b" end once."""
    client = _client(cluster, history, "consumer")
    released: set[str] = set()
    for _ in range(ROUNDS):
        deliveries = await _try(client.dequeue({"a": 1, "b": 1}, wait_ms=60))
        for delivery in deliveries:
            if delivery.attempt == 1 and delivery.topic == "a":
                await _try(client.extend([delivery], lease_ms=500))
                await _try(client.nack([Nack(delivery.id, delivery.token, delay_ms=10)]))
            elif delivery.attempt == 2 and delivery.topic == "a" and delivery.id not in released:
                released.add(delivery.id)
                await _try(client.release([delivery]))
            elif delivery.attempt > 1:
                await _try(client.ack([delivery]))
    await client.client.close()


async def _purge(cluster: SimulatedCluster, history: History) -> None:
    """Purge some items of "c", one of them leased and one deferred; enqueue and dequeue another one."""
    client = _client(cluster, history, "purger")
    items = [Item(topic="c", payload=b"5"), Item(topic="c", payload=b"6"), Item(topic="c", payload=b"7", delay_ms=40)]
    await _try(client.enqueue(items))
    await _try(client.dequeue({"c": 1}, wait_ms=60, lease_ms=50))
    await _try(client.purge_topic("c"))
    await _try(client.enqueue([Item(topic="c", payload=b"8", priority=3)]))
    await _try(client.dequeue({"c": 9}, wait_ms=100, lease_ms=10_000))
    await client.client.close()


async def _drain(cluster: SimulatedCluster, history: History) -> None:
    client = _client(cluster, history, "drainer")
    while deliveries := await client.dequeue(dict.fromkeys(TOPICS, 10), wait_ms=900):
        await client.ack(deliveries)
    await client.client.close()


async def _try(call: object) -> Sequence:  # type: ignore[type-arg]
    try:
        return await call  # type: ignore[misc, no-any-return]
    except FoqsError:
        return ()


def main() -> int:
    """Kill the host at every step, in one run each."""
    complete = play(None)
    violations = complete.violations
    violations += [f"{operation} was never called" for operation in sorted(OPERATIONS - complete.operations)]
    for step in range(1, complete.steps):
        violations += [f"killed at step {step}: {violation}" for violation in play(step).violations]
    print("\n".join(violations))
    print(f"{complete.steps} steps, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    import logging

    logging.disable(logging.WARNING)
    raise SystemExit(main())
