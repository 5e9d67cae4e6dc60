"""Clears away the rows of idempotency keys that are over, a page at a time.

They are in nobody's way: there is no hurry.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foqs.core.errors import NotOwner, Unavailable
from foqs.core.timing.shard_clock import ShardClock
from foqs.shard.writer import Writer

_PAUSE_BETWEEN_PAGES_MS: Final = 20
"""Between two pages: quicker than rows can come."""

_BATCHING_MS: Final = 1_000
"""How long rows gather before they are cleared away."""


async def run_key_expiry(writer: Writer, shard_clock: ShardClock, interval_ms: int) -> None:
    """Clears until the writer has ended; looks at least every `interval_ms`."""
    while True:
        wait_ms = interval_ms
        try:
            over_ms = await writer.read(lambda store: store.next_key_expiry_ms())
        except (NotOwner, Unavailable):
            if writer.is_ended:
                return
        else:
            now_ms = shard_clock.now_ms()
            if over_ms is not None and over_ms <= now_ms:
                writer.expire_keys(now_ms)
                wait_ms = _PAUSE_BETWEEN_PAGES_MS
            elif over_ms is not None:
                wait_ms = min(wait_ms, over_ms - now_ms + _BATCHING_MS)
        await asyncio.sleep(wait_ms / 1000)
