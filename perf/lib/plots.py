"""Plots of the lines of a report, as PNG files beside it.

Always true: a plot names its machine and commit, and its axes have units. Knows
nothing of how the figures were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from perf.lib import machine, rows
from perf.lib.fairness import Served, waits
from perf.lib.report import Report

COLOURS: Final = {"host": "#1f6f8b", "database": "#e0a030", "clients": "#8a8f98"}
_LINES: Final = ("#1f6f8b", "#e0a030", "#b5443c", "#5a8f3c", "#7a5ba6")
_LINES_MAX: Final = 12
"""The most tenants that have a line of their own."""
_MISSED, _REACHED, _AIMED = "#b5443c", "#a9c99a", "#5a8f3c"
_SHORTEST: Final = 0.05
_LONGEST: Final = 10.0
"""The largest ratio that is drawn; larger ones are clipped."""
DPI: Final = 130

mpl.rcParams.update(
    {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "legend.frameon": False,
    }
)


def cells(report: Report) -> Path:
    """Plot items per second and the CPU per item of each cell, end to end."""
    lines = [line for line in report.lines if line["figures"]["items_per_s"]]
    labels = [_label(line["parameters"]) for line in lines]
    figure = Figure(figsize=(11, 1.4 + 0.34 * len(lines)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = list(range(len(lines)))
    rates = [line["figures"]["items_per_s"] for line in lines]
    left.barh(places, rates, color=[_system_colour(line) for line in lines], height=0.65)
    for place, rate in zip(places, rates, strict=True):
        left.text(rate, place, f" {rate:,.0f}", va="center", fontsize=8)
    left.set_xlim(0, max(rates) * 1.15)
    left.set_yticks(places, labels)
    left.set_ylim(-0.7, len(lines) - 0.3)
    left.invert_yaxis()
    left.set_xlabel("items per second")
    for name, colour in COLOURS.items():
        points = [(line["figures"].get(f"{name}_us"), place) for place, line in enumerate(lines)]
        seen = [(cost, place) for cost, place in points if cost]
        if seen:
            right.scatter(*zip(*seen, strict=True), color=colour, s=34, label=name)
    right.set_xscale("log")
    right.set_xlabel("CPU of an item, microseconds (log)")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    for place in places:
        right.axhline(place, color="#eeeeee", linewidth=0.8, zorder=0)
    for axes in (left, right):
        axes.grid(axis="x", color="#e4e4e4")
    return _save(figure, report, "End to end")


def limits(report: Report) -> Path:
    """Plot items per second of each statement shape by flush size."""
    databases = list(dict.fromkeys(line["parameters"]["database"] for line in report.lines))
    figure = Figure(figsize=(5.2 * len(databases), 4.2), layout="constrained")
    for number, database in enumerate(databases, 1):
        axes = figure.add_subplot(1, len(databases), number)
        shapes: dict[str, list[tuple[int, float]]] = {}
        for line in report.lines:
            parameters = line["parameters"]
            if parameters["database"] == database and not rows.shape(parameters["shape"]).bare:
                point = (parameters["flush_items"], line["figures"]["items_per_s"])
                shapes.setdefault(parameters["shape"], []).append(point)
        for (shape, points), colour in zip(shapes.items(), _LINES, strict=False):
            sizes, rates = zip(*sorted(points), strict=True)
            axes.plot(sizes, rates, marker="o", color=colour, label=shape)
            axes.set_xticks(sizes)
        axes.set_title(database)
        axes.set_xlabel("items in a flush")
        axes.set_ylabel("items per second")
        axes.set_ylim(bottom=0)
        axes.grid(color="#e4e4e4")
        if shapes:
            axes.legend(fontsize=8)
    return _save(figure, report, "The database alone")


def ratios(report: Report) -> Path:
    """Plot the rows of the table against their required and desired values; right of 1 is reached."""
    lines = [line for line in report.lines if line["figures"].get("reached") is not None]
    figure = Figure(figsize=(11, 1.4 + 0.36 * len(lines)), layout="constrained")
    axes = figure.subplots()
    for place, line in enumerate(lines):
        figures = line["figures"]
        aim = figures["aim_over_must"]
        reached = min(max(figures["reached"], _SHORTEST), _LONGEST)
        colour = _MISSED if figures["reached"] < 1 else _REACHED if figures["reached"] < aim else _AIMED
        axes.barh(place, reached - _SHORTEST, left=_SHORTEST, color=colour, height=0.6)
        axes.text(reached, place, f" {figures['shown']}", va="center", fontsize=8)
        axes.plot([aim] * 2, [place - 0.4, place + 0.4], color="#333333", linewidth=2)
    axes.axvline(1, color="#333333", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(_SHORTEST, _LONGEST * 2)
    axes.set_xticks([0.1, 0.25, 0.5, 1, 2, 4, 10], ["0.1", "0.25", "0.5", "1", "2", "4", "10"])
    axes.minorticks_off()
    axes.set_yticks(range(len(lines)), [line["parameters"]["says"] for line in lines])
    axes.invert_yaxis()
    axes.set_xlabel("how far: 1 is what must be reached, the short line is the aim (log)")
    return _save(figure, report, "Against the requirements")


def profile(report: Report) -> Path:
    """Plot the host's microseconds per item by part."""
    lines = [line for line in report.lines if "parts_us" in line["figures"]]
    figure = Figure(figsize=(9, 1.6 + 1.0 * len(lines)), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(name for line in lines for name in line["figures"]["parts_us"]))
    colours = mpl.colormaps["tab20"]
    starts = [0.0] * len(lines)
    for number, name in enumerate(names):
        parts = [line["figures"]["parts_us"].get(name, 0.0) for line in lines]
        axes.barh(range(len(lines)), parts, left=starts, color=colours(number % 20), label=name, height=0.6)
        starts = [start + part for start, part in zip(starts, parts, strict=True)]
    axes.set_yticks(range(len(lines)), [_label(line["parameters"]) for line in lines])
    axes.invert_yaxis()
    axes.set_xlabel("the host's CPU of an item, microseconds")
    figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    return _save(figure, report, "Where the host's time goes")


