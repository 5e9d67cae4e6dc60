"""A run of several hosts, with the faults that a standalone host cannot have.

Holds `FleetRun`. Its clients are those of `workload`; they use the hosts' routing
table. Always true: everything follows from the seed; after the work all hosts run,
reach everything, and may own every shard.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Final

from foqs.core.items.item import State
from foqs_client import Client, Delivery
from tests.simulation import forwarding_counts
from tests.simulation.administrator import Administrator, listing_differences
from tests.simulation.cluster import NAMESPACES, PORT, Incarnation
from tests.simulation.cluster_administrator import ClusterAdministrator
from tests.simulation.fleet import ADDRESSES, SESSION_MS, TROUBLE_S_MAX, URL, SimulatedFleet
from tests.simulation.principals import CONSUMER, OPERATOR, PRODUCER, token
from tests.simulation.single_endpoint_consumer import SingleEndpointConsumer
from tests.simulation.single_endpoint_producer import SingleEndpointProducer
from tests.simulation.surplus import CountedClient
from tests.simulation.workload import TOPICS, Plan, Run
from tests.support.recording_client import RecordingClient

FLEET_PLAN: Final = Plan(items=200, calls=1_200, crashes=3)
LISTED_S: Final = 1.0
"""The time until every host lists a change."""
QUIET_S_MAX: Final = 30.0
_SINGLE_ENDPOINT: Final = ("default", "other")
"""The namespace of each producer and of each consumer with a single endpoint."""
SETTLED_S_MAX: Final = 30.0
"""The time until every shard is served after `healed`."""


class Unsettled(Exception):
    """A shard has no owner, or a host is not ready, long after `healed`."""


class FleetRun(Run):
    """One seeded run."""

    cluster: SimulatedFleet
    url: ClassVar[str] = URL
    steps_between_troubles: ClassVar[tuple[int, int]] = (500, 3_000)

    def __init__(self, fleet: SimulatedFleet, seed: int, plan: Plan) -> None:
        super().__init__(fleet, seed, plan)
        forwarding_counts.install(fleet.counts)
        self._overseer: ClusterAdministrator

    async def play(self) -> None:
        await super().play()
        dead = [each.process.name for each in self.cluster.incarnations if not each.process.alive]
        self.differences += [*self.cluster.surplus.wrong, *self.cluster.surplus.unreleased(dead)]

    async def _set_up(self) -> None:
        """Start two hosts. The third joins them later."""
        await self.cluster.set_up()
        for address in ADDRESSES[:2]:
            self.cluster.start(address)
        self._later(self._fate.uniform(0.5, 4.0), self._start_absent)

    def _more(self) -> Iterator[Coroutine[Any, Any, None]]:
        rng = Random(f"{self._rng.random()}/overseer")
        client = self._client("overseer", "default", token(OPERATOR))
        self._overseer = ClusterAdministrator(client, rng, self.cluster.shards, ADDRESSES, self._count_call)
        yield self._overseer.work(lambda: not self._working)
        for number, namespace in enumerate(_SINGLE_ENDPOINT):
            name = f"thin-{number}"
            rng = Random(f"{self._rng.random()}/{name}")
            yield self._single_endpoint_producer(name, namespace, rng).work(lambda: not self._working)
            name = f"thin-consumer-{number}"
            rng = Random(f"{self._rng.random()}/{name}")
            yield self._single_endpoint_consumer(name, namespace, rng).work(lambda: not self._working)

    def _open(self, name: str, *arguments: Any, **options: Any) -> Client:
        return CountedClient(self.cluster.surplus, name, *arguments, **options)

    def _single_endpoint_producer(self, name: str, namespace: str, rng: Random) -> SingleEndpointProducer:
        def open_client(address: str) -> RecordingClient:
            return self._recording(name, namespace, PRODUCER, f"{address}:{PORT}")

        return SingleEndpointProducer(name, open_client, rng, ADDRESSES, TOPICS, self._sent)

    def _single_endpoint_consumer(self, name: str, namespace: str, rng: Random) -> SingleEndpointConsumer:
        old: list[Delivery] = []

        def open_client(address: str) -> RecordingClient:
            return self._recording(name, namespace, CONSUMER, f"{address}:{PORT}")

        async def treat(client: RecordingClient, deliveries: Sequence[Delivery]) -> None:
            await self._settle_deliveries(client, rng, deliveries, old)

        return SingleEndpointConsumer(open_client, treat, rng, ADDRESSES, TOPICS, self._count_call)

    def _sent(self, items: int) -> None:
        self.calls += 1
        self.items += items

    async def _recover(self) -> None:
        cluster = self.cluster
        await self._until(lambda: not any(each.stop.is_set() for each in cluster.running()))
        for address in cluster.absent():
            cluster.start(address)
        await self._overseer.restore()
        await self._settle()
        # Again at rest: a host that loses its session for a moment gets its shards back with new epochs.
        for host in cluster.running():
            cluster.expire(host)
        await asyncio.sleep(SESSION_MS / 1000)
        await self._settle()
        await super()._recover()
        await self._settle()

    async def _settle(self) -> None:
        """Wait until every shard is served. Raises `Unsettled`."""
        cluster = self.cluster
        until_s = cluster.loop.time() + SETTLED_S_MAX
        while trouble := cluster.unsettled():
            if cluster.loop.time() > until_s:
                raise Unsettled(f"invariant 11: {trouble}, {SETTLED_S_MAX} s after everything healed")
            await asyncio.sleep(0.05)

    async def _compare(self, administrators: Mapping[str, Administrator]) -> None:
        """Compare memory, counts and the listing of each host with the tables, when nothing has changed for a while."""
        await super()._compare({})
        until_s = self.cluster.loop.time() + QUIET_S_MAX
        held: Mapping[str, Counter[tuple[str, str]]] = {}
        while held != (held := self._held()) or not self.cluster.is_at_rest():
            if self.cluster.loop.time() > until_s:
                raise Unsettled(f"invariant 11: items still change {QUIET_S_MAX} s after everything healed")
            await asyncio.sleep(LISTED_S)
        for namespace, each in administrators.items():
            self.differences += await each.differences(
                self.cluster.rows(namespace), self.cluster.payload_bytes(namespace)
            )
            for host, gossip in self.cluster.gossip_by_host():
                listed, _ = await gossip.tier_topics.list_topics(namespace, "", list(State), None, 100)
                self.differences += [
                    f"{difference}, according to {host}" for difference in listing_differences(listed, held[namespace])
                ]

    def _held(self) -> Mapping[str, Counter[tuple[str, str]]]:
        """Count the items in the tables by namespace, topic and state."""
        rows = self.cluster.rows
        return {name: Counter((row["topic"], row["state"]) for row in rows(name)) for name in NAMESPACES}

    # --------------------------------------------------------------- troubles

    def _on_step(self, step: int) -> None:
        if not self._working:
            return
        self._schedule_trouble()
        cluster, fate = self.cluster, self._fate
        running = cluster.running()
        if not running or (len(running) < len(ADDRESSES) and fate.random() < 0.2):
            self._start_absent()
            return
        host = fate.choice(running)
        seconds = min(
            TROUBLE_S_MAX, SESSION_MS / 1000 * fate.choice((0.1, 0.5, 0.9, 1.1, 2.0)) * fate.uniform(0.7, 1.3)
        )
        troubles = self._troubles(host, seconds)
        [trouble] = fate.choices([each for _, each in troubles], [weight for weight, _ in troubles])
        trouble()

    def _troubles(self, host: Incarnation, seconds: float) -> Sequence[tuple[float, Callable[[], object]]]:
        """Return what may happen to a host, or beside it, with its weight."""
        cluster, fate = self.cluster, self._fate
        return (
            (22, lambda: self._kill(host)),
            (10, lambda: self._stop(host)),
            (14, lambda: cluster.freeze(host, seconds, is_notified_late=fate.random() < 0.5)),
            (10, lambda: self._cut_off(host, seconds)),
            (10, lambda: cluster.replace(host, SESSION_MS / 1000)),
            (4, lambda: cluster.expire(host)),
            (12, lambda: cluster.expire_at_commit(host)),
            (8, lambda: cluster.hold(host, seconds)),
            (8, lambda: cluster.partition_from_clients(host, seconds)),
            (12, self._trouble_servers),
            (6, self._cut_some),
        )

    def _kill(self, host: Incarnation) -> None:
        """Kill one host, or sometimes all at once."""
        self.crashes += 1
        for each in self.cluster.running() if self._fate.random() < 0.1 else [host]:
            self.cluster.kill(each)
        self._later(self._fate.uniform(0.0, 3.0), self._start_absent)

    def _stop(self, host: Incarnation) -> None:
        self.cluster.stop(host)
        self._later(self._fate.uniform(0.0, 3.0), self._start_absent)

    def _cut_off(self, host: Incarnation, seconds: float) -> None:
        """Cut one host off from the registry, or sometimes all."""
        for each in self.cluster.running() if self._fate.random() < 0.2 else [host]:
            self.cluster.cut_off(each, seconds)

    def _start_absent(self) -> None:
        absent = self.cluster.absent()
        if self._working and absent:
            self.cluster.start(self._fate.choice(absent))
