"""Draws the first column of README's speed table as bars, into docs/diagrams/speed.svg.

Holds the reading of the table and the drawing. Always true: the same table
gives the same text, so that `--check` finds a chart that is out of date.
Knows nothing of how a figure was measured.

    python tools/speed_chart.py            writes
    python tools/speed_chart.py --check    exits 1 when the file is not up to date
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = ROOT / "docs" / "diagrams" / "speed.svg"
_TABLE: Final = re.compile(r"^\| items per second \|.*\n\|[-|: ]+\|\n(?P<rows>(?:\|.*\n)+)", re.MULTILINE)
_ROW: Final = re.compile(r"^\| (?P<name>[^|]+) \| (?P<rate>[\d,]+) \|", re.MULTILINE)
_WIDTH: Final = 760
_LABEL_WIDTH: Final = 330
_BAR_HEIGHT: Final = 22
_ROW_HEIGHT: Final = 32
_VALUE_WIDTH: Final = 80


def main(arguments: list[str]) -> int:
    drawn = draw(rates((ROOT / "README.md").read_text()))
    if "--check" not in arguments:
        CHART.write_text(drawn)
    elif not CHART.exists() or CHART.read_text() != drawn:
        print(f"{CHART.name} does not show README's speed table; run python tools/speed_chart.py", file=sys.stderr)
        return 1
    return 0


def rates(readme: str) -> list[tuple[str, int]]:
    """Return (name, items a second) of each row of the table, in its order. A row with a dash is left out."""
    table = _TABLE.search(readme)
    rows = _ROW.finditer(table["rows"] if table else "")
    return [(row["name"].strip(), int(row["rate"].replace(",", ""))) for row in rows]


def draw(rows: list[tuple[str, int]]) -> str:
    """Return the chart as SVG: a bar for each row, FOQS's darker than those it is compared with."""
    best = max(rate for _, rate in rows)
    room = _WIDTH - _LABEL_WIDTH - _VALUE_WIDTH
    height = _ROW_HEIGHT * len(rows) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="14">',
        "<title>Items a second in calls of 100, by system</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for place, (name, rate) in enumerate(rows):
        top = _ROW_HEIGHT * place + 8
        width = max(1, round(room * rate / best))
        text_y = top + _BAR_HEIGHT - 6
        color = "#1f5fa8" if name.startswith("FOQS") else "#9aa5b1"
        lines += [
            f'<text x="{_LABEL_WIDTH - 10}" y="{text_y}" text-anchor="end" fill="#222222">{escape(name.replace("`", ""))}</text>',
            f'<rect x="{_LABEL_WIDTH}" y="{top}" width="{width}" height="{_BAR_HEIGHT}" fill="{color}"/>',
            f'<text x="{_LABEL_WIDTH + width + 8}" y="{text_y}" fill="#222222">{rate:,}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
