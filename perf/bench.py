"""How does FOQS stand against what was asked of it?

Runs the standard set of cells, every system's in turn within each round so that
a machine that drifts drifts for all of them, and prints the table of ratios
with what must be reached and what is aimed at. A row that could not be measured
says why. Deep backlogs are smaller than asked unless `--deep` says otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from foqs_client import Client, Item
from perf import limit
from perf.lib import machine, rows
from perf.lib.race import Broken, Race
from perf.lib.report import Report, header, render, say
from perf.lib.servers import CannotRun
from perf.lib.stage import stage
from perf.lib.trial import Trial, medians, once
from perf.lib.worker import Load

PLAIN: Final = Trial()
SMALL: Final = replace(PLAIN, batch=1, callers=64)
STEADY: Final = replace(PLAIN, rate=10_000.0, callers=64)
DRAIN: Final = replace(PLAIN, mode="consume", payload_bytes=100, empty=False)
IDLE_RATE: Final = 50.0
QUIET_RATE: Final = 100.0
FLOOD_SHARE: Final = 0.2
"""The other namespace's own rate, as a share of what the host can do: ten times it is twice too much."""
SHALLOW: Final = 100_000
TINY: Final = 10_000

Figures = dict[str, Any]


@dataclass(slots=True, frozen=True)
class Row:
    """A line of the table. `least`: the figure must be at least `must`; otherwise at most."""

    key: str
    says: str
    cells: tuple[str, ...]
    figure: Callable[[dict[str, Figures]], float]
    must: float
    aim: float
    least: bool = True
    unit: str = "times"


def ratio(upper: str, lower: str, name: str = "items_per_s") -> Callable[[dict[str, Figures]], float]:
    """A figure of one cell over the same of another."""
    return lambda found: float(found[upper][name] / found[lower][name])


ROWS: Final = (
    Row("postgres", "calls of 100, both at once, against Postgres by hand", ("foqs", "postgres"), ratio("foqs", "postgres"), 0.4, 1.0),
    Row("keys", "with automatic keys against without", ("keyed", "foqs"), ratio("keyed", "foqs"), 0.7, 0.9),
    Row("aiomysql", "against MariaDB SKIP LOCKED through aiomysql", ("foqs", "aiomysql"), ratio("foqs", "aiomysql"), 2, 3),
    Row("prebuilt", "against MariaDB SKIP LOCKED, prebuilt SQL (told only)", ("foqs", "prebuilt"), ratio("foqs", "prebuilt"), 0, 0),
    Row("single", "one item per call, 64 callers, against Postgres by hand", ("foqs-1", "postgres-1"), ratio("foqs-1", "postgres-1"), 1.6, 2.5),
    Row("sqlite", "calls of 100, SQLite against MariaDB", ("sqlite", "foqs"), ratio("sqlite", "foqs"), 0.75, 1.25),
    Row("limit", "share of the bare limit at the same flush size", ("foqs", "limit"), ratio("foqs", "limit"), 0.4, 0.6),
    Row(
        "idle", "enqueue to waiting consumer, idle, p50, against a bare commit's", ("idle", "bare"),
        lambda found: float(found["idle"]["delivery_p50_ms"] / found["bare"]["flush_p50_ms"]), 8, 4, least=False,
    ),
    Row(
        "half", "half load, open loop, p99 against idle p99", ("half", "idle"),
        ratio("half", "idle", "delivery_p99_ms"), 6, 3, least=False,
    ),
    Row("deep", "deep backlog against 100 thousand, drain rate", ("deep", "shallow"), ratio("deep", "shallow"), 0.8, 0.95),
    Row("topics", "10,000 topics against 1", ("topics", "foqs"), ratio("topics", "foqs"), 0.7, 0.9),
    Row(
        "shards", "32 shards against 2, CPU per item, 10,000/s", ("shards-32", "shards-2"),
        lambda found: _all_cpu(found["shards-32"]) / _all_cpu(found["shards-2"]), 1.6, 1.3, least=False,
    ),
    Row(
        "quiet", "quiet namespace's p99 under another's flood against without", ("flooded", "unflooded"),
        ratio("flooded", "unflooded", "delivery_p99_ms"), 2, 1.3, least=False,
    ),
    Row(
        "memory", "host memory, deep backlog, above that of 10 thousand", ("deep", "tiny"),
        lambda found: float(found["deep"]["host_mib"] - found["tiny"]["host_mib"]) * 1.048576, 60, 20, least=False, unit="MB",
    ),
    Row(
        "start", "start on a deep backlog until the first dequeue", ("deep",),
        lambda found: float(found["deep"]["start_to_delivery_s"]), 5, 2, least=False, unit="s",
    ),
    Row("rest", "idle with 1,000 topics", ("rest",), lambda found: float(found["rest"]["core_percent"]), 2, 0.5, least=False, unit="% of a core"),
)  # fmt: skip


