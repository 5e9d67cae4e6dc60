"""Pages of rows with their payloads, which are weighed before they are read.

Always true: a page reads no more bytes than it may carry, or one row. What a
row weighs is what it holds, whatever its namespace allows now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from foqs.queue.port import ItemView
from foqs.shard.shard import Shard

ITEM_OVERHEAD_BYTES: Final = 1_024
"""Of an item in a reply: its names and numbers."""


def count_fitting(items: Sequence[ItemView], bytes_max: int) -> int:
    """Returns how many of these rows, from the first, fit into a reply with their payloads: one at least."""
    size = 0
    for place, seen in enumerate(items):
        size += seen.row.payload_bytes + len(seen.row.metadata) + ITEM_OVERHEAD_BYTES
        if place and size > bytes_max:
            return place
    return len(items)


async def load_payloads(shards: Sequence[Shard], namespace: str, items: Sequence[ItemView]) -> list[ItemView]:
    """Returns these rows with their payloads. Rows that are gone by now are left out. Raises `Unavailable`."""
    payloads: dict[tuple[int, int], bytes | None] = {}
    for shard in shards:
        ids = [seen.row.id for seen in items if seen.shard == shard.number]
        if ids:
            payloads.update({(shard.number, row.id): row.payload for row in await shard.read_rows(namespace, ids)})
    return [
        replace(seen, row=replace(seen.row, payload=payloads[seen.shard, seen.row.id]))
        for seen in items
        if (seen.shard, seen.row.id) in payloads
    ]
