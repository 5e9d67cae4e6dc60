"""Time as an argument: the two clocks a host may read.

The event loop's own clock (`loop.time()`) serves deadlines and waits; these
serve what is stored or outlives a suspend, and what is measured: under uvloop
the loop counts whole milliseconds.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks in integer milliseconds, and a stop watch."""

    def monotonic_ms(self) -> int:
        """Since boot, suspended time included; never goes back, never jumps."""
        ...

    def wall_ms(self) -> int:
        """Since 1970-01-01 UTC; may jump."""
        ...

    def stopwatch_s(self) -> float:
        """For measuring how long something took, as finely as can be had."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def stopwatch_s(self) -> float:
        return time.perf_counter()
