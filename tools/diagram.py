"""Draws the life of an item from its table: a picture, and a table for ARCHITECTURE.md.

Holds what turns `foqs.core.items.life.TABLE` into docs/diagrams/life.svg and into a
table of what every event does in every state. Always true: the same table gives
the same bytes, and only what stands between the markers is replaced. Judges no
rule. Where the boxes and labels of the picture stand is decided here by hand.

    python tools/diagram.py            writes
    python tools/diagram.py --check    exits 1 when a file is not up to date
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from foqs.core.items.item import State  # noqa: E402 - the project need not be installed
from foqs.core.items.life import LEASED_AGAIN, TABLE, EventKind  # noqa: E402

BEGIN: Final = "<!-- life:begin -->"
END: Final = "<!-- life:end -->"
_CHANGES: Final = ((EventKind.EXTEND, ""), (EventKind.DUE, LEASED_AGAIN))
"""Transitions that end in the state where they began, but belong into the picture."""

WIDTH: Final = 1150
HEIGHT: Final = 650
_BOXES: Final = {"DEFERRED": (510, 70), "READY": (230, 320), "LEASED": (790, 320), "DEAD": (510, 590)}
"""The centre of each state's box."""
_HALF: Final = (60, 20)
_LINE_HEIGHT: Final = 16
_LABEL_CHARACTERS: Final = 32
_START: Final = "start"
_GONE: Final = "gone"
ARROWS: Final[Mapping[tuple[str, str], tuple[str, int, int, str]]] = {
    (_START, "DEFERRED"): ("M280,70 H448", 285, 60, "start"),
    (_START, "READY"): ("M60,320 H168", 65, 310, "start"),
    ("DEFERRED", "READY"): ("M462,91 L232,298", 330, 165, "end"),
    ("READY", "DEFERRED"): ("M264,299 L494,92", 332, 252, "start"),
    ("DEFERRED", "LEASED"): ("M558,91 L788,298", 690, 165, "start"),
    ("LEASED", "DEFERRED"): ("M756,299 L526,92", 688, 252, "end"),
    ("READY", "LEASED"): ("M291,312 H728", 510, 302, "middle"),
    ("LEASED", "READY"): ("M729,330 H292", 510, 348, "middle"),
    ("LEASED", "LEASED"): ("M851,310 C910,280 910,360 852,332", 905, 312, "start"),
    ("READY", "DEAD"): ("M236,341 C236,500 300,592 448,592", 290, 572, "end"),
    ("LEASED", "DEAD"): ("M740,341 L548,568", 628, 410, "end"),
    ("DEAD", "READY"): ("M472,569 L262,342", 350, 470, "end"),
    ("DEFERRED", _GONE): ("M571,70 H770", 578, 14, "start"),
    ("READY", _GONE): ("M210,341 V440", 200, 366, "end"),
    ("LEASED", _GONE): ("M800,341 V500", 812, 366, "start"),
    ("DEAD", _GONE): ("M571,590 H740", 600, 532, "start"),
}
"""Every arrow: its path, and where its label stands: x, y of the first line, and which end of a line x is."""


