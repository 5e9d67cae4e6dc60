"""The reads behind the pages of topics: places in the order of delivery as cursors, and the topics that a list leaves out."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.console.due_calendar import Count, Place
from foqs.console.topic_reads import INACTIVE_READ_MAX, cursor_before, inactive_topics
from foqs.core.items.item import NUMBER_MAX, PRIORITY_MAX, PRIORITY_MIN, SHARD_MAX, TIME_MS_MAX, State, pack_order_key
from foqs.queue.port import TopicStats
from foqs.queue.reads.listings import parse_cursor
from tests.support.console_pages import AnsweringClient, page_request_of

PRIORITIES = st.integers(PRIORITY_MIN, PRIORITY_MAX)
TIMES = st.integers(0, TIME_MS_MAX)


def stats(topic: str, *, ready: int = 0, leased: int = 0, deferred: int = 0, dead: int = 0) -> TopicStats:
    return TopicStats(topic, ready, deferred, leased, dead, None, None, None, False, False)


@pytest.mark.parametrize(("more", "expected"), [(None, Count(2)), ("next", Count(2, "≥"))])
def test_topics_with_only_deferred_or_dead_items_are_counted_among_the_first(more: str | None, expected: Count) -> None:
    listed = [stats("a", ready=1, dead=1), stats("b", leased=1), stats("c", dead=1), stats("d", deferred=1), stats("e")]

    async def list_topics(*asked: object) -> tuple[list[TopicStats], str | None]:
        assert asked == ("default", "m", tuple(State), None, INACTIVE_READ_MAX)
        return listed, more

    page_request = page_request_of(AnsweringClient({}), figures=SimpleNamespace(list_topics=list_topics))
    assert asyncio.run(inactive_topics(page_request, "m")) == expected


@given(PRIORITIES, TIMES, PRIORITIES, st.integers(1, TIME_MS_MAX), st.integers(2, NUMBER_MAX))
def test_a_page_begins_with_the_first_item_at_or_after_the_place(
    priority: int, due_ms: int, item_priority: int, item_ms: int, number: int
) -> None:
    key, shard = parse_cursor(cursor_before(Place(priority, due_ms)))
    assert shard == SHARD_MAX
    is_after = pack_order_key(item_priority, item_ms, number) > key
    assert is_after == ((item_priority, item_ms) >= (priority, due_ms))
