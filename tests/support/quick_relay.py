"""A relay in a process of its own, over a real host, which waits less than `foqs relay` for one that has died.

python -m tests.support.quick_relay DATABASE_URL ADDRESS NONCE
"""

from __future__ import annotations

import asyncio
import signal
import sys

from foqs_client import Client
from foqs_client.outbox.outbox_connection import OutboxConnection
from foqs_client.outbox.relay_loop import Relay
from foqs_client.outbox.relay_pauses import RelayPauses
from foqs_client.outbox.relay_queue import ClientQueue
from foqs_client.outbox.relay_tables import RelayTables
from foqs_client.outbox.user_databases import user_database

PAUSES = RelayPauses(takeover_s=2.0, owner_read_s=0.1, round_s=0.2, again_s=0.1)


async def main(url: str, address: str, nonce: str) -> None:
    database = user_database(url)
    async with Client(address, timeout_ms=5_000) as client:
        connection = OutboxConnection(database.connect, database.dialect)
        relay = Relay(RelayTables(connection, nonce), ClientQueue(client), PAUSES)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
        await relay.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
