"""A rolling window over the flushes of a shard, which says when to open its circuit breaker.

Holds how many flushes ended, how many failed and how long they took, in a fixed
number of time spans. So its memory is bounded at any rate; the window moves by
whole spans. A flush in progress counts with the time it has taken so far. It
opens the breaker alone once it has taken as long as `flushes_min` slow flushes,
because no other flush can run meanwhile. Pure: times are seconds of any clock that
does not go back. Knows nothing of the breaker's states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SPAN_COUNT: Final = 10
"""The number of spans. The newest one is still filling, so the window covers 90 to 100 % of `window_s`."""


@dataclass(slots=True, frozen=True)
class BreakerSettings:
    """The thresholds at which the circuit breaker of a shard opens, and how long it stays open.

    Attributes:
        window_s: how long a flush is remembered.
        latency_s_max: the breaker opens if the mean duration of the flushes in the window is above this.
        error_percent: the breaker opens if this share of the flushes in the window failed.
        flushes_min: with fewer flushes in the window the breaker stays closed, except for `stall_s_max`.
        reset_s: how long the breaker stays open before one flush is tried.
    """

    window_s: float
    latency_s_max: float
    error_percent: int
    flushes_min: int
    reset_s: float

    @property
    def stall_s_max(self) -> float:
        """The duration of one flush in progress that opens the breaker alone."""
        return self.flushes_min * self.latency_s_max


class FlushWindow:
    """The recent flushes of one shard."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._span_s = settings.window_s / SPAN_COUNT
        self._span = 0
        """The number of the current span, counted from the zero of the clock."""
        self._spans = [0] * SPAN_COUNT
        """The number of the span that each place holds."""
        self.clear()

    def add(self, now_s: float, seconds: float, *, failed: bool) -> None:
        """Record a flush that ended now and took `seconds`."""
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
        """Forget all flushes."""
        self._flushes = [0] * SPAN_COUNT
        self._failures = [0] * SPAN_COUNT
        self._seconds = [0.0] * SPAN_COUNT
        self._sum()

    def _roll(self, now_s: float) -> None:
        """Forget the spans that left the window. Most calls find none."""
        span = int(now_s / self._span_s)
        if span <= self._span:
            return
        self._span = span
        for place, held_span in enumerate(self._spans):
            if held_span <= span - SPAN_COUNT:
                self._flushes[place] = self._failures[place] = 0
                self._seconds[place] = 0.0
        self._sum()

    def _sum(self) -> None:
        self._all_flushes = sum(self._flushes)
        self._all_failures = sum(self._failures)
        self._all_seconds = sum(self._seconds)

    def trip_reason(self, now_s: float, waiting_s: float | None = None) -> str | None:
        """Return why the breaker must open, in a few words, or None.

        Args:
            waiting_s: how long the flush in progress has taken so far; None if there is none.
        """
        self._roll(now_s)
        flushes, failures, seconds = self._all_flushes, self._all_failures, self._all_seconds
        settings = self._settings
        if flushes >= settings.flushes_min and failures * 100 >= settings.error_percent * flushes:
            return f"{failures} of the last {flushes} transactions failed"
        if waiting_s is not None:
            if waiting_s >= settings.stall_s_max:
                return f"a transaction has had no answer for {waiting_s * 1000:.0f} ms"
            flushes += 1
            seconds += waiting_s
        if flushes >= settings.flushes_min and seconds > settings.latency_s_max * flushes:
            return f"the last {flushes} transactions took {seconds / flushes * 1000:.0f} ms each"
        return None
