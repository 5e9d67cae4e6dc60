"""The pauses of a consumer whose handlers cannot begin their work, as without their database.

Holds `BeginPauses`. Always true: pauses grow until a handler begins; that none begins is logged once, and once when it is
over. Knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from foqs_client.consumer.job import NotBegun
from foqs_client.safe_text import safe_text
from foqs_contract.backoff import Backoff

PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 5.0


class BeginPauses:
    """The pauses of one consumer.

    Args:
        log: gets a sentence, and whether the failure is over.

    Attributes:
        is_paused: nothing is dequeued now.
    """

    def __init__(self, log: Callable[[str, bool], None], rng: Random) -> None:
        self.is_paused = False
        self._log = log
        self._backoff = Backoff(PAUSE_S_MIN, PAUSE_S_MAX, rng)
        self._failures = 0

    def on_not_begun(self, error: NotBegun) -> float | None:
        """Begin a pause and return its length in seconds; None if one lasts."""
        if self.is_paused:  # this handler was started before it
            return None
        self.is_paused = True
        if not self._failures:
            self._log(f"handlers cannot begin: {safe_text(error)}; their items are released until they can", False)
        self._failures += 1
        return self._backoff.pause_s(self._failures - 1)

    def on_pause_over(self) -> None:
        """Let items be dequeued again."""
        self.is_paused = False

    def on_begun(self) -> None:
        """Record that a handler has begun its work. One that ends during a pause may have begun before it."""
        if self._failures and not self.is_paused:
            self._failures = 0
            self._log("handlers begin again", True)
