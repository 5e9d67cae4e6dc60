"""The servers of `plain_regions` as a promoter reaches them.

Always true: as with real servers, a connection ends those of earlier promoters, and a
command over an ended one fails. Each await lets others run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from shardmgr.loss_report import LastFlush
from shardmgr.primary import ServerReport
from shardmgr.promotion import SendCommand, ServerCommand
from shardmgr.server_port import ServerFailed
from tests.support.plain_regions import REGIONS, PlainPromoter, PlainServer, World

SERVER_IDS = {name: number for number, name in enumerate(REGIONS, 11)}


class PlainConnection:
    """Implements `shardmgr.server_port.ServerConnection`."""

    def __init__(self, servers: PlainDatabaseServers, server: PlainServer) -> None:
        self.server_id = servers.server_ids[server.name]
        self._servers = servers
        self._server = server
        self._made = (server.boot, server.promoter)
        self._is_closed = False

    @property
    def is_usable(self) -> bool:
        return not self._is_closed and self._made == (self._server.boot, self._server.promoter)

    async def standing(self) -> str:
        await self._turn()
        return self._server.standing

    async def report(self, standing: str) -> ServerReport:
        await self._turn()
        report = self._servers.promoter.report(self._server)
        return report if report.standing == standing else replace(report, standing="")

    async def last_flushes(self, shards: Collection[int]) -> Sequence[LastFlush]:
        """Return for each shard with tables the last flush of the log: there is one log."""
        await self._turn()
        epoch, flush = self._server.epoch, max(self._server.flushes, default=0)
        there = sorted(set(shards) - self._servers.shards_without_tables)
        unread = self._servers.unread_shards
        return [
            LastFlush(shard, 0, 0, 0, problem=unread[shard])
            if shard in unread
            else LastFlush(shard, epoch, flush, 7_000)
            for shard in there
        ]

    async def end_reception(self, replica: str) -> None:
        await self._turn()
        if replica not in self._servers.locked:
            raise ServerFailed(f"{self._server.name}: {replica} can still receive from it")
        self._servers.ended_receptions.append((self._server.name, replica))

    async def refuses(self, replica: str) -> bool:
        await self._turn()
        return replica in self._servers.locked or (self._server.name, replica) in self._servers.locked_at

    async def carry_out(self, step: SendCommand) -> None:
        await self._turn()
        self._servers.sent.append(step)
        if (step.server, step.command) in self._servers.failing:
            raise ServerFailed(f"{step.server}: the statement ended without an effect")
        self._server.carry_out(step)

    def close(self) -> None:
        self._is_closed = True

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        if not self.is_usable or not self._servers.is_reached(self._server.name):
            self._is_closed = True
            raise ServerFailed(f"{self._server.name}: the connection was ended")


class PlainDatabaseServers:
    """Implements `shardmgr.server_port.DatabaseServers`, for a promoter in one region.

    Args:
        on_connect: called with each name before the connect.
    """

    def __init__(self, world: World, region: str, on_connect: Callable[[str], None] = lambda _: None) -> None:
        self.names: tuple[str, ...] = REGIONS
        self.server_ids = dict(SERVER_IDS)
        self.sent: list[SendCommand] = []
        self.failing: set[tuple[str, ServerCommand]] = set()
        """The commands that have no effect, by server."""
        self.shards_without_tables: set[int] = set()
        self.unread_shards: dict[int, str] = {}
        """By shard, why its owner row cannot be read."""
        self.locked = world.locked
        self.locked_at: set[tuple[str, str]] = set()
        """The servers, and the replicas whose accounts are locked only there."""
        self.ended_receptions: list[tuple[str, str]] = []
        self.promoter = PlainPromoter(world, region, lambda: True)
        self._world = world
        self._region = region
        self._on_connect = on_connect

    def is_reached(self, name: str) -> bool:
        return self._world.reaches(self._region, name)

    async def connect(self, name: str) -> PlainConnection:
        self._on_connect(name)
        await asyncio.sleep(0)
        if not self.is_reached(name):
            raise ServerFailed(f"{name}: it is not reached")
        self.promoter.connect(name)
        return self._connection(self._world.servers[name])

    def _connection(self, server: PlainServer) -> PlainConnection:
        return PlainConnection(self, server)
