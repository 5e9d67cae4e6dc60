"""Pages of rows with their payloads, limited in bytes before the payloads are read.

Always true: a page reads at most the bytes that it may carry, or one row. The
size of a row is its actual size, not what its namespace allows now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foqs.queue.port import ITEM_OVERHEAD_BYTES, RowView
from foqs.shard.shard import OwnedShard


def count_fitting(items: Sequence[RowView], bytes_max: int) -> int:
    """Return how many of these rows, from the first, fit into a reply with their payloads: at least one."""
    size = 0
    for count, item in enumerate(items):
        row = item.row
        size += row.payload_bytes + len(row.metadata) + len(row.trace_context or b"") + len(row.item_group or b"")
        size += ITEM_OVERHEAD_BYTES
        if count and size > bytes_max:
            return count
    return len(items)


async def load_payloads(shards: Sequence[OwnedShard], namespace: str, items: Sequence[RowView]) -> list[RowView]:
    """Return these rows with their payloads, without rows that were deleted since. Raises `Unavailable`."""
    payloads: dict[tuple[int, int], bytes | None] = {}
    for shard in shards:
        ids = [item.row.id for item in items if item.shard == shard.number]
        if ids:
            payloads.update(
                {(shard.number, row.id): row.payload for row in await shard.queries.by_number(namespace, ids)}
            )
    return [
        replace(item, row=replace(item.row, payload=payloads[item.shard, item.row.id]))
        for item in items
        if (item.shard, item.row.id) in payloads
    ]
