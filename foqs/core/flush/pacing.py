"""Limits the size of flushes, so that they take about a target time.

A long flush delays every call that arrives while it runs; a small one spreads the
cost of its transaction over few items. So there are two target times: a longer one
for namespaces with similar backlogs, and a shorter one while namespaces with small backlogs wait
beside others with large ones. The fixed cost of a flush is learned from past ones.
However large it is, the entries get at least as much time again, or a quarter of that with
the shorter target. Pure: times are seconds of any clock that does not go back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_CONTENDED_FOR_S: Final = 2.0
"""The shorter target applies for this time after each small flush."""
_FLUSH_DECAY: Final = 0.97
"""The weight of a flush relative to the next one, for the cost of flushes."""
_LEASE_DECAY: Final = 0.8
"""The same for the cost of leases, which changes faster with the load of other lanes."""
_OUTLIER_FACTOR: Final = 4.0
"""A duration is capped at this multiple of the expected one: something other than the entries was slow."""


@dataclass(slots=True, frozen=True)
class PaceSettings:
    """Limits of a flush.

    Attributes:
        items_min: entries that a flush may have, however long it takes.
        items_max: entries that a flush may have at most.
        target_s: the time that a flush should take at most.
        contended_target_s: the same while a small backlog waits beside large ones.
    """

    items_min: int
    items_max: int
    target_s: float
    contended_target_s: float


class FlushCost:
    """The cost of flushes: a line fitted to past (entries, seconds), with decaying weights."""

    def __init__(self) -> None:
        self._weight = self._entries = self._seconds = self._squares = self._products = 0.0

    def learn(self, entries: int, seconds: float) -> None:
        if self._weight > 1:
            fixed_s, each_s = self.estimate()
            seconds = min(seconds, _OUTLIER_FACTOR * (fixed_s + each_s * entries))
        self._weight = self._weight * _FLUSH_DECAY + 1
        self._entries = self._entries * _FLUSH_DECAY + entries
        self._seconds = self._seconds * _FLUSH_DECAY + seconds
        self._squares = self._squares * _FLUSH_DECAY + entries * entries
        self._products = self._products * _FLUSH_DECAY + entries * seconds

    def estimate(self) -> tuple[float, float]:
        """Return (seconds per flush, seconds per entry). Neither is negative, and not both are 0."""
        mean, mean_s = self._entries / self._weight, self._seconds / self._weight
        variance = self._squares / self._weight - mean * mean
        # Flushes of about one size do not show the cost of an entry.
        each_s = (self._products / self._weight - mean * mean_s) / variance if variance > 0.01 * mean * mean else 0.0
        each_s = min(max(each_s, 0.0), mean_s / mean)
        fixed_s = mean_s - each_s * mean
        return (fixed_s, each_s) if each_s else (0.0, mean_s / mean)


class LeaseCost:
    """The cost of a lease under load: seconds of flushes divided by their leases, with decaying weights."""

    def __init__(self) -> None:
        self.each_s = 0.0
        """Seconds per lease; 0 before the first flush."""
        self._seconds = self._leases = 0.0

    def learn(self, leases: float, seconds: float) -> None:
        """Record a flush: the leases that it had if more had to wait, else those that it could have had."""
        self._seconds = self._seconds * _LEASE_DECAY + seconds
        self._leases = self._leases * _LEASE_DECAY + leases
        self.each_s = self._seconds / self._leases


class FlushPace:
    """Sets the size of one shard's flushes."""

    def __init__(self, settings: PaceSettings) -> None:
        self._settings = settings
        self._items_min = min(settings.items_min, settings.items_max)
        self._flush_items_max = settings.items_max
        self._cost = FlushCost()
        self._contended_until_s = 0.0

    def update(self, entries: int, seconds: float, is_small: bool, now_s: float) -> int:
        """Return how many entries the next flush may have.

        Args:
            entries, seconds: the size and duration of the flush that has just committed.
            is_small: it was a small flush, for a small backlog beside large ones.
        """
        if is_small:
            self._contended_until_s = now_s + _CONTENDED_FOR_S
        if entries:
            self._cost.learn(entries, seconds)
        if entries * 2 < self._flush_items_max:
            return self._flush_items_max
        fixed_s, each_s = self._cost.estimate()
        if now_s < self._contended_until_s:
            entries_s = max(self._settings.contended_target_s - fixed_s, fixed_s / 4)
        else:
            entries_s = max(self._settings.target_s - fixed_s, fixed_s)
        items_max = self._settings.items_max
        target = int(min(entries_s / each_s, items_max)) if each_s > 0 else items_max
        # In steps of at most a factor of 2: the estimate is unreliable far from the sizes seen so far.
        next_max = max(self._flush_items_max // 2, min(target, 2 * self._flush_items_max))
        self._flush_items_max = max(self._items_min, min(next_max, items_max))
        return self._flush_items_max
