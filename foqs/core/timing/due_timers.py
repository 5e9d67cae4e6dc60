"""Decides when to scan a shard for due rows, and from which due time on.

A scan covers `watermark <= due <= now`. Always true: no row with a due below the
watermark is unprocessed, because the watermark rises only when everything that a scan
found is committed, and a due that would be written below it is raised to it.
`next_scan_ms` is never later than the earliest due above the watermark. A sweep, which
is a scan without a lower bound, runs once after a takeover and then at intervals, so
that a bug makes an item late, not lost. Reads no clock and no table.
"""

from __future__ import annotations


class DueTimers:
    """The timer state of one shard.

    Args:
        sweep_interval_ms: time between two scans without a lower bound.
    """

    def __init__(self, sweep_interval_ms: int) -> None:
        self._sweep_interval_ms = sweep_interval_ms
        self.watermark_ms: int | None = None
        self._next_due_ms: int | None = 0
        self._next_sweep_ms = 0
        self.last_sweep_ms: int | None = None
        """When the last sweep was completed."""

    def raise_to_watermark(self, due_ms: int) -> int:
        """Return the due to write instead of `due_ms`, so that no scan misses it."""
        return due_ms if self.watermark_ms is None else max(due_ms, self.watermark_ms)

    def on_due_written(self, due_ms: int) -> None:
        """Note that a row with this due was committed."""
        if self._next_due_ms is None or due_ms < self._next_due_ms:
            self._next_due_ms = due_ms

    def next_scan_ms(self) -> int:
        """Return when the next scan is needed, on the shard's clock."""
        return self._next_sweep_ms if self._next_due_ms is None else min(self._next_due_ms, self._next_sweep_ms)

    def scan_lower_bound_ms(self, now_ms: int) -> int | None:
        """Return the lower bound of a scan at `now_ms`; None for a sweep."""
        return None if now_ms >= self._next_sweep_ms else self.watermark_ms

    def on_scan_completed(self, now_ms: int, next_due_ms: int | None, *, swept: bool) -> None:
        """Record that a scan up to `now_ms` is complete and all that it found is committed.

        Args:
            next_due_ms: the earliest due above `now_ms` in the table at the scan.
            swept: the scan was a sweep.
        """
        self.watermark_ms = now_ms if self.watermark_ms is None else max(self.watermark_ms, now_ms)
        self._next_due_ms = next_due_ms
        if swept:
            self._next_sweep_ms = now_ms + self._sweep_interval_ms
            self.last_sweep_ms = now_ms

    def on_scan_incomplete(self, retry_at_ms: int, next_due_ms: int | None, *, swept: bool) -> None:
        """Record that a scan left due rows unprocessed. The watermark stays, and the next scan starts from it again.

        Args:
            retry_at_ms: when to scan again.
            next_due_ms: the earliest due above the scan in the table; the retry is not later than that.
            swept: the scan was a sweep, so the retry is one too.
        """
        self._next_due_ms = retry_at_ms if next_due_ms is None else min(retry_at_ms, next_due_ms)
        if swept:
            self._next_sweep_ms = retry_at_ms
