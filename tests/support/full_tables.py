"""Fills a shard's table with many rows of one topic, as version 7 writes them, by SQL.

Always true: of ten rows seven are READY and three DEFERRED for years, so that none is
ever due. Ids are those of an epoch that no owner uses. Knows nothing of hosts.
"""

from __future__ import annotations

from typing import Final

from foqs.core.items.item import SEQUENCE_BITS, State
from foqs.dev.mariadb_server import MariaDb
from foqs.store.row_columns import NEVER_MS

ROWS_PER_INSERT: Final = 250_000
FIRST: Final = 1 << SEQUENCE_BITS - 1
"""Below all ids of the first epoch."""
NOW_MS: Final = 1_800_000_000_000
FAR_MS: Final = 4_000_000_000_000


def fill_tables(server: MariaDb, item: str, topic: str, count: int) -> None:
    """Insert the rows into the table `item`, without syncing each statement."""
    digits = f"{item.partition('.')[0]}.digits"
    server.query(f"CREATE TABLE IF NOT EXISTS {digits} (n INT NOT NULL PRIMARY KEY)")
    server.query(f"INSERT IGNORE INTO {digits} VALUES {','.join(f'({n})' for n in range(10))}")
    server.query("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    number = " + ".join(f"d{power}.n * {10**power}" for power in range(6))
    tables = " STRAIGHT_JOIN ".join(f"{digits} AS d{power}" for power in reversed(range(6)))
    deferred = f"{number} < 1000000 AND d0.n < 3"
    for start in range(0, count, ROWS_PER_INSERT):
        rows = min(ROWS_PER_INSERT, count - start)
        server.query(
            f"INSERT INTO {item} (id, namespace, topic, priority, deliver_after_ms, enqueued_at_ms, lease_ms, policy, "
            "attempts_max, payload_bytes, payload, metadata, state, due_ms, token, attempt) "
            f"SELECT {FIRST + start} + {number}, 'default', '{topic}', 0, {NOW_MS}, {NOW_MS}, 30000, 1, 0, 20, "
            f"'01234567890123456789', '', IF({deferred}, {State.DEFERRED:d}, {State.READY:d}), "
            f"IF({deferred}, {FAR_MS} + {number}, {NEVER_MS}), 0, 0 FROM {tables} WHERE {number} < {rows}"
        )
    database = item.partition(".")[0]
    shard = item.rpartition("foqs_")[2].partition("_")[0]
    server.query(f"INSERT IGNORE INTO {database}.foqs_{shard}_topic VALUES ('default', '{topic}')")
    server.query("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
