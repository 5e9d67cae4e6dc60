"""Requests flushes for the journal of a shard, so that rows are written back and the journal is trimmed while no call comes.

Always true: while the store journals, the next request comes no later than the journal needs it. Knows
nothing of what such a flush writes: the store adds that.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foqs.shard.writer import Writer
from foqs.store.port import Store

_PAUSE_BETWEEN_FLUSHES_S: Final = 0.02


async def run_write_back(writer: Writer, store: Store) -> None:
    """Request flushes whenever the journal needs one, until the writer has ended. Returns if the store does not journal."""
    while not writer.is_ended and (status := store.journal) is not None:
        if status.next_flush_ms > 0:
            await asyncio.sleep(status.next_flush_ms / 1000)
        else:
            writer.request_flush()
            await asyncio.sleep(_PAUSE_BETWEEN_FLUSHES_S)
