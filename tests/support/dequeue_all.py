"""A consumer that dequeues all items."""

from __future__ import annotations

from typing import Final

from foqs_client import Client
from foqs_client.errors import Unavailable, UnknownOutcome

_LEASE_MS: Final = 5_000
"""Longer than a machine usually stands still, and short enough to wait for: what a lost host has taken is leased too."""


async def dequeue_all(client: Client, *topics: str) -> list[bytes]:
    """Dequeue and ack all items of these topics, also those whose lease ends meanwhile. Return their payloads. Paused topics stay.

    The host may have passed a call on to one that was lost just then, and does not
    know what came of it: as any consumer, this one asks again. So it does when
    nothing came, which a host whose disk is late answers too, until nothing is left.
    """
    taken: list[bytes] = []
    while True:
        try:
            items = await client.dequeue(dict.fromkeys(topics, 100), wait_ms=300, lease_ms=_LEASE_MS)
        except UnknownOutcome:
            continue
        if not items and not await _has_items_left(client, topics):
            return taken
        taken += [item.payload for item in items]
        for outcome in await client.ack(items):
            outcome.require()


async def _has_items_left(client: Client, topics: tuple[str, ...]) -> bool:
    """Whether a topic that is not paused has ready or leased items, or may have some: a host does not know its peers' for now."""
    for name in topics:
        try:
            listed = await client.topics(name, limit=1)
        except Unavailable:
            return True
        for topic in listed.topics:  # of all that begin so, the name itself is first
            if topic.topic == name and not topic.paused:
                return True
    return False
