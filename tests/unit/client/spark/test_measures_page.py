"""The page of the measures of a run shows its tables, escapes names, and needs nothing but itself."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from foqs_client.spark.pipelines.measures_page import page, totals

EMPTY: dict[str, list[Any]] = {"topics": [], "latency": []}


def topic(name: str, enqueued: int, **counts: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "topic": name, "enqueued": enqueued, "received": enqueued, "duplicates": 0, "lost": 0, "unknown": 0,
        "out_of_order": 0, "displacement": 0, **counts,
    }  # fmt: skip
    return row | {
        "duplication_rate": row["duplicates"] / enqueued,
        "loss_rate": row["lost"] / enqueued,
        "out_of_order_rate": row["out_of_order"] / row["received"],
        "average_displacement": row["displacement"] / row["received"],
    }


TOPICS = [
    topic("mail", 10, received=8, lost=2, duplicates=1, out_of_order=2, displacement=16),
    topic("<script>", 30, duplicates=3, unknown=4),
]
LATENCY = [
    {"topic": "mail", "step": step, "count": 8, "p50_ms": 1.5, "p90_ms": 20.0, "p99_ms": 30.25, "max_ms": 31.0}
    for step in ("enqueue call", "wait")
]


def test_totals_weigh_topics_by_their_items() -> None:
    assert totals(TOPICS) == {
        "enqueued": 40, "duplication_rate": 0.1, "loss_rate": 0.05, "out_of_order_rate": 2 / 38,
        "average_displacement": 16 / 38, "unknown": 4,
    }  # fmt: skip


def test_page_shows_measures_and_percentiles_with_their_definitions() -> None:
    html = page("now", {"topics": TOPICS, "latency": LATENCY})
    assert "<tr><td>mail<td class=n>10<td class=n>0.1000<td class=n>0.2000<td class=n>0.2500<td class=n>2.0000" in html
    assert "<tr><td>all topics<td class=n>40<td class=n>0.1000<td class=n>0.0500" in html
    assert "<tr><td>mail<td>wait<td class=n>8<td class=n>1.5<td class=n>20.0<td class=n>30.2<td class=n>31.0" in html
    assert "duplication rate λ" in html and "loss rate ε" in html
    charts = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(charts) == 4
    for chart in charts:
        ElementTree.fromstring(chart)


def test_names_of_topics_are_escaped() -> None:
    html = page("now", {"topics": TOPICS, "latency": LATENCY})
    assert "<script" not in html and "&lt;script&gt;" in html


def test_run_without_items_has_a_page_without_charts() -> None:
    html = page("now", EMPTY)
    assert "<svg" not in html
    assert "No item was enqueued." in html and "No times were recorded." in html
    assert totals([])["loss_rate"] is None
