"""Calls on all items that match a filter: list, count and change, one page per call.

A page is read outside of the flushes (`filter_walk`). A change submits an
ordinary event per item, which carries the filter: the flush checks the filter
again, so an item that no longer matches is not changed. Always true: times in a
change are absolute from the start of the walk, so that an item is changed once,
wherever the change moves it, and a page can be repeated safely; the events of a
page belong to one shard, so all or none are queued.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, TypeAlias

from foqs.core.items.item import TIME_MS_MAX, Row, State
from foqs.core.items.item_filter import ItemFilter
from foqs.core.items.life import Event, EventKind
from foqs.queue.filter_walk import Walk, WalkCursor, parse_walk_cursor
from foqs.queue.payload_pages import count_fitting, load_payloads
from foqs.queue.port import BulkPage, ItemCount, ItemView, Outcome, PendingCall
from foqs.shard.shard import Shard
from foqs_contract.errors import DeadlineExceeded, InvalidArgument, LimitExceeded, NotFound, UnknownOutcome

READS_MAX: Final = 20
"""A page ends after this many reads, because they may find few matches."""

COUNT_ROWS_PER_READ: Final = 1_000
"""Rows that one read of a count looks at. A longer read would delay the shard's other reads."""
COUNT_TOPICS_PER_STEP: Final = 1_000
"""Topics whose counts are added in one turn of the event loop: about a millisecond."""

ApplyEvents: TypeAlias = Callable[
    [str, Sequence[tuple[int, Event]], float, Callable[[list[Outcome]], None]],
    PendingCall,
]
"""See `Queue.apply`."""


async def list_matching(
    shards: Sequence[Shard],
    namespace: str,
    item_filter: ItemFilter,
    cursor: str | None,
    limit: int,
    bytes_max: int | None,
    deadline: float,
) -> tuple[list[ItemView], str | None]:
    """See `Queue.list_matching`. `bytes_max` limits a page with payloads; None reads no payloads."""
    walk = Walk(shards, namespace, item_filter, _parse_cursor(cursor))
    found: list[ItemView] = []
    async with _read_deadline(deadline):
        await walk.start()
        for _ in range(READS_MAX):
            if walk.cursor is None or len(found) == limit:
                break
            found += await walk.read(limit - len(found))
        next_cursor = _format_cursor(walk.cursor)
        if bytes_max is not None:
            count = count_fitting(found, bytes_max)
            if count < len(found):
                next_cursor = _format_cursor(walk.cursor_before(found[count]))
            found = await load_payloads(shards, namespace, found[:count])
    return found, next_cursor


async def count_matching(
    shards: Sequence[Shard], namespace: str, item_filter: ItemFilter, deadline: float
) -> ItemCount:
    """See `Queue.count_matching`."""
    if item_filter.is_by_topic_and_state and not any(shard.counts.is_lagging for shard in shards):
        async with _read_deadline(deadline):
            return ItemCount(sum([await _sum_counts(shard, namespace, item_filter) for shard in shards]), None)
    walk = Walk(shards, namespace, item_filter, None)
    items = payload_bytes = 0
    async with _read_deadline(deadline):
        await walk.start()
        while walk.cursor is not None:
            rows = [item.row for item in await walk.read(COUNT_ROWS_PER_READ)]
            items += len(rows)
            payload_bytes += sum(row.payload_bytes for row in rows)
    return ItemCount(items, payload_bytes)


async def change_matching(
    shards: Sequence[Shard],
    apply: ApplyEvents,
    namespace: str,
    change: Event,
    item_filter: ItemFilter,
    cursor: str | None,
    limit: int,
    deadline: float,
) -> BulkPage:
    """See `Queue.change_matching`."""
    walk = Walk(shards, namespace, item_filter, _parse_cursor(cursor))
    event = _with_absolute_time(change, walk.item_filter)
    found: list[ItemView] = []
    async with _read_deadline(deadline):
        await walk.start()
        shard = walk.shard_number
        for _ in range(READS_MAX):
            if walk.shard_number is None or walk.shard_number != shard or len(found) == limit:
                break
            found += await walk.read(limit - len(found))
    # An item that changed its state while the page was read may have been found twice.
    found = [item for item in {item.row.id: item for item in found}.values() if not _is_already_changed(item, event)]
    if not found:
        return BulkPage(0, 0, None, _format_cursor(walk.cursor))
    all_outcomes: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

    def on_done(outcomes: list[Outcome]) -> None:
        if not all_outcomes.done():
            all_outcomes.set_result(outcomes)

    try:
        apply(namespace, [(item.shard, replace(event, id=item.row.id)) for item in found], deadline, on_done)
    except LimitExceeded as error:  # the target of a move is one topic too many
        error.field = "move_to"
        raise
    return _bulk_page(change, found, await all_outcomes, walk)


