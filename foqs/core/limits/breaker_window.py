"""Whether a shard's flushes say that its database is not well: a rolling window over them.

Holds how many flushes ended, how many of them failed and how long they took, in
a fixed number of spans of time, so its memory is bounded whatever the rate; the
window rolls on by a whole span. A flush that is still waiting is judged with
the time it has taken so far, and needs no company when it waits for as long as
the least number of slow ones would have taken: none can run beside it. Pure:
times are seconds of any clock that does not go back. Knows nothing of states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SPAN_COUNT: Final = 10
"""A window's spans. The last one is still filling, so what is seen is nine to ten tenths of a window."""


@dataclass(slots=True, frozen=True)
class BreakerSettings:
    """When the breaker of a shard opens, and for how long.

    Attributes:
        window_s: how long a flush is remembered.
        latency_s_max: the mean time of the flushes in the window above which it opens.
        error_percent: of 100 flushes in the window, so many that fail open it.
        flushes_min: fewer flushes in the window open nothing; one that waits for as long as so many slow ones does.
        reset_s: how long it stays open before one flush is tried.
    """

    window_s: float
    latency_s_max: float
    error_percent: int
    flushes_min: int
    reset_s: float

    @property
    def stall_s_max(self) -> float:
        """As long as the least number of slow ones takes."""
        return self.flushes_min * self.latency_s_max


class FlushWindow:
    """The flushes of one shard that ended lately."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._span_s = settings.window_s / SPAN_COUNT
        self._span = 0
        """The one that is filling, by its number since the clock began."""
        self._spans = [0] * SPAN_COUNT
        """Which span each place stands for."""
        self.clear()

    def add(self, now_s: float, seconds: float, *, failed: bool) -> None:
        """A flush has ended just now, after so many seconds."""
        self._roll(now_s)
        place = self._span % SPAN_COUNT
        self._spans[place] = self._span
        self._flushes[place] += 1
        self._failures[place] += failed
        self._seconds[place] += seconds
        self._all_flushes += 1
        self._all_failures += failed
        self._all_seconds += seconds

    def clear(self) -> None:
        """Forgets all of it."""
        self._flushes = [0] * SPAN_COUNT
        self._failures = [0] * SPAN_COUNT
        self._seconds = [0.0] * SPAN_COUNT
        self._sum()

    def _roll(self, now_s: float) -> None:
        """Forgets the spans that are over: most calls find that there are none."""
        span = int(now_s / self._span_s)
        if span <= self._span:
            return
        self._span = span
        for place, own in enumerate(self._spans):
            if own <= span - SPAN_COUNT:
                self._flushes[place] = self._failures[place] = 0
                self._seconds[place] = 0.0
        self._sum()

    def _sum(self) -> None:
        self._all_flushes = sum(self._flushes)
        self._all_failures = sum(self._failures)
        self._all_seconds = sum(self._seconds)

    def trip_reason(self, now_s: float, waiting_s: float | None = None) -> str | None:
        """Why the database is not well, in a few words; None where nothing says so.

        Args:
            waiting_s: how long a flush has been under way; None when there is none.
        """
        self._roll(now_s)
        flushes, failures, seconds = self._all_flushes, self._all_failures, self._all_seconds
        settings = self._settings
        if flushes >= settings.flushes_min and failures * 100 >= settings.error_percent * flushes:
            return f"{failures} of the last {flushes} transactions failed"
        if waiting_s is not None:
            if waiting_s >= settings.stall_s_max:
                return f"a transaction has got no answer for {waiting_s * 1000:.0f} ms"
            flushes += 1
            seconds += waiting_s
        if flushes >= settings.flushes_min and seconds > settings.latency_s_max * flushes:
            return f"the last {flushes} transactions took {seconds / flushes * 1000:.0f} ms each"
        return None
