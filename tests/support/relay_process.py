"""A relay in a process of its own, over SQLite files. It kills itself at a step, or relays until SIGTERM.

python -m tests.support.relay_process USER_FILE QUEUE_FILE [STEP TIMES]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from foqs_client import Item
from foqs_client.errors import FoqsError
from foqs_client.outbox.outbox_connection import OutboxConnection
from foqs_client.outbox.outbox_sql import Dialect
from foqs_client.outbox.relay_loop import Relay
from foqs_client.outbox.relay_memory import SendCall
from foqs_client.outbox.relay_pauses import RelayPauses
from foqs_client.outbox.relay_tables import OutboxOwner, RelayTables

STEPS = (
    ("take over", 1),
    ("took over", 1),
    ("commit", 1),
    ("committed", 1),
    ("send", 1),
    ("sent", 1),
    ("commit", 2),
    ("committed", 2),
)
"""Each step of a relay, and the occurrence at which it dies there. The second COMMIT deletes what was sent."""
QUICK = RelayPauses(takeover_s=0.05, owner_read_s=0.02, again_s=0.05)

AtStep = Callable[[str], None]


class FileQueue:
    """A queue in a file, which remembers all keys."""

    def __init__(self, path: Path, at_step: AtStep = lambda step: None) -> None:
        self._at_step = at_step
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("CREATE TABLE IF NOT EXISTS item (number INTEGER PRIMARY KEY, key UNIQUE, payload)")

    async def keys_until_ms(self) -> int:
        return 1

    async def send(self, call: SendCall) -> Mapping[int, FoqsError | None]:
        self._at_step("send")
        for row in call.rows:
            assert isinstance(row.item, Item)
            values = (row.item.idempotency_key, row.item.payload)
            self._connection.execute("INSERT OR IGNORE INTO item (key, payload) VALUES (?, ?)", values)
        self._at_step("sent")
        return {row.id: None for row in call.rows}

    def payloads(self) -> list[bytes]:
        """Return the payloads in the order in which the items came."""
        return [payload for (payload,) in self._connection.execute("SELECT payload FROM item ORDER BY number")]

    def close(self) -> None:
        self._connection.close()


class _Cursor(sqlite3.Cursor):
    at_step: AtStep

    def execute(self, statement: str, *values: Any) -> Self:
        if statement != "COMMIT":
            super().execute(statement, *values)
            return self
        self.at_step("commit")
        super().execute(statement, *values)
        self.at_step("committed")
        return self


class _Tables(RelayTables):
    at_step: AtStep

    def take_over(self, owner: OutboxOwner) -> bool:
        self.at_step("take over")
        has_taken = super().take_over(owner)
        self.at_step("took over")
        return has_taken


async def _relay(user: Path, queue_path: Path, at_step: AtStep) -> None:
    class Cursor(_Cursor):
        pass

    Cursor.at_step = staticmethod(at_step)

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return Cursor(self)

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(user, isolation_level=None, factory=Connection)

    tables = _Tables(OutboxConnection(connect, Dialect.SQLITE), uuid.uuid4().hex)
    tables.at_step = at_step
    with closing(FileQueue(queue_path, at_step)) as queue:
        relay = Relay(tables, queue, QUICK)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
        await relay.run()


def main(user: str, queue: str, step: str = "", times: str = "0") -> None:
    seen: Counter[str] = Counter()

    def at_step(name: str) -> None:
        seen[name] += 1
        if (name, seen[name]) == (step, int(times)):
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(_relay(Path(user), Path(queue), at_step))


if __name__ == "__main__":
    main(*sys.argv[1:])
