"""Tests of the dashboards: their metrics and labels exist, and each panel has a sentence and a section of the runbook."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest

from foqs.telemetry.metric_table import METRICS
from tests.support.expressions import DASHBOARD_FOLDER, selectors_of
from tests.support.runbook import RUNBOOK
from tools import dashboards

FILES: Final = sorted(path.stem for path in DASHBOARD_FOLDER.glob("*.json"))
SUFFIXES: Final = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
SHOWN: Final = {metric.name + suffix: metric for metric in METRICS for suffix in SUFFIXES[metric.kind]}


def dashboard(name: str) -> Any:
    return json.loads((DASHBOARD_FOLDER / f"{name}.json").read_text())


def test_files_are_those_that_the_tool_writes() -> None:
    assert FILES == sorted(each.name for each in dashboards.DASHBOARDS) == ["host", "overview", "topics"]
    assert dashboards.main(["--check"]) == 0


@pytest.mark.parametrize("name", FILES)
def test_panel_has_a_sentence_and_a_section_of_the_runbook(name: str) -> None:
    sections = {
        title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", RUNBOOK.read_text(), re.MULTILINE)
    }
    for panel in dashboard(name)["panels"]:
        assert re.fullmatch(r"[A-Z0-9].{15,}\.", panel["description"]), panel["title"]
        [link] = panel["links"]
        address, anchor = link["url"].split("#")
        assert address == "${runbook}"
        assert anchor in sections, panel["title"]
        assert panel["targets"], panel["title"]


@pytest.mark.parametrize("name", FILES)
def test_panel_uses_metrics_and_labels_that_exist(name: str) -> None:
    for panel in dashboard(name)["panels"]:
        for target in panel["targets"]:
            found = selectors_of(target["expr"])
            assert found, target["expr"]
            groups = re.findall(r"\bby \(([^)]*)\)", target["expr"]) + re.findall(
                r"\{\{(\w+)\}\}", target["legendFormat"]
            )
            used = {label for group in groups for label in group.replace(" ", "").split(",")}
            labels = {"instance", "job", "le"}
            for metric, matchers in found:
                if metric.startswith("foqs_"):
                    assert metric in SHOWN, target["expr"]
                    labels |= set(SHOWN[metric].labels)
                assert set(re.findall(r"(\w+)(?==~?\"|!)", matchers)) <= labels, target["expr"]
            assert used <= labels, target["expr"]


@pytest.mark.parametrize("name", FILES)
def test_panels_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard(name)["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
