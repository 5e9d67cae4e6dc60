"""What is done with the items that a filter matches: looked at, counted, and changed, a page a call.

A page is found by reads beside the flushes (`walk`), and each of its items gets
an ordinary event that carries the filter: the flush that judges it asks the
filter again, so what does not match any more is not touched. Always true: a
change is made absolute when its walk begins, so that an item is changed once,
wherever its change puts it, and a page that is repeated does no harm; the
events of a page are of one shard, so they are queued all or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, TypeAlias

from foqs.core.errors import DeadlineExceeded, InvalidArgument, NotFound, UnknownOutcome
from foqs.core.items.item import TIME_MS_MAX, Row, State
from foqs.core.items.item_filter import ItemFilter
from foqs.core.items.life import Event, EventKind
from foqs.queue.filter_walk import Walk, WalkCursor, parse_walk_cursor
from foqs.queue.payload_pages import count_fitting, load_payloads
from foqs.queue.port import BulkPage, ItemCount, ItemView, Outcome, PendingCall
from foqs.shard.shard import Shard

READS_MAX: Final = 20
"""A page ends after so many reads, whatever they brought: few match, or many topics have few."""

COUNT_ROWS_PER_READ: Final = 1_000
"""Rows looked at by one read of a count: so long may it hold up the shard's other reads."""
COUNT_TOPICS_PER_STEP: Final = 1_000
"""Topics whose counts are added up in one go: a millisecond."""

ApplyEvents: TypeAlias = Callable[
    [str, Sequence[tuple[int, Event]], float, Callable[[list[Outcome]], None]],
    PendingCall,
]
"""As `Queue.apply`."""


async def list_matching(
    shards: Sequence[Shard],
    namespace: str,
    item_filter: ItemFilter,
    cursor: str | None,
    limit: int,
    bytes_max: int | None,
    deadline: float,
) -> tuple[list[ItemView], str | None]:
    """As `Queue.list_matching`; with payloads of so many bytes at most, or without any where that is None."""
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
    """As `Queue.count_matching`."""
    if item_filter.is_by_topic_and_state and not any(shard.counts.is_lagging for shard in shards):
        async with _read_deadline(deadline):
            return ItemCount(sum([await _sum_counts(shard, namespace, item_filter) for shard in shards]), None)
    walk = Walk(shards, namespace, item_filter, None)
    items = payload_bytes = 0
    async with _read_deadline(deadline):
        await walk.start()
        while walk.cursor is not None:
            rows = [seen.row for seen in await walk.read(COUNT_ROWS_PER_READ)]
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
    """As `Queue.change_matching`."""
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
    # One that changed its state while the page was read may have been met twice.
    found = [seen for seen in {seen.row.id: seen for seen in found}.values() if not _is_already_updated(seen, event)]
    if not found:
        return BulkPage(0, 0, None, _format_cursor(walk.cursor))
    told: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

    def done(outcomes: list[Outcome]) -> None:
        if not told.done():
            told.set_result(outcomes)

    apply(namespace, [(seen.shard, replace(event, id=seen.row.id)) for seen in found], deadline, done)
    return _bulk_page(change, found, await told, walk)


def _bulk_page(change: Event, items: Sequence[ItemView], outcomes: Sequence[Outcome], walk: Walk) -> BulkPage:
    """What the caller is told. Raises what happened to all of it, or `UnknownOutcome`."""
    changed, refusals, undone, place = 0, [], None, walk.cursor
    for seen, outcome in zip(items, outcomes, strict=True):
        if isinstance(outcome, UnknownOutcome):
            raise UnknownOutcome("some of this page may be changed; call again with the same cursor")
        if outcome is None:
            changed += 1
        elif isinstance(outcome, InvalidArgument):
            refusals.append(outcome)
        elif isinstance(outcome, Exception) and not isinstance(outcome, NotFound) and undone is None:
            undone, place = outcome, walk.cursor_before(seen)
    if undone is not None and not changed:
        raise undone
    for refusal in refusals[:1]:
        refusal.field = "change.deliver_after_ms" if change.delay_ms is None else "change.delay_ms"
    return BulkPage(changed, len(refusals), refusals[0] if refusals else None, _format_cursor(place))


def _with_absolute_time(change: Event, item_filter: ItemFilter) -> Event:
    """The change with the filter, its delay counted from the beginning of the walk."""
    if change.delay_ms is None:
        return replace(change, item_filter=item_filter)
    after = min(item_filter.at_ms + change.delay_ms, TIME_MS_MAX)
    return replace(change, item_filter=item_filter, delay_ms=None, deliver_after_ms=after)


def _is_already_updated(item: ItemView, event: Event) -> bool:
    """The item is as an UPDATE would leave it."""
    if event.kind is not EventKind.UPDATE:
        return False
    row: Row = item.row
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
    """As the counts say; others run between many topics."""
    if item_filter.topic is not None:
        return sum(shard.counts.count((namespace, item_filter.topic), state) for state in item_filter.states)
    topics = shard.memory.topics(namespace)
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
    """Reads that must be done by a deadline. Raises DeadlineExceeded."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise DeadlineExceeded(
            "the time ran out while items were read, and nothing was changed; narrow the filter or give the call more time"
        ) from None
