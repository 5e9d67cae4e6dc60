"""Counts what a shard's tables held when it was taken over, over a connection of its own.

Always true: the snapshot that is counted was begun between two flushes, and every
change since is in the memory's counts already, or comes to them; until both are
added the counts lag. Knows nothing of topics.
"""

from __future__ import annotations

import asyncio
import logging

from foqs.core.errors import NotOwner, Unavailable
from foqs.core.fence import Fence
from foqs.shard.memory import ShardMemory
from foqs.shard.writer import Writer
from foqs.store.port import Store, StoreLost

log = logging.getLogger(__name__)


class Counting:
    """One count of one shard.

    Args:
        number: the shard's, for the log.
        retry_s: the pause before another connection is tried.
    """

    def __init__(self, number: int, store: Store, memory: ShardMemory, retry_s: float) -> None:
        self._number = number
        self._store = store
        self._memory = memory
        self._retry_s = retry_s
        self._reads = store.reads()

    async def begin(self, past: Fence) -> None:
        """Takes the snapshot. Before anything is written, so that what is written from now on need only be added.

        Raises `StoreLost`.
        """
        await self._reads.snapshot(past)

    async def run(self, writer: Writer) -> None:
        """Brings the counts of what was there before us; until then they lag."""
        try:
            while True:
                try:
                    found = await self._reads.counts()
                    break
                except StoreLost as lost:
                    log.warning("shard %d: its items could not be counted; they will be: %s", self._number, lost)
                await self._begin_anew(writer)
        except (NotOwner, Unavailable):
            return  # the writer has ended
        finally:
            await self.close()
        writer.between(lambda: self._memory.counted(found))

    async def close(self) -> None:
        """A snapshot left open would stop the database's clearing up."""
        await self._reads.close()

    async def _begin_anew(self, writer: Writer) -> None:
        """Another snapshot, after a pause, and counts that begin with it. Raises `NotOwner`, `Unavailable`."""

        async def begin(_: Store) -> bool:
            try:
                await self._reads.snapshot(writer.past)
            except StoreLost:
                return False  # that connection's trouble is not the writer's
            self._memory.count_anew()
            return True

        while True:
            await self._reads.close()
            await asyncio.sleep(self._retry_s)
            self._reads = self._store.reads()
            try:
                await self._reads.rows(writer.past, [])  # connects, so that flushes need not wait for that
            except StoreLost:
                continue
            if await writer.read(begin):
                return
