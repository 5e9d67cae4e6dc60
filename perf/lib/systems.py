"""The compared systems by name, and FOQS as one of them.

Always true: a FOQS caller uses only the public client. Knows nothing of how load is
offered or timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from foqs_client import Client, FoqsError, Item, UnknownOutcome
from perf.lib import by_hand
from perf.lib.caller import LEASE_S, NO_ERRORS, NOTHING, Batch, Caller, Put, Session, Taken
from perf.lib.least import LeastSession
from perf.lib.peers import beanstalkd_queue, nats_queue, pgqueuer_queue, rabbitmq_queue, redis_queue

_REDIS_MAX: Final = 256


async def session(
    system: str,
    place: str,
    namespace: str,
    batch: int,
    *,
    keyed: bool = False,
    gather: bool = True,
    topics: int = 1,
    lease_s: float = LEASE_S,
    consumers: int = 0,
) -> Session:
    """Open a session of a system by its name, for calls of `batch` items.

    `place` is an address, a socket or a folder. Only FOQS has keys and coalescing. `consumers` is the number of
    callers if they consume, and 0 if they put.
    """
    if system.startswith("foqs"):
        return FoqsSession(place, namespace, keyed=keyed, gather=gather, lease_s=lease_s)
    if system == "least":
        return LeastSession(place)
    if system == "redis":
        # One fsync serves all connections that have sent a call meanwhile, so each caller has its own.
        return by_hand.Pool(lambda: redis_queue.redis_caller(place, lease_s), batch, connections_max=_REDIS_MAX)
    if system == "beanstalkd":
        return by_hand.Pool(lambda: beanstalkd_queue.beanstalkd_caller(place, topics), batch, holds=True)
    if system == "nats":
        return nats_queue.NatsSession(place, lease_s)
    if system.startswith("rabbitmq"):
        return rabbitmq_queue.RabbitMqSession(place, batch, topics, consumers)
    if system == "pgqueuer":
        return by_hand.Pool(lambda: pgqueuer_queue.pgqueuer_caller(place, lease_s), batch)
    if system == "postgres":
        return by_hand.Pool(lambda: by_hand.postgres_caller(place), batch, holds=batch > 1)

    async def mariadb() -> Caller:
        return await by_hand.mariadb_caller(place, prebuilt=system == "mariadb-prebuilt", lease_s=lease_s)

    # Only where consumers die does a lease end.
    return by_hand.Pool(mariadb, batch) if lease_s == LEASE_S else by_hand.ReclaimingPool(mariadb, batch, place)


class FoqsSession:
    """One client whose callers share its connection."""

    def __init__(self, address: str, namespace: str, *, keyed: bool, gather: bool, lease_s: float) -> None:
        # The items' own leases last as long as the usual ones.
        self._lease_ms = None if lease_s == LEASE_S else round(lease_s * 1000)
        self._client = Client(address, namespace=namespace, timeout_ms=30_000, automatic_keys=keyed, coalesce=gather)

    async def caller(self) -> Caller:
        return FoqsCaller(self._client, self._lease_ms)

    async def close(self) -> None:
        await self._client.close()


class FoqsCaller:
    def __init__(self, client: Client, lease_ms: int | None) -> None:
        self._client = client
        self._lease_ms = lease_ms

    async def put(self, items: Batch) -> Put:
        count = len(items.payloads)
        given = _items(items)
        try:
            results = await self._client.enqueue(given)
        except UnknownOutcome as error:
            return Put(b"\2" * count, {type(error).__name__: count})
        except FoqsError as error:
            await asyncio.sleep((error.retry_after_ms or 1) / 1000)
            return Put(bytes(count), {type(error).__name__: count})
        failed = [(index, result.error) for index, result in enumerate(results) if result.error is not None]
        if not failed:
            return Put(b"\1" * count, NO_ERRORS)
        fates = bytearray(b"\1") * count
        errors: dict[str, int] = {}
        for index, failure in failed:
            name = type(failure).__name__
            fates[index] = 2 if isinstance(failure, UnknownOutcome) else 0
            errors[name] = errors.get(name, 0) + 1
        return Put(bytes(fates), errors)

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        try:
            found = await self._client.dequeue(wants, wait_ms=wait_ms, lease_ms=self._lease_ms)
        except FoqsError as error:
            if error.retry_after_ms is None:
                raise
            await asyncio.sleep(error.retry_after_ms / 1000)
            return NOTHING
        return found, [delivery.payload for delivery in found]

    async def done(self, handles: Sequence[Any]) -> None:
        for outcome in await self._client.ack(handles):
            outcome.require()

    async def close(self) -> None:
        pass


def _items(items: Batch) -> list[Item]:
    if items.priorities is not None:
        return list(map(Item, items.topics, items.payloads, items.priorities))
    return list(map(Item, items.topics, items.payloads))
