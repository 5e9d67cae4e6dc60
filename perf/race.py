"""How fast is FOQS beside every other queue, and which of them hold in real life?

Runs one race: each system is started from packages on this machine, commits durably,
and is driven by its own client, in the same processes and with every item counted.
In each round of a row the systems alternate. A system that cannot run a row gets a
dash with the reason. docs/race.md says what each row means.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from foqs.dev.server_process import stop_on_signals
from perf.lib import contest_table, machine
from perf.lib.contest_cells import Figures, measure
from perf.lib.contest_rows import RACERS, ROWS, Cell, dashes, plan
from perf.lib.report import RESULTS, Report, header, machine_line, say
from perf.lib.trial import medians, summary_line


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    if options.list:
        _list(options)
        return 0
    if options.markdown is not None:
        return _show(options.markdown)
    cells = _cells(options)
    report = Report("race", is_echoed=options.output != "json")
    chosen = [row for row in ROWS if row.key in options.rows]
    racers = [racer for racer in RACERS if racer.system in options.systems]
    for (key, system), reason in dashes(chosen, racers).items():
        report.add({"row": key, "system": system}, {"dash": reason})
    try:
        failed = _race(cells, report, plots=not options.no_plots)
    finally:
        # Also of a race that was interrupted.
        if options.output == "json":
            print(json.dumps(_document(report)))
        else:
            say(f"\n{_text(report.lines)}\n\nlines: {report.path}; as Markdown: --markdown")
    return 1 if failed else 0


def _race(cells: Sequence[Cell], report: Report, *, plots: bool) -> int:
    """Measure the cells, and report each row when all its rounds are over. Return how many cells failed."""
    total_s = sum(cell.estimate_s for cell in cells)
    begun, planned_s, failed, number = time.monotonic(), 0.0, 0, 0
    for row, of_row in groupby(cells, key=lambda cell: cell.row):
        runs: dict[str, list[Figures]] = {}
        failures: dict[str, str] = {}
        measured: dict[str, Cell] = {}
        for cell in of_row:
            number += 1
            measured[cell.racer.system] = cell
            # What is left is scaled by how the plan has held so far.
            pace = (time.monotonic() - begun) / planned_s if planned_s else 1.0
            say(
                f"race {number}/{len(cells)}, {(time.monotonic() - begun) / 60:.0f} min, about "
                f"{(total_s - planned_s) * pace / 60:.0f} min left: {row.title}, {summary_line(cell.trial)}"
            )
            planned_s += cell.estimate_s
            if cell.racer.system in failures:
                continue
            try:
                runs.setdefault(cell.racer.system, []).append(measure(cell))
                say(f"  {runs[cell.racer.system][-1]['items_per_s']:,.0f} items/s")
            except Exception as error:
                failures[cell.racer.system] = str(error) or type(error).__name__
                say(f"  no figure: {failures[cell.racer.system]}")
        for system, cell in measured.items():
            parameters = {"row": row.key, **asdict(cell.trial), "rounds": cell.length.rounds}
            found = {"dash": failures[system]} if system in failures else medians(runs[system], cell.trial)
            report.add(parameters, found)
        failed += len(failures)
        if plots:
            from perf.lib import contest_plots

            path = contest_plots.row(
                row, [line for line in report.lines if line["parameters"]["row"] == row.key], report.stem
            )
            say(f"  plot: {path}" if path else "  no plot: nothing was measured")
    return failed


def _cells(options: argparse.Namespace) -> list[Cell]:
    """Return the cells of a run, with the lengths that the options replace."""
    given = {
        name: value
        for name, value in (("rounds", options.rounds), ("seconds", options.seconds), ("backlog", options.backlog))
        if value is not None
    }
    rows = []
    for row in ROWS:
        if row.key in options.rows:
            length = row.length(short=options.short)
            changes = {name: value for name, value in given.items() if name != "backlog" or length.backlog}
            changed = replace(length, **changes)
            rows.append(replace(row, whole=changed, short=changed))
    return plan(rows, [racer for racer in RACERS if racer.system in options.systems], short=options.short)


def _text(lines: Sequence[dict[str, Any]]) -> str:
    """Return all tables for a terminal."""
    packages = ", ".join(f"{name} {version}" for name, version in machine.facts()["packages"].items() if version)
    found = [table.text() for table in contest_table.tables(lines)]
    return "\n\n".join([f"{header()}\nclients: {packages}", *found])


def _document(report: Report) -> dict[str, Any]:
    """Return the whole result as one value for `-o json`."""
    rows = {line["parameters"]["row"] for line in report.lines}
    return {
        "program": report.program,
        "lines": str(report.path),
        "machine": machine.facts(),
        "rows": [{"row": row.key, "title": row.title, "says": row.says} for row in ROWS if row.key in rows],
        "cells": [
            {
                "row": line["parameters"]["row"],
                "system": line["parameters"]["system"],
                "label": contest_table.label(line),
            }
            | dict(line["figures"])
            for line in report.lines
        ],
    }


def _show(path: Path) -> int:
    """Print the tables of lines that were written before."""
    files = [path] if path.is_file() else sorted(path.glob("race-*.jsonl"))
    if not files:
        say(f"{path} holds no lines of this program: run it without --markdown first")
        return 1
    lines = [json.loads(line) for line in files[-1].read_text().splitlines()]
    print(machine_line(lines[0]["machine"]) + "\n")
    print("\n\n".join(table.markdown() for table in contest_table.tables(lines)))
    return 0


def _list(options: argparse.Namespace) -> None:
    """Print the rows and the systems, and how long the chosen ones take."""
    for row in ROWS:
        print(f"{row.key:10} {row.says}")
    print()
    for racer in RACERS:
        print(f"{racer.system:17} {racer.named({})}")
    cells = _cells(options)
    print(f"\n{len(cells)} cells, about {sum(cell.estimate_s for cell in cells) / 60:.0f} minutes")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.race", description=__doc__)
    rows, systems = [row.key for row in ROWS], [racer.system for racer in RACERS]
    parser.add_argument("--rows", nargs="+", choices=rows, default=rows, metavar="ROW", help=f"of {', '.join(rows)}")
    parser.add_argument(
        "--systems", nargs="+", choices=systems, default=systems, metavar="SYSTEM", help=f"of {', '.join(systems)}"
    )
    parser.add_argument("--short", action="store_true", help="20 minutes: one round and shorter cells")
    parser.add_argument("--rounds", type=int, help="in place of those of each row")
    parser.add_argument("--seconds", type=float, help="measured in each cell or slice, in place of those of each row")
    parser.add_argument("--backlog", type=int, help="items of the rows with a backlog")
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="json: one document at the end"
    )
    parser.add_argument("--list", action="store_true", help="measure nothing: print the rows, the systems and the time")
    parser.add_argument("--no-plots", action="store_true")
    parser.add_argument(
        "--markdown", type=Path, nargs="?", const=RESULTS, metavar="FILE",
        help="measure nothing: print the tables of FILE, or of the last run, as Markdown",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        sys.exit(main())
