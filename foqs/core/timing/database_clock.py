"""One host's estimate of the clock of one database, and the clocks that follow it.

Always true: one estimate of the database's clock serves all shards of this host in the
database. So their clocks agree to the microsecond once each has corrected the
difference with which it started. Reads no clock itself.

The *arrival clock* follows the same estimate. Its time is the place of a new item in the
order of delivery, whatever its shard. No place is behind that of an item before it.
"""

from __future__ import annotations

from collections.abc import Callable

from foqs.core.timing.arrivals import Arrivals
from foqs.core.timing.shard_clock import US_PER_MS, ShardClock, initial_time_ms


class DatabaseClock:
    """An estimate of a database's clock, and the arrival clock.

    Args:
        monotonic_ms: a steady clock that never goes back and also counts while the machine sleeps.
        slew_permille: see `ShardClock`.
        skew_ms_max: the maximum difference between the clocks of two database servers.
        arrivals: the arrivals of the host, in all databases.
    """

    def __init__(
        self, monotonic_ms: Callable[[], int], slew_permille: int, skew_ms_max: int, arrivals: Arrivals
    ) -> None:
        self._monotonic_ms = monotonic_ms
        self._slew_permille = slew_permille
        self._skew_ms_max = skew_ms_max
        self._arrivals = arrivals
        self._number = arrivals.add_database()
        self._ahead_us: int | None = None
        """The database's clock minus the steady clock, as estimated; None before the first sample."""
        self._shard_clocks: list[ShardClock] = []
        self._arrival_clock: ShardClock

    def on_sample(self, database_ms: int, requested_at_ms: int) -> None:
        """Record a sample of the database's clock, read at some moment since `requested_at_ms` of the steady clock.

        So the difference lies in an interval: from its value if the clock was read now,
        to its value if the clock was read at once. An estimate within the interval stays;
        otherwise it moves to the nearer end. So the round trip itself is never corrected.
        """
        least_us = (database_ms - self._monotonic_ms()) * US_PER_MS
        most_us = (database_ms - requested_at_ms + 1) * US_PER_MS
        if self._ahead_us is None:
            # A clock that runs ahead of the database's would make the next owner start too far ahead.
            self._ahead_us = most_us - US_PER_MS
            return
        self._ahead_us = max(least_us, min(self._ahead_us, most_us))
        if self._shard_clocks:
            for clock in (self._arrival_clock, *self._shard_clocks):
                clock.follow(self._ahead_us)

    def start_shard_clock(self, database_ms: int, saved_ms: int, offset_ms: int, saved_arrival_ms: int) -> ShardClock:
        """Return the clock of a shard that was taken over. The arrival clock starts with the first one.

        Args:
            database_ms, saved_ms, offset_ms: see `initial_time_ms`. `on_sample` has just recorded `database_ms`.
            saved_arrival_ms: the place of the last item that the former owner had accepted at its last
                write; 0 for a version that placed its items on the shard clock.
        """
        assert self._ahead_us is not None
        clock = self._clock(initial_time_ms(database_ms, saved_ms, offset_ms, self._skew_ms_max))
        if not self._shard_clocks:
            self._arrival_clock = self._clock(initial_time_ms(database_ms, saved_ms, offset_ms, 0))
        # Behind, and not beside them: sequences of two hosts say nothing about which item came first.
        self._arrivals.record_earlier_items(self._number, max(saved_ms, saved_arrival_ms) + 1)
        self._arrivals.start_sequences(self._arrival_clock.now_ms())
        self._shard_clocks.append(clock)
        return clock

    def end_shard_clock(self, clock: ShardClock) -> None:
        """Forget the clock of a shard that is closed. Does nothing for one that it has forgotten."""
        if clock in self._shard_clocks:
            self._shard_clocks.remove(clock)

    def arrival_ms(self) -> int:
        """Return the place of an item that is accepted now; never less than that of an item before it."""
        return self._arrivals.next_ms(self._number, self._arrival_clock.now_ms())

    @property
    def last_arrival_ms(self) -> int:
        """The place of the last accepted item. The next owner of each shard places its items behind it."""
        return self._arrivals.last_ms(self._number)

    def _clock(self, start_ms: int) -> ShardClock:
        assert self._ahead_us is not None
        return ShardClock(self._monotonic_ms, start_ms, self._ahead_us, self._slew_permille)
