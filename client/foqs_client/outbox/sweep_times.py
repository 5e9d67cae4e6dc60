"""When the whole outbox is read again.

Holds `SweepTimes`. Always true: sweeps for forgotten rows take at most half of the time, and those that nothing asks for a
hundredth, however many deleted rows a held snapshot keeps in the table. Pure.
"""

from __future__ import annotations

from typing import Final

_SHARE_UNASKED: Final = 100
"""A sweep that nothing asks for waits for this number of durations of the last one."""


class SweepTimes:
    """The times of one ownership, by a monotonic clock. The first sweep is due at once.

    Args:
        again_s: the least pause before a sweep for forgotten rows.
        sweep_s: the least pause before one that nothing asks for.
    """

    def __init__(self, again_s: float, sweep_s: float) -> None:
        self._again_s = again_s
        self._sweep_s = sweep_s
        self._began_s = 0.0
        self._wanted_s = 0.0
        self._unasked_s = 0.0

    def is_due(self, now_s: float, *, is_wanted: bool) -> bool:
        """Return whether a sweep may begin. `is_wanted`: it has forgotten rows to find."""
        return now_s >= (self._wanted_s if is_wanted else self._unasked_s)

    def begin_sweep(self, now_s: float) -> None:
        """A sweep begins."""
        self._began_s = now_s

    def end_sweep(self, now_s: float) -> None:
        """The sweep has come to its end."""
        took_s = now_s - self._began_s
        self._wanted_s = now_s + max(self._again_s, took_s)
        self._unasked_s = now_s + max(self._sweep_s, _SHARE_UNASKED * took_s)
