"""A system that is ready to be measured: its servers run and are empty, and their CPU use is known.

Always true: a stage ends everything that it started. Knows nothing of load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Final

from foqs_client import Client, Item
from perf.lib import backlog, least_server, machine
from perf.lib.by_hand import prepare_mariadb, prepare_postgres
from perf.lib.coordinated import CoordinatedHost
from perf.lib.payload import HEAD_BYTES, NUMBER_BYTES
from perf.lib.peers import pgqueuer_queue
from perf.lib.peers.beanstalkd_queue import Beanstalkd
from perf.lib.peers.nats_queue import Nats
from perf.lib.peers.peer import Peer
from perf.lib.peers.rabbitmq_queue import RabbitMq
from perf.lib.peers.redis_queue import Redis
from perf.lib.servers import FoqsHost, MariaDb, MySql9, Postgres, ServerNotAvailable
from perf.lib.sql_side import MysqlSide, PostgresSide, SqliteSide, SqlSide

PLAIN: Final = "foqs-mariadb"
COORDINATED: Final = "foqs-zookeeper"
"""The same as a cluster of one host."""
LEAST: Final = "least"
"""No queue: the minimum that any queue in Python must do."""
MYSQL9: Final = "foqs-mysql9"
BY_HAND: Final = ("postgres", "mariadb-prebuilt", "mariadb-aiomysql")
PEERS: Final[Mapping[str, Callable[[int], Peer]]] = {
    "redis": lambda topics: Redis(),
    "rabbitmq-classic": lambda topics: RabbitMq("classic", topics),
    "rabbitmq-quorum": lambda topics: RabbitMq("quorum", topics),
    "nats": lambda topics: Nats(),
    "beanstalkd": lambda topics: Beanstalkd(),
}
"""Servers that are queues, or on which one is written by hand, by the number of topics."""
SYSTEMS: Final = (PLAIN, COORDINATED, MYSQL9, "foqs-sqlite", *BY_HAND, "pgqueuer", *PEERS, LEAST)
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
    peer: Peer | None = None
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
        if self.peer is not None:
            used["database"] = machine.family_cpu_s(self.peer.pid)
        return used

    def side(self) -> SqlSide:
        """Connect to the system's database beside the queue. Raise ServerNotAvailable if it has no SQL database."""
        if self.postgres is not None:
            return PostgresSide(self.place, "item" if self.system == "postgres" else "pgqueuer")
        if self.mariadb is not None:
            tables = ["item"] if self.host is None else [f"foqs_{shard}_item" for shard in range(self.shards)]
            return MysqlSide(self.mariadb.socket, tables)
        if self.host is not None:
            return SqliteSide([self.host.data / f"shard-{shard}.db" for shard in range(self.shards)])
        raise ServerNotAvailable(f"{self.system} has no SQL database")

    def waiting(self) -> int:
        """Return how many items the system itself counts as not done."""
        if self.peer is not None:
            return self.peer.waiting()
        with contextlib.closing(self.side()) as side:
            return side.count()

    def fill(self, count: int, payload_bytes: int) -> float:
        """Write `count` items of one topic, numbered from 0, into the system, which is empty. Raise ServerNotAvailable.

        The tables of a host are written while it is stopped, and the database is restarted. Return the seconds from
        the start of the host on them to its first delivery, or 0 if there is no host.
        """
        if self.peer is not None:
            self.peer.fill(count, payload_bytes)
            return 0.0
        if self.system == "pgqueuer":
            asyncio.run(pgqueuer_queue.fill(self.place, count, payload_bytes))
            return 0.0
        if self.host is None:
            with contextlib.closing(self.side()) as side:
                assert isinstance(side, MysqlSide | PostgresSide)
                side.fill(count, payload_bytes)
            return 0.0
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


def add_stage_options(parser: argparse.ArgumentParser, *, shards: int) -> None:
    """Add `--system`, one of those with a FOQS host, and `--shards` with its default."""
    systems = [name for name in SYSTEMS if name.startswith("foqs")]
    parser.add_argument("--shards", type=int, default=shards)
    parser.add_argument("--system", choices=systems, default=PLAIN)


@contextlib.contextmanager
def stage(
    system: str,
    shards: int,
    options: Mapping[str, Any] = MappingProxyType({}),
    command: Sequence[str] | None = None,
    buffer_pool_mib: int = 1024,
    topics: int = 1,
) -> Iterator[Stage]:
    """Run the servers of a system until the block ends.

    Args:
        topics: the number of topics, for systems that must know them.
        options: options of the FOQS host's configuration.
        command: the command to run in place of the installed program.
    """
    how: dict[str, Any] = {} if command is None else {"command": command}
    with ExitStack() as started:
        if system in PEERS:
            peer = PEERS[system](topics)
            started.enter_context(peer)
            yield Stage(system, peer.place, 0, peer=peer, versions={peer.name: peer.version})
        elif system in ("postgres", "pgqueuer"):
            postgres = started.enter_context(Postgres())
            place = f"{postgres.folder}:{postgres.port}"
            versions = {"postgres": postgres.version}
            if system == "postgres":
                asyncio.run(prepare_postgres(place))
            else:
                asyncio.run(pgqueuer_queue.prepare(place))
                versions["pgqueuer"] = version("pgqueuer")
            yield Stage(system, place, 0, postgres=postgres, versions=versions)
        elif system == "foqs-sqlite":
            host = started.enter_context(FoqsHost(None, shards, options, **how))
            yield Stage(system, host.address, shards, host=host, versions={"sqlite": sqlite3.sqlite_version})
        else:
            mariadb = started.enter_context((MySql9 if system == MYSQL9 else MariaDb)(buffer_pool_mib))
            versions = {mariadb.name: mariadb.version}
            found = Stage(system, str(mariadb.socket), shards, mariadb=mariadb, versions=versions)
            if system in (PLAIN, COORDINATED, MYSQL9):
                kind = CoordinatedHost if system == COORDINATED else FoqsHost
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
