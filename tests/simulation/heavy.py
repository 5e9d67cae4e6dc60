"""A run with long payloads: many at once, leases that end, and a limit that is lowered below stored payloads.

Holds `HeavyCluster`, whose host has small byte limits, and `HeavyRun`. The faults
are those of a standalone host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from random import Random
from typing import Any, Final

from foqs.queue.engine import EngineSettings
from foqs_client import FoqsError, Item, Namespace
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.principals import OPERATOR, token
from tests.simulation.workload import TOPICS, Plan, Run
from tests.support.builders import changed

HEAVY_PLAN: Final = Plan(items=300, calls=1_200, crashes=3)
_LONG: Final = 3_900
_LIMITS: Final = (400, 4_000)
_FLUSH_BYTES: Final = 20_000
_BURST: Final = 10
_NAMESPACES: Final = ("default", "other")


class HeavyCluster(SimulatedCluster):
    """A standalone host with room for a few long payloads."""

    def settings(self) -> EngineSettings:
        usual = super().settings()
        return replace(
            usual,
            namespace=changed(usual.namespace, payload_bytes_max=max(_LIMITS)),
            shard_constants=replace(usual.shard_constants, flush_bytes_max=_FLUSH_BYTES),
            cache=replace(usual.cache, prefetched_bytes_max=20_000, written_items_max=60),
        )


class HeavyRun(Run):
    """One seeded run."""

    def _more(self) -> Iterator[Coroutine[Any, Any, None]]:
        for number, namespace in enumerate(_NAMESPACES):
            name = f"heavy-{number}"
            yield self._produce_long(name, namespace, Random(f"{self._rng.random()}/{name}"))
            for each in range(3):
                consumer = f"{name}-consumer-{each}"
                yield self._consume_many(consumer, namespace, Random(f"{self._rng.random()}/{consumer}"))

    async def _produce_long(self, name: str, namespace: str, rng: Random) -> None:
        """Enqueue bursts of long items, then lower the limit for a while."""
        client = self._administering(name, namespace, token(OPERATOR))
        number = 0
        while self._working:
            try:
                await self._call(client.set_limits(Namespace("", payload_bytes_max=max(_LIMITS))))
                for _ in range(rng.randint(1, 3)):
                    batch = []
                    for _ in range(_BURST):
                        number += 1
                        payload = f"{name}/{number}/".encode().ljust(_LONG - rng.randint(0, 1) * 1_000, b"x")
                        batch.append(Item(TOPICS[0], payload, lease_ms=rng.choice((100, 400))))
                    self.items += len(batch)
                    await self._call(client.enqueue(batch, timeout_ms=1_000))
                if rng.random() < 0.7:
                    await self._call(client.set_limits(Namespace("", payload_bytes_max=min(_LIMITS))))
            except FoqsError:
                pass
            await asyncio.sleep(rng.expovariate(1.5))
        await client.client.close()

    async def _consume_many(self, name: str, namespace: str, rng: Random) -> None:
        """Dequeue more than a flush may read, and let many leases end."""
        client = self._recording(name, namespace, OPERATOR)
        while self._working:
            try:
                found = await self._call(client.dequeue({TOPICS[0]: 15}, wait_ms=200, lease_ms=rng.choice((None, 60))))
                if found and rng.random() < 0.4:
                    await self._call(client.ack(found))
            except FoqsError:
                pass
            await asyncio.sleep(rng.expovariate(10))
        await client.client.close()
