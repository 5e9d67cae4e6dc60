"""What the wire says to the log about its peers.

Always true: a line says who, what is wrong and what happened to the
connection; a flood of the same kind writes at most a few lines a second and
then how many were left out. Knows nothing of what is complained about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

LINES_PER_SECOND: Final = 10

log = logging.getLogger("foqs.wire")


def name_of(peer: object) -> str:
    """A peer by its socket's address."""
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "unknown")


class Complaints:
    """A rate-limited logger.

    Args:
        now: the loop's clock, in seconds.
    """

    def __init__(self, now: Callable[[], float], lines_per_second: int = LINES_PER_SECOND) -> None:
        self._now = now
        self._lines_per_second = lines_per_second
        self._second = 0
        self._lines = 0
        self.left_out = 0

    def say(self, peer: str, text: str) -> None:
        """One line, or one more that was left out."""
        second = int(self._now())
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= self._lines_per_second:
            self.left_out += 1
            return
        self._lines += 1
        if self.left_out:
            text = f"{text} ({self.left_out} such lines were left out before this one)"
            self.left_out = 0
        log.warning("%s: %s", peer, text)
