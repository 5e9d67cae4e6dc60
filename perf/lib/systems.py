"""The compared systems by name, and FOQS as one of them.

Always true: a FOQS caller uses only the public client. Knows nothing of how load is
offered or timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from foqs_client import Client, FoqsError, Item, UnknownOutcome
from perf.lib import by_hand
from perf.lib.caller import NO_ERRORS, NOTHING, Batch, Caller, Put, Session, Taken
from perf.lib.least import LeastSession


async def session(
    system: str, place: str, namespace: str, batch: int, *, keyed: bool = False, gather: bool = True
) -> Session:
    """Open a session of a system by its name, for calls of `batch` items.

    `place` is an address, a socket or a folder. Only FOQS has keys and coalescing.
    """
    if system.startswith("foqs"):
        return FoqsSession(place, namespace, keyed=keyed, gather=gather)
    if system == "least":
        return LeastSession(place)
    if system == "postgres":
        return by_hand.Pool(lambda: by_hand.postgres_caller(place), batch, holds=batch > 1)
    return by_hand.Pool(lambda: by_hand.mariadb_caller(place, prebuilt=system == "mariadb-prebuilt"), batch)


class FoqsSession:
    """One client whose callers share its connection."""

    def __init__(self, address: str, namespace: str, *, keyed: bool, gather: bool) -> None:
        self._client = Client(address, namespace=namespace, timeout_ms=30_000, automatic_keys=keyed, coalesce=gather)

    async def caller(self) -> Caller:
        return FoqsCaller(self._client)

    async def close(self) -> None:
        await self._client.close()


class FoqsCaller:
    def __init__(self, client: Client) -> None:
        self._client = client

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
            found = await self._client.dequeue(wants, wait_ms=wait_ms)
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
