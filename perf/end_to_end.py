"""How fast are client, host and database together on this machine?

Runs real host and client processes, next to hand-written queues on Postgres and
MariaDB in the same harness. Without options that choose cells it runs a standard
list: a plain cell, and cells that differ from it in one parameter. With such
options it runs every combination of the values. Every item is counted: a run that
lost or duplicated one is an error.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import replace
from typing import Final

from foqs.dev.server_process import stop_on_signals
from perf.lib.race import Broken
from perf.lib.report import Report, say
from perf.lib.servers import ServerNotAvailable
from perf.lib.stage import BY_HAND, COORDINATED, SYSTEMS
from perf.lib.trial import Trial, repeated, summary_line

COLUMNS: Final = (
    "system", "mode", "batch", "callers", "payload_bytes", "topics", "backlog", "rate", "shards", "items_per_s",
    "host_us", "database_us", "clients_us", "enqueue_p50_ms", "enqueue_p99_ms", "delivery_p50_ms", "delivery_p99_ms",
    "host_mib", "cores_used", "valid",
)  # fmt: skip
PLAIN: Final = Trial()
STANDARD: Final = (
    PLAIN,
    replace(PLAIN, mode="produce"),
    replace(PLAIN, mode="consume"),
    *(replace(PLAIN, batch=1, callers=callers) for callers in (1, 64, 256)),
    *(replace(PLAIN, payload_bytes=size) for size in (100, 10_240)),
    *(replace(PLAIN, topics=count) for count in (100, 10_000)),
    replace(PLAIN, backlog=100_000),
    replace(PLAIN, batch=1, callers=64, rate=500.0),
    replace(PLAIN, system=COORDINATED),
    replace(PLAIN, system=COORDINATED, batch=1, callers=64),
    replace(PLAIN, system="foqs-sqlite"),
    replace(PLAIN, system="foqs-sqlite", batch=1, callers=64),
    *(replace(PLAIN, system=system) for system in BY_HAND),
    *(replace(PLAIN, system=system, batch=1, callers=64) for system in BY_HAND),
)
_CHOICES: Final = (
    "system",
    "mode",
    "batch",
    "callers",
    "payload_bytes",
    "topics",
    "backlog",
    "rate",
    "shards",
    "processes",
)


def main() -> int:
    options = _parser().parse_args()
    chosen = {name: getattr(options, name) for name in _CHOICES if getattr(options, name)}
    if chosen:
        values = itertools.product(*chosen.values())
        cells = [replace(PLAIN, **dict(zip(chosen, combination, strict=True))) for combination in values]
    else:
        cells = list(STANDARD)
    report = Report("end_to_end")
    failed = 0
    for number, cell in enumerate(cells, 1):
        trial = replace(
            cell, seconds=options.seconds, warmup_s=options.warmup, keyed=options.keyed, gather=not options.apart
        )
        say(f"end_to_end {number}/{len(cells)}: {summary_line(trial)}")
        try:
            report.add(*repeated(trial, options.repeats))
        except (Broken, ServerNotAvailable) as error:
            failed += 1
            say(f"  no figure: {error}")
    report.table(COLUMNS)
    if report.lines and not options.no_plots:
        from perf.lib import plots

        say(f"plot: {plots.cells(report)}")
    invalid = [line for line in report.lines if line["figures"].get("valid") is False]
    for line in invalid:
        parameters, figures = line["parameters"], line["figures"]
        say(
            f"INVALID RUN: {parameters['system']} with {parameters['batch']} a call reached "
            f"{figures['items_per_s']:,.0f}/s; it must reach {figures['floor_items_per_s']:,.0f}/s to compare with"
        )
    return 1 if failed or (invalid and options.strict) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.end_to_end", description=__doc__)
    cell = parser.add_argument_group("cells (all combinations of the given values)")
    cell.add_argument("--system", nargs="+", choices=SYSTEMS)
    cell.add_argument("--mode", nargs="+", choices=("both", "produce", "consume"))
    cell.add_argument("--batch", nargs="+", type=int, help="items of a call")
    cell.add_argument("--callers", nargs="+", type=int, help="callers of both roles together")
    cell.add_argument("--payload", nargs="+", type=int, dest="payload_bytes", help="bytes of an item, at least 36")
    cell.add_argument("--topics", nargs="+", type=int)
    cell.add_argument("--backlog", nargs="+", type=int, help="items in the queue at the start")
    cell.add_argument("--rate", nargs="+", type=float, help="items per second, open loop, to measure latency")
    cell.add_argument("--shards", nargs="+", type=int)
    cell.add_argument("--processes", nargs="+", type=int, help="processes of each role")
    parser.add_argument("--keyed", action="store_true", help="every item gets an automatic idempotency key")
    parser.add_argument("--apart", action="store_true", help="send every call on its own: the client does not coalesce")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured in each run")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before the measured ones")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each cell; the medians are shown")
    parser.add_argument("--strict", action="store_true", help="fail when a comparator is below its required rate")
    parser.add_argument("--no-plots", action="store_true")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        sys.exit(main())
