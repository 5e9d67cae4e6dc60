"""Which texts of a promoter's rounds are news for a log or a terminal.

Always true: a text that was the last one is no news; one that differs from an earlier text of the same version of
the entry by its numbers only is news after a pause, because a lag counts down at each round. What it remembers is
bounded. Pure; the time is an argument.
"""

from __future__ import annotations

import re
from typing import Final

_NUMBERS: Final = re.compile(r"\d+")
_TEXTS_MAX: Final = 100


class StepTexts:
    """The texts of one database that were shown.

    Args:
        pause_ms: a text of a kind that was shown is shown again after this time.
    """

    def __init__(self, pause_ms: int) -> None:
        self._pause_ms = pause_ms
        self._version = 0
        self._shown_ms: dict[str, int] = {}
        """By kind, which is a text without its numbers: when it was shown last."""
        self._last = ""

    def is_news(self, text: str, version: int, now_ms: int) -> bool:
        """Return whether a text is to be shown now; then it counts as shown.

        Args:
            version: the entry's; 0 if it was not read.
        """
        if text == self._last and version == self._version:
            return False
        if version != self._version or len(self._shown_ms) >= _TEXTS_MAX:
            self._version = version
            self._shown_ms.clear()
        kind = _NUMBERS.sub("0", text)
        shown_ms = self._shown_ms.get(kind)
        if shown_ms is not None and now_ms - shown_ms < self._pause_ms:
            return False
        self._shown_ms[kind] = now_ms
        self._last = text
        return True
