"""How the console shows counts, rates, forecasts and histograms."""

from __future__ import annotations

from foqs.console.due_calendar import Calendar, Count, Interval
from foqs.console.figure_formats import calendar_rows, priority_rows, rate, signed_count, time_to_empty
from foqs.console.priority_line import PriorityLine
from foqs.core.memory.topic_rates import Rates


def test_a_count_has_its_sign_and_a_rate_one_decimal() -> None:
    assert [signed_count(Count(1_234)), signed_count(Count(5, "~")), signed_count(Count(7, "≥"))] == [
        "1,234",
        "~5",
        "≥7",
    ]
    assert [rate(0.0), rate(0.04), rate(0.25), rate(12_345.67)] == ["0", "0", "0.2", "12,345.7"]


def test_the_end_of_a_backlog_is_said_with_its_date() -> None:
    now_s = 1_795_716_453.0  # 2026-11-26 18:07:33 UTC
    assert time_to_empty(0, Rates(0, 0), now_s) == "empty"
    assert time_to_empty(600, Rates(10, 10), now_s) == "does not shrink"
    assert time_to_empty(720, Rates(10, 11), now_s) == "done in ~12.0m, at 2026-11-26 18:19 UTC"


def test_what_is_not_shown_by_name_is_a_row_without_a_bar() -> None:
    line = PriorityLine([(0, Count(10)), (5, Count(5, "≥"))], Count(100, "~"), [], is_whole=False)
    assert priority_rows(line) == [("0", Count(10), 100.0), ("5", Count(5, "≥"), 50.0), ("all others", (100, "~"), 0.0)]
    part = Interval(0, 1, "Thu 18:00")
    assert calendar_rows(Calendar([part], [Count(3)], Count(0), is_scanned=True)) == [("Thu 18:00", (3, ""), 100.0)]
