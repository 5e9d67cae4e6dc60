"""Deletes expired rows of idempotency keys, a page at a time.

They harm nothing meanwhile, so there is no hurry.
"""

from __future__ import annotations

import asyncio
from typing import Final

from foqs.core.timing.shard_clock import ShardClock
from foqs.shard.writer import Writer
from foqs_contract.errors import NotOwner, Unavailable

_PAUSE_BETWEEN_PAGES_MS: Final = 20
"""Pages are deleted faster than rows can be added."""

_BATCHING_MS: Final = 1_000
"""How long expired rows collect before they are deleted."""


async def run_key_expiry(writer: Writer, shard_clock: ShardClock, interval_ms: int) -> None:
    """Delete expired rows until the writer has ended; check at least every `interval_ms`."""
    while True:
        wait_ms = interval_ms
        try:
            expiry_ms = await writer.read(lambda store: store.next_key_expiry_ms())
        except (NotOwner, Unavailable):
            if writer.is_ended:
                return
        else:
            now_ms = shard_clock.now_ms()
            if expiry_ms is not None and expiry_ms <= now_ms:
                writer.expire_keys(now_ms)
                wait_ms = _PAUSE_BETWEEN_PAGES_MS
            elif expiry_ms is not None:
                wait_ms = min(wait_ms, expiry_ms - now_ms + _BATCHING_MS)
        await asyncio.sleep(wait_ms / 1000)
