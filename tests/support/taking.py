"""A consumer that takes all there is."""

from __future__ import annotations

from foqs_client import Client
from foqs_client.errors import UnknownOutcome


async def take_all(client: Client, *topics: str) -> list[bytes]:
    """Payloads of all that is ready; acked.

    The host may have passed a call on to one that was lost just then, and does not
    know what came of it: as any consumer, this one asks again.
    """
    taken: list[bytes] = []
    while True:
        try:
            items = await client.dequeue(dict.fromkeys(topics, 100), wait_ms=300)
        except UnknownOutcome:
            continue
        if not items:
            return taken
        taken += [item.payload for item in items]
        for outcome in await client.ack(items):
            outcome.require()
