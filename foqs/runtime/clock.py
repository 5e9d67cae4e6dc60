"""The clocks that a host reads, passed as an argument.

Deadlines and waits use the event loop's own clock (`loop.time()`). These clocks
are for stored times, for times that include a suspend, and for measurements:
under uvloop the loop counts whole milliseconds.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks in integer milliseconds, and a stopwatch."""

    def monotonic_ms(self) -> int:
        """Return the time since boot, including suspends; never goes back, never jumps."""
        ...

    def wall_ms(self) -> int:
        """Return the time since 1970-01-01 UTC; may jump."""
        ...

    def stopwatch_s(self) -> float:
        """Return a time for measuring durations, in the finest resolution available."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def stopwatch_s(self) -> float:
        return time.perf_counter()
