"""A system that is ready to be measured: its servers run and are empty, and their CPU use is known.

Always true: a stage ends everything that it started. Knows nothing of load.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from foqs_client import Client, Item
from perf.lib import backlog, least_server, machine
from perf.lib.by_hand import prepare_mariadb, prepare_postgres
from perf.lib.coordinated import CoordinatedHost
from perf.lib.servers import FoqsHost, MariaDb, Postgres
from perf.lib.worker import HEAD_BYTES, NUMBER_BYTES

PLAIN: Final = "foqs-mariadb"
COORDINATED: Final = "foqs-zookeeper"
"""The same as a cluster of one host."""
LEAST: Final = "least"
"""No queue: the minimum that any queue in Python must do."""
BY_HAND: Final = ("postgres", "mariadb-prebuilt", "mariadb-aiomysql")
SYSTEMS: Final = (PLAIN, COORDINATED, "foqs-sqlite", *BY_HAND, LEAST)
TEMPLATES: Final = 16
"""Items per shard, so that each shard has one to copy."""
_TEMPLATE_PAUSE_S: Final = 0.05


@dataclass(slots=True)
class Stage:
    """Running servers. `place` is what a worker connects to."""

    system: str
    place: str
    shards: int
    host: FoqsHost | None = None
    mariadb: MariaDb | None = None
    postgres: Postgres | None = None
    least_pid: int | None = None
    versions: dict[str, str] = field(default_factory=dict)

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds of the servers: `host`, `database` and `coordinator`."""
        used = {}
        if self.host is not None:
            used["host"] = machine.cpu_s(self.host.pid)
        if self.least_pid is not None:
            used["host"] = machine.cpu_s(self.least_pid)
        if isinstance(self.host, CoordinatedHost):
            used["coordinator"] = machine.cpu_s(self.host.zookeeper.pid)
        if self.mariadb is not None:
            used["database"] = machine.cpu_s(self.mariadb.pid)
        if self.postgres is not None:
            used["database"] = machine.family_cpu_s(self.postgres.pid)
        return used

    def fill(self, count: int, payload_bytes: int) -> float:
        """Write `count` READY items of one topic, numbered from 0, into the tables, and restart the database.

        Return the seconds from the start of the host on them to its first delivery. Raise ServerNotAvailable.
        """
        assert self.host is not None
        backlog.check_space(self.host.folder, count, payload_bytes)
        asyncio.run(_enqueue_templates(self.host.address, self.shards * TEMPLATES, payload_bytes))
        self.host.stop()
        first = self.shards * TEMPLATES
        padding = payload_bytes - HEAD_BYTES
        if self.mariadb is not None:
            backlog.fill_mariadb(self.mariadb, backlog.shares(self.shards, first, count), padding)
        else:
            files = [self.host.data / f"shard-{shard}.db" for shard in range(self.shards)]
            backlog.fill_sqlite(files, backlog.shares(self.shards, first, count), padding)
        begun = time.monotonic()
        self.host.start()
        return asyncio.run(_first_delivery(self.host.address)) - begun


@contextlib.contextmanager
def stage(
    system: str,
    shards: int,
    options: Mapping[str, Any] = MappingProxyType({}),
    command: Sequence[str] | None = None,
    buffer_pool_mib: int = 1024,
) -> Iterator[Stage]:
    """Run the servers of a system until the block ends.

    Args:
        options: options of the FOQS host's configuration.
        command: the command to run in place of the installed program.
    """
    how: dict[str, Any] = {} if command is None else {"command": command}
    with ExitStack() as started:
        if system == "postgres":
            postgres = started.enter_context(Postgres())
            asyncio.run(prepare_postgres(f"{postgres.folder}:{postgres.port}"))
            place = f"{postgres.folder}:{postgres.port}"
            yield Stage(system, place, 0, postgres=postgres, versions={"postgres": postgres.version})
        elif system == "foqs-sqlite":
            host = started.enter_context(FoqsHost(None, shards, options, **how))
            yield Stage(system, host.address, shards, host=host, versions={"sqlite": sqlite3.sqlite_version})
        else:
            mariadb = started.enter_context(MariaDb(buffer_pool_mib))
            found = Stage(system, str(mariadb.socket), shards, mariadb=mariadb, versions={"mariadb": mariadb.version})
            if system in (PLAIN, COORDINATED):
                kind = FoqsHost if system == PLAIN else CoordinatedHost
                found.host = started.enter_context(kind(mariadb.url(), shards, options, **how))
                found.place = found.host.address
            elif system == LEAST:
                found.place, found.least_pid = started.enter_context(least_server.serving(mariadb))
            else:
                connection = mariadb.connect()
                prepare_mariadb(connection)
                connection.close()
            yield found


async def _enqueue_templates(address: str, count: int, payload_bytes: int) -> None:
    """Enqueue items one by one until every shard has had its turn."""
    async with Client(address, automatic_keys=False) as client:
        for number in range(count):
            payload = b"%016d" % number + b"0" * (HEAD_BYTES - NUMBER_BYTES) + b"x" * (payload_bytes - HEAD_BYTES)
            for result in await client.enqueue([Item("t0", payload)]):
                result.require()
            await asyncio.sleep(_TEMPLATE_PAUSE_S)


async def _first_delivery(address: str) -> float:
    """Return when the first item was delivered, and release it."""
    async with Client(address, automatic_keys=False) as client:
        found = await client.dequeue({"t0": 1}, wait_ms=60_000)
        at = time.monotonic()
        for outcome in await client.release(found):
            outcome.require()
        if not found:
            raise TimeoutError("the host that was started delivers nothing")
        return at
