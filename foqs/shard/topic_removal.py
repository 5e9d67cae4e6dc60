"""Lets the writer remove topics that have been empty for long, also while no call comes.

The flush removes them: each one that is written anyway, or one that is requested here.
Always true: as long as topics have been empty for long enough, each flush removes more
of them than it adds. A takeover loads those that are left.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foqs.core.timing.shard_clock import ShardClock
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.writer import Writer

_PAUSE_BETWEEN_FLUSHES_S: Final = 0.02
_WAIT_S_MIN: Final = 1.0
"""Topics that become removable within this time are removed together."""


class TopicRemoval:
    """The task of one shard that requests flushes while there are topics to remove.

    Args:
        linger_ms: how long a topic must have been empty.
    """

    def __init__(self, writer: Writer, memory: ShardMemory, shard_clock: ShardClock, linger_ms: int) -> None:
        self._writer = writer
        self._memory = memory
        self._shard_clock = shard_clock
        self._linger_ms = linger_ms
        self._wake = asyncio.Event()

    def on_topic_emptied(self) -> None:
        """Wake the task, because a topic has become empty while no other was."""
        self._wake.set()

    async def run(self) -> None:
        """Request flushes while there are topics to remove, until the writer has ended."""
        while not self._writer.is_ended:
            since_ms = self._memory.topic_table.oldest_empty_since_ms
            if since_ms is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            wait_ms = since_ms + self._linger_ms - self._shard_clock.now_ms()
            if wait_ms > 0:
                await asyncio.sleep(max(wait_ms / 1000, _WAIT_S_MIN))
            else:
                self._writer.request_flush()
                await asyncio.sleep(_PAUSE_BETWEEN_FLUSHES_S)
