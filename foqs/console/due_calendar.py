"""The calendar of a topic's deferred items: how many come due in each minute, hour, day or month.

Holds the intervals, the counts with what is known of each, and how they are read through
pages of items in the order of delivery: by priority, then deliver-after time. A topic with
few deferred items is read whole. Of a larger one only the first items of each interval
are read, and a count is estimated from how close to each other they come due. Times are
milliseconds since 1970-01-01 UTC. Reads no clock and makes no call by itself.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

SCANNED_ITEMS_MAX: Final = 3_000
"""A topic with at most this number of deferred items is read whole."""
PAGE_ITEMS: Final = 1_000
PROBE_ITEMS: Final = 50
"""The maximum number of items that are read of one interval and priority."""
PROBES_MAX: Final = 96
"""The maximum number of reads for one calendar."""
PRIORITIES_MAX: Final = 8


class DueItem(NamedTuple):
    """The priority of a deferred item, and the time at which it comes due."""

    priority: int
    due_ms: int


class Place(NamedTuple):
    """A place in the order of delivery: before the items of this priority that come due at this time or later."""

    priority: int
    due_ms: int


ReadPage: TypeAlias = Callable[[Place | str | None, int], Awaitable[tuple[list[DueItem], str | None]]]
"""Returns at most this number of deferred items from a place on, and the cursor after them; None: there are no more."""


class Count(NamedTuple):
    """A number of items, and how sure it is.

    Attributes:
        sign: empty: counted. "≥": at least this number. "~": estimated.
    """

    items: int
    sign: str = ""


@dataclass(slots=True, frozen=True)
class Interval:
    """A part of the calendar: from `start_ms` on, before `end_ms`."""

    start_ms: int
    end_ms: int
    label: str


@dataclass(slots=True, frozen=True)
class Calendar:
    """The deferred items of a topic by interval.

    Attributes:
        intervals: the intervals in order, without gaps.
        counts: the number of items of each interval.
        later: the items that come due after the last interval.
        is_scanned: whether every item was read.
    """

    intervals: Sequence[Interval]
    counts: Sequence[Count]
    later: Count
    is_scanned: bool


UNITS: Final = ("minute", "hour", "day", "month")
_COUNTS: Final = {"minute": 30, "hour": 24, "day": 31, "month": 12}
_LABELS: Final = {"minute": "%H:%M", "hour": "%a %H:00", "day": "%a %d %b", "month": "%B %Y"}


def intervals(unit: str, now_ms: int) -> list[Interval]:
    """Return the next intervals of a unit, from the one that holds `now_ms` on, in UTC."""
    start = datetime.datetime.fromtimestamp(now_ms / 1_000, datetime.UTC).replace(second=0, microsecond=0)
    if unit != "minute":
        start = start.replace(minute=0)
    if unit in ("day", "month"):
        start = start.replace(hour=0)
    if unit == "month":
        start = start.replace(day=1)
    starts = [start]
    for _ in range(_COUNTS[unit]):
        starts.append(_next(starts[-1], unit))
    return [
        Interval(_ms(first), _ms(after), first.strftime(_LABELS[unit])) for first, after in itertools.pairwise(starts)
    ]


def _next(start: datetime.datetime, unit: str) -> datetime.datetime:
    if unit == "month":
        return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return start + datetime.timedelta(**{f"{unit}s": 1})


def _ms(moment: datetime.datetime) -> int:
    return round(moment.timestamp() * 1_000)


async def read_calendar(read: ReadPage, parts: Sequence[Interval], deferred: int, now_ms: int) -> Calendar:
    """Count the deferred items of a topic in these intervals, of which the first one holds `now_ms`.

    Args:
        deferred: the number of the deferred items, as it is known.
    """
    if deferred <= SCANNED_ITEMS_MAX:
        return await _scan(read, parts)
    return await _estimate(read, parts, deferred, now_ms)


async def _scan(read: ReadPage, parts: Sequence[Interval]) -> Calendar:
    counts, later, read_count = [0] * len(parts), 0, 0
    place: str | None = None
    while True:
        found, place = await read(place, PAGE_ITEMS)
        read_count += len(found)
        for due in found:
            at = _interval_of(parts, due.due_ms)
            if at is None:
                later += 1
            else:
                counts[at] += 1
        if place is None or read_count >= 2 * SCANNED_ITEMS_MAX:
            break
    # Many items may have become deferred since they were counted.
    sign = "" if place is None else "≥"
    return Calendar(parts, [Count(items, sign) for items in counts], Count(later, sign), place is None)


def _interval_of(parts: Sequence[Interval], due_ms: int) -> int | None:
    """Return the interval of a moment; None if it comes after all. What is overdue counts with the first one."""
    for at, part in enumerate(parts):
        if due_ms < part.end_ms:
            return at
    return None


async def _estimate(read: ReadPage, parts: Sequence[Interval], deferred: int, now_ms: int) -> Calendar:
    priorities, has_more = await _priorities(read, max(1, min(PRIORITIES_MAX, PROBES_MAX // len(parts))))
    counts = []
    for part in parts:
        found = [await _probe(read, priority, part, now_ms) for priority in priorities]
        count = _sum(found, "≥" if has_more else "")
        counts.append(Count(min(count.items, deferred), count.sign))
    left = deferred - sum(count.items for count in counts)
    return Calendar(parts, counts, Count(max(0, left), "~"), is_scanned=False)


async def _priorities(read: ReadPage, count_max: int) -> tuple[list[int], bool]:
    """Return the best priorities of the deferred items, and whether there are more."""
    found: list[int] = []
    place: Place | None = None
    while True:
        items, _ = await read(place, 1)
        if not items:
            return found, False
        if len(found) == count_max:
            return found, True
        found.append(items[0].priority)
        place = Place(items[0].priority + 1, 0)


async def _probe(read: ReadPage, priority: int, part: Interval, now_ms: int) -> Count:
    """Count the items of a priority that come due in an interval, or estimate how many they are."""
    # What is overdue counts with the present interval.
    place = Place(priority, part.start_ms if part.start_ms > now_ms else 0)
    items, _ = await read(place, PROBE_ITEMS)
    inside = [due.due_ms for due in items if due.priority == priority and due.due_ms < part.end_ms]
    if len(inside) < PROBE_ITEMS:
        return Count(len(inside))
    begin_ms = min(max(part.start_ms, now_ms), inside[0])
    seen_ms, whole_ms = max(1, inside[-1] - begin_ms), part.end_ms - begin_ms
    return Count(max(PROBE_ITEMS, round(PROBE_ITEMS * whole_ms / seen_ms)), "~")


def _sum(counts: Sequence[Count], sign: str) -> Count:
    """Add counts. The sum is estimated if one of them is."""
    is_estimated = any(count.sign == "~" for count in counts)
    return Count(sum(count.items for count in counts), "~" if is_estimated else sign)
