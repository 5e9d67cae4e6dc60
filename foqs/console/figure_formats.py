"""Formats figures for the console's templates: signs, rates, forecasts, and rows of histograms. Pure functions."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from foqs.console.chart_geometry import shares, short
from foqs.console.due_calendar import Calendar, Count
from foqs.console.history import time_to_empty_s
from foqs.console.priority_line import PriorityLine
from foqs.core.memory.topic_rates import Rates
from foqs.runtime.durations import format_duration

BarRow: TypeAlias = tuple[str, Count, float]
"""A row of a histogram: its name, its count, and the length of its bar, at most 100."""


def signed_count(count: Count) -> str:
    """Return a count with its sign, if it is not exact."""
    return f"{count.sign}{count.items:,}"


def rate(per_s: float) -> str:
    """Return items per second."""
    return "0" if per_s < 0.05 else f"{per_s:,.1f}"


def time_to_empty(ready: int, rates: Rates, now_s: float) -> str:
    """Return when the last ready item is acked if the rates stay as they are, in words: an estimate.

    Args:
        now_s: seconds since 1970-01-01 UTC.
    """
    left_s = time_to_empty_s(ready, rates)
    if not ready:
        return "empty"
    if left_s is None:
        return "does not shrink"
    end = datetime.datetime.fromtimestamp(now_s + left_s, datetime.UTC)
    return f"done in ~{format_duration(round(left_s * 1_000))}, at {end:%Y-%m-%d %H:%M} UTC"


def bar_rows(counts: Sequence[tuple[str, Count]]) -> list[BarRow]:
    """Return the rows of a histogram."""
    lengths = shares([count.items for _, count in counts])
    return [(name, count, length) for (name, count), length in zip(counts, lengths, strict=True)]


def priority_rows(priority_line: PriorityLine) -> list[BarRow]:
    """Return the rows of the ready items by priority. The items of all other priorities are one row without a bar."""
    rows = bar_rows([(str(priority), count) for priority, count in priority_line.priorities])
    return [*rows, ("all others", priority_line.rest, 0.0)] if priority_line.rest.items else rows


def calendar_rows(calendar: Calendar) -> list[BarRow]:
    """Return the rows of a calendar. The items after its last interval are one row without a bar."""
    named = zip((part.label for part in calendar.intervals), calendar.counts, strict=True)
    rows = bar_rows(list(named))
    return [*rows, ("later", calendar.later, 0.0)] if calendar.later.items else rows


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "bar_rows": bar_rows,
    "calendar_rows": calendar_rows,
    "decimal": short,
    "priority_rows": priority_rows,
    "rate": rate,
    "signed_count": signed_count,
}
