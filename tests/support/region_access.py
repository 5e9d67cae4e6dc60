"""The servers of a replicated database as the promoters and the publisher of a simulated host reach them.

Always true: as in `plain_database_servers`, and each call takes time. Knows nothing of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Final

from foqs.store.mysql.replica_rows import ReplicaUnread
from shardmgr.loss_report import LastFlush
from tests.support.plain_database_servers import PlainConnection, PlainDatabaseServers
from tests.support.plain_regions import PlainServer, World
from tests.support.replicated_servers import ReplicatedServer
from tests.support.virtual_time import Pause, SimulatedLoop

_CALL_MS: Final = (0.2, 4.0)
_SLOW_CALL_MS: Final = (10.0, 40.0)
"""As between distant regions."""


class _TimedConnection(PlainConnection):
    """A connection whose calls take time."""

    def __init__(self, servers: SimulatedDatabaseServers, server: PlainServer) -> None:
        super().__init__(servers, server)
        self._data = server
        self._timed = servers

    async def last_flushes(self, shards: Collection[int]) -> Sequence[LastFlush]:
        await self._turn()
        assert isinstance(self._data, ReplicatedServer)
        owners = {shard: self._data.tables[shard].owner for shard in sorted(shards)}
        return [
            LastFlush(shard, owner.epoch, owner.flush, owner.clock_ms - owner.offset_ms)
            for shard, owner in owners.items()
            if owner.epoch
        ]

    async def _turn(self) -> None:
        await self._timed.travel()
        await super()._turn()


class SimulatedDatabaseServers(PlainDatabaseServers):
    """The servers of a database for a promoter in one region.

    Args:
        server_ids: by name.
        is_slow: returns whether calls take long now.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        rng: Random,
        world: World,
        region: str,
        server_ids: Mapping[str, int],
        is_slow: Callable[[], bool],
    ) -> None:
        super().__init__(world, region)
        self.server_ids = dict(server_ids)
        self._loop = loop
        self._rng = rng
        self._is_slow = is_slow

    async def travel(self) -> None:
        """Let the time of a call pass."""
        call_ms = _SLOW_CALL_MS if self._is_slow() else _CALL_MS
        await Pause(self._loop, self._rng.uniform(*call_ms) / 1000)

    async def connect(self, name: str) -> PlainConnection:
        await self.travel()
        return await super().connect(name)

    def _connection(self, server: PlainServer) -> PlainConnection:
        return _TimedConnection(self, server)


class SimulatedReplicaRows:
    """Reads the owner rows at one server, for the publisher of a host in a region; see `ReplicaRows`."""

    def __init__(self, servers: SimulatedDatabaseServers, server: ReplicatedServer) -> None:
        self._servers = servers
        self._server = server

    async def read(self, server_id: int, shards: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        await self._servers.travel()
        name = self._server.name
        if not self._servers.is_reached(name) or self._servers.server_ids[name] != server_id:
            raise ReplicaUnread(f"{name} is not reached")
        owners = {shard: self._server.tables[shard].owner for shard in shards}
        return {shard: (owner.epoch, owner.flush) for shard, owner in owners.items() if owner.epoch}

    def close(self) -> None:
        """Do nothing: there is no connection."""
