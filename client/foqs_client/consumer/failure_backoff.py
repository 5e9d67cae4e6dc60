"""How long to wait after a failure, and when to speak of it.

Holds `Backoff` and `Trouble`. Always true: waits double up to a limit and are
spread at random, so that consumers do not come back together; a trouble is told
once when it begins, and once when it is over. Knows no calls.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from foqs_client.errors import FoqsError

BACKOFF_S_MIN: Final = 0.1
BACKOFF_S_MAX: Final = 5.0


class Backoff:
    """The waits between tries of one thing."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._next_s = BACKOFF_S_MIN

    def next_s(self, retry_after_ms: int | None = None) -> float:
        """How long to wait now, in seconds; at least `retry_after_ms`."""
        wait_s = self._next_s
        self._next_s = min(2 * wait_s, BACKOFF_S_MAX)
        return max(wait_s * (0.5 + self._rng.random() / 2), (retry_after_ms or 0) / 1_000)

    def reset(self) -> None:
        """It went well."""
        self._next_s = BACKOFF_S_MIN


class FailureBackoff:
    """Failures of one kind of call, as they are told.

    Args:
        log: a sentence for the log, and whether the trouble is over.
        activity: what the calls are for: "taking items".
    """

    def __init__(self, activity: str, log: Callable[[str, bool], None], rng: Random) -> None:
        self._activity = activity
        self._log = log
        self._backoff = Backoff(rng)
        self._logged_codes: set[str] = set()
        """The codes of this trouble that were told."""

    def on_failure(self, error: FoqsError) -> float:
        """Returns how long to wait, in seconds, before the next try."""
        if error.code not in self._logged_codes:
            self._logged_codes.add(error.code)
            self._log(f"{self._activity} failed: {error}; trying again until it works", False)
        return self._backoff.next_s(error.retry_after_ms)

    def on_success(self) -> None:
        if self._logged_codes:
            self._logged_codes.clear()
            self._backoff.reset()
            self._log(f"{self._activity} works again", True)
