"""Tests of old names of metrics: they are exported beside the new ones."""

from __future__ import annotations

import re

import pytest

from foqs.telemetry import metric_table
from foqs.telemetry.metric_table import METRICS, DeprecatedMetric
from foqs.telemetry.metrics import Metrics

ENTRIES = (
    DeprecatedMetric("foqs_done_items", "foqs_acked_items", "9.1.0", "9.2.0"),
    DeprecatedMetric("foqs_flush_seconds", "foqs_flush_duration_seconds", "9.1.0", "9.2.0"),
)


def page() -> str:
    metrics = Metrics()
    metrics.items_acked(3)
    metrics.flush_committed(0, 5, 0.25)
    return b"".join(metrics.render()).decode()


def samples(text: str, name: str) -> list[str]:
    return [line.removeprefix(name) for line in text.splitlines() if line.startswith(name)]


def test_deprecated_metric_is_exported_under_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    before = page()
    monkeypatch.setattr(metric_table, "DEPRECATED_METRICS", ENTRIES)
    text = page()
    assert "foqs_done_items_total 3.0" in text
    assert "foqs_acked_items_total 3.0" in text
    for entry in ENTRIES:
        assert samples(text, f"{entry.old}_") == samples(text, f"{entry.new}_") != []
        assert f"# HELP {entry.old}" in text
        assert f"Deprecated since 9.1.0: use {entry.new}" in text
        assert samples(before, entry.old) == []
    assert metric_table.render_page().endswith(
        "| `foqs_flush_seconds` | `foqs_flush_duration_seconds` | 9.1.0 | 9.2.0 |\n"
    )


def test_deprecated_names_stand_for_present_metrics() -> None:
    names = {metric.name for metric in METRICS}
    for entry in (*metric_table.DEPRECATED_METRICS, *ENTRIES):
        assert entry.new in names
        assert entry.old not in names
        assert re.fullmatch(r"foqs_\w+", entry.old)
