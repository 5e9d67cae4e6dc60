"""The record of a run in the driving process, from which the proof is made.

Always true: all moments are seconds of one monotonic clock and come from the caller;
a file is settled when it was acked, or nacked for the last time. Knows nothing of
queues and does no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from foqs.demo.file_work import FileResult
from foqs.demo.run_files import FileEntry


class RunLedger:
    """The record of one run, by path."""

    def __init__(self) -> None:
        self.entries: dict[str, FileEntry] = {}
        self.skipped: dict[str, str] = {}
        """Files that the producer could not read and that have no item, with the reasons."""
        self.complete_at: float | None = None
        """When the producer had enqueued everything."""
        self.ids: dict[str, str] = {}
        self.delivered_ids: dict[str, set[str]] = {}
        self.sent_at: dict[str, float] = {}
        self.delivered_at: dict[str, float] = {}
        self.acked_at: dict[str, float] = {}
        self.settled_at: float = 0.0
        self.acks: Counter[str] = Counter()
        self.checksums: dict[str, str] = {}
        self.given_up: dict[str, str] = {}
        self.enqueue_calls_s: list[float] = []
        self.ack_calls_s: list[float] = []
        self.deliveries = 0
        self.retries = 0
        self.foreign_items = 0
        self.extensions = 0
        self.stale_leases = 0
        self.compressed_bytes = 0
        self.work_s = 0.0

    # -------------------------------------------------------------------- events

    def enqueue_started(self, entries: Sequence[FileEntry], now: float) -> None:
        """Record that the enqueue call of these files begins. Latencies count from here."""
        for entry in entries:
            self.entries[entry.path] = entry
            self.sent_at[entry.path] = now

    def enqueued(self, entries: Sequence[FileEntry], ids: Iterable[str]) -> None:
        """Record the ids of the items of these files; the items are durable now."""
        self.ids.update((entry.path, id) for entry, id in zip(entries, ids, strict=True))

    def delivered(self, path: str, id: str, now: float) -> None:
        self.deliveries += 1
        self.delivered_ids.setdefault(path, set()).add(id)
        self.delivered_at.setdefault(path, now)

    def processed(self, result: FileResult) -> None:
        self.compressed_bytes += result.compressed_bytes
        self.work_s += result.work_s

    def acked(self, path: str, result: FileResult, now: float) -> None:
        self.acks[path] += 1
        self.acked_at.setdefault(path, now)
        self.checksums[path] = result.sha256
        self.settled_at = now

    def nacked(self, path: str, reason: str, is_last: bool, now: float) -> None:
        """Record a nack; with `is_last` no attempt is left, so the item is dead."""
        if is_last:
            self.given_up[path] = reason
            self.settled_at = now
        else:
            self.retries += 1

    # ------------------------------------------------------------------- results

    @property
    def settled_count(self) -> int:
        """The number of files that are acked or dead."""
        return len(self.acks) + len(self.given_up)

    @property
    def is_finished(self) -> bool:
        return self.complete_at is not None and self.settled_count >= len(self.entries)

    @property
    def started_at(self) -> float:
        """The moment at which the first enqueue call began."""
        return min(self.sent_at.values(), default=self.settled_at)

    @property
    def elapsed_s(self) -> float:
        """The time from the first enqueue call to the last ack or nack; never 0."""
        return max(1e-9, self.settled_at - self.started_at)

    def latencies(self, until: dict[str, float]) -> list[float]:
        """Return the seconds from the enqueue of each file to its moment in `until`, sorted."""
        return sorted(moment - self.sent_at[path] for path, moment in until.items())

    def work_latencies(self) -> list[float]:
        """Return the seconds from the delivery of each acked file to its ack, sorted."""
        return sorted(moment - self.delivered_at[path] for path, moment in self.acked_at.items())


def percentile_of(ordered: Sequence[float], fraction: float) -> float:
    """Return the smallest value that `fraction` (0 to 1) of the sorted values do not exceed; 0 if there are none."""
    return ordered[max(0, -int(-fraction * len(ordered) // 1) - 1)] if ordered else 0.0
