"""The parts that the HTML pages of pipelines share.

Holds `document`, `bars`, `table` and `duration`. Always true: a page is one file that needs
neither scripts nor a network; text in it is escaped. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from foqs_client.spark.pipelines.charts import stacked_bars
from foqs_contract.plurals import counted

BARS_MAX: Final = 30

_STYLE: Final = (
    "body{font:15px/1.5 sans-serif;color:#222;max-width:900px;margin:2em auto;padding:0 1em}"
    "h1{margin-bottom:0}h2{margin-top:2em;border-bottom:1px solid #ddd}table{border-collapse:collapse}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #eee}td.n,th.n{text-align:right}"
    ".note{color:#666}svg{max-width:100%;height:auto}"
)


def document(title: str, parts: Sequence[str]) -> str:
    """Return a page of parts, which are HTML."""
    head = f"<meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def bars(counts: Mapping[str, Counter[str]], series: Sequence[str], what: str) -> list[str]:
    """Return a chart of the longest bars, and a sentence about the others.

    Args:
        counts: by label, the items of each series.
        what: the noun for a label, such as topic.
    """
    ordered = sorted(counts, key=lambda label: -counts[label].total())
    left = ordered[BARS_MAX:]
    rest = sum(counts[label].total() for label in left)
    note = (
        [f"<p class=note>{counted(len(left), f'more {what} has', f'more {what}s have')} {counted(rest, 'item')}.</p>"]
        if left
        else []
    )
    return [stacked_bars({label: counts[label] for label in ordered[:BARS_MAX]}, series), *note]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """Return a table. The first `texts` columns are aligned to the left, the others to the right."""

    def cells(tag: str, values: Sequence[str]) -> str:
        sides = ["" if place < texts else " class=n" for place in range(len(values))]
        return "<tr>" + "".join(f"<{tag}{side}>{escape(value)}" for side, value in zip(sides, values, strict=True))

    return f"<table>{cells('th', head)}{''.join(cells('td', row) for row in rows)}</table>"


def duration(ms: float) -> str:
    """Return a time in its unit."""
    seconds = ms / 1_000
    for unit, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:,.1f} s"
