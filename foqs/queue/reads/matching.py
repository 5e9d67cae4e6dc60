"""Lists the items that match a filter, page by page, over the shards of this host.

Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from foqs.core.items.row_filter import RowFilter
from foqs.queue.port import RowView
from foqs.queue.reads.filter_walk import FilterWalk, parse_filter_walk_cursor, read_deadline
from foqs.queue.reads.payload_pages import count_fitting, load_payloads
from foqs.shard.shard import OwnedShard


async def list_matching(
    shards: Sequence[OwnedShard],
    namespace: str,
    item_filter: RowFilter,
    cursor: str | None,
    limit: int,
    bytes_max: int | None,
    deadline: float,
) -> tuple[list[RowView], str | None]:
    """See `QueueReads.list_matching`. `bytes_max` limits a page with payloads; None reads no payloads."""
    walk = FilterWalk(shards, namespace, item_filter, None if cursor is None else parse_filter_walk_cursor(cursor))
    async with read_deadline(deadline):
        found = await walk.read_page(limit)
        end = walk.cursor
        if bytes_max is not None:
            count = count_fitting(found, bytes_max)
            if count < len(found):
                end = walk.cursor_before(found[count])
            found = await load_payloads(shards, namespace, found[:count])
    return found, None if end is None else str(end)
