"""The order in which one host accepts new items, whatever their shard.

Always true: sequences rise with each item that the host accepts. They are the last part
of an item's number, so items of one millisecond are in order too, on several shards and
after a restart: a host starts above the sequences that its last run can have used.
Reads no clock.
"""

from __future__ import annotations

from typing import Final

from foqs.core.items.item import SEQUENCE_MAX

_ORIGIN_MS: Final = 1_767_225_600_000
"""2026-01-01. The first sequence of a host is a function of the time since then."""

_SEQUENCES_PER_MS: Final = 8
"""A host that accepts fewer items than this, on average over a run, starts its next run above them. Enough for 34 years."""

_RESERVED_COUNT: Final = 1_000_000
"""Sequences kept in reserve, so that calls that are already queued still get numbers."""


class Arrivals:
    """Counts the items that a host accepts, and keeps their times in order over several databases.

    Args:
        lead_ms_max: how far the clock of one database may be behind that of another one. Up to
            there an item's time is raised to that of the item before it.
    """

    def __init__(self, lead_ms_max: int) -> None:
        self._lead_ms_max = lead_ms_max
        self._last_ms = 0
        """The latest time of an item."""
        self.last_sequence = 0
        """The last sequence assigned, in any shard."""

    def start_sequences(self, now_ms: int) -> None:
        """Raise the next sequence above those of the last run. If few are left, start again with the first one.

        Then each shard needs a new epoch: see `ItemNumbers.can_assign`.
        """
        first = (now_ms - _ORIGIN_MS) * _SEQUENCES_PER_MS
        if self.last_sequence < first <= SEQUENCE_MAX // 2:
            self.last_sequence = first
        if not self.has_sequences(_RESERVED_COUNT):
            self.last_sequence = 0

    def has_sequences(self, count: int) -> bool:
        """Return whether `count` sequences are left."""
        return self.last_sequence + count <= SEQUENCE_MAX - _RESERVED_COUNT

    def take_sequences(self, count: int) -> None:
        """Assign the next `count` sequences."""
        self.last_sequence += count

    def in_order_ms(self, now_ms: int) -> int:
        """Return the time of an item that is accepted now, at `now_ms` of its database's arrival clock."""
        last_ms = self._last_ms
        if now_ms >= last_ms:
            self._last_ms = now_ms
        elif last_ms - now_ms <= self._lead_ms_max:
            return last_ms
        return now_ms
