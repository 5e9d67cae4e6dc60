"""Merges pages of items from several hosts into one page.

Always true: the page is the beginning of the hosts' items together, in order. It
ends where some host's page ended, because that host may have more items after
it; so no item is skipped. The cursor is a place in the order and names no host.
Pure; knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from foqs.queue.port import ITEM_OVERHEAD_BYTES
from foqs.queue.reads.filter_walk import FilterWalkCursor, parse_filter_walk_cursor
from foqs.queue.reads.listings import parse_cursor
from foqs_contract.idl import ttypes

CursorOrder: TypeAlias = Callable[[str], Any]
"""Converts a cursor to a key that sorts like the items after it."""

peek_order: Final[CursorOrder] = parse_cursor
"""The order of the cursors of `peek`."""


def filter_walk_order(cursor: str) -> tuple[int, str, int, int]:
    """Return a filter walk cursor's sort key: shard, topic, state and order key; see `foqs.queue.reads.filter_walk`."""
    place = parse_filter_walk_cursor(cursor)
    return place.shard, place.topic, int(place.state), place.after_key


def first_place(cursors: Sequence[str]) -> FilterWalkCursor:
    """Return the first of several hosts' filter walk cursors, with the latest start time of all."""
    places = [parse_filter_walk_cursor(cursor) for cursor in cursors]
    nearest = min(places, key=lambda place: filter_walk_order(str(place)))
    return replace(nearest, started_ms=max(place.started_ms for place in places))


def merge_pages(
    replies: Sequence[ttypes.ItemsReply], order: CursorOrder, limit: int, bytes_max: int
) -> ttypes.ItemsReply:
    """Merge `ItemsReply` pages, one per host, into one.

    Args:
        limit: the maximum number of items.
        bytes_max: the limit of payloads, metadata and trace contexts; the first item is always included.
    """
    ends = [reply.next_cursor for reply in replies if reply.next_cursor is not None]
    end = min(ends, key=order, default=None)
    found = sorted(
        (
            (order(cursor), cursor, view)
            for reply in replies
            for cursor, view in zip(reply.cursors or (), reply.items or (), strict=True)
        ),
        key=lambda entry: entry[0],
    )
    if end is not None:
        last = order(end)
        found = [entry for entry in found if entry[0] <= last]
    size = 0
    items: list[ttypes.ItemView] = []
    for _, _, view in found[:limit]:
        contents = (view.payload, view.metadata, view.trace_context, view.group)
        size += sum([len(content) for content in contents if content is not None]) + ITEM_OVERHEAD_BYTES
        if items and size > bytes_max:
            break
        items.append(view)
    if len(items) < len(found):
        end = found[len(items) - 1][1]
    return ttypes.ItemsReply(items, end)


def merge_filter_walk_pages(
    replies: Sequence[ttypes.ItemsReply], limit: int, bytes_max: int, cursor: str | None
) -> ttypes.ItemsReply:
    """Merge pages of a walk. The whole walk keeps one start time: the latest of the hosts' first pages."""
    page = merge_pages(replies, filter_walk_order, limit, bytes_max)
    if page.next_cursor is not None:
        if cursor is None:
            cursors = [c for reply in replies for c in (*(reply.cursors or ()), reply.next_cursor) if c is not None]
        else:
            cursors = [cursor]
        started_ms = max(parse_filter_walk_cursor(c).started_ms for c in cursors)
        page.next_cursor = str(replace(parse_filter_walk_cursor(page.next_cursor), started_ms=started_ms))
    return page
