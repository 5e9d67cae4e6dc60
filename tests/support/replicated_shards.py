"""A shard of a replicated database as hosts use it: the faulty database of one server, and stores that follow an entry.

Always true: a connection leads to a server that the host's region reaches, and was compared with the entry by the rules of
the product; a flush and a takeover return when the server's COMMIT has, so what follows is behind a barrier. A COMMIT
that waits is ended by nothing but the death of its server. Knows nothing of promotions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from foqs.core.flush.fence import Fence, Owner
from foqs.core.flush.writes import Writes
from foqs.store.in_memory.memory_store import MemoryReads
from foqs.store.in_memory.memory_table import ShardTables
from foqs.store.mysql.expected_server import ExpectedServer, SeenServer
from foqs.store.port import StoreLost
from shardmgr.primary import LossPolicy, Primary
from tests.support.clocks import ServerClock
from tests.support.faulty_database import FaultyDatabaseServer, FaultyReads, FaultyStore
from tests.support.replicated_servers import CommitFailed, DataTransaction, Effect, ReplicatedServer
from tests.support.virtual_time import Pause, SimulatedLoop

_STATEMENT_S: Final = 1.5
"""The limit of a statement: a host learns of a silent partition by it."""

_CONNECTIONS_MAX: Final = 1_000_000
"""No two servers give a connection the same number: a store that moves to another one tells them apart by it."""


class ShardAtServer(FaultyDatabaseServer):
    """What one server has of one shard.

    Args:
        is_reached: returns whether the current host, if any, reaches the server.
        next_flush: numbers the transactions of the database.
        on_returned: called with each transaction whose COMMIT has returned.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        rng: Random,
        clock: ServerClock,
        held_s: Callable[[], float],
        connected: Callable[[FaultyDatabaseServer, int], None],
        server: ReplicatedServer,
        shard: int,
        server_id: int,
        is_reached: Callable[[], bool],
        next_flush: Callable[[], int],
        on_returned: Callable[[DataTransaction], None],
    ) -> None:
        super().__init__(loop, rng, clock, held_s, connected)
        self.server = server
        self.arriving: dict[int, tuple[Fence, Writes]] = {}
        """By connection, what its COMMIT has brought."""
        self._shard = shard
        self._server_id = server_id
        self._is_reached = is_reached
        self._next_flush = next_flush
        self._on_returned = on_returned
        self.tables[shard] = server.tables[shard]
        self._connections = server_id * _CONNECTIONS_MAX

    def seen(self) -> SeenServer:
        """Return what a connection of a host shows."""
        server = self.server
        return SeenServer(self._server_id, server.term, server.is_read_only, server.waits_for_acks)

    def end_connections(self) -> None:
        """End all connections, as the death of the server does, and a promoter that lets it follow."""
        for connection in sorted(self._alive):
            self.kill(connection)

    def connect(self) -> int:
        if not self.server.alive or not self._is_reached():
            self.counts["nobody there"] += 1
            raise StoreLost("the server is not reached")
        return super().connect()

    def is_read_only(self) -> bool:
        return super().is_read_only() or self.server.is_read_only

    async def commit(self, connection: int, take_effect: Callable[[], None]) -> None:
        """Commit what has arrived. Its effect comes from the log, so that each copy has the same. Raises CommitFailed."""
        await super().commit(connection, lambda: None)

    async def sync(self, connection: int) -> None:
        boot = self.server.boot
        fence, writes = self.arriving.pop(connection)
        await super().sync(connection)
        if self.server.boot != boot:
            raise CommitFailed("the server was restarted")
        inserted = len(writes.changes.inserted)
        await self._write(fence.epoch, lambda tables: tables.write(fence, writes), inserted)

    async def _write(self, epoch: int, effect: Effect, inserted: int | None = None) -> None:
        """Commit a transaction. Raises CommitFailed."""
        committed = await self.server.commit(self._shard, epoch, self._next_flush(), effect, inserted)
        self._on_returned(committed)

    async def write_owner(self, connection: int, owner: Owner) -> None:
        """Commit the owner row, with the connection that holds its lock. Raises CommitFailed."""

        def effect(tables: ShardTables) -> None:
            tables.owner = owner

        self._committing.add(connection)
        try:
            await self._write(owner.epoch, effect)
        finally:
            self._committing.discard(connection)

    async def _travel(self) -> None:
        await super()._travel()
        if not self._is_reached():
            await Pause(self.loop, _STATEMENT_S)
            raise StoreLost("no reply in time")


