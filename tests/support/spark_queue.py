"""A host and its tables, for the tests of the Spark sinks.

Always true: the tables are read directly, so nothing that the host believes counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from foqs_client import Namespace, SyncClient
from tests.support.processes import WAITING_HOST, RestartableHost
from tests.support.tables import Tables, in_sqlite

SHARDS: Final = 4
DAY_MS: Final = 86_400_000


class SparkQueue:
    """A host and its tables."""

    def __init__(self, host: RestartableHost, tables: Tables) -> None:
        self.host = host
        self.tables = tables

    @property
    def url(self) -> str:
        return self.host.address

    def rows(self, topic: str, columns: str = "payload") -> list[tuple[Any, ...]]:
        """Return columns of the topic's items."""
        return [
            tuple(row[1:])
            for shard in self.tables.shards
            for row in self.tables.query(shard, f"SELECT topic, {columns} FROM {{item}}")
            if row[0] == topic
        ]

    def set_key_window(self, window_ms: int, namespace: str = "default") -> None:
        with SyncClient(self.url) as client:
            client.update_namespace(Namespace(namespace, key_window_ms=window_ms))


@contextmanager
def spark_queue(folder: Path) -> Iterator[SparkQueue]:
    """Yield a host with its data in `folder`."""
    # A slow machine does not open the circuit breaker.
    options = {"store.shards": SHARDS, "shard.breaker_latency_ms_max": 60_000}
    with RestartableHost(folder / "host", f"sqlite:{folder / 'data'}", options, WAITING_HOST) as host:
        host.start()
        yield SparkQueue(host, in_sqlite(folder / "data", SHARDS))
