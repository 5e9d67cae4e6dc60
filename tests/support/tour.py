"""Reads docs/tour.md: its parts, their blocks, the commands, and the output that the page shows.

Always true: only comments are left out. Any number may stand for a number in the
output. Knows nothing of the commands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TOUR: Final = Path(__file__).parents[2] / "docs" / "tour.md"
ADDRESS: Final = "foqs://127.0.0.1:7411"
ADDRESSES: Final = "foqs://127.0.0.1:7411,127.0.0.1:7413,127.0.0.1:7415"


@dataclass(frozen=True)
class Block:
    """The text between two fences, and its language."""

    language: str
    text: str

    @property
    def commands(self) -> Sequence[str]:
        """Its lines, without their comments."""
        return [line.partition(" #")[0].strip() for line in self.text.splitlines() if line.strip()]

    def is_in(self, shown: str) -> bool:
        """Whether this was shown: the same words, any for those with a digit, and any lines in place of `...`."""
        lines = [r"(?:.*\n)*?" if line == "..." else _pattern(line) for line in self.text.splitlines()]
        return re.search("".join(lines), shown + "\n") is not None


def part(title: str) -> list[Block]:
    """The blocks below a headline of the tour."""
    text = TOUR.read_text().partition(f"\n## {title}\n")[2]
    assert text, f"there is no part {title!r}"
    text = re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0]
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]


def _pattern(line: str) -> str:
    """Return the regex of a line with its end."""
    words = [r"\S+" if re.search(r"\d", word) else re.escape(word) for word in line.split()]
    return r" *" + r" +".join(words) + r" *\n"
