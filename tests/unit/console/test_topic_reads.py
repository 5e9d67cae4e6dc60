"""Places in the order of delivery as cursors of a page."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.console.due_calendar import Place
from foqs.console.topic_reads import cursor_before
from foqs.core.items.item import NUMBER_MAX, PRIORITY_MAX, PRIORITY_MIN, SHARD_MAX, TIME_MS_MAX, pack_order_key
from foqs.queue.reads.listings import parse_cursor

PRIORITIES = st.integers(PRIORITY_MIN, PRIORITY_MAX)
TIMES = st.integers(0, TIME_MS_MAX)


@given(PRIORITIES, TIMES, PRIORITIES, st.integers(1, TIME_MS_MAX), st.integers(2, NUMBER_MAX))
def test_a_page_begins_with_the_first_item_at_or_after_the_place(
    priority: int, due_ms: int, item_priority: int, item_ms: int, number: int
) -> None:
    key, shard = parse_cursor(cursor_before(Place(priority, due_ms)))
    assert shard == SHARD_MAX
    is_after = pack_order_key(item_priority, item_ms, number) > key
    assert is_after == ((item_priority, item_ms) >= (priority, due_ms))
