"""Any text in a form that may be written to a terminal or a log."""

from __future__ import annotations

import re
from typing import Final

# One search of this pattern is much faster than a test of each character.
_SUSPICIOUS: Final = re.compile(r"[^\x20-\x7e]")


def printable(text: str) -> str:
    """Return a text with control characters escaped: it stays one line, and cannot move the reader's cursor."""
    return _SUSPICIOUS.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    return char if char.isprintable() else char.encode("unicode_escape").decode()
