"""Changes of all items that match a filter, one page per call, and purges of topics.

A page is read outside of the flushes (`reads.filter_walk`). A change submits an
ordinary event per item, which carries the filter: the flush checks the filter
again, so an item that no longer matches is not changed. Always true: times in a
change are absolute from the start of the filter walk, so that an item is changed once,
wherever the change moves it, and a page can be repeated safely; the events of a
page belong to one shard, so all or none are queued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

from foqs.core.items.item import TIME_MS_MAX, Row, State
from foqs.core.items.life import Event, EventKind
from foqs.core.items.row_filter import RowFilter
from foqs.queue.owned_shards import OwnedShards
from foqs.queue.port import Outcome, PageResult, PendingCall, RowView
from foqs.queue.reads.filter_walk import FilterWalk, FilterWalkCursor, parse_filter_walk_cursor, read_deadline
from foqs.queue.topic_purge import purge_topic
from foqs_contract.errors import InvalidArgument, LimitExceeded, NotFound, UnknownOutcome

ApplyEvents: TypeAlias = Callable[
    [str, Sequence[tuple[int, Event]], float, Callable[[list[Outcome]], None]],
    PendingCall,
]
"""See `Queue.apply`."""


class HostBulkChanges:
    """Implements `port.BulkChanges`.

    Args:
        apply: see `Queue.apply`.
    """

    def __init__(self, shards: OwnedShards, apply: ApplyEvents) -> None:
        self._shards = shards
        self._apply = apply

    async def change_matching(
        self,
        namespace: str,
        change: Event,
        item_filter: RowFilter,
        cursor: str | None,
        limit: int,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> PageResult:
        start = None if cursor is None else parse_filter_walk_cursor(cursor)
        walk = FilterWalk(self._shards.get_all(shards), namespace, item_filter, start)
        event = _with_absolute_time(change, walk.item_filter)
        async with read_deadline(deadline):
            page = await walk.read_page(limit, in_one_shard=True)
        # An item that changed its state while the page was read may have been found twice.
        found = [item for item in {item.row.id: item for item in page}.values() if not _is_already_changed(item, event)]
        if not found:
            return PageResult(0, 0, None, _format_cursor(walk.cursor))
        all_outcomes: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

        def on_done(outcomes: list[Outcome]) -> None:
            if not all_outcomes.done():
                all_outcomes.set_result(outcomes)

        try:
            self._apply(namespace, [(item.shard, replace(event, id=item.row.id)) for item in found], deadline, on_done)
        except LimitExceeded as error:  # the target of a move is one topic too many
            error.field = "move_to"
            raise
        return _bulk_page(change, found, await all_outcomes, walk)

    async def purge_topic(
        self, namespace: str, topic: str, deadline: float, shards: Collection[int] | None = None
    ) -> int:
        return await purge_topic(self._shards.get_all(shards), (namespace, topic), deadline)


def _bulk_page(change: Event, items: Sequence[RowView], outcomes: Sequence[Outcome], walk: FilterWalk) -> PageResult:
    """Return the result of a page of items from their outcomes. Raises `UnknownOutcome`, or the error if nothing was changed."""
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
    return PageResult(changed, len(refusals), first, _format_cursor(next_cursor), matched)


def _with_absolute_time(change: Event, item_filter: RowFilter) -> Event:
    """Return the change with the filter; a delay counts from the start of the walk."""
    if change.delay_ms is None:
        return replace(change, item_filter=item_filter)
    after = min(item_filter.at_ms + change.delay_ms, TIME_MS_MAX)
    return replace(change, item_filter=item_filter, delay_ms=None, deliver_after_ms=after)


def _is_already_changed(item: RowView, event: Event) -> bool:
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
            or (row.state is State.DEFERRED and after == row.ready_at_ms)
        )
    )


def _format_cursor(cursor: FilterWalkCursor | None) -> str | None:
    return None if cursor is None else str(cursor)
