"""The tables of the race, in plain text or as Markdown.

Always true: they are made from the lines of a report only, so they can be made
again; each names the versions of the systems; a dash has a letter, and each letter a
reason. Knows nothing of how a cell is measured.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perf.lib.contest_rows import KILLED, RACERS, RATE, REPORT, ROWS, SNAPSHOT, Row, racer
from perf.lib.report import render

Line = Mapping[str, Any]
NOT_RUN: Final = ""
_CAUSE_CHARACTERS: Final = 200


@dataclass(slots=True, frozen=True)
class Table:
    """One table.

    Attributes:
        reasons: why cells are dashes, by letter.
        meanings: what its rows mean, one line for each, for a terminal.
    """

    title: str
    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    reasons: Mapping[str, str]
    meanings: Sequence[str] = ()

    def text(self) -> str:
        """Return it for a terminal."""
        notes = [f"  -{letter}: {reason}" for letter, reason in self.reasons.items()]
        return "\n".join([self.title, *self.meanings, render(self.columns, self.cells), *notes])

    def markdown(self) -> str:
        """Return it as Markdown."""
        lines = [f"**{self.title}**", "", _row(self.columns), _row(["---"] + ["---:"] * (len(self.columns) - 1))]
        lines += [_row([cell.replace("|", "\\|") for cell in row]) for row in self.cells]
        notes = [f"-{letter}: {reason}" for letter, reason in self.reasons.items()]
        return "\n".join([*lines, *([""] if notes else []), *("  \n".join(notes).splitlines())])


class _Dashes:
    """Gives each reason a letter."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def cell(self, reason: str) -> str:
        reason = shortened(reason)
        for letter, known in self.reasons.items():
            if known == reason:
                return f"-{letter}"
        letter = _letter(len(self.reasons))
        self.reasons[letter] = reason
        return f"-{letter}"


def _letter(number: int) -> str:
    """Return a, b, ..., z, aa, ab, ..."""
    before, last = divmod(number, len(string.ascii_lowercase))
    return (_letter(before - 1) if before else "") + string.ascii_lowercase[last]


def shortened(reason: str) -> str:
    """Return the first line of a reason, which may be the log of a server."""
    line = reason.strip().splitlines()[0] if reason.strip() else "unknown"
    return line if len(line) <= _CAUSE_CHARACTERS else line[: _CAUSE_CHARACTERS - 3] + "..."


def label(line: Line) -> str:
    """Return the name of a line's system with its versions, as `Redis 7.0.15`."""
    return racer(line["parameters"]["system"]).named(line["figures"].get("versions") or {})


def tables(lines: Iterable[Line]) -> list[Table]:
    """Return the tables of all rows that the lines hold."""
    by_row: dict[str, dict[str, Line]] = {}
    for line in lines:
        by_row.setdefault(line["parameters"]["row"], {})[line["parameters"]["system"]] = line
    present = [row for row in ROWS if row.key in by_row]
    systems = [known.system for known in RACERS if any(known.system in found for found in by_row.values())]
    labels = {
        system: max((label(found[system]) for found in by_row.values() if system in found), key=len)
        for system in systems
    }
    rates = [row for row in present if row.kind == RATE]
    made = [_rates(rates, by_row, labels)] if rates else []
    made += [_special(row, by_row[row.key], labels) for row in present if row.kind != RATE]
    return made


def _rates(rows: Sequence[Row], by_row: Mapping[str, Mapping[str, Line]], labels: Mapping[str, str]) -> Table:
    dashes = _Dashes()
    cells = []
    for system, name in labels.items():
        found = [by_row[row.key].get(system) for row in rows]
        if any(line is not None for line in found):
            cells.append(
                [name, *(_cell(line, dashes, lambda figures: _count(figures["items_per_s"])) for line in found)]
            )
    meanings = [f"  {row.key}: {row.says}" for row in rows]
    return Table("Items per second", ["system", *(row.key for row in rows)], cells, dashes.reasons, meanings)


Figure = tuple[str, Callable[[Mapping[str, Any]], str]]

_SPECIAL: Final[Mapping[str, Sequence[Figure]]] = {
    KILLED: (
        ("items/s", lambda found: _count(found["items_per_s"])),
        ("killed", lambda found: _count(found["kills"])),
        ("lost", lambda found: _count(found["lost"])),
        ("doubled", lambda found: _count(found["doubled"])),
        ("in hand", lambda found: _count(found["in_hand"])),
        ("again, p50 s", lambda found: _short(found["again_p50_s"])),
        ("again, last s", lambda found: _short(found["again_max_s"])),
    ),
    SNAPSHOT: (
        ("before, items/s", lambda found: _count(found["before_per_s"])),
        ("last, items/s", lambda found: _count(found["last_per_s"]) + _cut(found)),
        ("last/before", lambda found: _short(found["rate_against_before"])),
        ("last/second", lambda found: _short(found["rate_against_second"])),
        ("p99 before, ms", lambda found: _short(found["p99_before_ms"])),
        ("p99 last, ms", lambda found: _short(found["p99_last_ms"])),
        ("database before, us", lambda found: _short(found["database_us_before"])),
        ("database last, us", lambda found: _short(found["database_us_last"])),
    ),
    REPORT: (
        ("before, items/s", lambda found: _count(found["before_per_s"])),
        ("lowest/before", lambda found: _short(found["lowest_against_before"])),
        ("last/before", lambda found: _short(found["rate_against_before"])),
        ("p99 before, ms", lambda found: _short(found["p99_before_ms"])),
        ("p99 highest, ms", lambda found: _short(found["p99_highest_ms"])),
        ("report, s", lambda found: _short(found["act_s"])),
    ),
}  # fmt: skip


def _special(row: Row, found: Mapping[str, Line], labels: Mapping[str, str]) -> Table:
    dashes = _Dashes()
    columns = _SPECIAL[row.kind]
    cells = []
    for system, name in labels.items():
        if system in found:
            line = found[system]
            if "dash" in line["figures"]:
                cells.append([name, dashes.cell(line["figures"]["dash"]), *[NOT_RUN] * (len(columns) - 1)])
            else:
                cells.append([name, *(figure(line["figures"]) for _, figure in columns)])
    title = row.title[0].upper() + row.title[1:]
    slice_s = next((line["figures"]["slice_s"] for line in found.values() if "slice_s" in line["figures"]), None)
    if slice_s is not None:
        title += f", slices of {slice_s:.0f} s"
    return Table(title, ["system", *(name for name, _ in columns)], cells, dashes.reasons, [f"  {row.says}"])


def _cell(line: Line | None, dashes: _Dashes, figure: Callable[[Mapping[str, Any]], str]) -> str:
    if line is None:
        return NOT_RUN
    figures = line["figures"]
    return dashes.cell(figures["dash"]) if "dash" in figures else figure(figures)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _cut(found: Mapping[str, Any]) -> str:
    """Return a mark for a series that ended early because the disk was nearly full."""
    return f" (slice {len(found['slices'])})" if found.get("is_cut_short") else ""


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
