"""A list of the items of one shard by id, one page per call.

Always true: a page reads a limited number of rows, whether they match or not. An id
never changes, so an item that exists during all pages is listed once, in whatever
state it is when its page is read. The first page fixes the last id and the moment
from which ages count, so the list ends. Changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from foqs.core.items.item import NUMBER_MAX, TIME_MS_MAX
from foqs.queue.port import ItemDetails, RowView, ShardListing, ShardPage
from foqs.queue.reads.payload_pages import count_fitting, load_payloads
from foqs.shard.shard import OwnedShard
from foqs.store.port import IdRange
from foqs_contract.errors import DeadlineExceeded, InvalidArgument

ROWS_PER_READ: Final = 2_000
"""Limit of the rows that a page reads: a few milliseconds of the database's time."""


@dataclass(slots=True, frozen=True)
class PageCursor:
    """The position of a list: after the item `after`, up to the item `last`. `started_ms`: the time of its first page."""

    started_ms: int
    last: int
    after: int

    def __str__(self) -> str:
        return f"{self.started_ms}:{self.last}:{self.after}"


def parse_page_cursor(cursor: str) -> PageCursor:
    """Parse the text of a cursor. Raises `InvalidArgument`."""
    try:
        parsed = PageCursor(*map(int, cursor.split(":", 3)))
    except (TypeError, ValueError):
        parsed = None
    if (
        parsed is None
        or str(parsed) != cursor
        or not 0 <= parsed.started_ms <= TIME_MS_MAX
        or not 0 <= parsed.after <= parsed.last <= NUMBER_MAX
    ):
        raise InvalidArgument(
            "this is not a cursor of an earlier reply to this call; leave it out to begin again", field="page.cursor"
        )
    return parsed


async def list_shard(shard: OwnedShard, listing: ShardListing, bytes_max: int, deadline: float) -> ShardPage:
    """See `QueueReads.list_shard`. `bytes_max` limits a page with payloads."""
    namespace, cursor = listing.namespace, listing.cursor
    start = (
        PageCursor(shard.now_ms(), shard.numbers.next_number - 1, 0) if cursor is None else parse_page_cursor(cursor)
    )
    only = replace(listing.only, at_ms=start.started_ms)
    try:
        async with asyncio.timeout_at(deadline):
            page = await shard.queries.in_id_range(
                namespace, only, IdRange(start.after, start.last, listing.limit, ROWS_PER_READ)
            )
            now_ms, real_wait_ms = shard.now_ms(), shard.real_ms_until_function()
            items = [RowView(shard.number, row, now_ms, real_wait_ms=real_wait_ms) for row in page.rows]
            after = page.last_id
            if listing.with_payload:
                count = count_fitting(items, bytes_max)
                if count < len(items):
                    after = items[count - 1].row.id
                items = await load_payloads([shard], namespace, items[:count])
            if listing.with_key:
                items = await _with_keys(shard, namespace, items)
    except TimeoutError:
        raise DeadlineExceeded("the time ran out before the shard replied; try again") from None
    return ShardPage(items, None if after is None else str(replace(start, after=after)), now_ms)


async def _with_keys(shard: OwnedShard, namespace: str, items: Sequence[RowView]) -> list[RowView]:
    idempotency_keys = await shard.queries.idempotency_keys(namespace, [item.row for item in items])
    return [
        ItemDetails(
            item.shard, item.row, item.now_ms, idempotency_keys.get(item.row.id), real_wait_ms=item.real_wait_ms
        )
        for item in items
    ]
