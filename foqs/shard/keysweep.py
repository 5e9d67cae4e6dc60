"""Clears away the rows of idempotency keys that are over, a page at a time.

They are in nobody's way: there is no hurry.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foqs.core.errors import NotOwner, Unavailable
from foqs.core.shardtime import ShardTime
from foqs.shard.writer import Writer

_PAGE_MS: Final = 20
"""Between two pages: quicker than rows can come."""

_GATHER_MS: Final = 1_000
"""How long rows gather before they are cleared away."""


async def sweep_keys(writer: Writer, time: ShardTime, interval_ms: int) -> None:
    """Clears until the writer has ended; looks at least every `interval_ms`."""
    while True:
        wait_ms = interval_ms
        try:
            over_ms = await writer.read(lambda store: store.next_key_over_ms())
        except (NotOwner, Unavailable):
            if writer.ended:
                return
        else:
            now_ms = time.now_ms()
            if over_ms is not None and over_ms <= now_ms:
                writer.clear_keys(now_ms)
                wait_ms = _PAGE_MS
            elif over_ms is not None:
                wait_ms = min(wait_ms, over_ms - now_ms + _GATHER_MS)
        await asyncio.sleep(wait_ms / 1000)
