"""Which processes, and which functions of the host, use the CPU time of an item?

Each cell runs twice: as it is, for the CPU per item in clients, host and database;
and with the host under the profiler, for the shares of its functions. The profiler
slows everything down, so a function's figure is its share of the profiled time
times the host's cost without the profiler. The cost of starting and stopping is
subtracted. C code counts for the Python function that calls it; the rest is the
event loop's.
"""

from __future__ import annotations

import argparse
import itertools
import pstats
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from foqs.dev.server_process import stop_on_signals
from perf.lib.cells import BEHIND
from perf.lib.machine import ROOT
from perf.lib.race import Broken
from perf.lib.report import Report, header, render, say
from perf.lib.stage import COORDINATED, PLAIN, stage
from perf.lib.trial import Trial, once, run_on, summary_line

PARTS: Final = (
    ("foqs/core", "core"),
    ("foqs/shard", "shard"),
    ("foqs/store", "store"),
    ("foqs/queue", "queue"),
    ("foqs/rpc", "rpc"),
    ("foqs/telemetry/metrics", "metrics"),
    ("foqs", "rest of foqs"),
    ("/aiomysql/", "driver"),
    ("/pymysql/", "driver"),
    ("/thrift/", "thrift"),
    ("/prometheus_client/", "metrics"),
    ("/asyncio/", "asyncio"),
)
"""The first entry that a function's file name contains names the function's part."""

LIBRARIES: Final = ("site-packages/", "lib/python3.")
Function = tuple[str, int, str]
LOOP: Final[Function] = ("uvloop", 0, "the event loop, its sockets, and what the profiler costs")


def main() -> int:
    options = _parser().parse_args()
    report = Report("profile")
    for system in options.system:
        for batch, topics in itertools.product(options.batch, options.topics):
            plain = BEHIND if options.behind else Trial()
            load = replace(plain, system=system, mode=options.mode, batch=batch, topics=topics)
            kind = replace(load, keyed=options.keyed, gather=not options.apart)
            trial = replace(kind, seconds=options.seconds, warmup_s=options.warmup)
            say(f"profile: {summary_line(trial)}")
            _measure(report, trial, options.top)
    if report.lines and not options.no_plots:
        from perf.lib import plots

        say(f"plot: {plots.profile(report)}")
    say(f"lines: {report.path}")
    return 0


def _measure(report: Report, trial: Trial, top: int) -> None:
    figures = once(trial)
    host_us = figures["host_us"]
    if host_us is None:
        raise Broken("no item was acked in the window that was measured: make it longer with --seconds")
    functions = _profiled(trial)
    profiled_s = sum(functions.values())
    costs = {name: seconds / profiled_s * host_us for name, seconds in functions.items()}
    parts: dict[str, float] = {}
    for function, cost in costs.items():
        part = _part(function)
        parts[part] = parts.get(part, 0.0) + cost
    ordered = sorted(costs.items(), key=lambda entry: -entry[1])[:top]
    parts = dict(sorted(parts.items(), key=lambda entry: -entry[1]))
    processes = {name: figures[f"{name}_us"] for name in ("clients", "host", "database") if f"{name}_us" in figures}
    report.add(
        asdict(trial),
        {
            "items_per_s": figures["items_per_s"],
            "processes_us": processes,
            "parts_us": parts,
            "functions_us": {_name(function): cost for function, cost in ordered},
            "flush_entries": figures["flush_entries"],
        },
    )
    _show(
        trial, figures, {"process": processes, "the host's part": parts, "the host's function": dict(_named(ordered))}
    )


def _named(ordered: list[tuple[Function, float]]) -> list[tuple[str, float]]:
    return [(_name(function), cost) for function, cost in ordered]


def _profiled(trial: Trial) -> Mapping[Function, float]:
    """Return the CPU seconds of the load in each function of the host itself."""
    say("  and once more, profiled")
    resting = _profile(trial, loaded=False)
    working = _profile(trial, loaded=True)
    return {name: max(0.0, seconds - resting.get(name, 0.0)) for name, seconds in working.items()}


def _profile(trial: Trial, *, loaded: bool) -> Mapping[Function, float]:
    with TemporaryDirectory(prefix="foqs-perf-profile-") as folder:
        target = Path(folder) / "host.profile"
        command = [sys.executable, "-m", "perf.lib.profiled", str(target)]
        with stage(trial.system, trial.shards, trial.options, command) as measured:
            if loaded:
                run_on(measured, trial)
            assert measured.host is not None
            measured.host.stop()
        stats: Any = pstats.Stats(str(target))
        found = {function: entry[2] for function, entry in stats.stats.items() if not _is_loop(function)}
        total_s = float(Path(f"{target}.total").read_text())
        return {**found, LOOP: max(0.0, total_s - sum(found.values()))}


def _is_loop(function: Function) -> bool:
    """Return whether it is the outermost function: after a cancelled task Python 3.11 reports no entry into it."""
    return function[0].endswith("/asyncio/runners.py") and function[2] == "run"


def _part(function: Function) -> str:
    if function == LOOP:
        return "event loop"
    file = _path(function[0])
    for mark, part in PARTS:
        if file.startswith(mark) if mark.startswith("foqs") else mark in file:
            return part
    return "other libraries"


def _path(file: str) -> str:
    """Return the path of a file of FOQS from its package on; compiled functions name another checkout than ROOT."""
    if any(mark in file for mark in LIBRARIES):
        return file
    _, mark, after = file.rpartition("/foqs/")
    return f"foqs/{after}" if mark else file.removeprefix(f"{ROOT}/")


def _name(function: Function) -> str:
    file, line, name = function
    file = _path(file)
    for mark in LIBRARIES:
        file = file.rpartition(mark)[2]
    return f"{file}:{line} {name}"


def _show(trial: Trial, figures: Mapping[str, Any], tables: Mapping[str, Mapping[str, float]]) -> None:
    say(f"\n{header()}\n{summary_line(trial)}: {figures['items_per_s']:,.0f} items/s")
    for title, entries in tables.items():
        say("\n" + render((title, "us per item"), [[name, f"{cost:.2f}"] for name, cost in entries.items()]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.profile", description=__doc__)
    systems = [PLAIN, COORDINATED, "foqs-sqlite"]
    parser.add_argument("--system", nargs="+", choices=systems, default=[PLAIN, "foqs-sqlite"])
    parser.add_argument("--mode", choices=("both", "produce", "consume"), default="both")
    parser.add_argument("--batch", nargs="+", type=int, default=[100, 1], help="items per call")
    parser.add_argument("--topics", nargs="+", type=int, default=[1])
    parser.add_argument(
        "--behind",
        action="store_true",
        help="few callers, half of them producers, so that every item waits in the queue",
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="measured in each run")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before the measured ones")
    parser.add_argument("--keyed", action="store_true", help="every item gets an automatic idempotency key")
    parser.add_argument("--apart", action="store_true", help="send every call on its own: the client does not coalesce")
    parser.add_argument("--top", type=int, default=40, help="functions to show")
    parser.add_argument("--no-plots", action="store_true")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        sys.exit(main())
