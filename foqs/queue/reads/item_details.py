"""Reads one item with its key and its payload."""

from __future__ import annotations

import asyncio

from foqs.queue.port import ItemDetails
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import DeadlineExceeded, NotFound


async def read_item(owner: OwnedShard, namespace: str, number: int, deadline: float) -> ItemDetails:
    """See `QueueReads.get_item`."""
    try:
        async with asyncio.timeout_at(deadline):
            rows = await owner.queries.by_number(namespace, [number])
            if not rows or rows[0].namespace != namespace:
                raise NotFound("no such item in this namespace; it may have been acked, cancelled or expired")
            idempotency_keys = await owner.queries.idempotency_keys(namespace, rows)
    except TimeoutError:
        raise DeadlineExceeded("the time ran out before the shard replied; try again") from None
    return ItemDetails(
        owner.number, rows[0], owner.now_ms(), idempotency_keys.get(number), real_wait_ms=owner.real_ms_until_function()
    )
