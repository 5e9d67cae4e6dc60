"""Measures one cell of the race, on fresh servers.

Always true: every item is accounted for. Where the queue is emptied, each item was
received once; where it is not, the system itself counts as many items as must be
left; where consumers are killed, the account is the result. Knows nothing of tables.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from typing import Any, Final

from perf.lib.beside import Act, BesideRace, against
from perf.lib.contest_rows import KILLED, P99, RATE, SNAPSHOT, Cell
from perf.lib.killing import KillingRace
from perf.lib.race import Broken
from perf.lib.report import say
from perf.lib.sql_side import SqlSide
from perf.lib.stage import Stage, stage
from perf.lib.trial import NUMBERS_PER_S, loads, run_on, summary

Figures = dict[str, Any]
_FREE_BYTES_MIN: Final = 4 << 30
"""A database that may not forget anything can fill the disk."""
_COUNT_TIMEOUT_S: Final = 30.0
_COUNT_POLL_S: Final = 0.5


def measure(cell: Cell) -> Figures:
    """Return the figures of one run. Raise Broken, ServerNotAvailable, or the error of a client."""
    trial = cell.trial
    with stage(trial.system, trial.shards, topics=trial.topics) as found:
        if cell.row.kind == RATE:
            figures = run_on(found, trial)
            if not figures["items_per_s"]:
                raise Broken(f"no item was acked within {trial.seconds:g} s: is the machine busy?")
            if not trial.empty:
                check_count(found, figures)
            return figures
        if cell.row.kind == KILLED:
            return _killed(found, cell)
        return _beside(found, cell)


def check_count(found: Stage, figures: Figures) -> None:
    """Raise Broken unless the system counts as many items as must be left. Some systems notice acks a little later."""
    left = figures["left"]
    deadline = time.monotonic() + _COUNT_TIMEOUT_S
    while (counted := found.waiting()) != left and time.monotonic() < deadline:
        time.sleep(_COUNT_POLL_S)
    figures["counted_left"] = counted
    if counted != left and not figures["errors"]:
        raise Broken(f"{left:,} items must be left, and the system counts {counted:,}")


def _killed(found: Stage, cell: Cell) -> Figures:
    trial, length = cell.trial, cell.length
    numbers = round((length.seconds * length.kills + trial.warmup_s + 3) * NUMBERS_PER_S)
    race = KillingRace(found, loads(found, trial, 0), numbers, length.kills)
    outcome, account = race.killing(length.seconds, warmup_s=trial.warmup_s)
    return {**summary(found, trial, outcome), "kills": length.kills, **account.figures()}


def _beside(found: Stage, cell: Cell) -> Figures:
    trial = cell.trial
    there = b""
    if trial.backlog:
        found.fill(trial.backlog, trial.payload_bytes)
        there = b"\1" * trial.backlog
    # The database may have been restarted to be filled.
    with contextlib.closing(found.side()) as side:
        figures = _with_side(found, cell, side, there)
    if not trial.empty:
        check_count(found, figures)
    return figures


def _with_side(found: Stage, cell: Cell, side: SqlSide, there: bytes) -> Figures:
    trial, length = cell.trial, cell.length
    act: Act = side.hold if cell.row.kind == SNAPSHOT else side.report
    acts = dict.fromkeys(range(length.before, length.slices, length.every or length.slices), act)
    numbers = trial.backlog + round((length.slices * length.seconds + trial.warmup_s + 3) * NUMBERS_PER_S)
    race = BesideRace(found, loads(found, trial, len(there)), numbers, there)
    try:
        outcome, slices = race.beside(
            length.slices, length.seconds, acts, warmup_s=trial.warmup_s, empty=trial.empty, go_on=_go_on
        )
    finally:
        if cell.row.kind == SNAPSHOT:
            side.let_go()
    return {
        **summary(found, trial, outcome),
        "slice_s": length.seconds,
        "slices": slices,
        "is_cut_short": len(slices) < length.slices,
        **compared(slices, length.before, P99[cell.row.kind]),
    }


def _go_on(figures: Figures) -> bool:
    """Show the figures of a slice. Return False if the disk is nearly full."""
    say(f"    {figures['items_per_s']:>9,.0f} items/s, database {figures.get('database_us') or 0:.1f} us an item")
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < _FREE_BYTES_MIN:
        say(f"    it ends here, as only {free / 1e9:.1f} GB of disk are left: set TMPDIR to a larger one")
    return free >= _FREE_BYTES_MIN


def compared(slices: list[Figures], before: int, p99: str) -> Figures:
    """Return the last slice against the one before the other began, and against the second one after it.

    Args:
        p99: the name of the latency.
    """
    base, second = before - 1, before + 1
    return {
        "before_per_s": slices[base]["items_per_s"],
        "last_per_s": slices[-1]["items_per_s"],
        "rate_against_before": against(slices, "items_per_s", -1, base),
        "rate_against_second": against(slices, "items_per_s", -1, second),
        "lowest_against_before": min(
            (against(slices, "items_per_s", number, base) or 0.0 for number in range(before, len(slices))), default=None
        ),
        "p99_before_ms": slices[base][p99],
        "p99_last_ms": slices[-1][p99],
        "p99_against_before": against(slices, p99, -1, base),
        "database_us_before": slices[base].get("database_us"),
        "database_us_last": slices[-1].get("database_us"),
        "p99_highest_ms": max((found[p99] or 0.0 for found in slices[before:]), default=None),
        "act_s": max((found["act_s"] for found in slices if "act_s" in found), default=None),
    }
