"""The HTML page of a report.

Holds `page`. Always true: it is one file that needs neither scripts nor a network; text
of the queue in it is escaped. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any, Final

from foqs_client.spark.pipelines.charts import columns, stacked_bars
from foqs_client.spark.pipelines.page_parts import bars, document, duration, table
from foqs_contract.plurals import counted

STATES: Final = ("ready", "leased", "deferred", "dead")
AGES: Final = ("under 1 min", "1 to 10 min", "10 to 60 min", "1 to 24 h", "1 to 7 days", "over 7 days")
PRIORITIES_MAX: Final = 20
HOURS_MAX: Final = 48

Rows = Sequence[Mapping[str, Any]]


def page(title: str, moment: str, tables: Mapping[str, Rows]) -> str:
    """Return the page.

    Args:
        moment: the time at which the items were read.
        tables: the tables `backlog`, `due_by_hour`, `dead_by_reason` and `largest_payloads` of a report.
    """
    backlog = tables["backlog"]
    items = sum(row["items"] for row in backlog)
    size = sum(row["payload_bytes"] or 0 for row in backlog)
    several = len({row["namespace"] for row in backlog}) > 1
    parts = [
        f"<h1>{escape(title)}</h1><p class=note>{escape(moment)}: {counted(items, 'item')}, {_bytes(size)} of payloads. "
        "Each topic is as it was when it was read.</p>",
        "<h2>Items by topic and state</h2>",
        *_topics(backlog, several),
        "<h2>Ready items by priority and age</h2>",
        "<p class=note>A lower number is delivered first. The age counts from the enqueue.</p>",
        *_priorities(backlog),
        "<h2>Deferred items by the hour in which they come due</h2>",
        *_hours(tables["due_by_hour"]),
        "<h2>Dead items by reason</h2>",
        *_reasons(tables["dead_by_reason"], several),
        "<h2>Largest payloads</h2>",
        _largest(tables["largest_payloads"], several),
    ]
    return document(title, parts)


def _topics(backlog: Rows, several: bool) -> list[str]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in backlog:
        counts[_topic(row, several)][row["state"]] += row["items"]
    return bars(counts, STATES, "topic") if counts else [_nothing("in the queue")]


def _priorities(backlog: Rows) -> list[str]:
    counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for row in backlog:
        if row["state"] == "ready":
            counts[row["priority"]][row["age"]] += row["items"]
    shown = {f"priority {priority}": counts[priority] for priority in sorted(counts)[:PRIORITIES_MAX]}
    left = len(counts) - len(shown)
    note = (
        [f"<p class=note>{counted(left, 'later priority is', 'later priorities are')} not shown.</p>"]
        if left > 0
        else []
    )
    return [stacked_bars(shown, AGES) if shown else _nothing("ready"), *note]


def _hours(due: Rows) -> list[str]:
    counts: Counter[datetime] = Counter()
    for row in due:
        counts[row["hour"]] += row["items"]
    if not counts:
        return [_nothing("deferred")]
    first = min(counts)
    hours = [first + timedelta(hours=place) for place in range(HOURS_MAX)]
    later = sum(number for hour, number in counts.items() if hour > hours[-1])
    note = f"From {first:%Y-%m-%d %H:%M}, for {HOURS_MAX} hours." + (
        f" {counted(later, 'item comes', 'items come')} due later." if later else ""
    )
    chart = columns([(f"{hour:%d. %H h}", counts[hour]) for hour in hours], label_every=6)
    return [f"<p class=note>{note}</p>", chart]


def _reasons(dead: Rows, several: bool) -> list[str]:
    if not dead:
        return [_nothing("dead")]
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    topics = list(dict.fromkeys(_topic(row, several) for row in dead))[:8]
    for row in dead:
        topic = _topic(row, several)
        counts[row["dead_reason"] or "unknown"][topic if topic in topics else "others"] += row["items"]
    series = [*topics, "others"] if any("others" in each for each in counts.values()) else topics
    return bars(counts, series, "reason")


def _largest(rows: Rows, several: bool) -> str:
    body = [
        (_topic(row, several), row["id"], row["state"], _bytes(row["payload_bytes"]), duration(row["age"] or 0))
        for row in rows
    ]
    return table(("topic", "item", "state", "payload", "age"), body, 3) if body else _nothing("in the queue")


def _topic(row: Mapping[str, Any], several: bool) -> str:
    return f"{row['namespace']}: {row['topic']}" if several else str(row["topic"])


def _nothing(state: str) -> str:
    return f"<p>No item is {state}.</p>"


def _bytes(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} bytes"