class Bench:
    """The cells that the chosen rows need, each measured once in every round."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._runs: dict[str, list[Figures]] = {}
        self.failures: dict[str, str] = {}
        timed = {"seconds": options.seconds, "warmup_s": options.warmup}
        deep = {"buffer_pool_mib": 2048, **timed}
        self.trials: dict[str, Trial] = {
            "foqs": replace(PLAIN, **timed),
            "postgres": replace(PLAIN, system="postgres", **timed),
            "keyed": replace(PLAIN, keyed=True, **timed),
            "aiomysql": replace(PLAIN, system="mariadb-aiomysql", **timed),
            "prebuilt": replace(PLAIN, system="mariadb-prebuilt", **timed),
            "foqs-1": replace(SMALL, **timed),
            "postgres-1": replace(SMALL, system="postgres", **timed),
            "sqlite": replace(PLAIN, system="foqs-sqlite", **timed),
            "topics": replace(PLAIN, topics=10_000, **timed),
            "shards-2": replace(STEADY, **timed),
            "shards-32": replace(STEADY, shards=32, **timed),
            "idle": replace(SMALL, rate=IDLE_RATE, **timed),
            "half": replace(SMALL, callers=256, **timed),
            "deep": replace(DRAIN, backlog=options.deep, **deep),
            "shallow": replace(DRAIN, backlog=min(options.deep, SHALLOW), **deep),
            "tiny": replace(DRAIN, backlog=min(options.deep, TINY), **deep),
        }

    def run(self, chosen: Sequence[Row]) -> dict[str, Figures]:
        """The medians of the cells."""
        names = list(dict.fromkeys(cell for row in chosen for cell in row.cells))
        # These need a figure of others that come first: how large the flushes are, and how much is much.
        for before, name in (("foqs-1", "half"), ("foqs", "limit"), ("foqs", "flooded"), ("foqs", "unflooded")):
            if name in names:
                names = [before, *(other for other in names if other not in (before, name)), name]
        for number in range(self._options.repeats):
            for name in names:
                if name in self.failures or (number and name in ("deep", "shallow", "tiny", "rest")):
                    continue
                say(f"bench: round {number + 1} of {self._options.repeats}, {name}")
                try:
                    figures = self._measure(name)
                    self._runs.setdefault(name, []).append(figures)
                except (Broken, CannotRun, TimeoutError, KeyError) as error:
                    self.failures[name] = str(error)
                    say(f"  no figure: {error}")
        measured = {name: runs for name, runs in self._runs.items() if name not in self.failures}
        return {name: medians(runs, self.trials.get(name, PLAIN)) for name, runs in measured.items()}

    def _measure(self, name: str) -> Figures:
        special: dict[str, Callable[[], Figures]] = {
            "limit": self._limit,
            "bare": self._bare,
            "half": self._half,
            "rest": self._rest,
            "flooded": lambda: self._beside(10.0),
            "unflooded": lambda: self._beside(1.0),
        }
        figures = special[name]() if name in special else once(self.trials[name])
        if name not in ("limit", "bare", "rest") and not figures["items_per_s"]:
            raise Broken(f"not an item passed: {figures['errors']}")
        return figures

    def _limit(self) -> Figures:
        """The combined shape, in flushes of as many items as the host's had."""
        entries = self._runs["foqs"][-1]["flush_entries"] or 300
        size = max(10, round(entries / 3))
        shape = next(shape for shape in rows.SHAPES if shape.name == "combined")
        found = limit.once("mariadb", shape, size, max(5, self._options.items // size), PLAIN.payload_bytes)
        return {**found, "flush_items": size}

    def _bare(self) -> Figures:
        shape = next(shape for shape in rows.SHAPES if shape.name == "bare-commit")
        return limit.once("mariadb", shape, 1, max(5, self._options.items // 30), PLAIN.payload_bytes)

    def _half(self) -> Figures:
        """At half of what the host does at most with the same calls."""
        self.trials["half"] = replace(self.trials["half"], rate=self._runs["foqs-1"][0]["items_per_s"] / 2)
        return once(self.trials["half"])

    def _beside(self, times: float) -> Figures:
        """A quiet namespace beside one that offers `times` its own rate."""
        timed = self.trials["foqs"]
        rate = self._runs["foqs"][0]["items_per_s"] * FLOOD_SHARE * times
        options = {f"namespaces.{name}.lease_ms_default": 30_000 for name in ("quiet", "flood")}
        with stage("foqs-mariadb", 2, options) as found:
            base = Load(
                "produce", 0, found.system, found.place, 64, 1, 1024, stride=2, namespace="quiet", rate=QUIET_RATE
            )
            flood = replace(base, worker=1, first=1, namespace="flood", batch=10, rate=rate, seed=1)
            quiet_out = replace(base, role="consume", worker=2, callers=16, rate=None)
            flood_out = replace(flood, role="consume", worker=3, callers=8, batch=100, rate=None)
            race = Race(found, [base, flood, quiet_out, flood_out], round((timed.seconds + 3) * 240_000))
            outcome = race.both(timed.seconds, warmup_s=timed.warmup_s)
        return {
            "items_per_s": sum(outcome.done) / outcome.seconds,
            "flood_offered_per_s": rate,
            "flood_put_per_s": outcome.put[1] / outcome.seconds,
            "quiet_put_per_s": outcome.put[0] / outcome.seconds,
            **outcome.latency_ms("produce", "quiet"),
            **outcome.latency_ms("consume", "quiet"),
            "errors": outcome.errors,
        }

    def _rest(self) -> Figures:
        """A host with an item in each of 1,000 topics, left alone."""
        seconds = max(0.5, 2 * self._options.seconds)
        with stage("foqs-mariadb", 2) as found:
            assert found.host is not None
            asyncio.run(_one_in_each(found.host.address, 1_000))
            time.sleep(self._options.warmup)
            before = machine.cpu_s(found.host.pid)
            time.sleep(seconds)
            used_s = machine.cpu_s(found.host.pid) - before
            return {"items_per_s": 0.0, "core_percent": used_s / seconds * 100, "seconds": seconds}


async def _one_in_each(address: str, topics: int) -> None:
    async with Client(address) as client:
        for start in range(0, topics, 100):
            for result in await client.enqueue([Item(f"t{start + number}", b"x" * 100) for number in range(100)]):
                result.require()


def main() -> int:
    options = _parser().parse_args()
    chosen = [row for row in ROWS if row.key in options.rows]
    begun = time.monotonic()
    report = Report("bench")
    bench = Bench(options)
    cells = bench.run(chosen)
    for name, figures in cells.items():
        report.add(
            {"cell": name, **asdict(bench.trials.get(name, PLAIN)), "repeats": len(figures["runs_items_per_s"])},
            figures,
        )
    table = [_judge(report, row, cells, bench.failures) for row in chosen]
    if any("deep" in row.cells for row in chosen):
        say(
            f"\nthe deep backlog is of {options.deep:,} items; 10,000,000 are asked for (--deep); measured once, as is what rests"
        )
    say(f"\n{header()}\n" + render(("row", "must", "aim", "measured", "so", "from"), table))
    used = [[name, _rate(figures), f"{figures.get('cores_used', 0):.2f}"] for name, figures in cells.items()]
    say("\n" + render(("cell", "items", "cores used by it"), used))
    invalid = [name for name, figures in cells.items() if figures.get("valid") is False]
    for name in invalid:
        say(
            f"INVALID RUN: {name} reached {cells[name]['items_per_s']:,.0f}/s and must reach "
            f"{cells[name]['floor_items_per_s']:,.0f}/s to be compared with: is the machine busy?"
        )
    say(f"{time.monotonic() - begun:.0f} s; lines: {report.path}")
    if not options.no_plots and any(line["figures"].get("reached") for line in report.lines):
        from perf.lib import plots

        say(f"plot: {plots.ratios(report)}")
    return 1 if invalid and options.strict else 0


def _judge(report: Report, row: Row, cells: dict[str, Figures], failures: dict[str, str]) -> list[str]:
    """A row as text; its line goes to the report."""
    sign = "" if row.must == 0 else ("at least " if row.least else "at most ")
    asked = [f"{sign}{row.must:g}", f"{row.aim:g}"] if row.must else ["-", "-"]
    missing = [f"{name}: {failures.get(name, 'not run')}" for name in row.cells if name not in cells]
    if missing:
        report.add({"row": row.key, "says": row.says}, {"not_measured": missing})
        return [row.says, *asked, "-", "not measured", " ".join("; ".join(missing).split())[:80]]
    value = row.figure(cells)
    shown = f"{value:.3g} {row.unit}"
    figures: Figures = {"value": value, "must": row.must, "aim": row.aim, "shown": shown}
    so = "told"
    if row.must:
        figures["reached"] = value / row.must if row.least else row.must / max(value, 1e-9)
        figures["aim_over_must"] = row.aim / row.must if row.least else row.must / row.aim
        so = "missed" if figures["reached"] < 1 else "must"
        if figures["reached"] >= figures["aim_over_must"]:
            so = "aim"
    report.add({"row": row.key, "says": row.says}, figures)
    return [row.says, *asked, shown, so, ", ".join(f"{name} {_rate(cells[name])}" for name in row.cells)]


def _rate(figures: Figures) -> str:
    return f"{figures['items_per_s']:,.0f}/s" if figures.get("items_per_s") else "-"


def _all_cpu(figures: Figures) -> float:
    return float(figures["host_us"] + figures["database_us"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.bench", description=__doc__)
    keys = [row.key for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=keys, default=keys, metavar="ROW", help=f"of {', '.join(keys)}")
    parser.add_argument("--deep", type=int, default=1_000_000, help="items of the deep backlog; 10000000 is asked")
    parser.add_argument("--items", type=int, default=30_000, help="items of each shard in the runs of the limit")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured in each run")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before that")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; the medians are told")
    parser.add_argument("--strict", action="store_true", help="fail when a comparator is below what it must reach")
    parser.add_argument("--no-plots", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
