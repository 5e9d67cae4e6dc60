"""The positions of one owned shard in a database with replicas: what was inserted, what replicas have, and what may follow.

Always true: the items that are inserted in this epoch are at most those that the last written publication allows. With
`max_lag_ms`, new items are accepted only if everything that was inserted up to this long ago is at a replica. Pure: time is
an argument, and what a replica has is reported by the caller.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from foqs_contract.errors import Overloaded

ALLOWANCE_MIN: Final = 1_000
"""The fewest items that may be accepted between two publications. A loss is reported with this uncertainty at least."""
_ALLOWANCE_MAX: Final = 1_000_000
_SAMPLES_MAX: Final = 256
"""The samples that are kept: fewer the older they are."""
_SPACING_DIVISOR: Final = 8
"""Kept samples may be an eighth of their age apart, so a replica counts as that much farther behind than it is at most. At ten
samples a second, a day needs fewer than 220."""
_SPREAD_POINTS: Final = 6
"""The points of a publication beside those of replicas and the last one."""
_RATE_OVER_MS: Final = 1_000
_RETRY_MS: Final = 100


class PositionPoint(NamedTuple):
    """Flush `flush` and those before it have inserted `inserted` items in this epoch."""

    flush: int
    inserted: int


@dataclass(slots=True)
class _Sample:
    """A point, and the last moment at which no more was inserted."""

    point: PositionPoint
    until_ms: int


class ShardPositions:
    """The positions of one ownership. Nothing is accepted before the first publication is written.

    Args:
        shard: its number, for errors.
        now_ms: the boot-time clock.
    """

    def __init__(self, shard: int, now_ms: int) -> None:
        self._shard = shard
        self._samples = [_Sample(PositionPoint(0, 0), now_ms)]
        """Ascending in both fields of their points. The first one is that of the takeover."""
        self._nearest = self._samples[0]
        """The last sample of which a replica has everything."""
        self._confirmed: dict[str, int] = {}
        """By server, the last flush of this epoch that it has."""
        self._max_lag_ms: int | None = None
        self._admitted = 0
        """Items that were accepted in this epoch. Not all of them are inserted."""
        self._admitted_max = 0
        self._allowance = ALLOWANCE_MIN
        self._refused_items = 0
        """The most items that a call had which was refused since the last publication."""
        self._published: tuple[int, int, int] | None = None
        """Of the last publication, written or not: `_admitted` and its maximum, and when."""

    # ---------------------------------------------------------------- new items

    def check(self, count: int, now_ms: int) -> None:
        """Raise Overloaded if this many new items are not accepted now."""
        if not self.is_near(now_ms):
            raise self.lag_error(now_ms)
        if self._admitted + count > self._admitted_max:
            self._refused_items = max(self._refused_items, count)
            raise Overloaded(
                f"shard {self._shard} publishes its position before it accepts more new items; try again, or try another shard",
                retry_after_ms=_RETRY_MS,
            )

    def on_accepted(self, count: int) -> None:
        """Note that new items were accepted, right after they were checked."""
        self._admitted += count

    def is_near(self, now_ms: int) -> bool:
        """Return whether a replica has what was inserted until `max_lag_ms` ago; True without a bound."""
        return self._max_lag_ms is None or now_ms - self._nearest.until_ms < self._max_lag_ms

    def accepts_items(self, now_ms: int) -> bool:
        """Return whether new items are accepted now, if they are few."""
        return self._admitted < self._admitted_max and self.is_near(now_ms)

    def lag_error(self, now_ms: int) -> Overloaded:
        """Return the error for new items while no replica is near."""
        return Overloaded(
            f"shard {self._shard} accepts no new items, because no replica of its database has had what was enqueued for "
            f"{now_ms - self._nearest.until_ms} ms, and max_lag_ms is {self._max_lag_ms}; acks go on; try again, or try another "
            "shard; start the replicas, look into the log of this host if it cannot read them, or raise databases.NAME.max_lag_ms if "
            "more may be lost",
            retry_after_ms=_RATE_OVER_MS,
        )

    def set_bound(self, max_lag_ms: int | None) -> None:
        """Set how old an insert may be that no replica has; None: any."""
        self._max_lag_ms = max_lag_ms

    # ------------------------------------------------------------------ samples

    def sample(self, now_ms: int, flush: int, inserted: int) -> None:
        """Record what is committed now: the last flush, and what was inserted up to it."""
        last = self._samples[-1]
        if inserted == last.point.inserted:
            last.until_ms = now_ms
            return
        self._samples.append(_Sample(PositionPoint(flush, inserted), now_ms))
        if len(self._samples) > _SAMPLES_MAX:
            self._thin(now_ms)
        self._find_nearest()

    def confirm(self, server: str, flush: int | None) -> None:
        """Record what a replica has: its last flush of this epoch; None: nothing of it."""
        if flush is None:
            self._confirmed.pop(server, None)
        else:
            self._confirmed[server] = flush
        self._find_nearest()

    def keep_servers(self, servers: Collection[str]) -> None:
        """Forget what servers have that are no replicas any more."""
        self._confirmed = {server: flush for server, flush in self._confirmed.items() if server in servers}
        self._find_nearest()

    def lag_ms(self, server: str, now_ms: int) -> int:
        """Return how long ago the oldest insert was committed at most that a replica is not known to have; 0 if it has all."""
        sample = self._samples[self._place(self._confirmed.get(server, 0))]
        return 0 if sample is self._samples[-1] else max(0, now_ms - sample.until_ms)

    def _find_nearest(self) -> None:
        self._nearest = self._samples[self._place(max(self._confirmed.values(), default=0))]

    def _place(self, flush: int) -> int:
        """Return the place of the last sample that has no later flush."""
        return max(0, bisect_right(self._samples, flush, key=_flush_of) - 1)

    def _thin(self, now_ms: int) -> None:
        """Drop samples, the more the older they are. What is behind a dropped one counts as behind the one before it."""
        first, *others = self._samples
        kept = [others.pop()]
        while others:
            sample = others.pop()
            before = others[-1] if others else first
            after_ms = kept[-1].until_ms
            if after_ms - before.until_ms > (now_ms - after_ms) // _SPACING_DIVISOR:
                kept.append(sample)
        # More than these are older than a day, and then only some.
        del kept[_SAMPLES_MAX - 1 :]
        self._samples = [first, *reversed(kept)]

    # ------------------------------------------------------------- publications

    @property
    def needs_publication(self) -> bool:
        """Whether few or no items may be accepted before the next publication."""
        return self._refused_items > 0 or self._admitted_max - self._admitted < self._allowance // 2

    def publication(self, now_ms: int, pending: int, servers: Collection[str]) -> tuple[list[PositionPoint], int]:
        """Return points, the last of which is the present position, and the most items that this epoch inserts until the next one.

        Until `on_published` is called this publication and the one before may be read, so both hold.

        Args:
            pending: the accepted items that may still be inserted. `sample` was called with them.
            servers: the replicas.
        """
        self._allowance = self._next_allowance(now_ms)
        self._refused_items = 0
        allowed = self._admitted + self._allowance
        self._published = self._admitted, allowed, now_ms
        self._admitted_max = min(self._admitted_max, allowed)
        return self._points(servers), self._samples[-1].point.inserted + pending + self._allowance

    def on_published(self) -> None:
        """Note that the last publication is written, so none before it can be read any more."""
        assert self._published is not None
        self._admitted_max = self._published[1]

    def _next_allowance(self, now_ms: int) -> int:
        """Return twice what was accepted in a second, or twice as much as before if that was used up sooner."""
        wanted = 2 * self._refused_items
        if self._published is not None:
            admitted, _, since_ms = self._published
            used, elapsed_ms = self._admitted - admitted, now_ms - since_ms
            if elapsed_ms >= _RATE_OVER_MS:
                wanted = max(wanted, 2 * used * 1_000 // elapsed_ms)
            else:
                wanted = max(wanted, self._allowance * (2 if self.needs_publication else 1))
        return min(max(ALLOWANCE_MIN, wanted), _ALLOWANCE_MAX)

    def _points(self, servers: Collection[str]) -> list[PositionPoint]:
        last = len(self._samples) - 1
        places = {self._place(self._confirmed.get(server, 0)) for server in servers} | {last}
        # The target of a promotion has a flush after that of the nearest replica, or is a replica itself.
        nearest = max((place for place in places if place < last), default=last)
        places |= {nearest + (last - nearest) * step // (_SPREAD_POINTS + 1) for step in range(1, _SPREAD_POINTS + 1)}
        return [self._samples[place].point for place in sorted(places)]


def _flush_of(sample: _Sample) -> int:
    return sample.point.flush
