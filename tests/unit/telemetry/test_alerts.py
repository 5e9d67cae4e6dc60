"""Tests of the alert rules: their metrics exist, and each rule has a section in the runbook, and the reverse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from foqs.telemetry.metric_table import METRICS, RELAY_METRICS
from tests.support.runbook import RUNBOOK, section

RULES: Final = (Path(__file__).parents[3] / "configs" / "alerts.yml").read_text()
ALERTS: Final = {
    found[0].split()[0]: found[0]
    for found in re.finditer(r"(?<=- alert: ).*?(?=\n      - alert: |\Z)", RULES, re.DOTALL)
}
SUFFIXES: Final = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
TARGET_LABELS: Final = ("instance", "outbox")
"""The labels that Prometheus gives each series of a target."""


def test_alert_table_is_not_empty() -> None:
    assert len(ALERTS) == RULES.count("- alert:") > 10


@pytest.mark.parametrize("name", ALERTS)
def test_alert_uses_metrics_and_labels_that_exist(name: str) -> None:
    shown = {metric.name + suffix: metric for metric in METRICS + RELAY_METRICS for suffix in SUFFIXES[metric.kind]}
    expression = re.search(r"expr: (.*?)\n        \w+:", ALERTS[name], re.DOTALL)
    assert expression
    metrics = re.findall(r"\b(foqs_\w+)(?:\{(\w+)[=!])?", expression[1])
    assert metrics or "up{" in expression[1]
    for metric, label in metrics:
        assert metric in shown
        assert not label or label in shown[metric].labels
    for label in re.findall(r"\$labels\.(\w+)", ALERTS[name]):
        assert label in TARGET_LABELS or any(label in shown[metric].labels for metric, _ in metrics)


@pytest.mark.parametrize("name", ALERTS)
def test_alert_links_to_its_section_of_the_runbook(name: str) -> None:
    assert f"runbook: docs/runbook.md#{name.lower()}\n" in ALERTS[name] + "\n"
    assert len(section(name)) > 100


def test_runbook_has_sections_for_existing_alerts_only() -> None:
    assert re.findall(r"^### (Foqs\w+)$", RUNBOOK.read_text(), re.MULTILINE) == list(ALERTS)


def test_runbook_names_metrics_that_exist() -> None:
    shown = {metric.exposed_name for metric in METRICS + RELAY_METRICS}
    assert set(re.findall(r"\bfoqs_(?!schema\b|backup\b|\d)\w+", RUNBOOK.read_text())) <= shown
