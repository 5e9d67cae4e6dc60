"""The order in which one host accepts new items, over all shards.

Always true: sequences rise with each item that the host accepts. They are the last part
of an item's number, so items of one millisecond are in order too, on several shards and
after a restart: a host starts above the sequences that its last run can have used. The
times of the items in one database never fall. Reads no clock.
"""

from __future__ import annotations

from typing import Final

from foqs.core.items.item import SEQUENCE_MAX

_ORIGIN_MS: Final = 1_767_225_600_000
"""2026-01-01. The first sequence of a host is a function of the time since then."""

_SEQUENCES_PER_MS: Final = 8
"""A host that accepts fewer items than this, on average over a run, starts its next run above them."""

_FIRST_SEQUENCE_MAX: Final = SEQUENCE_MAX // 8 * 7
"""The highest first sequence, reached in 2056. Hosts that start later begin with 1: time alone orders their items."""

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
        self._last_ms: list[int] = []
        """The latest time of an item, by database."""
        self._latest_ms = 0
        """The greatest of `_last_ms`."""
        self.last_sequence = 0
        """The last sequence assigned, in any shard."""

    def start_sequences(self, now_ms: int) -> None:
        """Raise the next sequence above those of the last run. If few are left, start again with the first one.

        Then each shard needs a new epoch: see `ItemNumbers.can_assign`.
        """
        first = (now_ms - _ORIGIN_MS) * _SEQUENCES_PER_MS
        if self.last_sequence < first <= _FIRST_SEQUENCE_MAX:
            self.last_sequence = first
        if not self.has_sequences(_RESERVED_COUNT):
            self.last_sequence = 0

    def has_sequences(self, count: int) -> bool:
        """Return whether `count` sequences are left."""
        return self.last_sequence + count <= SEQUENCE_MAX - _RESERVED_COUNT

    def take_sequences(self, count: int) -> None:
        """Assign the next `count` sequences."""
        self.last_sequence += count

    def add_database(self) -> int:
        """Add a database, and return its number."""
        self._last_ms.append(0)
        return len(self._last_ms) - 1

    def last_ms(self, database: int) -> int:
        """Return the latest time of an item in this database; 0 if there is none."""
        return self._last_ms[database]

    def record_earlier_items(self, database: int, last_ms: int) -> None:
        """Place all later items behind those that the database has, with times up to `last_ms`."""
        self._last_ms[database] = max(self._last_ms[database], last_ms)
        self._latest_ms = max(self._latest_ms, last_ms)

    def next_ms(self, database: int, now_ms: int) -> int:
        """Return the time of an item that is accepted now, at `now_ms` of its database's arrival clock.

        It is never behind that of an item before it in this database, nor of one in another
        database, unless that is more than `lead_ms_max` ahead.
        """
        last_ms, latest_ms = self._last_ms, self._latest_ms
        time_ms = last_ms[database]
        if now_ms > time_ms:
            time_ms = now_ms
        if time_ms >= latest_ms:
            self._latest_ms = time_ms
        else:
            ahead_ms_max = time_ms + self._lead_ms_max
            if latest_ms <= ahead_ms_max:
                time_ms = latest_ms
            else:  # one database is far ahead; the others keep their order
                time_ms = max(time_ms, *[other_ms for other_ms in last_ms if other_ms <= ahead_ms_max])
        last_ms[database] = time_ms
        return time_ms
