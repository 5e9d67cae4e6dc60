"""The program of the race, with cells that are not measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from foqs.dev.server_process import ServerNotAvailable
from perf import race
from perf.lib.contest_rows import Cell
from perf.lib.report import Report

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program with a function in place of the measurement. Return its exit code and its document."""

    def main(measure: Callable[[Cell], dict[str, Any]], *args: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(race, "measure", measure)
        monkeypatch.setattr(race, "Report", partial(Report, folder=tmp_path))
        monkeypatch.setattr(sys, "argv", ["race", "-o", "json", "--no-plots", *args])
        code = race.main()
        return code, json.loads(capsys.readouterr().out)

    return main


def test_a_figure_is_the_median_of_the_rounds(run: Run) -> None:
    rates = iter([30.0, 10.0, 20.0])

    code, document = run(
        lambda cell: {"items_per_s": next(rates), "versions": {"redis": "7.1"}},
        "--rows", "calls-100", "--systems", "redis", "--rounds", "3",
    )  # fmt: skip

    (cell,) = document["cells"]
    assert code == 0
    assert cell["items_per_s"] == 20.0
    assert cell["runs_items_per_s"] == [30.0, 10.0, 20.0]
    assert cell["label"] == "Redis 7.1"


def test_a_system_that_is_not_available_is_a_dash_and_stops_no_other(run: Run) -> None:
    def measure(cell: Cell) -> dict[str, Any]:
        if cell.racer.system == "nats":
            raise ServerNotAvailable("nats-server is not installed")
        return {"items_per_s": 1.0, "versions": {}}

    code, document = run(measure, "--rows", "calls-100", "--systems", "nats", "redis")

    cells = {cell["system"]: cell for cell in document["cells"]}
    assert code == 1
    assert cells["nats"]["dash"] == "nats-server is not installed"
    assert cells["redis"]["items_per_s"] == 1.0


def test_a_cell_that_failed_is_not_measured_again(run: Run) -> None:
    measured: list[str] = []

    def measure(cell: Cell) -> dict[str, Any]:
        measured.append(cell.racer.system)
        raise RuntimeError

    _, document = run(measure, "--rows", "calls-100", "--systems", "redis", "--rounds", "3")

    assert measured == ["redis"]
    assert document["cells"][0]["dash"] == "RuntimeError"


def test_options_replace_the_lengths_of_the_rows(run: Run) -> None:
    cells: list[Cell] = []

    def measure(cell: Cell) -> dict[str, Any]:
        cells.append(cell)
        return {"items_per_s": 1.0, "versions": {}}

    run(
        measure, "--rows", "calls-100", "backlog", "--systems", "redis",
        "--rounds", "1", "--seconds", "7", "--backlog", "500",
    )  # fmt: skip

    assert [cell.trial.seconds for cell in cells] == [7.0, 7.0]
    assert [cell.trial.backlog for cell in cells] == [0, 500]


def test_every_line_has_what_is_needed_to_repeat_its_cell(run: Run) -> None:
    _, document = run(
        lambda cell: {"items_per_s": 1.0, "versions": {}}, "--rows", "topics", "--systems", "redis", "--short"
    )

    (line,) = [json.loads(text) for text in Path(document["lines"]).read_text().splitlines()]
    assert {"row", "system", "batch", "callers", "topics", "seconds", "rounds"} <= line["parameters"].keys()
    assert {"commit", "cpu", "packages"} <= line["machine"].keys()
