"""The shard clock: a steady clock that follows the database's clock at a bounded rate.

Always true: it never goes back and never jumps; in a second of the steady clock it
advances one second, plus or minus at most `slew_permille` milliseconds. The estimate
of the database's clock shows the difference, which is corrected at that rate, even if
the database's clock jumps. A new owner's clock starts at least where the former
owner's can have been, and never before the saved time. Reads no clock itself. Counts
in microseconds, so that no rounding errors add up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

US_PER_MS: Final = 1_000


class ShardClock:
    """The time of a shard, in milliseconds since 1970-01-01 UTC.

    Args:
        monotonic_ms: a steady clock that never goes back and also counts while the machine sleeps.
        start_ms: the shard's time now.
        ahead_us: the database's clock minus the steady clock, as estimated.
        slew_permille: how much faster or slower than the steady clock it may run, in thousandths; below 1,000.
    """

    def __init__(self, monotonic_ms: Callable[[], int], start_ms: int, ahead_us: int, slew_permille: int) -> None:
        self._monotonic_ms = monotonic_ms
        self._slew_permille = slew_permille
        """In thousandths: as many microseconds as it may gain or lose in a millisecond."""
        self._since_ms = monotonic_ms()
        self._base_us = start_ms * US_PER_MS
        """The shard's time at `_since_ms`."""
        self._behind_us = ahead_us + self._since_ms * US_PER_MS - self._base_us
        """How far it was behind the database's clock at `_since_ms`; negative if it was ahead."""

    def now_ms(self) -> int:
        elapsed_ms = self._monotonic_ms() - self._since_ms
        return (self._base_us + elapsed_ms * US_PER_MS + self._slewed_us(elapsed_ms)) // US_PER_MS

    def now_and_offset_ms(self) -> tuple[int, int]:
        """Return (the shard's time, the shard's time minus the estimated database's clock)."""
        elapsed_ms = self._monotonic_ms() - self._since_ms
        slewed_us = self._slewed_us(elapsed_ms)
        now_us = self._base_us + elapsed_ms * US_PER_MS + slewed_us
        return now_us // US_PER_MS, (slewed_us - self._behind_us) // US_PER_MS

    def follow(self, ahead_us: int) -> None:
        """Correct the difference from a new estimate: the database's clock minus the steady clock."""
        now_ms = self._monotonic_ms()
        elapsed_ms = now_ms - self._since_ms
        self._base_us += elapsed_ms * US_PER_MS + self._slewed_us(elapsed_ms)
        self._since_ms = now_ms
        self._behind_us = ahead_us + now_ms * US_PER_MS - self._base_us

    @property
    def is_catching_up(self) -> bool:
        """Whether it is behind the database's clock, and so runs faster than the steady clock."""
        if self._behind_us <= 0:
            return False
        return self._slewed_us(self._monotonic_ms() - self._since_ms) < self._behind_us

    def wait_ms(self, until_ms: int) -> int:
        """Return the time on the steady clock until `until_ms` of the shard's time; 0 if it is past.

        A sample of the database's clock changes it.
        """
        elapsed_ms = self._monotonic_ms() - self._since_ms
        gap_us = until_ms * US_PER_MS - self._base_us
        slew, behind_us = self._slew_permille, self._behind_us
        if behind_us >= 0:
            wait_ms = max(_ceil(gap_us, US_PER_MS + slew), _ceil(gap_us - behind_us, US_PER_MS))
        else:
            wait_ms = min(_ceil(gap_us, US_PER_MS - slew), _ceil(gap_us - behind_us, US_PER_MS))
        return max(0, wait_ms - elapsed_ms)

    def _slewed_us(self, elapsed_ms: int) -> int:
        """Return the correction made in `elapsed_ms`."""
        most_us, behind_us = elapsed_ms * self._slew_permille, self._behind_us
        if -most_us <= behind_us <= most_us:
            return behind_us
        return most_us if behind_us > 0 else -most_us


def initial_time_ms(database_ms: int, saved_ms: int, offset_ms: int, skew_ms_max: int) -> int:
    """Return the time at which a new owner's shard clock starts.

    Args:
        database_ms: the database's clock, read just now.
        saved_ms: the shard's time at its last write; 0 if there was none.
        offset_ms: the shard's time minus the database's clock at its last write.
        skew_ms_max: the maximum difference between the clocks of two database servers,
            because the server may be another one than at the last write.
    """
    if not saved_ms:
        return database_ms
    return max(saved_ms, database_ms + offset_ms - skew_ms_max)


def _ceil(us: int, us_per_ms: int) -> int:
    return -(-us // us_per_ms)
