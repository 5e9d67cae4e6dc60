"""The page of a report shows its tables, escapes the queue's text, and needs nothing but itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from foqs_client.spark.pipelines.charts import columns, stacked_bars
from foqs_client.spark.pipelines.report_page import page
from tests.support import report_example

EMPTY: Mapping[str, list[Any]] = {"backlog": [], "due_by_hour": [], "dead_by_reason": [], "largest_payloads": []}


def row(topic: str, state: str, items: int, priority: int = 0, age: str = "under 1 min", space: str = "default") -> Any:
    return {
        "namespace": space, "topic": topic, "state": state, "priority": priority, "age": age, "items": items,
        "payload_bytes": 10 * items,
    }  # fmt: skip


def test_example_of_the_documentation_is_the_page_as_it_is_now() -> None:
    assert report_example.EXAMPLE.read_text(encoding="utf-8") == report_example.html(), (
        "run python -m tests.support.report_example"
    )


def test_every_chart_is_well_formed() -> None:
    found = re.findall(r"<svg.*?</svg>", report_example.html(), re.DOTALL)
    assert len(found) == 4
    for svg in found:
        ElementTree.fromstring(svg)


def test_empty_queue_has_a_page_without_charts() -> None:
    html = page("Backlog", "now", EMPTY)
    assert "<svg" not in html
    assert html.count("<p>No item is ") == 5


def test_text_of_the_queue_is_escaped() -> None:
    html = page("<t>", "now", {**EMPTY, "backlog": [row("<script>alert(1)</script>", "ready", 3)]})
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "<t>" not in html


def test_topics_beyond_the_largest_are_counted_in_a_sentence() -> None:
    backlog = [row(f"topic-{number}", "ready", 100 - number) for number in range(35)]
    html = page("Backlog", "now", {**EMPTY, "backlog": backlog})
    assert "5 more topics have 340 items." in html
    assert "topic-29" in html and "topic-30" not in html


def test_several_namespaces_are_named_with_their_topics() -> None:
    html = page("Backlog", "now", {**EMPTY, "backlog": [row("t", "dead", 1), row("t", "dead", 1, space="other")]})
    assert "default: t" in html and "other: t" in html


def test_bars_are_proportional_and_columns_are_as_high_as_their_values() -> None:
    svg = ElementTree.fromstring(stacked_bars({"a": {"x": 30, "y": 10}, "b": {"y": 20}}, ["x", "y"]))
    widths = [float(box.attrib["width"]) for box in svg.iter("{http://www.w3.org/2000/svg}rect")][2:]
    assert [round(width / widths[0], 3) for width in widths] == [1.0, 0.333, 0.667]
    svg = ElementTree.fromstring(columns([("one", 4), ("none", 0), ("two", 2)]))
    heights = [float(box.attrib["height"]) for box in svg.iter("{http://www.w3.org/2000/svg}rect")]
    assert heights == [200.0, 100.0]
