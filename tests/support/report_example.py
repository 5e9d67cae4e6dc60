"""The example of a report's page in the documentation: `python -m tests.support.report_example` writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from foqs_client.spark.pipelines.report_page import AGES, STATES, page

EXAMPLE: Final = Path(__file__).parents[2] / "docs" / "assets" / "report.html"
_TOPICS: Final = ("orders", "mail.newsletters", "video.resize", "letters.us", "reports.monthly")
_REASONS: Final = (
    "attempts exhausted: delivered 3 of at most 3 times without an ack",
    "given up by its consumer in attempt 1",
)


def tables() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the tables of the example. Their numbers follow from a sequence, so they never change."""
    first = datetime(2026, 11, 26, 15, tzinfo=UTC)
    backlog = [
        {
            "namespace": "default",
            "topic": topic,
            "state": state,
            "priority": priority,
            "age": AGES[(place + priority) % len(AGES)],
            "items": 40 + (place * 7_919 + priority * 104_729 + len(state) * 1_299_709) % 2_000 // (1 + place),
            "payload_bytes": 900 * (1 + place) * 1_024,
        }
        for place, topic in enumerate(_TOPICS)
        for state in STATES
        for priority in (0, 5, 10)
    ]
    due = [
        {"namespace": "default", "topic": _TOPICS[0], "hour": first + timedelta(hours=hour), "items": hour * 37 % 211}
        for hour in range(60)
    ]
    dead = [
        {"namespace": "default", "topic": topic, "dead_reason": reason, "items": 30 + place * 11 + len(reason)}
        for place, topic in enumerate(_TOPICS)
        for reason in _REASONS
    ]
    largest = [
        {
            "namespace": "default",
            "topic": topic,
            "id": f"{place}-{8_796_093_022_209 + place}",
            "state": "ready",
            "payload_bytes": 1_048_576 >> place,
            "age": 5_000 * 60**place,
        }
        for place, topic in enumerate(_TOPICS[:4])
    ]
    return {"backlog": backlog, "due_by_hour": due, "dead_by_reason": dead, "largest_payloads": largest}


def html() -> str:
    """Return the page."""
    return page("Backlog of default", "2026-11-26 15:00 UTC", tables())


if __name__ == "__main__":
    EXAMPLE.write_text(html(), encoding="utf-8")
