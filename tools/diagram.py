"""Draws the life of an item from its table, into ARCHITECTURE.md.

Holds what turns `foqs.core.life.TABLE` into a Mermaid state diagram and a table
of what every event does in every state. Always true: the same table gives the
same text, and only what stands between the markers is replaced. Judges no rule.

    python tools/diagram.py            writes
    python tools/diagram.py --check    exits 1 when the file is not up to date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from foqs.core.item import State  # noqa: E402 - the project need not be installed
from foqs.core.life import LEASED_ANEW, TABLE, Kind  # noqa: E402

BEGIN: Final = "<!-- life:begin -->"
END: Final = "<!-- life:end -->"
_CHANGES: Final = ((Kind.EXTEND, ""), (Kind.DUE, LEASED_ANEW))
"""Ways that end in the state where they began, and yet change what the diagram is about."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draws the life of an item from foqs/core/life.py.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the file is out of date")
    parser.add_argument("--file", type=Path, default=ROOT / "ARCHITECTURE.md", help="the file with the markers")
    options = parser.parse_args(arguments)
    path: Path = options.file
    if not path.exists():
        return _complain(
            f"there is no {path.name}; write it with the lines {BEGIN} and {END} where the diagram belongs"
        )
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        return _complain(f"{path.name} must hold {BEGIN} and {END} once each, in this order")
    drawn = f"{text[: text.index(BEGIN)]}{BEGIN}\n{draw()}\n{text[text.index(END) :]}"
    if drawn == text:
        return 0
    if options.check:
        return _complain(f"{path.name} does not show foqs/core/life.py as it is; run python tools/diagram.py")
    path.write_text(drawn)
    return 0


def draw() -> str:
    """The diagram and the table, as markdown."""
    return f"{diagram()}\n\n{table()}"


def diagram() -> str:
    """A Mermaid state diagram, without the ways that change nothing."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> READY: enqueue", "    [*] --> DEFERRED: enqueue with delay"]
    edges: dict[tuple[str, str], list[str]] = {}
    for (state, kind), rule in TABLE.items():
        for condition, following in rule.ways:
            if following is state and (kind, condition) not in _CHANGES:
                continue
            label = kind.value if not condition else f"{kind.value} ({condition})"
            edges.setdefault((state.name, _name(following)), []).append(label)
    for (start, stop), labels in edges.items():
        lines.append(f"    {start} --> {stop}: {' / '.join(labels)}")
    return "\n".join([*lines, "```"])


def table() -> str:
    """What every event does in every state."""
    lines = [f"| | {' | '.join(state.name for state in State)} |", "|---" * (len(State) + 1) + "|"]
    for kind in Kind:
        cells = [_cell(state, kind) for state in State]
        lines.append(f"| **{kind.value}** | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(state: State, kind: Kind) -> str:
    ways = []
    for condition, following in TABLE[state, kind].ways:
        become = "gone" if following is None else "stays" if following is state else following.name
        ways.append(f"{condition}: {become}" if condition else become)
    return "<br>".join(ways)


def _name(state: State | None) -> str:
    return "[*]" if state is None else state.name


def _complain(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
