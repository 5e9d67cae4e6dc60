"""Does FOQS reach its targets, compared with other systems?

Runs the standard cells and prints the table of ratios with the required and the
desired value. In each round the systems alternate, so that drift of the machine
affects all of them. A row that could not be measured gives the reason and does
not stop the others.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from foqs.dev.server_process import stop_on_signals
from perf.lib import table
from perf.lib.cells import NEEDS, ON_BACKLOG, ONCE, PLAIN, Cells
from perf.lib.report import RESULTS, Report, header, render, say
from perf.lib.table import ROWS, Figures, Row
from perf.lib.trial import medians


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    if options.markdown is not None:
        others = [name for name, value in vars(options).items() if value != parser.get_default(name)]
        if others != ["markdown"]:
            parser.error("--markdown measures nothing, it shows a run that was: give it alone, or leave it out")
        return _show(options.markdown)
    chosen = [row for row in ROWS if row.key in options.rows]
    report = Report("bench")
    begun = time.monotonic()
    found, failures, cells = _measured(chosen, options)
    for name, figures in found.items():
        trial = cells.trials.get(name)
        parameters = (
            asdict(trial) if trial else {key: vars(options)[key] for key in ("items", "idle_seconds", "warmup")}
        )
        report.add({"cell": name, **parameters, "repeats": len(figures["runs_items_per_s"])}, figures)
    for row in chosen:
        report.add(*table.judge(row, found, failures))
    say(f"\n{header()}\n{table.text(report.lines)}")
    if "deep" in found:
        say(f"\nthe deep backlog: {options.deep:,} items, written in {found['deep']['fill_s']:.0f} s")
    used = [
        [name, _number(figures["items_per_s"]), f"{figures.get('cores_used', 0):.2f}"]
        for name, figures in found.items()
    ]
    say("\n" + render(("cell", "items a second", "cores used"), used))
    invalid = [name for name, figures in found.items() if figures.get("valid") is False]
    for name in invalid:
        say(
            f"INVALID RUN: {name} reached {found[name]['items_per_s']:,.0f}/s and must reach "
            f"{found[name]['floor_items_per_s']:,.0f}/s to be compared with: is the machine busy?"
        )
    say(f"{(time.monotonic() - begun) / 60:.0f} minutes; lines: {report.path}; as Markdown: --markdown")
    if not options.no_plots and any(line["figures"].get("reached") for line in report.lines):
        from perf.lib import plots

        say(f"plot: {plots.ratios(report)}")
    return 1 if invalid and options.strict else 0


def _measured(chosen: Sequence[Row], options: argparse.Namespace) -> tuple[dict[str, Figures], dict[str, str], Cells]:
    """Return the medians of the cells that the rows need, why others have none, and the parameters of all."""
    cells = Cells(options)
    runs: dict[str, list[Figures]] = {}
    failures: dict[str, str] = {}
    steps = _steps(chosen, options.repeats)
    begun = time.monotonic()
    try:
        for number, name in enumerate(steps, 1):
            if name in failures:
                continue
            say(f"bench {number}/{len(steps)}, {(time.monotonic() - begun) / 60:.0f} min: {name}")
            try:
                runs.setdefault(name, []).append(cells.measure(name))
            except Exception as error:
                failures[name] = str(error) or type(error).__name__
                say(f"  no figure: {failures[name]}")
    finally:
        cells.close()
    measured = {name: found for name, found in runs.items() if name not in failures}
    return {name: medians(found, cells.trials.get(name, PLAIN)) for name, found in measured.items()}, failures, cells


def _steps(chosen: Sequence[Row], repeats: int) -> list[str]:
    """Yield the cells in the order of measuring: rounds of those on an empty queue, then of those on a backlog."""
    wanted = list(dict.fromkeys(cell for row in chosen for cell in row.cells))
    wanted = list(dict.fromkeys(name for cell in wanted for name in (NEEDS.get(cell, cell), cell)))
    steps: list[str] = []
    for group in ([cell for cell in wanted if cell not in ON_BACKLOG], [cell for cell in ON_BACKLOG if cell in wanted]):
        for number in range(repeats):
            steps += [cell for cell in group if not number or cell not in ONCE]
    return steps


def _show(path: Path) -> int:
    """Print the table of lines that were written before."""
    files = [path] if path.is_file() else sorted(path.glob("bench-*.jsonl"))
    if not files:
        say(f"{path} holds no lines of this program: run it without --markdown first")
        return 1
    print(table.markdown([json.loads(line) for line in files[-1].read_text().splitlines()]))
    return 0


def _number(value: float) -> str:
    return f"{value:,.0f}" if value else "-"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.bench", description=__doc__)
    keys = [row.key for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=keys, default=keys, metavar="ROW", help=f"of {', '.join(keys)}")
    parser.add_argument("--deep", type=int, default=10_000_000, help="items of the deep backlog; ten million take 4 GB")
    parser.add_argument("--items", type=int, default=30_000, help="items of each shard in the runs of the limit")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured in each run")
    parser.add_argument(
        "--idle-seconds",
        type=float,
        default=20.0,
        help="the same for the cells with little load: idle, rested, chain, quiet, rest",
    )
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before the measured ones")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; the medians are shown")
    parser.add_argument("--zookeeper", action="store_true", help="run every FOQS host on MariaDB as a cluster of one")
    parser.add_argument("--strict", action="store_true", help="fail when a comparator is below its required rate")
    parser.add_argument("--no-plots", action="store_true")
    parser.add_argument(
        "--markdown", type=Path, nargs="?", const=RESULTS, metavar="FILE",
        help="measure nothing: print the table of FILE, or of the last run, as Markdown",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        sys.exit(main())
