"""How large flushes may be, so that they last about as long as they should.

A long flush makes everybody wait who comes while it runs, whatever his weight;
a small one pays for its transaction with fewer items. So there are two targets:
one for namespaces that are alike, and a shorter one as long as some wait with
little beside others with much; and what a flush costs without any item is
learned from those that were, so that where this alone is more than the target,
as much again goes into items, or a quarter. Pure: times are seconds of any
clock that does not go back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SHARED_FOR_S: Final = 2.0
"""Who had a short flush is expected again for so long."""
_FLUSH_DECAY: Final = 0.97
"""What each flush weighs among those that tell what flushes cost, against the next one."""
_LEASE_DECAY: Final = 0.8
"""The same among those that tell how quickly leases are written: others may write much now, and nothing soon."""
_OUTLIER_FACTOR: Final = 4.0
"""A flush that took longer than so many times what was expected counts as that: it is something else that was slow."""


@dataclass(slots=True, frozen=True)
class PaceSettings:
    """Limits of a flush.

    Attributes:
        items_min, items_max: entries that a flush may have, however long it takes, and ever.
        target_s: how long a flush should last at most.
        shared_target_s: the same while somebody waits with little beside others with much.
    """

    items_min: int
    items_max: int
    target_s: float
    shared_target_s: float


class FlushCost:
    """What flushes cost: a line through those that were, (entries, seconds), the older the less they weigh."""

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
        """(seconds without an entry, seconds of each entry); neither is negative, and not both are nothing."""
        mean, mean_s = self._entries / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - mean * mean
        # Flushes of one size tell nothing about their parts.
        each_s = (self._products / self._weight - mean * mean_s) / spread if spread > 0.01 * mean * mean else 0.0
        each_s = min(max(each_s, 0.0), mean_s / mean)
        fixed_s = mean_s - each_s * mean
        return (fixed_s, each_s) if each_s else (0.0, mean_s / mean)


class LeaseCost:
    """What a lease takes where many wait: the seconds of flushes over their leases, the older the less they weigh."""

    def __init__(self) -> None:
        self.each_s = 0.0
        """Nothing, as long as there was no flush."""
        self._seconds = self._leases = 0.0

    def learn(self, leases: float, seconds: float) -> None:
        """A flush had so many leases, and others had to wait; or could have had so many."""
        self._seconds = self._seconds * _LEASE_DECAY + seconds
        self._leases = self._leases * _LEASE_DECAY + leases
        self.each_s = self._seconds / self._leases


class FlushPace:
    """The pace of one shard's flushes."""

    def __init__(self, settings: PaceSettings) -> None:
        self._settings = settings
        self._items_min = min(settings.items_min, settings.items_max)
        self._flush_items_max = settings.items_max
        self._cost = FlushCost()
        self._shared_until_s = 0.0

    def update(self, entries: int, seconds: float, is_express: bool, now_s: float) -> int:
        """How many entries the next flush may have.

        Args:
            entries, seconds: of the flush that has just committed.
            is_express: it was a short one, for somebody who waits with little beside others with much.
        """
        if is_express:
            self._shared_until_s = now_s + _SHARED_FOR_S
        if entries:
            self._cost.learn(entries, seconds)
        if entries * 2 < self._flush_items_max:
            return self._flush_items_max
        fixed_s, each_s = self._cost.estimate()
        if now_s < self._shared_until_s:
            room_s = max(self._settings.shared_target_s - fixed_s, fixed_s / 4)
        else:
            room_s = max(self._settings.target_s - fixed_s, fixed_s)
        items_max = self._settings.items_max
        wanted = int(min(room_s / each_s, items_max)) if each_s > 0 else items_max
        # Nobody knows what a flush costs that is far from all that were.
        near = max(self._flush_items_max // 2, min(wanted, 2 * self._flush_items_max))
        self._flush_items_max = max(self._items_min, min(near, items_max))
        return self._flush_items_max