class Failed(Exception):
    """One sentence that says what is wrong and what to do."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draws the life of an item from foqs/core/items/life.py.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    parser.add_argument("--file", type=Path, default=ROOT / "ARCHITECTURE.md", help="the file with the markers")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "diagrams" / "life.svg", help="the picture")
    options = parser.parse_args(arguments)
    try:
        drawn = {options.file: _inserted(options.file, options.picture), options.picture: picture()}
    except Failed as error:
        return _complain(str(error))
    for path, text in drawn.items():
        if path.exists() and path.read_text() == text:
            continue
        if options.check:
            return _complain(f"{path.name} does not show foqs/core/items/life.py as it is; run python tools/diagram.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


def _inserted(path: Path, shown: Path) -> str:
    """Return the text of a file with picture and table between its markers. Raises Failed."""
    if not path.exists():
        raise Failed(f"there is no {path.name}; write it with the lines {BEGIN} and {END} where the diagram belongs")
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise Failed(f"{path.name} must hold {BEGIN} and {END} once each, in this order")
    return f"{text[: text.index(BEGIN)]}{BEGIN}\n{draw(path, shown)}\n{text[text.index(END) :]}"


def draw(path: Path, shown: Path) -> str:
    """Return the picture and the table as Markdown for the file `path`."""
    link = Path(os.path.relpath(shown, path.parent)).as_posix()
    return f"![The states of an item and what leads from one to another; the table says the same]({link})\n\n{table()}"


# ------------------------------------------------------------------ the picture


def picture() -> str:
    """Return the states and transitions as SVG, without transitions that change nothing. Raises Failed."""
    arrows = _arrows()
    if arrows.keys() != ARROWS.keys() or set(_BOXES) != {state.name for state in State}:
        [start, stop], *_ = sorted(arrows.keys() ^ ARROWS.keys()) or [("a state", "another")]
        raise Failed(
            f"tools/diagram.py and foqs/core/items/life.py differ about {start} to {stop}; give it a place, or take it out"
        )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' font-family="sans-serif" font-size="13">',
        "<title>The life of an item</title>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" orient="auto">'
        '<path d="M0,0 L10,5 L0,10 z" fill="#37474f"/></marker></defs>',
        '<rect width="100%" height="100%" rx="8" fill="#ffffff"/>',
    ]
    for ends, labels in arrows.items():
        lines += _arrow(ends, labels)
    for name, (x, y) in _BOXES.items():
        left, top = x - _HALF[0], y - _HALF[1]
        lines += [
            f'<rect x="{left}" y="{top}" width="{2 * _HALF[0]}" height="{2 * _HALF[1]}" rx="8" fill="#e8eaf6" stroke="#3f51b5"/>',
            f'<text x="{x}" y="{y + 5}" text-anchor="middle" font-weight="bold" fill="#1a237e">{name}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _arrows() -> dict[tuple[str, str], list[str]]:
    """Return the labels of the transitions by pair of states."""
    arrows = {(_START, "READY"): ["enqueue"], (_START, "DEFERRED"): ["enqueue with delay"]}
    for (state, kind), rule in TABLE.items():
        for condition, following in rule.outcomes:
            if following is state and (kind, condition) not in _CHANGES:
                continue
            label = kind.value if not condition else f"{kind.value} ({condition})"
            arrows.setdefault((state.name, _GONE if following is None else following.name), []).append(label)
    return arrows


def _arrow(ends: tuple[str, str], labels: list[str]) -> Iterator[str]:
    path, x, y, anchor = ARROWS[ends]
    yield f"<g><title>{ends[0]} to {ends[1]}: {escape(', '.join(labels))}</title>"
    yield f'<path d="{path}" fill="none" stroke="#37474f" marker-end="url(#tip)"/>'
    if ends[0] == _START:
        x_start, y_start = path[1:].split()[0].split(",")
        yield f'<circle cx="{x_start}" cy="{y_start}" r="6" fill="#37474f"/>'
    if ends[1] == _GONE:
        # The arrow ends at a dot in a ring, to the right of the box or below it.
        start, _, rest = path[1:].partition(" ")
        x_gone, y_gone = start.split(",")
        x_gone, y_gone = (str(int(rest[1:]) + 8), y_gone) if rest[0] == "H" else (x_gone, str(int(rest[1:]) + 8))
        yield f'<circle cx="{x_gone}" cy="{y_gone}" r="8" fill="#ffffff" stroke="#37474f"/>'
        yield f'<circle cx="{x_gone}" cy="{y_gone}" r="5" fill="#37474f"/>'
    lines = [
        line for label in labels for line in textwrap.wrap(label, _LABEL_CHARACTERS, subsequent_indent="\N{EM SPACE}")
    ]
    for number, line in enumerate(lines):
        yield f'<text x="{x}" y="{y + number * _LINE_HEIGHT}" text-anchor="{anchor}" fill="#212121">{escape(line)}</text>'
    yield "</g>"


# -------------------------------------------------------------------- the table


def table() -> str:
    """Return a table of what each event does in each state."""
    lines = [f"| | {' | '.join(state.name for state in State)} |", "|---" * (len(State) + 1) + "|"]
    for kind in EventKind:
        cells = [_cell(state, kind) for state in State]
        lines.append(f"| **{kind.value}** | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(state: State, kind: EventKind) -> str:
    ways = []
    for condition, following in TABLE[state, kind].outcomes:
        become = "gone" if following is None else "stays" if following is state else following.name
        ways.append(f"{condition}: {become}" if condition else become)
    return "<br>".join(ways)


def _complain(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
