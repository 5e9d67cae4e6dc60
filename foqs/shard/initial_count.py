"""Counts the rows of a shard after its takeover, over a connection of its own.

Always true: the counted snapshot began between two flushes, and the memory's
counts include every change since. Until both are added, the counts lag. Shards
of one database take turns, because a count reads a whole index and competes with
consumers for the database's processors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from foqs.shard.shard_memory import ShardMemory
from foqs.shard.writer import Writer
from foqs.store.port import Store, StoreLost, TopicCount
from foqs_contract.errors import NotOwner, Unavailable

log = logging.getLogger(__name__)


class InitialCount:
    """Counts the items of one shard after its takeover.

    Args:
        retry_pause_s: the pause before another connection is tried.
        count_lock: the lock that is held while a shard of this database is counted.
    """

    def __init__(
        self, writer: Writer, store: Store, memory: ShardMemory, retry_pause_s: float, count_lock: asyncio.Lock
    ) -> None:
        self._writer = writer
        self._store = store
        self._memory = memory
        self._retry_pause_s = retry_pause_s
        self._count_lock = count_lock

    async def run(self) -> None:
        """Count the rows and add the counts to the memory."""
        try:
            while True:
                try:
                    async with self._count_lock:
                        topic_counts = await self._count()
                    break
                except StoreLost as lost:
                    log.warning(
                        "shard %d: the count of its items failed and is tried again: %s", self._writer.shard, lost
                    )
                await asyncio.sleep(self._retry_pause_s)
            await self._add_counts(topic_counts)
        except (NotOwner, Unavailable):
            return  # the writer has ended

    async def _add_counts(self, topic_counts: Sequence[TopicCount]) -> None:
        """Add the counts in steps, with flushes between them. Raises `NotOwner`, `Unavailable`."""
        steps = self._memory.add_counts(topic_counts)

        async def step(_: Store) -> bool:
            return next(steps, False) is None

        while await self._writer.read(step):
            pass

    async def _count(self) -> Sequence[TopicCount]:
        """Count in a snapshot of now. Raises `StoreLost`, `NotOwner`, `Unavailable`."""
        reads, writer = self._store.reads(), self._writer

        async def begin_snapshot(_: Store) -> StoreLost | None:
            try:
                await reads.begin_snapshot(writer.last_committed)
            except StoreLost as lost:
                return lost  # raised here, it would count as the writer's own lost connection
            self._memory.restart_count()
            return None

        try:
            await reads.rows(writer.last_committed, [])  # connect now: flushes wait for the snapshot
            if lost := await writer.read(begin_snapshot):
                raise lost
            return await reads.counts()
        finally:
            await reads.close()  # an open snapshot would keep the database from removing old rows
