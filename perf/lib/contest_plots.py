"""The pictures of the race: one PNG for each row.

Always true: a picture names the row, its meaning, the versions of the systems, the
machine and the commit; a system without a figure is drawn as a dash with its reason.
Knows nothing of how the figures were measured.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from perf.lib import machine
from perf.lib.contest_rows import KILLED, P99, RACERS, RATE, SNAPSHOT, Row
from perf.lib.contest_table import label, shortened
from perf.lib.plots import COLOURS, DPI

Line = Mapping[str, Any]
_OWN: Final = "#1f6f8b"
_OTHER: Final = "#b9bec6"
_GREY: Final = "#6b7078"
_PARTS: Final = {"host": "FOQS host", "database": "server or database", "clients": "clients"}
_SERIES: Final = {
    "foqs-mariadb": "#1f6f8b",
    "foqs-mysql9": "#58a9c4",
    "foqs-sqlite": "#153f57",
    "postgres": "#b5443c",
    "mariadb-prebuilt": "#e0a030",
    "pgqueuer": "#7a5ba6",
}
"""The colour of each system on SQL, the same in all pictures."""
_WRAP: Final = 150


def row(of: Row, lines: Sequence[Line], stem: Path) -> Path | None:
    """Draw a row beside the lines' file and return the picture's path; None if nothing was measured."""
    order = [racer.system for racer in RACERS]
    lines = sorted(lines, key=lambda line: order.index(line["parameters"]["system"]))
    measured = [line for line in lines if "dash" not in line["figures"]]
    if not measured:
        return None
    dashed = [line for line in lines if "dash" in line["figures"]]
    figure = {RATE: _rates, KILLED: _killed}.get(of.kind, _slices)(of, measured, dashed)
    path = stem.with_name(f"{stem.name}-{of.key}.png")
    figure.savefig(path, dpi=DPI)
    return path


def _figure(of: Row, places: int) -> Figure:
    figure = Figure(figsize=(12, 2.1 + 0.36 * places), layout="constrained")
    title = of.title[0].upper() + of.title[1:]
    figure.suptitle(f"{title}\n" + "\n".join(textwrap.wrap(of.says, _WRAP)), fontsize=10)
    return figure


def _machine() -> str:
    found = machine.facts()
    commit = (found["commit"] or "no commit")[:12] + (" with changes" if found["dirty"] else "")
    return f"{found['cpu']}, {found['cores']} cores, Python {found['python']}, commit {commit}"


def _names(axes: Any, measured: Sequence[Line], dashed: Sequence[Line]) -> None:
    """Name the systems on the left: the measured ones from the top, then the others with their reasons."""
    lines = [*measured, *dashed]
    axes.set_yticks(range(len(lines)), [label(line) for line in lines])
    axes.set_ylim(-0.7, len(lines) - 0.3)
    axes.invert_yaxis()
    for tick in axes.get_yticklabels()[len(measured) :]:
        tick.set_color(_GREY)
    for place, line in enumerate(dashed, len(measured)):
        axes.text(
            0.004, place, f"-  {textwrap.shorten(shortened(line['figures']['dash']), 90)}", va="center", fontsize=8,
            color=_GREY, transform=axes.get_yaxis_transform(),
        )  # fmt: skip


def _rates(of: Row, measured: Sequence[Line], dashed: Sequence[Line]) -> Figure:
    measured = sorted(measured, key=lambda line: -line["figures"]["items_per_s"])
    figure = _figure(of, len(measured) + len(dashed))
    figure.supxlabel(_machine(), fontsize=8, color=_GREY)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    rates = [line["figures"]["items_per_s"] for line in measured]
    left.barh(range(len(rates)), rates, color=list(map(_colour, measured)), height=0.65)
    for place, rate in enumerate(rates):
        left.text(rate, place, f" {rate:,.0f}", va="center", fontsize=8)
    left.set_xlim(0, max(rates) * 1.14 or 1)
    left.set_xlabel("items per second")
    left.xaxis.set_major_formatter("{x:,.0f}")
    _names(left, measured, dashed)
    starts = [0.0] * len(measured)
    for name, says in _PARTS.items():
        costs = [line["figures"].get(f"{name}_us") or 0.0 for line in measured]
        right.barh(range(len(costs)), costs, left=starts, color=COLOURS[name], height=0.65, label=says)
        starts = [start + cost for start, cost in zip(starts, costs, strict=True)]
    for place, total in enumerate(starts):
        right.text(total, place, f" {total:,.0f}" if total >= 10 else f" {total:.1f}", va="center", fontsize=8)
    right.set_xlim(0, max(starts) * 1.14 or 1)
    right.set_xlabel("CPU of an item, microseconds")
    right.xaxis.set_major_formatter("{x:,.0f}")
    right.tick_params(axis="y", length=0)
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=8)
    for axes in (left, right):
        axes.grid(axis="x", color="#e4e4e4")
    return figure


def _killed(of: Row, measured: Sequence[Line], dashed: Sequence[Line]) -> Figure:
    figure = _figure(of, len(measured) + len(dashed))
    figure.supxlabel(_machine(), fontsize=8, color=_GREY)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    highest = max([line["figures"]["again_max_s"] or 0.0 for line in measured])
    for place, line in enumerate(measured):
        figures = line["figures"]
        counts = f"lost {figures['lost']:,}, doubled {figures['doubled']:,}, had {figures['in_hand']:,}"
        middle, last = figures["again_p50_s"], figures["again_max_s"]
        if middle is None:
            text = f" none of them again: {counts}"
        else:
            left.plot([middle, last], [place] * 2, color=_colour(line), linewidth=6, solid_capstyle="butt", alpha=0.5)
            left.plot([middle], [place], marker="o", color=_colour(line) if _is_own(line) else _GREY)
            text = f"  {middle:.2f} to {last:.2f} s: {counts}"
        bad = figures["lost"] > 0
        left.text(last or 0.0, place, text, va="center", fontsize=8, color="#b5443c" if bad else "black")
    left.set_xlim(0, highest * 2.2 or 1)
    left.set_xlabel("seconds from the kill until the items are delivered again, median to last")
    _names(left, measured, dashed)
    rates = [line["figures"]["items_per_s"] for line in measured]
    right.barh(range(len(rates)), rates, color=list(map(_colour, measured)), height=0.65)
    for place, rate in enumerate(rates):
        right.text(rate, place, f" {rate:,.0f}", va="center", fontsize=8)
    right.set_xlim(0, max(rates) * 1.2 or 1)
    right.set_xlabel("items per second meanwhile")
    right.xaxis.set_major_formatter("{x:,.0f}")
    right.tick_params(axis="y", length=0)
    for axes in (left, right):
        axes.grid(axis="x", color="#e4e4e4")
    return figure


def _slices(of: Row, measured: Sequence[Line], dashed: Sequence[Line]) -> Figure:
    figure = _figure(of, 15)
    ((rate, relative), (latency, cost)) = figure.subplots(2, 2, sharex=True)
    slice_s = measured[0]["figures"]["slice_s"]
    unit, scale = ("minutes", 60.0) if slice_s * len(measured[0]["figures"]["slices"]) >= 180 else ("seconds", 1.0)
    before = of.whole.before
    for line in measured:
        slices = line["figures"]["slices"]
        ends = [(number + 1) * slice_s / scale for number in range(len(slices))]
        base = slices[before - 1]["items_per_s"]
        style: dict[str, Any] = {
            "color": _SERIES.get(line["parameters"]["system"], _GREY),
            "marker": "o" if _is_own(line) else "s",
            "markersize": 3.5,
            "linewidth": 2.0 if _is_own(line) else 1.2,
            "label": label(line),
        }
        rate.plot(ends, [found["items_per_s"] for found in slices], **style)
        relative.plot(ends, [found["items_per_s"] / base if base else 0 for found in slices], **style)
        latency.plot(ends, [found[P99[of.kind]] for found in slices], **style)
        # SQLite is a part of the host.
        cost.plot(ends, [found.get("database_us") or found.get("host_us") for found in slices], **style)
    rate.set_ylabel("items per second")
    rate.set_ylim(bottom=0)
    rate.yaxis.set_major_formatter("{x:,.0f}")
    relative.set_ylabel("the same, 1 is the slice before")
    relative.set_ylim(bottom=0)
    relative.axhline(1, color="#999999", linewidth=0.8)
    way = "from enqueue to delivery" if of.kind == SNAPSHOT else "of an enqueue"
    latency.set_ylabel(f"p99 {way}, ms (log)")
    _logarithmic(latency)
    cost.set_ylabel("CPU of the database per item, us (log)")
    _logarithmic(cost)
    begun = before * slice_s / scale
    for axes in (rate, relative, latency, cost):
        axes.axvline(begun, color=_GREY, linewidth=0.8, linestyle="--")
        axes.set_xlim(left=0)
        axes.grid(color="#e4e4e4")
    for axes in (latency, cost):
        axes.set_xlabel(f"{unit} at the end of each slice")
    what = "snapshot taken" if of.kind == SNAPSHOT else "first report"
    rate.text(begun, 0.01, f" {what}", fontsize=8, color=_GREY, transform=rate.get_xaxis_transform())
    handles, names = rate.get_legend_handles_labels()
    by_reason: dict[str, list[str]] = {}
    for line in dashed:
        by_reason.setdefault(textwrap.shorten(shortened(line["figures"]["dash"]), 110), []).append(label(line))
    notes = [f"- {', '.join(systems)}: {reason}" for reason, systems in by_reason.items()]
    notes.append(_machine())
    figure.legend(
        handles, names, loc="outside lower center", ncols=3, fontsize=8, title="\n".join(notes), title_fontsize=8
    )
    return figure


def _logarithmic(axes: Any) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _is_own(line: Line) -> bool:
    return bool(line["parameters"]["system"].startswith("foqs"))


def _colour(line: Line) -> str:
    return _OWN if _is_own(line) else _OTHER
