"""Time as an argument: the two clocks a host may read.

The event loop's own clock (`loop.time()`) serves deadlines and waits; this one
serves what is stored or outlives a suspend.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Both clocks in integer milliseconds."""

    def monotonic_ms(self) -> int:
        """Since boot, suspended time included; never goes back, never jumps."""
        ...

    def wall_ms(self) -> int:
        """Since 1970-01-01 UTC; may jump."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