@dataclass(slots=True, frozen=True)
class Access:
    """How a host reaches a shard's database.

    Attributes:
        find: returns what the server of this name, or rather the one to which its address leads now, has of the shard.
        on_refused: called when a connection is refused because it leads to a wrong server.
    """

    find: Callable[[str], ShardAtServer]
    on_refused: Callable[[], None]


class ReplicatedStore(FaultyStore):
    """A host's connection to a shard, at the primary of an entry."""

    _server: ShardAtServer

    def __init__(self, access: Access, shard: int, primary: Primary) -> None:
        self._access = access
        self._primary = primary
        self._expected = ExpectedServer(
            primary.server,
            primary.servers[primary.server].server_id,
            primary.term,
            needs_acks=primary.policy is LossPolicy.SEMI_SYNC,
        )
        super().__init__(access.find(primary.server), shard)

    def reads(self) -> MemoryReads:
        return _ReplicatedReads(self._server, self._shard, self._check)

    def _check(self, server: ShardAtServer) -> None:
        """Raise StoreLost if hosts must not use a server, by the rule of each connection."""
        problem = self._expected.problem(server.seen())
        if problem is not None:
            self._access.on_refused()
            raise StoreLost(problem)

    async def _reconnect(self) -> None:
        self._database.kill(self._connection)
        self._connection = 0
        self._server = found = self._access.find(self._primary.server)
        self._database, self._tables = found, found.tables[self._shard]
        await super()._reconnect()
        try:
            self._check(found)
        except StoreLost:
            found.kill(self._connection)
            raise

    async def _write_owner(self, owner: Owner) -> None:
        """Commit the owner row: when this returns, an acker has all that was read before."""
        self._check_durability()
        server, connection, loop = self._server, self._connection, asyncio.get_running_loop()
        reply: asyncio.Future[bool] = loop.create_future()
        self._committing_connection = connection

        async def work() -> None:
            try:
                await server.write_owner(connection, replace(owner, connection=connection))
                is_written = True
            except CommitFailed:
                is_written = False
            self._end_commit(server, connection, reply, is_written)

        self._commit_task = loop.create_task(work(), context=server.context.copy())
        if not await reply:
            raise StoreLost("the owner row was not written")
        await self._round_trip()

    def _end_commit(self, server: ShardAtServer, connection: int, reply: asyncio.Future[bool], is_done: bool) -> None:
        """Answer the sender. If it is gone, free its lock."""
        if self._committing_connection == connection:
            self._committing_connection = None
        table = server.tables[self._shard]
        is_gone = reply.done() or not server.is_alive(connection)
        if table.locked_by == connection and (is_gone or not is_done):
            server.unlock(table)
        if not reply.done():
            reply.set_result(is_done)

    async def commit(self, fence: Fence, writes: Writes) -> None:
        try:
            async with asyncio.timeout(_STATEMENT_S):
                await super().commit(fence, _copied(writes))
        except TimeoutError:
            self._server.counts["late commits given up"] += 1
            raise StoreLost("no reply to COMMIT in time") from None

    async def _apply(self, connection: int, fence: Fence, writes: Writes, reply: asyncio.Future[bool]) -> None:
        server = self._server
        await server.latency()
        table = server.tables[self._shard]
        is_done = False
        if table.locked_by == connection:
            server.arriving[connection] = fence, writes
            try:
                await server.commit(connection, lambda: None)
            except CommitFailed:
                server.arriving.pop(connection, None)
            else:
                is_done = True
                server.on_committed(self._shard, fence)
            if table.locked_by == connection:
                server.unlock(table)
        if self._committing_connection == connection:
            self._committing_connection = None
        if not reply.done():
            reply.set_result(is_done)


class _ReplicatedReads(FaultyReads):
    """A connection for reading, which is compared with the entry as well."""

    def __init__(self, server: ShardAtServer, shard: int, check: Callable[[ShardAtServer], None]) -> None:
        super().__init__(server, server.tables[shard])
        self._front = server
        self._check = check

    async def _one_way(self) -> None:
        is_new = self._connection is None
        await super()._one_way()
        if is_new:
            try:
                self._check(self._front)
            except StoreLost:
                self._disconnect()
                raise


def _copied(writes: Writes) -> Writes:
    """Return the writes with rows of their own: a replica applies them later, and the host's rows go on."""
    return replace(
        writes,
        inserts=[row.copy() for row in writes.inserts],
        updates=[row.copy() for row in writes.updates],
        moves=[(old, row.copy()) for old, row in writes.moves],
        leases=[replace(each, ids=list(each.ids)) for each in writes.leases],
    )
