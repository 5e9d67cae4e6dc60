"""The output of a measuring program: a JSON line for each measurement, and a table for people.

Always true: a line holds the program, all parameters, the figures, the machine, and
its load at the time of writing. Every line is kept in perf/results, and is printed
to standard output too unless that is a terminal. Tables and progress go to standard
error. Knows nothing of what the figures mean.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from perf.lib import machine

RESULTS: Final = Path(os.environ.get("PERF_RESULTS") or machine.ROOT / "perf" / "results")
"""The folder of all lines and pictures. PERF_RESULTS replaces it, for a copy of the tree that is measured."""


class Report:
    """Keeps the lines of one run of one program in their own file.

    Args:
        is_echoed: each line is also printed to standard output unless that is a terminal.
    """

    def __init__(self, program: str, folder: Path = RESULTS, *, is_echoed: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.program = program
        self._is_echoed = is_echoed and not sys.stdout.isatty()
        self.stem = folder / f"{program}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        self.lines: list[dict[str, Any]] = []

    @property
    def path(self) -> Path:
        return self.stem.with_suffix(".jsonl")

    def add(self, parameters: Mapping[str, Any], figures: Mapping[str, Any]) -> dict[str, Any]:
        """Write one measurement."""
        line = {
            "program": self.program,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "parameters": dict(parameters),
            "figures": dict(figures),
            "load": machine.load(),
            "machine": machine.facts(),
        }
        text = json.dumps(line)
        with self.path.open("a") as file:
            file.write(text + "\n")
        if self._is_echoed:
            print(text, flush=True)
        self.lines.append(line)
        return line

    def table(self, columns: Sequence[str]) -> None:
        """Print the lines. A column is the name of a parameter or of a figure."""
        rows = [[_cell({**line["parameters"], **line["figures"]}.get(name)) for name in columns] for line in self.lines]
        say(f"\n{header()}\n{render(columns, rows)}\nlines: {self.path}")


def header() -> str:
    """Return the machine, the program and the load in one line."""
    return f"{machine_line(machine.facts())}, load {machine.load()}"


def machine_line(facts: Mapping[str, Any]) -> str:
    """Return the machine and the program in one line."""
    commit = (facts["commit"] or "no commit")[:12] + (" with changes" if facts["dirty"] else "")
    modules = "compiled" if facts.get("compiled") else "plain Python"
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, kernel {facts['kernel']}, "
        f"Python {facts['python']}, commit {commit}, {modules}"
    )


def render(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in plain text with its numbers aligned to the right."""
    table = [list(columns), *map(list, rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    right = [all(_is_number(row[index]) for row in rows) for index in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, right, strict=True)
        return "  ".join(cell.rjust(width) if flush else cell.ljust(width) for cell, width, flush in cells).rstrip()

    return "\n".join([line(table[0]), "  ".join("-" * width for width in widths), *map(line, rows)])


def say(text: str) -> None:
    """Print progress or a table to standard error."""
    print(text, file=sys.stderr, flush=True)


def middle(values: Sequence[float]) -> float:
    """Return the median; of two middle values the lower one."""
    return sorted(values)[(len(values) - 1) // 2]


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return a percentile of sorted values, or None if there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(",", "").replace(".", "").replace("-", "").replace("e+", "").isdigit()
