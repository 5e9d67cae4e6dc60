"""The table of requirements: each row, and how the measured figures compare with it.

Always true: a row is judged by the medians of its cells, or gives the reason why it
has no figure. A table is made from the lines of a report only, so it can be made
again. Knows nothing of how a cell is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perf.lib.report import machine_line, render

Figures = dict[str, Any]
Found = Mapping[str, Figures]
STEADY_RATE: Final = 10_000.0
_STEADY_SHARE: Final = 0.95
_CAUSE_CHARACTERS: Final = 160


class NoFigure(Exception):
    """The cells were measured, but the row has no meaning; the text says why."""


@dataclass(slots=True, frozen=True)
class Row:
    """A line of the table.

    Attributes:
        figure: computes the row's figure from the medians of its cells; may raise NoFigure.
        must, aim: lower bounds if `least` is set, else upper bounds. 0: the figure is shown and not judged.
    """

    key: str
    says: str
    cells: tuple[str, ...]
    figure: Callable[[Found], float]
    must: float = 0
    aim: float = 0
    least: bool = True
    unit: str = "times"


def ratio(upper: str, lower: str, name: str = "items_per_s") -> Callable[[Found], float]:
    """Return a figure of one cell divided by the same figure of another."""

    def of(found: Found) -> float:
        above, below = found[upper].get(name), found[lower].get(name)
        if above is None or not below:
            raise NoFigure(f"{name} is {above} of {upper} and {below} of {lower}")
        return float(above / below)

    return of


def _steady(upper: str, lower: str) -> Callable[[Found], float]:
    """Return the ratio of CPU per item in host and database, if both cells kept the rate: a saturated system batches more."""

    def of(found: Found) -> float:
        for name in (upper, lower):
            reached = found[name]["items_per_s"]
            if reached < STEADY_RATE * _STEADY_SHARE:
                raise NoFigure(f"{name} reached {reached:,.0f}/s of {STEADY_RATE:,.0f}/s")
        costs = [found[name]["host_us"] + found[name]["database_us"] for name in (upper, lower)]
        return float(costs[0] / costs[1])

    return of


def _quiet(found: Found) -> float:
    """Return the ratio of latencies beside a flood: the other namespace must offer more than the host accepts."""
    offered, taken = found["flooded"]["other_offered_per_s"], found["flooded"]["other_put_per_s"]
    if taken > offered * _STEADY_SHARE:
        raise NoFigure(f"the other offered {offered:,.0f}/s and the host accepted them all: that is no flood")
    return ratio("flooded", "unflooded", "delivery_p99_ms")(found)


def _memory(found: Found) -> float:
    """Return the highest memory of the host, at its start and while the queue was drained."""
    return float(found["deep"]["host_peak_mib"] - found["tiny"]["host_peak_mib"]) * 1.048576


ROWS: Final = (
    Row("postgres", "calls of 100, consumers keep up, against Postgres by hand", ("foqs", "postgres"), ratio("foqs", "postgres"), 0.4, 1.0),
    Row("behind", "calls of 100, consumers fall behind, against Postgres by hand", ("behind", "postgres-behind"), ratio("behind", "postgres-behind")),
    Row("keys", "calls of 100, with automatic keys against without", ("keyed", "foqs"), ratio("keyed", "foqs"), 0.7, 0.9),
    Row("aiomysql", "calls of 100, against MariaDB SKIP LOCKED through aiomysql", ("foqs", "aiomysql"), ratio("foqs", "aiomysql"), 2, 3),
    Row("aiomysql-behind", "calls of 100, consumers fall behind, against MariaDB through aiomysql", ("behind", "aiomysql-behind"), ratio("behind", "aiomysql-behind")),
    Row("prebuilt", "calls of 100, against MariaDB SKIP LOCKED with prebuilt SQL", ("foqs", "prebuilt"), ratio("foqs", "prebuilt")),
    Row(
        "single", "one item per call, coalesced calls, against Postgres by hand",
        ("foqs-1", "postgres-1"), ratio("foqs-1", "postgres-1"), 1.6, 2.5,
    ),
    Row("least", "one item per call, minimal queue in Python, against Postgres by hand", ("least-1", "postgres-1"), ratio("least-1", "postgres-1")),
    Row("apart", "one item per call, calls not coalesced, against Postgres by hand", ("foqs-1-apart", "postgres-1"), ratio("foqs-1-apart", "postgres-1")),
    Row("sqlite", "calls of 100, SQLite against MariaDB", ("sqlite", "foqs"), ratio("sqlite", "foqs"), 0.75, 1.25),
    Row("zookeeper", "calls of 100, with ZooKeeper against without", ("zookeeper", "foqs"), ratio("zookeeper", "foqs")),
    Row("zookeeper-1", "one item per call, with ZooKeeper against without", ("zookeeper-1", "foqs-1"), ratio("zookeeper-1", "foqs-1")),
    Row("limit", "share of the bare limit (insert + lease + ack) at the same flush size", ("behind", "limit"), ratio("behind", "limit"), 0.4, 0.6),
    Row(
        "idle", "idle delivery, p50, against bare single-row commits", ("idle", "bare"),
        lambda found: float(found["idle"]["delivery_p50_ms"] / found["bare"]["flush_p50_ms"]), 8, 4, least=False,
    ),
    Row(
        "rested", "idle delivery, p50, against bare commits at the same rate",
        ("idle", "rested"), lambda found: float(found["idle"]["delivery_p50_ms"] / found["rested"]["flush_p50_ms"]), least=False,
    ),
    Row(
        "chain", "minimal chain of processes, idle delivery, p50, against bare commits",
        ("chain", "bare"), lambda found: float(found["chain"]["delivery_p50_ms"] / found["bare"]["flush_p50_ms"]), least=False,
    ),
    Row("half", "delivery p99 at half load, against idle", ("half", "idle"), ratio("half", "idle", "delivery_p99_ms"), 6, 3, least=False),
    Row("deep", "drain rate, deep backlog against 100 thousand items", ("deep", "shallow"), ratio("deep", "shallow"), 0.8, 0.95),
    Row("topics", "calls of 100, 10,000 topics against 1", ("topics", "behind"), ratio("topics", "behind"), 0.7, 0.9),
    Row("shards", "CPU per item at 10,000 items/s of one priority, 32 shards against 2", ("shards-32", "shards-2"), _steady("shards-32", "shards-2"), 1.6, 1.3, least=False),
    Row("mixed", "CPU per item at 10,000 items/s of 100 priorities, 32 shards against 2", ("mixed-32", "mixed-2"), _steady("mixed-32", "mixed-2"), least=False),
    Row(
        "quiet", "quiet namespace's p99, another namespace at ten times its rate against at its rate",
        ("flooded", "unflooded"), _quiet, 2, 1.3, least=False,
    ),
    Row("memory", "host memory, deep backlog against 10 thousand items", ("deep", "tiny"), _memory, 60, 20, least=False, unit="MB more"),
    Row(
        "start", "start on a deep backlog until the first delivery", ("deep",),
        lambda found: float(found["deep"]["start_to_delivery_s"]), 5, 2, least=False, unit="s",
    ),
    Row("rest", "CPU of an idle host with 1,000 topics", ("rest",), lambda found: float(found["rest"]["core_percent"]), 2, 0.5, least=False, unit="% of a core"),
)  # fmt: skip


def judge(row: Row, found: Found, failures: Mapping[str, str]) -> tuple[dict[str, Any], Figures]:
    """Return the (parameters, figures) of a row for a report."""
    parameters = {"row": row.key, "says": row.says, "must": row.must, "aim": row.aim, "least": row.least}
    missing = [f"{name}: {failures.get(name, 'not run')}" for name in row.cells if name not in found]
    if missing:
        return parameters, {"not_measured": "; ".join(missing)}
    cells = ", ".join(f"{name} {_rate(found[name])}" for name in row.cells)
    try:
        value = row.figure(found)
    except NoFigure as why:
        return parameters, {"not_measured": str(why), "cells": cells}
    figures: Figures = {"value": value, "shown": f"{value:.3g} {row.unit}", "so": "reported", "cells": cells}
    if row.must:
        reached = value / row.must if row.least else row.must / max(value, 1e-9)
        over = row.aim / row.must if row.least else row.must / row.aim
        so = "missed" if reached < 1 else "must" if reached < over else "aim"
        figures |= {"reached": reached, "aim_over_must": over, "so": so}
    return parameters, figures


def text(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of a report's lines for a terminal."""
    rows = []
    for line in _rows(lines):
        figures = line["figures"]
        why = " ".join(figures.get("not_measured", "").split())[:_CAUSE_CHARACTERS]
        rows.append([*_cells(line), why or figures.get("cells", "")])
    return render(("row", "must", "aim", "measured", "reached", "from"), rows)


def markdown(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the table for a document, with the machine and the commit."""
    table = ["| | must | aim | measured | reached |", "|---|---|---|---|---|"]
    for line in _rows(lines):
        cells = _cells(line)
        why = " ".join(line["figures"].get("not_measured", "").split())[:_CAUSE_CHARACTERS]
        if why:
            cells[3:] = [f"not measured: {why}", ""]
        table.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    last = lines[-1]
    return "\n".join([*table, "", f"{machine_line(last['machine'])}; {last['at'][:10]}."])


def _rows(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in lines if "row" in line["parameters"]]


def _cells(line: Mapping[str, Any]) -> list[str]:
    """Return the cells of a row: name, must, aim, measured, reached."""
    parameters, figures = line["parameters"], line["figures"]
    sign = "at least " if parameters["least"] else "at most "
    asked = [f"{sign}{parameters['must']:g}", f"{parameters['aim']:g}"] if parameters["must"] else ["-", "-"]
    return [parameters["says"], *asked, figures.get("shown", "-"), figures.get("so", "not measured")]


def _rate(figures: Figures) -> str:
    return f"{figures['items_per_s']:,.0f}/s" if figures.get("items_per_s") else "-"
