"""Makes this host the owner of a shard: connects, takes over, and recovers the memory from rows.

Always true: nothing is written before the takeover except the owner row, and nothing
of a former ownership is used. Knows nothing of assignments and epochs: the supervisor
calls the steps in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from foqs.core.flush.fence import Owner
from foqs.core.memory.row_cache import RowCache
from foqs.shard.host_services import HostDatabase, HostServices
from foqs.shard.owned_store import OwnedStore
from foqs.shard.shard import OwnedShard
from foqs.store.port import Store


class ShardTakeover:
    """One attempt to own a shard: `connect`, `take_over`, `recover`. If a step fails, `disconnect` must follow.

    Args:
        shard: the first part of its items' ids.
        store: the store of the shard, which is not open yet.
        cache: the row cache of the shard, within the host's limits.
        database: the `HostDatabase` that the shards of this host in the same database share.
        term: see `OwnedShard`.
    """

    def __init__(
        self,
        shard: int,
        store: Store,
        cache: RowCache,
        host: HostServices,
        database: HostDatabase,
        *,
        term: int | None = None,
    ) -> None:
        self._shard = shard
        self._store = store
        self._cache = cache
        self._host = host
        self._database = database
        self._term = term
        self._end_clock: Callable[[], None] = _ignore

    async def connect(self) -> None:
        """Open the store. Raises `StoreLost`, `StoreUnusable`."""
        await self._store.open()

    async def read_owner(self) -> Owner:
        """Return the owner row as it is now. Raises `StoreLost`."""
        return await self._store.read_owner()

    async def take_over(self, epoch: int, nonce: str) -> OwnedStore:
        """Become the owner, and return the owned store. Raises `Superseded`, `OtherCluster`, `StoreLost`."""
        return OwnedStore(self._shard, self._store, await self._store.take_over(epoch, nonce))

    async def recover(self, owned: OwnedStore) -> OwnedShard:
        """Return the shard, with its memory rebuilt from rows. Raises `StoreLost`."""
        store, owner, database = owned.store, owned.owner, self._database
        database_ms = await database.sample_clock(store)
        clock = database.clock.start_shard_clock(database_ms, owner.clock_ms, owner.offset_ms, owner.arrival_ms)
        self._end_clock = partial(database.clock.end_shard_clock, clock)
        shard = OwnedShard(owned, clock, self._cache, self._host, database, self.disconnect, term=self._term)
        shard.follow_group_rules()
        for _ in shard.memory.recover(await store.topics(), await store.key_slots(), await store.purge_markers()):
            await asyncio.sleep(0)
        return shard

    async def disconnect(self) -> None:
        """Close the connection and end the clock of the shard. Safe to repeat."""
        self._end_clock()
        await self._store.close()


def _ignore() -> None:
    """Do nothing: there is no clock to end."""
