"""Decides when to scan a shard for due rows, and from which due time on.

A scan covers `watermark <= due <= now`. Always true: no row with a due below the
watermark is unprocessed, because the watermark rises only when everything that a scan
found is committed, and a due that would be written below it is raised to it.
`next_scan_ms` is never later than the earliest due above the watermark. Only the first
scan after a takeover has no lower bound. Reads no clock and no table.

An acked item leaves an entry of its lease's end or its TTL in the database's index until
the database removes it, which a snapshot can prevent for hours. So no read may walk all
entries of the time ahead. The timers remember when the dues of each second begin, and a
scan asks the table only for dues before the next remembered one, and before the next
scan in any case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_SLOT_MS: Final = 1_000
"""The earliest due of each slot of this length is remembered."""
_HORIZON_MS: Final = 3_600_000
"""Dues that are farther from the watermark are not remembered; the table has them."""


class DueTimers:
    """The timer state of one shard.

    Args:
        scan_interval_ms: the longest time between two scans.
    """

    def __init__(self, scan_interval_ms: int) -> None:
        self._scan_interval_ms = scan_interval_ms
        self.watermark_ms: int | None = None
        self._next_scan_ms = 0
        self._written: dict[int, int] = {}
        """The earliest due that was written into each slot. Its row may have changed since."""
        self.last_sweep_ms: int | None = None
        """When the last sweep was completed; the first scan is one."""

    def raise_to_watermark(self, due_ms: int) -> int:
        """Return the due to write instead of `due_ms`, so that no scan misses it."""
        return due_ms if self.watermark_ms is None else max(due_ms, self.watermark_ms)

    def on_dues_written(self, dues: Iterable[int]) -> None:
        """Note that rows with these dues, at least one, were committed."""
        written = self._written
        horizon_ms = 0 if self.watermark_ms is None else self.watermark_ms + _HORIZON_MS
        for due_ms in dues:
            if due_ms < horizon_ms:
                slot = due_ms // _SLOT_MS
                earliest_ms = written.get(slot)
                if earliest_ms is None or due_ms < earliest_ms:
                    written[slot] = due_ms
            if due_ms < self._next_scan_ms:
                self._next_scan_ms = due_ms

    def next_scan_ms(self) -> int:
        """Return when the next scan is needed, on the shard's clock."""
        return self._next_scan_ms

    def search_end_ms(self, now_ms: int) -> int:
        """Return where a search for the earliest due above `now_ms` may end, and forget dues that are not above it.

        It is the next remembered due, or the moment of the next scan in any case. Rows that are due before it
        may exist: only the first due of a slot is remembered.
        """
        self._written = {slot: due_ms for slot, due_ms in self._written.items() if due_ms > now_ms}
        return min([now_ms + self._scan_interval_ms, *self._written.values()])

    def on_scan_completed(self, now_ms: int, next_scan_ms: int) -> None:
        """Record that a scan up to `now_ms` is complete and all that it found is committed.

        Args:
            next_scan_ms: not later than the earliest due above `now_ms` in the table at the scan.
        """
        if self.watermark_ms is None:
            self.last_sweep_ms = now_ms
        self.watermark_ms = now_ms if self.watermark_ms is None else max(self.watermark_ms, now_ms)
        self._next_scan_ms = next_scan_ms

    def on_scan_incomplete(self, next_scan_ms: int) -> None:
        """Record that a scan left due rows unprocessed. The watermark stays, and the next scan starts from it again."""
        self._next_scan_ms = next_scan_ms

    def on_sweep_completed(self, now_ms: int) -> None:
        """Record that all rows that were due before the watermark at `now_ms` are processed."""
        self.last_sweep_ms = now_ms
