"""The calendar of what comes due: its intervals, exact counts, and estimates of large topics."""

from __future__ import annotations

import datetime
import itertools
from random import Random

import pytest

from foqs.console.due_calendar import (
    PRIORITIES_MAX,
    PROBE_ITEMS,
    PROBES_MAX,
    SCANNED_ITEMS_MAX,
    UNITS,
    Calendar,
    DueItem,
    Interval,
    Place,
    intervals,
    read_calendar,
)
from tests.support.aio import run

NOW_MS = round(datetime.datetime(2026, 11, 26, 18, 7, 33, tzinfo=datetime.UTC).timestamp() * 1_000)
HOUR_MS = 3_600_000


class Items:
    """Deferred items in the order of delivery."""

    def __init__(self, dues: list[DueItem]) -> None:
        self.dues = sorted(dues)
        self.read_count = 0
        self.reads = 0

    async def page(self, place: Place | str | None, limit: int) -> tuple[list[DueItem], str | None]:
        if isinstance(place, Place):
            rest = [due for due in self.dues if (due.priority, due.due_ms) >= place]
        else:
            rest = self.dues[int(place or 0) :]
        self.reads += 1
        self.read_count += min(limit, len(rest))
        end = len(self.dues) - len(rest) + limit
        return rest[:limit], str(end) if limit < len(rest) else None

    def calendar(self, unit: str) -> Calendar:
        return run(read_calendar(self.page, intervals(unit, NOW_MS), len(self.dues), NOW_MS))


@pytest.mark.parametrize("unit", UNITS)
def test_intervals_follow_each_other_from_the_present_one_on(unit: str) -> None:
    parts = intervals(unit, NOW_MS)
    assert parts[0].start_ms <= NOW_MS < parts[0].end_ms
    for before, after in itertools.pairwise(parts):
        assert before.end_ms == after.start_ms
    assert len({part.label for part in parts}) == len(parts)


def test_months_have_their_lengths() -> None:
    parts = intervals("month", NOW_MS)
    assert [part.label for part in parts[:4]] == ["November 2026", "December 2026", "January 2027", "February 2027"]
    assert parts[3].end_ms - parts[3].start_ms == 28 * 24 * HOUR_MS


def expected(dues: list[DueItem], parts: list[Interval]) -> list[int]:
    first = sum(due.due_ms < parts[0].end_ms for due in dues)
    return [first, *(sum(part.start_ms <= due.due_ms < part.end_ms for due in dues) for part in parts[1:])]


@pytest.mark.parametrize("seed", range(5))
def test_few_items_are_counted_one_by_one(seed: int) -> None:
    rng = Random(seed)
    dues = [DueItem(rng.randrange(5), NOW_MS + rng.randrange(-5_000, 40 * HOUR_MS)) for _ in range(2_500)]
    items = Items(dues)
    calendar = items.calendar("hour")
    assert calendar.is_scanned
    assert [count.items for count in calendar.counts] == expected(dues, intervals("hour", NOW_MS))
    assert {count.sign for count in calendar.counts} == {""}
    assert calendar.later.items + sum(count.items for count in calendar.counts) == len(dues)


def test_many_items_are_estimated_from_a_bounded_number_of_reads() -> None:
    rng = Random(7)
    # Twice as many in the second twelve hours, and a priority that is nearly empty.
    dues = [DueItem(0, NOW_MS + rng.randrange(12 * HOUR_MS)) for _ in range(10_000)]
    dues += [DueItem(0, NOW_MS + 12 * HOUR_MS + rng.randrange(12 * HOUR_MS)) for _ in range(20_000)]
    dues += [DueItem(5, NOW_MS + HOUR_MS)] * 3
    items = Items(dues)
    calendar = items.calendar("hour")
    assert items.reads <= PROBES_MAX + PRIORITIES_MAX + 1
    assert items.read_count <= PROBES_MAX * PROBE_ITEMS + PRIORITIES_MAX + 1
    assert not calendar.is_scanned
    real = expected(dues, intervals("hour", NOW_MS))
    for count, items_there in zip(calendar.counts[1:], real[1:], strict=True):
        assert count.sign == "~"
        assert count.items == pytest.approx(items_there, rel=0.6)
    assert sum(count.items for count in calendar.counts) == pytest.approx(sum(real), rel=0.15)
    assert calendar.later.sign == "~"


def test_intervals_with_few_items_are_exact_in_a_large_topic() -> None:
    soon = [DueItem(0, NOW_MS + 30_000)] * (SCANNED_ITEMS_MAX + 1)
    late = [DueItem(0, NOW_MS + 5 * HOUR_MS)] * 4
    calendar = Items([*soon, *late]).calendar("hour")
    assert calendar.counts[0].sign == "~"
    assert calendar.counts[1:5] == [(0, "")] * 4
    assert calendar.counts[5] == (4, "")


def test_more_priorities_than_are_read_make_a_lower_bound() -> None:
    dues = [DueItem(priority, NOW_MS + HOUR_MS) for priority in range(50) for _ in range(100)]
    calendar = Items(dues).calendar("day")
    assert calendar.counts[5].sign == "≥"
    assert calendar.later.items > 0


def test_items_that_become_deferred_during_the_reading_end_it() -> None:
    items = Items([DueItem(0, NOW_MS)] * 20_000)
    calendar = run(read_calendar(items.page, intervals("minute", NOW_MS), 10, NOW_MS))
    assert not calendar.is_scanned
    assert calendar.counts[0].sign == "≥"
    assert items.read_count <= 2 * SCANNED_ITEMS_MAX + 1_000
