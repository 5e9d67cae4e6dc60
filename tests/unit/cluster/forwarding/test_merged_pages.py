"""Merged pages of several hosts: in order, complete up to their end, and limited."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from foqs.cluster.forwarding.merged_pages import first_place, merge_filter_walk_pages, merge_pages, peek_order
from foqs.core.items.item import State, pack_order_key
from foqs.queue.reads.filter_walk import FilterWalkCursor, parse_filter_walk_cursor, start_of_shard
from foqs.queue.reads.listings import format_cursor
from foqs_contract.idl import ttypes

BYTES_MAX = 1 << 20
AT = (0, 5)
"""Priority and time of most items."""


def page_of(places: Sequence[tuple[int, int]], next_place: tuple[int, int] | None = None, payload: bytes = b"") -> Any:
    """A host's reply: items by (number, shard)."""
    cursors = [format_cursor(pack_order_key(*AT, number), shard) for number, shard in places]
    views = [ttypes.ItemView(id=f"{shard}-{number}", payload=payload) for number, shard in places]
    end = None if next_place is None else format_cursor(pack_order_key(*AT, next_place[0]), next_place[1])
    return ttypes.ItemsReply(views, end, cursors)


def ids(reply: Any) -> list[str]:
    return [view.id for view in reply.items]


def test_items_are_in_order_over_hosts_and_equal_ones_by_shard() -> None:
    page = merge_pages([page_of([(1, 2), (3, 2)]), page_of([(1, 1), (2, 1)])], peek_order, 10, BYTES_MAX)
    assert ids(page) == ["1-1", "2-1", "1-2", "2-3"]
    assert page.next_cursor is None


def test_page_ends_where_a_host_may_have_more_items() -> None:
    page = merge_pages([page_of([(1, 2), (3, 2)], (3, 2)), page_of([(2, 1), (4, 1)])], peek_order, 10, BYTES_MAX)
    assert ids(page) == ["2-1", "1-2", "2-3"]
    assert page.next_cursor == format_cursor(pack_order_key(*AT, 3), 2)


def test_empty_page_of_a_host_ends_the_page_at_its_cursor() -> None:
    page = merge_pages([page_of([], (3, 2)), page_of([(2, 1), (4, 1)])], peek_order, 10, BYTES_MAX)
    assert ids(page) == ["1-2"]
    assert page.next_cursor == format_cursor(pack_order_key(*AT, 3), 2)


def test_a_page_has_at_most_as_many_items_as_were_asked_for() -> None:
    page = merge_pages([page_of([(1, 2), (3, 2)]), page_of([(2, 1)])], peek_order, 2, BYTES_MAX)
    assert ids(page) == ["2-1", "1-2"]
    assert page.next_cursor == format_cursor(pack_order_key(*AT, 2), 1)


@pytest.mark.parametrize(("bytes_max", "items"), [(1, 1), (3_000, 1), (4_100, 2), (10_000, 3)])
def test_page_is_limited_in_bytes_but_has_at_least_one_item(bytes_max: int, items: int) -> None:
    payload = b"x" * 1_000
    page = merge_pages([page_of([(1, 1), (2, 1), (3, 1)], None, payload)], peek_order, 10, bytes_max)
    assert len(page.items or ()) == items
    assert (page.next_cursor is None) is (items == 3)


@pytest.mark.parametrize("field", ["trace_context", "group"])
def test_trace_contexts_and_groups_count_as_bytes_of_a_page(field: str) -> None:
    reply = page_of([(1, 1), (2, 1), (3, 1)], None, b"x" * 1_000)
    for view in reply.items:
        setattr(view, field, b"t" * 500)
    assert len(merge_pages([reply], peek_order, 10, 4_100).items or ()) == 1


def test_pages_of_any_hosts_show_everything_once() -> None:
    rng = Random(5)
    for _ in range(200):
        shards = {shard: sorted(rng.sample(range(1, 30), rng.randint(0, 8))) for shard in range(1, 6)}
        everything = sorted((number, shard) for shard, numbers in shards.items() for number in numbers)
        after, seen, cursor = (0, 0), list[str](), None
        while True:
            owners = {shard: rng.randint(1, 3) for shard in shards}  # they move between two pages
            replies = []
            for host in (1, 2, 3):
                mine = [place for place in everything if owners[place[1]] == host and place > after]
                shown = mine[: rng.randint(1, 4)]
                replies.append(page_of(shown, shown[-1] if len(shown) < len(mine) else None))
            page = merge_pages(replies, peek_order, rng.randint(1, 5), BYTES_MAX)
            seen += ids(page)
            cursor = page.next_cursor
            if cursor is None:
                break
            key, shard = peek_order(cursor)
            after = next(number for number in range(40) if pack_order_key(*AT, number) == key), shard
        assert seen == [f"{shard}-{number}" for number, shard in everything]


def walk_reply(begun_ms: int, places: Sequence[FilterWalkCursor], end: FilterWalkCursor | None = None) -> Any:
    cursors = [str(place) for place in places]
    views = [ttypes.ItemView(id=str(place.after_key)) for place in places]
    return ttypes.ItemsReply(views, None if end is None else str(end), cursors)


def place(begun_ms: int, shard: int, topic: str, number: int = 1) -> FilterWalkCursor:
    return FilterWalkCursor(begun_ms, shard, State.DEAD, pack_order_key(*AT, number), topic)


def test_walk_is_ordered_by_shard_then_topic_and_keeps_the_latest_beginning() -> None:
    early = walk_reply(7, [place(7, 1, "b"), place(7, 3, "a")], place(7, 3, "c"))
    late = walk_reply(9, [place(9, 2, "z"), place(9, 4, "a")])
    page = merge_filter_walk_pages([early, late], 10, BYTES_MAX, None)
    assert len(page.items or ()) == 3
    assert parse_filter_walk_cursor(page.next_cursor or "") == place(9, 3, "c")


def test_continued_walk_keeps_its_beginning() -> None:
    page = merge_filter_walk_pages([walk_reply(7, [], place(7, 3, "c"))], 10, BYTES_MAX, str(place(6, 1, "a")))
    assert parse_filter_walk_cursor(page.next_cursor or "").started_ms == 6


def test_walks_of_several_hosts_begin_with_the_first_shard_and_the_latest_moment() -> None:
    assert first_place([str(place(9, 2, "a")), str(place(7, 1, "b"))]) == place(9, 1, "b")


def test_the_beginning_of_a_shard_is_before_all_that_it_can_hold() -> None:
    start = start_of_shard(5, 2)
    assert parse_filter_walk_cursor(str(start)) == start
    assert start.topic < "a"
    assert start.after_key < pack_order_key(-(1 << 31), 0, 1)
