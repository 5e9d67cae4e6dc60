"""A namespace's rate: a token bucket of enqueues, filled by the minute; and how many there were.

A full bucket holds a whole minute's worth, so whoever was quiet for a minute may
enqueue as much at once; over any time of t minutes no more than t + 1 minutes'
worth pass. Always true: what it holds is between nothing and full. The rate is
an argument, so that a change of it holds from the next call on. Pure: times are
seconds of any clock that does not go back.
"""

from __future__ import annotations

from typing import Final

MINUTE_S: Final = 60.0


class TokenBucket:
    """One bucket, full at first."""

    __slots__ = ("_at_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = float("inf")
        """At `_at_s`; perhaps more than the rate allows until it is looked at."""
        self._at_s = 0.0

    def wait_s(self, items: int, per_minute: int, now_s: float) -> float:
        """How long until so many items may pass: 0 now. They must not be more than a minute's worth."""
        self._fill(per_minute, now_s)
        missing = items - self._tokens
        return max(0.0, missing * MINUTE_S / per_minute)

    def consume(self, items: int, per_minute: int, now_s: float) -> None:
        """So many items have passed, after `wait_s` said that they may."""
        self._fill(per_minute, now_s)
        self._tokens = max(0.0, self._tokens - items)

    def refund(self, items: int) -> None:
        """So many of those that passed need not have."""
        self._tokens += items

    def is_full(self, now_s: float) -> bool:
        """Nobody asked for a minute: it is as if it were new."""
        return now_s - self._at_s >= MINUTE_S

    def _fill(self, per_minute: int, now_s: float) -> None:
        gained = (now_s - self._at_s) * per_minute / MINUTE_S
        self._tokens = min(float(per_minute), self._tokens + gained)
        self._at_s = now_s


class MinuteCount:
    """How many there were in the last minute: this calendar minute's, and the part of the one before that is left."""

    __slots__ = ("_current", "_minute", "_previous")

    def __init__(self) -> None:
        self._minute = 0
        self._current = 0
        self._previous = 0

    def add(self, items: int, now_s: float) -> None:
        """There were so many more."""
        minute = int(now_s / MINUTE_S)
        if minute != self._minute:
            self._roll_over(minute)
        self._current += items

    def last_minute(self, now_s: float) -> int:
        """About how many in the minute before now: exact when they come evenly."""
        minute, past = divmod(now_s, MINUTE_S)
        if int(minute) != self._minute:
            self._roll_over(int(minute))
        return self._current + round(self._previous * (1 - past / MINUTE_S))

    def _roll_over(self, minute: int) -> None:
        self._previous = self._current if minute == self._minute + 1 else 0
        self._current = 0
        self._minute = minute
