"""A shard's own time: a steady clock that follows the database's at a bounded rate.

Always true: it never goes back and never jumps; in a second of the steady clock
it passes one second, more or less `slew_permille` milliseconds. A sample of
the database's clock says how far the two are apart; the difference is worked off
at that rate, whatever the database's clock has done. A new owner's time starts
where the former's can have been at most, and never behind what it saved. Reads
no clock itself; counts in microseconds, so that nothing is lost to rounding.
"""

from __future__ import annotations

from collections.abc import Callable

_US_PER_MS = 1_000


class ShardClock:
    """Milliseconds since 1970-01-01 UTC, as this shard counts them.

    Args:
        monotonic_ms: a steady clock that never goes back and counts on while the machine sleeps.
        start_ms: the shard's time now.
        database_ms: the database's clock now, at the latest.
        slew_permille: how much faster or slower than the steady clock it may run, in thousandths; below 1,000.
    """

    def __init__(self, monotonic_ms: Callable[[], int], start_ms: int, database_ms: int, slew_permille: int) -> None:
        self._monotonic_ms = monotonic_ms
        self._slew_permille = slew_permille
        """Microseconds that it may gain or lose in a millisecond."""
        self._since_ms = monotonic_ms()
        self._base_us = start_ms * _US_PER_MS
        """The shard's time at `_since_ms`."""
        self._behind_us = (database_ms - start_ms) * _US_PER_MS
        """How far it was behind the database's clock then; negative when ahead."""

    def now_ms(self) -> int:
        elapsed_ms = self._monotonic_ms() - self._since_ms
        return (self._base_us + elapsed_ms * _US_PER_MS + self._slewed_us(elapsed_ms)) // _US_PER_MS

    def now_and_offset_ms(self) -> tuple[int, int]:
        """(the shard's time, what it is less the database's clock, as far as that is known)."""
        elapsed_ms = self._monotonic_ms() - self._since_ms
        slewed_us = self._slewed_us(elapsed_ms)
        now_us = self._base_us + elapsed_ms * _US_PER_MS + slewed_us
        return now_us // _US_PER_MS, (slewed_us - self._behind_us) // _US_PER_MS

    def on_database_time(self, database_ms: int, requested_at_ms: int) -> None:
        """The database's clock was read, at some moment since the shard's time was `requested_at_ms`.

        So the difference lies between what it would be had the clock been read
        at once, and just now. What was believed stands where it lies there too;
        otherwise the nearer end is believed: half a round trip is never worked off.
        """
        now_ms = self._monotonic_ms()
        elapsed_ms = now_ms - self._since_ms
        slewed_us = self._slewed_us(elapsed_ms)
        self._base_us += elapsed_ms * _US_PER_MS + slewed_us
        self._since_ms = now_ms
        least_us = database_ms * _US_PER_MS - self._base_us
        most_us = (database_ms - requested_at_ms + 1) * _US_PER_MS
        self._behind_us = max(least_us, min(self._behind_us - slewed_us, most_us))

    @property
    def is_catching_up(self) -> bool:
        """It is behind the database's clock, and runs faster than the steady clock to catch up."""
        if self._behind_us <= 0:
            return False
        return self._slewed_us(self._monotonic_ms() - self._since_ms) < self._behind_us

    def wait_ms(self, until_ms: int) -> int:
        """How long on the steady clock until the shard's time is `until_ms`, unless a sample comes first; 0 when it is."""
        elapsed_ms = self._monotonic_ms() - self._since_ms
        gap_us = until_ms * _US_PER_MS - self._base_us
        slew, behind_us = self._slew_permille, self._behind_us
        if behind_us >= 0:
            wait_ms = max(_ceil(gap_us, _US_PER_MS + slew), _ceil(gap_us - behind_us, _US_PER_MS))
        else:
            wait_ms = min(_ceil(gap_us, _US_PER_MS - slew), _ceil(gap_us - behind_us, _US_PER_MS))
        return max(0, wait_ms - elapsed_ms)

    def _slewed_us(self, elapsed_ms: int) -> int:
        """What was worked off in so much time."""
        most_us, behind_us = elapsed_ms * self._slew_permille, self._behind_us
        if -most_us <= behind_us <= most_us:
            return behind_us
        return most_us if behind_us > 0 else -most_us


def initial_time_ms(database_ms: int, saved_ms: int, offset_ms: int, skew_ms_max: int) -> int:
    """A new owner's first moment.

    Args:
        database_ms: the database's clock, read just now.
        saved_ms: the shard's time when it was last written; 0 when it never was.
        offset_ms: the shard's time less the database's clock then.
        skew_ms_max: how far two servers' clocks are apart at most; the one read now
            may be another than the one that was read then.
    """
    if not saved_ms:
        return database_ms
    return max(saved_ms, database_ms + offset_ms - skew_ms_max)


def _ceil(us: int, us_per_ms: int) -> int:
    return -(-us // us_per_ms)
