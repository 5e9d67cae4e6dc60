"""A consumer that dequeues all items, also while shards change their owners.

Always true: an item is counted once for each time that its ack was acknowledged, so one that came again after that counts twice.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foqs_client import Client, Delivery, FoqsError, StaleLease, UnknownOutcome

_LEASE_MS: Final = 5_000
"""Longer than a machine usually stands still, and short enough to wait for: what a lost host has taken is leased too."""
_LIMIT_S: Final = 120.0
_PAUSE_MS: Final = 100
"""Before the next call if the host did not say how long."""


async def dequeue_all(client: Client, *topics: str, limit_s: float = _LIMIT_S) -> list[bytes]:
    """Dequeue and ack all items of these topics, also those whose lease ends meanwhile. Return their payloads. Paused topics stay.

    The host may have passed a call on to one that was lost just then, and does not
    know what came of it: as any consumer, this one asks again. So it does when
    nothing came, which a host whose disk is late answers too, until nothing is left.

    Raises:
        TimeoutError: no item was acked for `limit_s` seconds, and some are left, or a shard cannot deliver.
    """
    taken: list[bytes] = []
    unsure: dict[str, bytes] = {}
    """The payloads of items by id whose ack has an unknown outcome. An item that was not acked comes again."""
    clock_s = asyncio.get_running_loop().time
    async with asyncio.timeout(limit_s) as limit:
        while True:
            try:
                found = await client.dequeue(dict.fromkeys(topics, 100), wait_ms=300, lease_ms=_LEASE_MS)
                if not found and not await _has_items_left(client, topics):
                    return [*taken, *unsure.values()]
            except FoqsError as error:
                if not error.may_succeed_later:
                    raise
                await asyncio.sleep((error.retry_after_ms or _PAUSE_MS) / 1_000)
                continue
            acked = await _acked(client, found, unsure)
            if acked:
                limit.reschedule(clock_s() + limit_s)
            taken += acked


async def _acked(client: Client, found: list[Delivery], unsure: dict[str, bytes]) -> list[bytes]:
    """Ack these deliveries. Return the payloads of those that are acked; an item that is not comes again."""
    acked: list[bytes] = []
    for delivery, outcome in zip(found, await client.ack(found), strict=True):
        unsure.pop(delivery.id, None)
        match outcome.error:
            case None:
                acked.append(delivery.payload)
            case UnknownOutcome():
                unsure[delivery.id] = delivery.payload
            case error if not error.may_succeed_later and not isinstance(error, StaleLease):
                raise error
    return acked


async def _has_items_left(client: Client, topics: tuple[str, ...]) -> bool:
    """Return whether a topic that is not paused has ready or leased items, or may have some on a shard that cannot deliver."""
    for name in topics:
        listed = await client.topics(name, limit=1)
        if listed.unavailable_shards:
            return True
        for topic in listed.topics:  # of all that begin so, the name itself is first
            if topic.topic == name and not topic.paused:
                return True
    return False
