"""When to look for due rows, and from where.

Every scan covers `watermark <= due <= now`; the watermark is the seed's
checkpoint. Always true: no row below the watermark is due and unprocessed,
because the watermark rises only when everything a scan found is committed, and
a due that would be written below it is lifted to it. `next_ms` is never later
than the earliest due above the watermark. A sweep without a lower bound runs
once after takeover and then from time to time, so that a mistake makes an item
late, not lost. Reads no clock and no table.
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
        """When the last sweep was read to its end."""

    def raise_to_watermark(self, due_ms: int) -> int:
        """The due to write instead of `due_ms`, so that no scan misses it."""
        return due_ms if self.watermark_ms is None else max(due_ms, self.watermark_ms)

    def on_due_written(self, due_ms: int) -> None:
        """A row with this due was committed."""
        if self._next_due_ms is None or due_ms < self._next_due_ms:
            self._next_due_ms = due_ms

    def next_scan_ms(self) -> int:
        """When the next scan is worth its while, on the shard's clock."""
        return self._next_sweep_ms if self._next_due_ms is None else min(self._next_due_ms, self._next_sweep_ms)

    def scan_lower_bound_ms(self, now_ms: int) -> int | None:
        """The lower bound of a scan at `now_ms`; None for a sweep."""
        return None if now_ms >= self._next_sweep_ms else self.watermark_ms

    def on_scan_completed(self, now_ms: int, next_due_ms: int | None, *, swept: bool) -> None:
        """A scan up to `now_ms` was read to its end and all it found is committed.

        Args:
            next_due_ms: the earliest due above `now_ms` then in the table.
            swept: the scan had no lower bound.
        """
        self.watermark_ms = now_ms if self.watermark_ms is None else max(self.watermark_ms, now_ms)
        self._next_due_ms = next_due_ms
        if swept:
            self._next_sweep_ms = now_ms + self._sweep_interval_ms
            self.last_sweep_ms = now_ms

    def on_scan_incomplete(self, retry_at_ms: int, next_due_ms: int | None, *, swept: bool) -> None:
        """A scan left something due behind: the watermark stays, and all from it is read again.

        Args:
            retry_at_ms: when to try again what was left.
            next_due_ms: the earliest due above the scan then in the table; it is not kept waiting.
            swept: the scan had no lower bound, and neither shall the one that tries again.
        """
        self._next_due_ms = retry_at_ms if next_due_ms is None else min(retry_at_ms, next_due_ms)
        if swept:
            self._next_sweep_ms = retry_at_ms
