"""Decides which entries a shard's timer table has, and when to scan it and from which due on.

The entry of a row is a function of the row alone, so a flush that knows a row before and
after knows what to change.

A scan covers the dues from `scanned_ms` to now. Always true: no entry with a due below `scanned_ms`
is unprocessed, because it rises only when everything that a scan found is committed, and
a due that would be written below it is raised to it. `next_table_scan_ms` is never later
than the earliest entry above it. Only the first scan after a takeover has no lower
bound. Lease ends are not in the table: `lease_ends` has them. The watermark is the lower
of the two. Reads no clock and no table.

An acked item with a TTL leaves a deleted entry in the table until the database removes
it, which a snapshot can prevent for hours. So no read may pass all entries of the time
ahead. The timers remember when the dues of each second begin, and a scan asks the table
only for dues before the next remembered one, and before the next scan in any case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from foqs.core.items.item import Row, State
from foqs.core.timing.lease_ends import NEVER_MS, LeaseEnds

TimerEntry: TypeAlias = tuple[int, int]
"""(due_ms, number)."""

_SLOT_MS: Final = 1_000
"""The earliest due of each slot of this length is remembered."""
_HORIZON_MS: Final = 3_600_000
"""Dues that are farther from the watermark are not remembered; the table has them."""


def timer_entry(row: Row) -> TimerEntry | None:
    """Return the entry of this row; None if nothing is due, or if its lease ends: the owner remembers that."""
    due_ms = row.due_ms
    return None if due_ms is None or row.state is State.LEASED else (due_ms, row.id)


class DueTimers:
    """The timer state of one shard.

    Args:
        scan_interval_ms: the longest time between two scans.
        lease_ranges_max: see `LeaseEnds`.
    """

    def __init__(self, scan_interval_ms: int, lease_ranges_max: int = 262_144) -> None:
        self._scan_interval_ms = scan_interval_ms
        self.leases = LeaseEnds(lease_ranges_max)
        self.scanned_ms: int | None = None
        """No unprocessed entry of the timer table is due before this moment. None: any entry may be unprocessed."""
        self._next_scan_ms = 0
        self._written: dict[int, int] = {}
        """The earliest due that was written into each slot. Its row may have changed since."""
        self.last_sweep_ms: int | None = None
        """When the last sweep was completed; the first scan is one."""

    @property
    def watermark_ms(self) -> int | None:
        """No unprocessed row is due before this moment. None: any row may be unprocessed."""
        if self.scanned_ms is None or not self.leases.unread_from_ms:
            return None
        return min(self.scanned_ms, self.leases.unapplied_from_ms())

    def raise_to_watermark(self, due_ms: int) -> int:
        """Return the due to write instead of `due_ms`, so that no scan misses it."""
        return due_ms if self.scanned_ms is None else max(due_ms, self.scanned_ms)

    def on_dues_written(self, dues: Iterable[int]) -> None:
        """Note that timer entries with these dues were committed."""
        written = self._written
        horizon_ms = 0 if self.scanned_ms is None else self.scanned_ms + _HORIZON_MS
        for due_ms in dues:
            if due_ms < horizon_ms:
                slot = due_ms // _SLOT_MS
                earliest_ms = written.get(slot)
                if earliest_ms is None or due_ms < earliest_ms:
                    written[slot] = due_ms
            if due_ms < self._next_scan_ms:
                self._next_scan_ms = due_ms

    def next_scan_ms(self) -> int:
        """Return when the next scan or look is needed, on the shard's clock."""
        return min(self._next_scan_ms, self.leases.next_look_ms)

    def next_table_scan_ms(self) -> int:
        """Return when the next scan of the timer table is needed."""
        return self._next_scan_ms

    def search_end_ms(self, now_ms: int) -> int:
        """Return where a search for the earliest due above `now_ms` may end, and forget dues that are not above it.

        It is the next remembered due, or the moment of the next scan in any case. Rows that are due before it
        may exist: only the first due of a slot is remembered.
        """
        self._written = {slot: due_ms for slot, due_ms in self._written.items() if due_ms > now_ms}
        return min([now_ms + self._scan_interval_ms, *self._written.values()])

    def on_scan_completed(self, now_ms: int, next_scan_ms: int) -> None:
        """Record that a scan of the table up to `now_ms` is complete and all that it found is committed.

        Args:
            next_scan_ms: not later than the earliest due above `now_ms` in the table at the scan.
        """
        if self.scanned_ms is None:
            self.last_sweep_ms = now_ms
        self.scanned_ms = now_ms if self.scanned_ms is None else max(self.scanned_ms, now_ms)
        self._next_scan_ms = next_scan_ms

    def on_scan_incomplete(self, next_scan_ms: int) -> None:
        """Record that a scan left due entries unprocessed. `scanned_ms` stays, and the next scan starts from it again."""
        self._next_scan_ms = next_scan_ms

    def on_sweep_completed(self, now_ms: int) -> None:
        """Record that all rows that were due before the watermark at `now_ms` are processed."""
        self.last_sweep_ms = now_ms

    def first_written_ms(self) -> int:
        """Return the earliest due that was written since the last scan and is not known to be processed; `NEVER_MS` if none."""
        return min(self._written.values(), default=NEVER_MS)

    def check(self) -> None:
        """Assert what is always true of the watermark: nothing is written below it. `TimerService` compares it with the time."""
        self.leases.check()
        if self.scanned_ms is not None:
            assert self.scanned_ms <= self._next_scan_ms, (
                f"invariant 10: a due of {self._next_scan_ms} was written below {self.scanned_ms}"
            )
        for slot, due_ms in self._written.items():
            assert slot == due_ms // _SLOT_MS, f"invariant 10: the due {due_ms} is remembered in slot {slot}"
