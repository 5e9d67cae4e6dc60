"""txoutbox, a published outbox, with a FOQS host as its broker. Its settings are those of its page.

python -m perf.lib.peers.txoutbox_relay DATABASE_URL ADDRESS keys|plain
"""

from __future__ import annotations

import asyncio
import sys

from txoutbox import OutboxMessage, Relay
from txoutbox.adapters.postgres import PostgresStorage

from foqs_client import Client, Item

_TIMEOUT_MS = 4_000
"""Less than its relay waits for a publisher."""


async def create_tables(url: str) -> None:
    """Create its table."""
    storage = await PostgresStorage.connect(url)
    await storage.create_schema()
    await storage.close()


async def main(url: str, address: str, keys: str) -> None:
    storage = await PostgresStorage.connect(url, min_size=1, max_size=4, delete_on_ack=True)
    async with Client(address) as client:

        async def publish(message: OutboxMessage) -> None:
            key = f"outbox-{message.id}" if keys == "keys" else None
            item = Item(message.topic, message.payload, idempotency_key=key)
            [result] = await client.enqueue([item], timeout_ms=_TIMEOUT_MS)
            result.require()

        await Relay(storage, publish).run(handle_signals=True)
    await storage.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
