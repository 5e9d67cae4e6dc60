"""A page of a topic's items in one state, best first, over the shards of this host.

Always true: items of equal order keys are sorted by shard, so a cursor is a place in
one order, whichever host continues. Changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from foqs.core.items.item import State, TopicName
from foqs.queue.port import RowView
from foqs.queue.reads.listings import format_cursor, parse_cursor
from foqs.queue.reads.payload_pages import count_fitting, load_payloads
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import DeadlineExceeded


async def peek_topic(
    shards: Sequence[OwnedShard],
    topic: TopicName,
    state: State,
    cursor: str | None,
    limit: int,
    bytes_max: int | None,
    deadline: float,
) -> tuple[list[RowView], str | None]:
    """See `QueueReads.peek`. `bytes_max` limits a page with payloads; None reads no payloads."""
    key, last_shard = (None, 0) if cursor is None else parse_cursor(cursor)
    found: list[RowView] = []
    try:
        async with asyncio.timeout_at(deadline):
            for shard in shards:
                after = key if key is None or shard.number <= last_shard else key - 1
                rows = await shard.queries.in_order(topic, state, after, limit + 1)
                found.extend(
                    RowView(shard.number, row, shard.now_ms(), real_wait_ms=shard.real_ms_until_function())
                    for row in rows
                )
            found.sort(key=lambda item: (item.row.order_key, item.shard))
            page = found[:limit]
            if bytes_max is not None:
                page = page[: count_fitting(page, bytes_max)]
            cursor = format_cursor(page[-1].row.order_key, page[-1].shard) if len(page) < len(found) else None
            return (page if bytes_max is None else await load_payloads(shards, topic[0], page)), cursor
    except TimeoutError:
        raise DeadlineExceeded("the time ran out before every shard replied; try again") from None
