"""When the whole outbox is read again.

Holds `SweepTimes`. Always true: sweeps for forgotten rows take at most half of the time, and those that nothing asks for a
hundredth, however many deleted rows a held snapshot keeps in the table. While sweeps end early, because memory is full, one in
eleven durations of a whole sweep is a whole one: so rows behind many others that wait for their shard are found. Pure.
"""

from __future__ import annotations

from typing import Final

_SHARE_UNASKED: Final = 100
"""A sweep that nothing asks for waits for this number of durations of the last one."""
_SHARE_EARLY: Final = 10
"""For this number of durations of the last whole sweep, sweeps may end early."""


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
        self._drained_s = 0.0
        self._whole_s = 0.0

    def is_due(self, now_s: float, *, is_wanted: bool, has_drained: bool = False) -> bool:
        """Return whether a sweep may begin.

        Args:
            is_wanted: it has forgotten rows to find.
            has_drained: the rows are sent that the last one has found before it ended early.
        """
        if is_wanted and has_drained:
            return now_s >= self._drained_s
        return now_s >= (self._wanted_s if is_wanted else self._unasked_s)

    def may_end_early(self, now_s: float) -> bool:
        """Return whether the sweep under way need not come to the end of the table."""
        return now_s < self._whole_s

    def begin_sweep(self, now_s: float) -> None:
        """A sweep begins."""
        self._began_s = now_s

    def end_sweep(self, now_s: float) -> None:
        """The sweep has come to its end."""
        took_s = now_s - self._began_s
        self._wanted_s = self._drained_s = now_s + max(self._again_s, took_s)
        self._unasked_s = now_s + max(self._sweep_s, _SHARE_UNASKED * took_s)
        self._whole_s = now_s + _SHARE_EARLY * took_s

    def end_early(self, now_s: float) -> None:
        """The sweep has ended early, because there was no room for more."""
        took_s = now_s - self._began_s
        self._wanted_s = now_s + max(self._again_s, took_s)
        self._drained_s = now_s + took_s
