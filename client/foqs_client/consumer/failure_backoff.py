"""Waits after failures, and the log lines about them.

Holds `FailureBackoff`. Always true: a failure is logged once when it begins, and once
when it is over. Knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from foqs_client.errors import FoqsError
from foqs_contract.backoff import Backoff

BACKOFF_S_MIN: Final = 0.1
BACKOFF_S_MAX: Final = 5.0


class FailureBackoff:
    """The waits and the log lines of one kind of call.

    Args:
        activity: the name of the calls in log lines: "dequeue".
        log: gets a sentence, and whether the failure is over.
    """

    def __init__(self, activity: str, log: Callable[[str, bool], None], rng: Random) -> None:
        self._activity = activity
        self._log = log
        self._backoff = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, rng)
        self._failures = 0
        self._logged_codes: set[str] = set()
        """The error codes of this failure that were logged."""

    def on_failure(self, error: FoqsError) -> float:
        """Return the wait before the next attempt, in seconds."""
        if error.code not in self._logged_codes:
            self._logged_codes.add(error.code)
            self._log(f"{self._activity} failed: {error}; it is retried until it works", False)
        self._failures += 1
        return self._backoff.pause_s(self._failures - 1, error.retry_after_ms)

    def on_success(self) -> None:
        if self._logged_codes:
            self._logged_codes.clear()
            self._failures = 0
            self._log(f"{self._activity} works again", True)
