"""Counts what a shard's tables held when it was taken over, over a connection of its own.

Always true: the snapshot that is counted was begun between two flushes, and every
change since is in the memory's counts already, or comes to them; until both are
added the counts lag. Shards of one database take turns: to count is to read a whole
index, and consumers wait for the same processors. Knows nothing of topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from foqs.core.errors import NotOwner, Unavailable
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.writer import Writer
from foqs.store.port import Store, StoreLost, TopicCount

log = logging.getLogger(__name__)


class InitialCount:
    """One count of one shard.

    Args:
        shard: the shard's, for the log.
        retry_pause_s: the pause before another connection is tried.
        count_lock: held while a shard of this database is counted.
    """

    def __init__(
        self, shard: int, store: Store, memory: ShardMemory, retry_pause_s: float, count_lock: asyncio.Lock
    ) -> None:
        self._shard = shard
        self._store = store
        self._memory = memory
        self._retry_pause_s = retry_pause_s
        self._count_lock = count_lock

    async def run(self, writer: Writer) -> None:
        """Brings the counts of what was there before us; until then they lag."""
        try:
            while True:
                try:
                    async with self._count_lock:
                        found = await self._count(writer)
                    break
                except StoreLost as lost:
                    log.warning("shard %d: its items could not be counted; they will be: %s", self._shard, lost)
                await asyncio.sleep(self._retry_pause_s)
            await self._add_counts(found, writer)
        except (NotOwner, Unavailable):
            return  # the writer has ended

    async def _add_counts(self, topic_counts: Sequence[TopicCount], writer: Writer) -> None:
        """A step at a time, with flushes and others between. Raises `NotOwner`, `Unavailable`."""
        steps = self._memory.add_counts(topic_counts)

        async def step(_: Store) -> bool:
            return next(steps, False) is None

        while await writer.read(step):
            pass

    async def _count(self, writer: Writer) -> Sequence[TopicCount]:
        """In a snapshot of now. Raises `StoreLost`, `NotOwner`, `Unavailable`."""
        reads = self._store.reads()

        async def begin(_: Store) -> StoreLost | None:
            try:
                await reads.begin_snapshot(writer.last_committed)
            except StoreLost as lost:
                return lost  # that connection's trouble is not the writer's
            self._memory.restart_count()
            return None

        try:
            await reads.rows(writer.last_committed, [])  # connects, so that flushes need not wait for that
            if lost := await writer.read(begin):
                raise lost
            return await reads.counts()
        finally:
            await reads.close()  # a snapshot left open would stop the database's clearing up
