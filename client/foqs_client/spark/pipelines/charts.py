"""Charts as inline SVG: bars in rows, and columns over time.

Always true: a chart needs no script, no font and no network; text in it is escaped.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

COLOURS: Final = ("#2c6fbb", "#e08e2b", "#5b9a3f", "#b03a48", "#7b5aa6", "#4aa3a2", "#8c6d46", "#777777")
_WIDTH: Final = 860
_LABEL: Final = 250
_ROW: Final = 24
_LETTER: Final = 7
"""The width of a letter."""
_COLUMN_AREA: Final = 200


def stacked_bars(rows: Mapping[str, Mapping[str, float]], series: Sequence[str]) -> str:
    """Return a bar for each row, divided into the values of the series, with a legend.

    Args:
        rows: by label, the value of each series.
        series: the names of the series, in the order of the bar.
    """
    most = max((sum(values.values()) for values in rows.values()), default=0)
    parts = _legend(series)
    top = 30
    for label, values in rows.items():
        parts.append(_text(_LABEL - 10, top + 15, _shortened(label, _LABEL // _LETTER), "end"))
        at = float(_LABEL)
        total = sum(values.values())
        for place, name in enumerate(series):
            value = values.get(name, 0)
            width = (_WIDTH - _LABEL - 90) * value / most if most else 0
            if value:
                tip = f"{label}: {value:,} {name}"
                parts.append(_box(at, top, width, _ROW - 6, COLOURS[place % len(COLOURS)], tip))
            at += width
        parts.append(_text(at + 6, top + 15, f"{total:,}"))
        top += _ROW
    return _svg(parts, top + 6)


def columns(values: Sequence[tuple[str, int]], label_every: int = 1) -> str:
    """Return a column for each (label, value), in order. Only every n-th label is shown."""
    most = max((value for _, value in values), default=0)
    width = (_WIDTH - 80) / max(1, len(values))
    base = 20 + _COLUMN_AREA
    parts = [_line(60, base, _WIDTH - 20, base)]
    for share in (0.5, 1.0):
        height = base - _COLUMN_AREA * share
        parts += [
            _line(60, height, _WIDTH - 20, height, "#dddddd"),
            _text(54, height + 4, _number(most * share), "end"),
        ]
    for place, (label, value) in enumerate(values):
        left, height = 60 + place * width, _COLUMN_AREA * value / most if most else 0
        if value:
            parts.append(_box(left + 1, base - height, max(1.0, width - 2), height, COLOURS[0], f"{label}: {value:,}"))
        if place % label_every == 0:
            parts.append(_text(left + 1, base + 16, label))
    return _svg(parts, base + 26)


def _legend(series: Sequence[str]) -> list[str]:
    parts: list[str] = []
    width = (_WIDTH - 20) / max(1, len(series))
    for place, name in enumerate(series):
        left = 10 + place * width
        shown = _shortened(name, int(width / _LETTER) - 3)
        parts += [_box(left, 6, 12, 12, COLOURS[place % len(COLOURS)], name), _text(left + 17, 16, shown)]
    return parts


def _svg(parts: Sequence[str], height: float) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{"".join(parts)}</svg>'


def _box(x: float, y: float, width: float, height: float, colour: str, tip: str) -> str:
    shape = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">'
    return f"{shape}<title>{escape(tip)}</title></rect>"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "#888888") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    style = 'font-family="sans-serif" font-size="12" fill="#333333"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {style}>{escape(text)}</text>'


def _shortened(label: str, most: int) -> str:
    return label if len(label) <= most else f"{label[: max(1, most - 1)]}…"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
