"""Waits after failures, and the log lines about them.

Holds `Backoff` and `FailureBackoff`. Always true: waits double up to a limit and are
spread at random, so that consumers do not retry together. A failure is logged once
when it begins, and once when it is over. Knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from foqs_client.errors import FoqsError

BACKOFF_S_MIN: Final = 0.1
BACKOFF_S_MAX: Final = 5.0


class Backoff:
    """The waits between the attempts of one task."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._next_s = BACKOFF_S_MIN

    def next_s(self, retry_after_ms: int | None = None) -> float:
        """Return the next wait in seconds, at least `retry_after_ms`."""
        wait_s = self._next_s
        self._next_s = min(2 * wait_s, BACKOFF_S_MAX)
        return max(wait_s * (0.5 + self._rng.random() / 2), (retry_after_ms or 0) / 1_000)

    def reset(self) -> None:
        """Start again with the shortest wait, after a success."""
        self._next_s = BACKOFF_S_MIN


class FailureBackoff:
    """The waits and the log lines of one kind of call.

    Args:
        activity: the name of the calls in log lines: "dequeue".
        log: gets a sentence, and whether the failure is over.
    """

    def __init__(self, activity: str, log: Callable[[str, bool], None], rng: Random) -> None:
        self._activity = activity
        self._log = log
        self._backoff = Backoff(rng)
        self._logged_codes: set[str] = set()
        """The error codes of this failure that were logged."""

    def on_failure(self, error: FoqsError) -> float:
        """Return the wait before the next attempt, in seconds."""
        if error.code not in self._logged_codes:
            self._logged_codes.add(error.code)
            self._log(f"{self._activity} failed: {error}; it is retried until it works", False)
        return self._backoff.next_s(error.retry_after_ms)

    def on_success(self) -> None:
        if self._logged_codes:
            self._logged_codes.clear()
            self._backoff.reset()
            self._log(f"{self._activity} works again", True)