def fairness(report: Report, served: Mapping[tuple[str, str], Sequence[Served]]) -> Path:
    """Plot when the items of each tenant were delivered, or the shares of all waits if there are many tenants.

    Args:
        served: by trial and policy of its topic.
    """
    trials = list(dict.fromkeys(trial for trial, _ in served))
    policies = list(dict.fromkeys(policy for _, policy in served))
    figure = Figure(figsize=(4.2 * len(policies), 3.2 * len(trials)), layout="constrained")
    grid = figure.subplots(len(trials), len(policies), squeeze=False, sharex="row")
    for (trial, policy), items in served.items():
        axes = grid[trials.index(trial)][policies.index(policy)]
        axes.set_title(f"{trial}, fair: {policy}")
        begin_s = min((each.delivered_s for each in items), default=0.0)
        names = sorted({each.tenant for each in items})
        if len(names) <= _LINES_MAX:
            for place, name in enumerate(names):
                moments = [each.delivered_s - begin_s for each in items if each.tenant == name]
                axes.plot(moments, [place] * len(moments), "|", markersize=9, color=_LINES[place % len(_LINES)])
            axes.set_yticks(range(len(names)), names)
            axes.set_xlabel("delivered, seconds from the first")
        else:
            found = sorted(waits(items).values(), key=len)
            halves = {"quieter half of the tenants": found[: len(found) // 2], "the others": found[len(found) // 2 :]}
            for (label, of_tenants), colour in zip(halves.items(), _LINES, strict=False):
                waits_ms = sorted(1_000 * wait_s for each in of_tenants for wait_s in each)
                shares = [place / len(waits_ms) for place in range(1, len(waits_ms) + 1)]
                axes.plot(waits_ms, shares, color=colour, label=label)
            axes.legend(loc="upper left")
            axes.set_xscale("log")
            axes.set_xlabel("wait, milliseconds (log)")
            axes.set_ylabel("share of items")
        axes.grid(axis="x", color="#e4e4e4")
    return _save(figure, report, "Fairness")


def distance(report: Report) -> Path:
    """Plot items per second over the distance of regions, a line for each number of shards and items of a call."""
    lines: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for line in report.lines:
        parameters = line["parameters"]
        point = (parameters["distance_ms"], line["figures"]["items_per_s"])
        lines.setdefault((parameters["batch"], parameters["shards"]), []).append(point)
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    axes = figure.subplots()
    shards = sorted({count for _, count in lines})
    styles = dict(zip(sorted({batch for batch, _ in lines}), ("-", "--", ":", "-."), strict=False))
    for (batch, count), points in sorted(lines.items()):
        places, rates = zip(*sorted(points), strict=True)
        colour = _LINES[shards.index(count) % len(_LINES)]
        label = f"{batch} a call, {count} shard{'s' if count > 1 else ''}"
        axes.plot(places, rates, styles.get(batch, "-"), marker="o", color=colour, label=label)
    axes.set_yscale("log")
    axes.set_xticks(sorted({place for points in lines.values() for place, _ in points}))
    axes.set_xlabel("round trip between regions, milliseconds")
    axes.set_ylabel("items per second, enqueued, dequeued and acked (log)")
    axes.grid(color="#e4e4e4")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _save(figure, report, "Distance of regions")


def loss(report: Report) -> Path:
    """Plot what each loss of a primary has cost, in items and in time, by how far its replicas were behind."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    items, times = figure.subplots(1, 2)
    found = [{**line["parameters"], **line["figures"]} for line in report.lines]
    lags = [each["lag_ms"] for each in found]
    ranges = [each for each in found if each["reported_max"] is not None]
    items.vlines(
        [each["lag_ms"] for each in ranges],
        [each["reported_min"] for each in ranges],
        [each["reported_max"] for each in ranges],
        color=_REACHED,
        linewidth=5,
        label="range that was reported",
    )
    items.plot(lags, [each["lost"] for each in found], "o", color=_MISSED, label="lost")
    items.set_yscale("symlog", linthresh=10)
    items.set_ylabel("acknowledged items (linear up to 10, then log)")
    times.plot(lags, [each["acknowledged_ms"] for each in found], "o", color=_MISSED, label="lost")
    for bound in sorted({each["max_lag_ms"] for each in found}):
        times.axhline(bound, color="#333333", linewidth=1, label=f"bound, max_lag_ms = {bound}")
    times.set_ylabel("from the first to the last lost acknowledgement\nof a shard, milliseconds")
    for axes in (items, times):
        axes.set_xlabel("lag of the nearest replica when the primary was killed, milliseconds")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(color="#e4e4e4")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return _save(figure, report, "A lost primary, policy async")


def _label(parameters: dict[str, Any]) -> str:
    words = [parameters["system"], f"{parameters['batch']} a call"]
    if parameters["mode"] != "both":
        words.append(f"{parameters['mode']} only")
    plain = {"callers": 24, "payload_bytes": 1024, "topics": 1, "backlog": 0, "rate": None, "shards": 2, "keyed": False}
    names = {"payload_bytes": "bytes", "rate": "/s offered"}
    words += [
        f"{parameters[name]:,.0f} {names.get(name, name)}" if parameters[name] is not True else name
        for name, value in plain.items()
        if parameters.get(name, value) != value
    ]
    return ", ".join(words)


def _system_colour(line: dict[str, Any]) -> str:
    return COLOURS["host"] if line["parameters"]["system"].startswith("foqs") else COLOURS["clients"]


def _save(figure: Figure, report: Report, title: str) -> Path:
    found = machine.facts()
    commit = (found["commit"] or "no commit")[:12] + (" with changes" if found["dirty"] else "")
    figure.suptitle(
        f"{title}: {found['cpu']}, {found['cores']} cores, Python {found['python']}, commit {commit}", fontsize=10
    )
    path = report.stem.with_suffix(".png")
    figure.savefig(path, dpi=DPI)
    return path
