"""The ready items of a topic by priority and age."""

from __future__ import annotations

from foqs.console.priority_line import (
    PRIORITIES_SHOWN_MAX,
    SCANNED_ITEMS_MAX,
    PriorityLine,
    ReadyItem,
    make_priority_line,
    read_priority_line,
)
from tests.support.aio import run


def line(items: list[ReadyItem], ready: int | None = None) -> PriorityLine:
    async def page(cursor: str | None, limit: int) -> tuple[list[ReadyItem], str | None]:
        start = int(cursor or 0)
        end = start + limit
        return items[start:end], str(end) if end < len(items) else None

    return run(read_priority_line(page, len(items) if ready is None else ready))


def test_a_short_line_is_counted_item_by_item() -> None:
    found = line([ReadyItem(-3, 500), ReadyItem(-3, 5_000), ReadyItem(0, 90_000), ReadyItem(7, 10**9)])
    assert found.is_whole
    assert found.priorities == [(-3, (2, "")), (0, (1, "")), (7, (1, ""))]
    assert found.rest == (0, "")
    assert [count.items for _, count in found.ages] == [1, 1, 0, 1, 0, 0, 1]


def test_a_long_line_says_what_was_not_read() -> None:
    items = [ReadyItem(0, 10)] * 1_500 + [ReadyItem(1, 10)] * 3_000 + [ReadyItem(2, 10)] * 500
    found = line(items)
    assert not found.is_whole
    assert found.priorities == [(0, (1_500, "")), (1, (SCANNED_ITEMS_MAX - 1_500, "≥"))]
    assert found.rest == (len(items) - SCANNED_ITEMS_MAX, "~")
    assert found.ages[0][1] == (SCANNED_ITEMS_MAX, "≥")


def test_many_priorities_are_summed_up() -> None:
    items = [ReadyItem(priority, 0) for priority in range(100)]
    found = make_priority_line(items, 100, is_whole=True)
    assert len(found.priorities) == PRIORITIES_SHOWN_MAX
    assert found.rest == (100 - PRIORITIES_SHOWN_MAX, "")