def _bulk_page(change: Event, items: Sequence[ItemView], outcomes: Sequence[Outcome], walk: Walk) -> BulkPage:
    """Return the result of a page. Raises `UnknownOutcome`, or the error if nothing was changed."""
    changed, matched, refusals, failure, next_cursor = 0, 0, [], None, walk.cursor
    for item, outcome in zip(items, outcomes, strict=True):
        if isinstance(outcome, UnknownOutcome):
            raise UnknownOutcome("some of this page may be changed; call again with the same cursor")
        if outcome is None or isinstance(outcome, str):  # the id of a moved item
            changed += 1
        elif isinstance(outcome, InvalidArgument):
            refusals.append(outcome)
        elif isinstance(outcome, Exception) and not isinstance(outcome, NotFound):
            if failure is None:
                failure, next_cursor = outcome, walk.cursor_before(item)
            continue
        matched += 1
    if failure is not None and not changed:
        raise failure
    for refusal in refusals[:1] if change.kind is EventKind.UPDATE else ():
        refusal.field = "change.deliver_after_ms" if change.delay_ms is None else "change.delay_ms"
    first = refusals[0] if refusals else None
    return BulkPage(changed, len(refusals), first, _format_cursor(next_cursor), matched)


def _with_absolute_time(change: Event, item_filter: ItemFilter) -> Event:
    """Return the change with the filter; a delay counts from the start of the walk."""
    if change.delay_ms is None:
        return replace(change, item_filter=item_filter)
    after = min(item_filter.at_ms + change.delay_ms, TIME_MS_MAX)
    return replace(change, item_filter=item_filter, delay_ms=None, deliver_after_ms=after)


def _is_already_changed(item: ItemView, event: Event) -> bool:
    """Return whether this walk has redriven the item before, or an UPDATE would not change it."""
    row: Row = item.row
    if event.kind is EventKind.REDRIVE and event.item_filter is not None:
        # Dead again, or dead since the walk started: else items that fail at once would be redriven without end.
        return row.deliver_after_ms > event.item_filter.at_ms
    if event.kind is not EventKind.UPDATE:
        return False
    after = event.deliver_after_ms
    return (
        (event.priority is None or event.priority == row.priority)
        and (event.metadata is None or event.metadata == row.metadata)
        and (
            after is None
            or (row.state is State.READY and after <= item.now_ms)
            or (row.state is State.DEFERRED and after == row.deliver_after_ms)
        )
    )


async def _sum_counts(shard: Shard, namespace: str, item_filter: ItemFilter) -> int:
    """Add up the counts. Yields to the event loop between many topics."""
    names = item_filter.topic_names
    topics = shard.memory.topics(namespace) if names is None else names
    items = 0
    for start in range(0, len(topics), COUNT_TOPICS_PER_STEP):
        if start:
            await asyncio.sleep(0)
        part = topics[start : start + COUNT_TOPICS_PER_STEP]
        items += sum([shard.counts.count((namespace, topic), state) for topic in part for state in item_filter.states])
    return items


def _parse_cursor(cursor: str | None) -> WalkCursor | None:
    return None if cursor is None else parse_walk_cursor(cursor)


def _format_cursor(cursor: WalkCursor | None) -> str | None:
    return None if cursor is None else str(cursor)


@asynccontextmanager
async def _read_deadline(deadline: float) -> AsyncIterator[None]:
    """Limit the time of reads. Raises `DeadlineExceeded`."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise DeadlineExceeded(
            "the time ran out while items were read; nothing was changed; narrow the filter or give the call more time"
        ) from None
