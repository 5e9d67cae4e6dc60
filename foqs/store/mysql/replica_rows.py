"""Reads the owner rows of shards at a replica, as a host: which flushes are there.

Always true: what is read is committed at the replica. A server with another number than the entry's is not read. A read is
bounded in time. Knows nothing of what follows from the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foqs.store.mysql.mysql_driver import MysqlLink, MysqlLinkLost, MysqlSettings, Result, ServerError
from foqs.store.mysql.replication_sql import IDENTITY, owner_positions
from foqs.store.mysql.schema_upgrade import NO_SUCH_TABLE_CODE

_READ_S: Final = 5.0
_SHARDS_PER_READ: Final = 100


class ReplicaUnread(Exception):
    """A replica was not read: the text says why. A later read may succeed."""


class ReplicaRows:
    """A host's connection to one replica, which is made again after a failure.

    Args:
        settings: the address, and the account of hosts.
    """

    def __init__(self, name: str, settings: MysqlSettings) -> None:
        self._name = name
        self._settings = settings
        self._link: MysqlLink | None = None
        self._server_id = 0

    async def read(self, server_id: int, shards: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the epoch and the last flush of each shard that has an owner row there.

        Args:
            server_id: the number that the server must have.

        Raises:
            ReplicaUnread: it is not reached, or is another server.
        """
        try:
            link = await self._connected(server_id)
            found: dict[int, tuple[int, int]] = {}
            for start in range(0, len(shards), _SHARDS_PER_READ):
                for result in await _read(link, shards[start : start + _SHARDS_PER_READ]):
                    found |= {int(shard): (int(epoch), int(flush)) for shard, epoch, flush in result.rows}
            return found
        except (ServerError, MysqlLinkLost) as error:
            self.close()
            raise ReplicaUnread(f"{self._name}: {error}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection at once. Safe to repeat."""
        if self._link is not None:
            self._link.abort()
            self._link = None

    async def _connected(self, server_id: int) -> MysqlLink:
        if self._link is None:
            self._link = link = await MysqlLink.connect(self._settings)
            link.timeout_s = min(_READ_S, link.timeout_s)
            (found,) = await link.run(IDENTITY)
            self._server_id = int(found.rows[0][1])
        if self._server_id != server_id:
            raise ReplicaUnread(f"{self._name}: its server_id is {self._server_id}, not {server_id}")
        return self._link


async def _read(link: MysqlLink, shards: Sequence[int]) -> list[Result]:
    """Read the rows of these shards at once, or of each half if a table is not there yet: each read is a round trip."""
    try:
        return list(await link.run(owner_positions(shards)))
    except ServerError as error:
        if error.code != NO_SUCH_TABLE_CODE:
            raise
    if len(shards) == 1:
        return []
    half = len(shards) // 2
    return [*await _read(link, shards[:half]), *await _read(link, shards[half:])]
