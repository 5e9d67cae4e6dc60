"""A token bucket for the enqueues of a namespace, and a count of the last minute.

A full bucket holds the tokens of one minute. So a namespace that was idle for a
minute may enqueue that many items at once, and in any t minutes at most the items
of t + 1 minutes pass. Always true: the level is between empty and full. The rate
is an argument, so a change of it applies from the next call on. Pure: times are
seconds of any clock that does not go back.
"""

from __future__ import annotations

from typing import Final

MINUTE_S: Final = 60.0


class TokenBucket:
    """A token bucket that is full at first."""

    __slots__ = ("_at_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = float("inf")
        """The level at `_at_s`. It may exceed the limit until `_fill` caps it."""
        self._at_s = 0.0

    def wait_s(self, items: int, per_minute: int, now_s: float) -> float:
        """Return the time until `items` may pass; 0 if they may now. `items` must be at most `per_minute`."""
        self._fill(per_minute, now_s)
        missing = items - self._tokens
        return max(0.0, missing * MINUTE_S / per_minute)

    def consume(self, items: int, per_minute: int, now_s: float) -> None:
        """Take the tokens of items that passed, after `wait_s` returned 0."""
        self._fill(per_minute, now_s)
        self._tokens = max(0.0, self._tokens - items)

    def refund(self, items: int) -> None:
        """Return the tokens of consumed items that were not enqueued."""
        self._tokens += items

    def is_full(self, now_s: float) -> bool:
        """Return whether the bucket was unused for a minute, so it equals a new one."""
        return now_s - self._at_s >= MINUTE_S

    def _fill(self, per_minute: int, now_s: float) -> None:
        gained = (now_s - self._at_s) * per_minute / MINUTE_S
        self._tokens = min(float(per_minute), self._tokens + gained)
        self._at_s = now_s


class MinuteCount:
    """Estimates the number of items in the last minute, from the counts of this calendar minute and the previous one."""

    __slots__ = ("_current", "_minute", "_previous")

    def __init__(self) -> None:
        self._minute = 0
        self._current = 0
        self._previous = 0

    def add(self, items: int, now_s: float) -> None:
        """Count `items` more."""
        minute = int(now_s / MINUTE_S)
        if minute != self._minute:
            self._roll_over(minute)
        self._current += items

    def last_minute(self, now_s: float) -> int:
        """Return the estimate for the minute before now. It is exact for a constant rate."""
        minute, elapsed_s = divmod(now_s, MINUTE_S)
        if int(minute) != self._minute:
            self._roll_over(int(minute))
        return self._current + round(self._previous * (1 - elapsed_s / MINUTE_S))

    def _roll_over(self, minute: int) -> None:
        self._previous = self._current if minute == self._minute + 1 else 0
        self._current = 0
        self._minute = minute
