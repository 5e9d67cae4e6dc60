"""Pages of items of several hosts as one page.

Always true: the page is the beginning of what the hosts have
together, in order; an item that a host may still have before the end of the page
ends it, so nothing is left out. The page's cursor is a place in that order and
names no host. Pure; knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from foqs.queue.filter_walk import WalkCursor, parse_walk_cursor
from foqs.queue.listings import parse_cursor
from foqs_client.idl import ttypes

CursorOrder: TypeAlias = Callable[[str], Any]
"""A cursor as something that sorts like what comes after it."""

peek_order: Final[CursorOrder] = parse_cursor
"""Of the cursors of `peek`."""

_ITEM_OVERHEAD_BYTES: Final = 1_024


def walk_order(cursor: str) -> tuple[int, str, int, int]:
    """The order of a walk: by shard, topic, state and key; see `foqs.queue.filter_walk`."""
    place = parse_walk_cursor(cursor)
    return place.shard, place.topic, int(place.state), place.after_key


def first_place(cursors: Sequence[str]) -> WalkCursor:
    """Of walks that begin at these places, in shards of their own each, the one where all of them together begin."""
    places = [parse_walk_cursor(cursor) for cursor in cursors]
    nearest = min(places, key=lambda place: walk_order(str(place)))
    return replace(nearest, started_ms=max(place.started_ms for place in places))


def merge_pages(replies: Sequence[Any], order: CursorOrder, limit: int, bytes_max: int) -> Any:
    """One `ItemsReply` of several, each the beginning of what one host has.

    Args:
        limit: in items.
        bytes_max: of payloads and metadata; one item is on the page whatever it weighs.
    """
    ends = [reply.next_cursor for reply in replies if reply.next_cursor is not None]
    end = min(ends, key=order, default=None)
    found = sorted(
        (
            (order(cursor), cursor, view)
            for reply in replies
            for cursor, view in zip(reply.cursors or (), reply.items or (), strict=True)
        ),
        key=lambda each: each[0],
    )
    if end is not None:
        last = order(end)
        found = [each for each in found if each[0] <= last]
    size = 0
    items: list[Any] = []
    for _, _, view in found[:limit]:
        size += len(view.payload or b"") + len(view.metadata or b"") + _ITEM_OVERHEAD_BYTES
        if items and size > bytes_max:
            break
        items.append(view)
    if len(items) < len(found):
        end = found[len(items) - 1][1]
    return ttypes.ItemsReply(items, end)


def merge_walk_pages(replies: Sequence[Any], limit: int, bytes_max: int, cursor: str | None) -> Any:
    """The same of a walk's pages. All pages of a walk that began with this one have its latest beginning."""
    page = merge_pages(replies, walk_order, limit, bytes_max)
    if page.next_cursor is not None:
        told = [each for reply in replies for each in (*(reply.cursors or ()), reply.next_cursor) if each is not None]
        begun_ms = max(parse_walk_cursor(each).started_ms for each in (told if cursor is None else [cursor]))
        page.next_cursor = str(replace(parse_walk_cursor(page.next_cursor), started_ms=begun_ms))
    return page
