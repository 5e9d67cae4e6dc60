"""Deletes the rows of idempotency keys whose windows have ended, a page at a time.

Always true: while there are some, each flush deletes more key rows than it adds, so
they never pile up. They harm nothing meanwhile.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from foqs.core.timing.shard_clock import ShardClock
from foqs.shard.writer import Writer
from foqs.store.port import Store
from foqs_contract.errors import NotOwner, Unavailable

_PAUSE_BETWEEN_PAGES_MS: Final = 20
"""The pause between two pages of an idle shard, and so the shortest time between two reads of the oldest row."""

_BATCHING_MS: Final = 1_000
"""How long rows whose windows have ended collect before they are deleted."""


async def run_key_expiry(writer: Writer, shard_clock: ShardClock, interval_ms: int) -> None:
    """Delete rows whose windows have ended, until the writer has ended. Check at least every `interval_ms`.

    Between two reads, each flush deletes a page. Deleted rows may stay in the database's index
    for long. So the index is read only from the oldest row of the last read on, and at most
    from the moment of that read: a key that is written later ends later.
    """
    from_ms = 0
    while True:
        wait_ms = interval_ms
        try:
            asked_ms = shard_clock.now_ms()
            expiry_ms = await writer.read(partial(_next_expiry_ms, from_ms))
        except (NotOwner, Unavailable):
            if writer.is_ended:
                return
        else:
            from_ms = asked_ms if expiry_ms is None else min(asked_ms, expiry_ms)
            now_ms = shard_clock.now_ms()
            is_due = expiry_ms is not None and expiry_ms <= now_ms
            writer.expire_idempotency_keys(from_ms, now_ms if is_due else None)
            if is_due:
                wait_ms = _PAUSE_BETWEEN_PAGES_MS
            elif expiry_ms is not None:
                wait_ms = min(wait_ms, expiry_ms - now_ms + _BATCHING_MS)
        await asyncio.sleep(wait_ms / 1000)


async def _next_expiry_ms(from_ms: int, store: Store) -> int | None:
    return await store.next_key_expiry_ms(from_ms)
