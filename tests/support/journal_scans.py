"""A scan of the timer table of a shard with a journal, page by page between flushes."""

from __future__ import annotations

from typing import Final

from tests.support.plain_journal import PlainOwner

PAGE_ENTRIES: Final = 2
_LAST_NUMBER: Final = 1 << 62


class TimerScan:
    """One scan, from the end of the last one up to `now_ms`."""

    def __init__(self, scanned_ms: int, now_ms: int) -> None:
        self.now_ms = now_ms
        self.is_over = False
        self._after = (scanned_ms, -1)

    def page(self, owner: PlainOwner) -> set[int]:
        """Return the next items that are due: entries of the table, and dues of dirty items up to the page's end."""
        after, last = self._after, (self.now_ms, _LAST_NUMBER)
        entries = sorted(entry for entry in owner.tables.timers if after < entry <= last)[:PAGE_ENTRIES]
        self.is_over = len(entries) < PAGE_ENTRIES
        self._after = last if self.is_over else entries[-1]
        found = {number for _, number in entries if owner.entry_counts(number)}
        return found | {number for due_ms, number in owner.remembered_dues() if after < (due_ms, number) <= self._after}
