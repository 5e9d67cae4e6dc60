"""The log of problems with peers.

Always true: a line names the peer, the problem and what happened to the
connection; at most a few lines a second are written, and the next line says how
many were suppressed. Knows nothing of the problems themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from foqs_contract.plurals import counted

LINES_PER_SECOND_MAX: Final = 10

log = logging.getLogger("foqs.rpc")


def peer_name(peer: object) -> str:
    """Return a peer's address as text."""
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "unknown")


class PeerLog:
    """A rate-limited logger.

    Args:
        now: the loop's clock, in seconds.
    """

    def __init__(self, now: Callable[[], float], lines_per_second_max: int = LINES_PER_SECOND_MAX) -> None:
        self._now = now
        self._lines_per_second_max = lines_per_second_max
        self._second = 0
        self._line_count = 0
        self.suppressed_count = 0

    def warn(self, peer: str, text: str) -> None:
        """Write a line, or count it as suppressed."""
        second = int(self._now())
        if second != self._second:
            self._second, self._line_count = second, 0
        if self._line_count >= self._lines_per_second_max:
            self.suppressed_count += 1
            return
        self._line_count += 1
        if self.suppressed_count:
            text = f"{text} ({counted(self.suppressed_count, 'line was', 'lines were')} suppressed before this one)"
            self.suppressed_count = 0
        log.warning("%s: %s", peer, text)
