"""Shows a run to a person: a bar, tables, sentences.

Always true: without a terminal everything is plain lines; nothing in the name
of a file can move the reader's cursor. Knows nothing of how a run goes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from foqs.demo.ledger import RunLedger, percentile_of
from foqs.demo.proof import Check, HostContents, counts_by_topic, dead_reason
from foqs_contract.plurals import counted
from foqs_contract.printable_text import printable

WIDTH_WITHOUT_TERMINAL: Final = 100_000
BAR_INTERVAL_S: Final = 0.1
LINE_INTERVAL_S: Final = 2.0
DEAD_SHOWN_MAX: Final = 20
PERCENTILES: Final = ((0.50, "p50"), (0.90, "p90"), (0.99, "p99"), (1.0, "max"))


class Display:
    """Writes to standard output; failures to standard error."""

    def __init__(self) -> None:
        is_closed = sys.stdout is None  # the console writes nothing then; the exit code still says how the run ended
        for stream in (sys.stderr,) if is_closed else (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        width = None if not is_closed and sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
        self._console = Console(width=width, highlight=False, markup=False)

    def title(self, text: str) -> None:
        self._console.print()
        self._console.print(printable(text), style="bold")

    def line(self, text: str = "") -> None:
        """Write a line without a break, however narrow the terminal is, so that it can be copied."""
        self._console.print(printable(text), soft_wrap=True)

    def named_values(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Write names, each with its text."""
        self._pairs([(Text(name, "cyan"), text) for name, text in pairs])

    def failure(self, text: str) -> None:
        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(
            Text.assemble(("Error: ", "bold red"), printable(text))
        )

    async def show_progress(self, ledger: RunLedger, total: Callable[[], int]) -> None:
        """Show how many items of the ledger are done, until cancelled."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            await self._bar(ledger, total)
        else:
            while True:
                await asyncio.sleep(LINE_INTERVAL_S)
                self.line(f"  {ledger.settled_count:,} of {counted(total(), 'item')} done")

    async def _bar(self, ledger: RunLedger, total: Callable[[], int]) -> None:
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TextColumn("items", style="dim"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, auto_refresh=False) as progress:
            task = progress.add_task("working")
            try:
                while True:
                    progress.update(task, completed=ledger.settled_count, total=total(), refresh=True)
                    await asyncio.sleep(BAR_INTERVAL_S)
            finally:
                done = "done" if ledger.is_finished else "stopped"
                progress.update(
                    task, description=f"{done:7}", completed=ledger.settled_count, total=total(), refresh=True
                )

    # ---------------------------------------------------------------- the report

    def topics(self, ledger: RunLedger, left: HostContents) -> None:
        """Write the counts by topic. The dead and remaining items are those that the host reports."""
        host = {topic.topic: topic for topic in left.topics}
        rows = []
        for topic, count in sorted(counts_by_topic(ledger).items(), key=lambda pair: -pair[1]["items"]):
            said = host.get(topic)
            dead, waiting = (said.dead, said.ready + said.deferred + said.leased) if said else (0, 0)
            numbers = (count["items"], count["acked"], dead, waiting)
            rows.append([topic, *(f"{number:,}" for number in numbers), format_bytes(count["bytes"])])
        self._table(["TOPIC", "ITEMS", "ACKED", "DEAD", "LEFT", "SIZE"], rows)

    def latencies(self, ledger: RunLedger) -> None:
        """Write the percentiles of the times between the steps of an item, and of single calls."""
        spans = (
            ("enqueue to delivery", ledger.latencies(ledger.delivered_at)),
            ("enqueue to ack", ledger.latencies(ledger.acked_at)),
            ("delivery to ack", ledger.work_latencies()),
            ("one enqueue call", sorted(ledger.enqueue_calls_s)),
            ("one ack call", sorted(ledger.ack_calls_s)),
        )
        rows = [
            [name, *(format_duration(percentile_of(span, share)) for share, _ in PERCENTILES)] for name, span in spans
        ]
        self._table(["LATENCY", *(name for _, name in PERCENTILES)], rows)

    def dead(self, ledger: RunLedger, left: HostContents) -> None:
        """Write the dead items, with the reason in their metadata."""
        names = {
            id: f"planted: {Path(path).name}" if ledger.entries[path].is_planted else path
            for path, id in ledger.ids.items()
        }
        rows = [
            [names.get(item.id, "not of this run"), str(item.attempt), dead_reason(item), item.id]
            for item in list(left.dead.values())[:DEAD_SHOWN_MAX]
        ]
        self._table(["FILE", "ATTEMPTS", "REASON", "ID"], rows, numbers=(1,))
        if len(left.dead) > DEAD_SHOWN_MAX:
            self.line(f"  and {len(left.dead) - DEAD_SHOWN_MAX:,} more")

    def checks(self, checks: Sequence[Check]) -> None:
        """Write each check with its result."""
        marks = {True: Text("ok", "green"), False: Text("FAILED", "bold red")}
        self._pairs([(marks[check.ok], check.sentence) for check in checks])

    def conclusion(self, proven: bool) -> None:
        text, style = (
            ("Every file is accounted for.", "bold green")
            if proven
            else ("NOT every file is accounted for.", "bold red")
        )
        self._console.print(text, style=style)

    def _pairs(self, pairs: Sequence[tuple[Text, str]]) -> None:
        grid = Table.grid(padding=(0, 2))
        for name, text in pairs:
            grid.add_row("", name, Text(printable(text)))
        self._console.print(grid)

    def _table(self, titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> None:
        table = Table(box=None, header_style="dim", padding=(0, 1))
        for place, title in enumerate(titles):
            right = place in numbers if numbers else place > 0
            table.add_column(title, justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._console.print(table)


def format_duration(seconds: float) -> str:
    """Return a duration as text: `3.2 ms`, `1.25 s`."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1_000:.1f} ms"


def format_bytes(count: float) -> str:
    """Return a number of bytes as text: `12 B`, `1.2 kB`, `1.2 MB`."""
    if count < 1e3:
        return f"{count:.0f} B"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"
