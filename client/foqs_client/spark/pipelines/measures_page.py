"""The HTML page of the measures of a run.

Holds `page` and `totals`. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from foqs_client.spark.pipelines.charts import stacked_bars
from foqs_client.spark.pipelines.page_parts import BARS_MAX, bars, document, table
from foqs_contract.plurals import counted

Rows = Sequence[Mapping[str, Any]]

_DEFINITIONS: Final = (
    ("duplication rate λ", "Deliveries of an item after its first one, divided by the items that were enqueued."),
    ("loss rate ε", "Items without an intact delivery, divided by the items that were enqueued."),
    (
        "out-of-order rate",
        "The least number of items that must move to give the correct order, divided by the items that were received.",
    ),
    (
        "average displacement",
        "By how many places an item came too early or too late, on average over the items that were received.",
    ),
)
_ORDER: Final = (
    "The correct order of a topic is by priority, then by the number that the sender gave. Duplicates are left out."
)
_STEPS: Final = (
    "Milliseconds. A call lasts until its reply. An item waits from the reply to its enqueue until its first delivery; "
    "the work lasts from there until its first ack."
)
_HEAD: Final = ("topic", "enqueued", "λ", "ε", "out-of-order rate", "average displacement", "unknown")


def totals(topics: Rows) -> dict[str, Any]:
    """Return the measures of all topics together. A rate is None if there is nothing to divide by."""
    enqueued, received = _sum(topics, "enqueued"), _sum(topics, "received")
    return {
        "enqueued": enqueued,
        "duplication_rate": _ratio(_sum(topics, "duplicates"), enqueued),
        "loss_rate": _ratio(_sum(topics, "lost"), enqueued),
        "out_of_order_rate": _ratio(_sum(topics, "out_of_order"), received),
        "average_displacement": _ratio(_sum(topics, "displacement"), received),
        "unknown": _sum(topics, "unknown"),
    }


def page(moment: str, tables: Mapping[str, Rows]) -> str:
    """Return the page.

    Args:
        moment: the time at which the records were read.
        tables: the tables `topics` and `latency` of the measures.
    """
    topics, latency = tables["topics"], tables["latency"]
    definitions = "".join(f"<dt><b>{escape(name)}</b><dd>{escape(text)}" for name, text in _DEFINITIONS)
    rows = [_measures(row["topic"], row) for row in topics]
    parts = [
        f"<h1>Measures of a run</h1><p class=note>{escape(moment)}: {counted(_sum(topics, 'enqueued'), 'item')}, as recorded by "
        f"the clients.</p><dl>{definitions}</dl><p class=note>{_ORDER}</p>",
        "<h2>Measures by topic</h2>",
        table(_HEAD, [_measures("all topics", totals(topics)), *rows], 1),
        "<p class=note>Unknown items were received and have no record of an enqueue; nothing else counts them.</p>",
        "<h2>Items by what became of them</h2>",
        *_bars(topics, _delivery_outcomes, ("in order", "out of order", "lost")),
        "<h2>Deliveries</h2>",
        *_bars(topics, lambda row: {"first": row["received"], "duplicate": row["duplicates"]}, ("first", "duplicate")),
        "<h2>Average displacement</h2>",
        _displacements(topics),
        "<h2>Latency</h2>",
        f"<p class=note>{_STEPS}</p>",
        *_latency(latency),
    ]
    return document("Measures of a run", parts)


def _measures(label: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    rates = ("duplication_rate", "loss_rate", "out_of_order_rate", "average_displacement")
    return (label, f"{row['enqueued']:,}", *[_decimal(row[rate]) for rate in rates], f"{row['unknown']:,}")


def _delivery_outcomes(row: Mapping[str, Any]) -> dict[str, int]:
    return {
        "in order": row["received"] - row["out_of_order"],
        "out of order": row["out_of_order"],
        "lost": row["lost"],
    }


def _bars(topics: Rows, counts: Any, series: Sequence[str]) -> list[str]:
    found = {row["topic"]: Counter(counts(row)) for row in topics if row["enqueued"]}
    return bars(found, series, "topic") if found else ["<p>No item was enqueued.</p>"]


def _displacements(topics: Rows) -> str:
    name = "places"
    found = {row["topic"]: {name: round(row["average_displacement"], 2)} for row in topics if row["received"]}
    worst = dict(sorted(found.items(), key=lambda each: -each[1][name])[:BARS_MAX])
    return stacked_bars(worst, (name,)) if worst else "<p>No item was received.</p>"


def _latency(latency: Rows) -> list[str]:
    if not latency:
        return ["<p>No times were recorded.</p>"]
    names = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
    rows = [
        (row["topic"], row["step"], f"{row['count']:,}", *[f"{row[name]:,.1f}" for name in names]) for row in latency
    ]
    waits = {row["topic"]: {"p99 of the wait, ms": round(row["p99_ms"], 1)} for row in latency if row["step"] == "wait"}
    longest = dict(sorted(waits.items(), key=lambda each: -sum(each[1].values()))[:BARS_MAX])
    chart = [stacked_bars(longest, ("p99 of the wait, ms",))] if longest else []
    return [*chart, table(("topic", "step", "count", "p50", "p90", "p99", "most"), rows, 2)]


def _sum(rows: Rows, name: str) -> int:
    return sum(row[name] for row in rows)


def _ratio(count: int, of: int) -> float | None:
    return count / of if of else None


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4f}"
