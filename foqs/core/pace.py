"""How large flushes may be, so that they last about as long as they should.

A long flush makes everybody wait who comes while it runs, whatever his weight;
a small one pays for its transaction with fewer items. So there are two targets:
one for a namespace that is alone, and a shorter one as long as several share
the shard; and what a flush costs without any item is learned from those that
were, so that where this alone is more than the target, as much again goes into
items. Pure: times are seconds of any clock that does not go back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SHARED_S: Final = 2.0
"""A namespace counts for so long after its last entry."""
_MEMORY: Final = 0.97
"""What each flush weighs among those that tell what flushes cost, against the next one."""
_SURPRISE: Final = 4.0
"""A flush that took longer than so many times what was expected counts as that: it is something else that was slow."""


@dataclass(slots=True, frozen=True)
class PaceSettings:
    """Limits of a flush.

    Attributes:
        items_min, items_max: entries that a flush may have, however long it takes, and ever.
        target_s: how long a flush should last at most while one namespace is alone.
        shared_target_s: the same while there are several.
    """

    items_min: int
    items_max: int
    target_s: float
    shared_target_s: float


class Cost:
    """What flushes cost: a line through those that were, (entries, seconds), the older the less they weigh."""

    def __init__(self) -> None:
        self._weight = self._entries = self._seconds = self._squares = self._products = 0.0

    def learn(self, entries: int, seconds: float) -> None:
        if self._weight > 1:
            fixed_s, each_s = self.line()
            seconds = min(seconds, _SURPRISE * (fixed_s + each_s * entries))
        self._weight = self._weight * _MEMORY + 1
        self._entries = self._entries * _MEMORY + entries
        self._seconds = self._seconds * _MEMORY + seconds
        self._squares = self._squares * _MEMORY + entries * entries
        self._products = self._products * _MEMORY + entries * seconds

    def line(self) -> tuple[float, float]:
        """(seconds without an entry, seconds of each entry); neither is negative, and not both are nothing."""
        mean, mean_s = self._entries / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - mean * mean
        # Flushes of one size tell nothing about their parts.
        each_s = (self._products / self._weight - mean * mean_s) / spread if spread > 0.01 * mean * mean else 0.0
        each_s = min(max(each_s, 0.0), mean_s / mean)
        fixed_s = mean_s - each_s * mean
        return (fixed_s, each_s) if each_s else (0.0, mean_s / mean)


class Pace:
    """The pace of one shard's flushes."""

    def __init__(self, settings: PaceSettings) -> None:
        self._settings = settings
        self._items_min = min(settings.items_min, settings.items_max)
        self._items = settings.items_max
        self._cost = Cost()
        self._seen: dict[str, float] = {}
        """When each namespace last had an entry; the one that was longest ago first."""

    def after(self, entries: int, seconds: float, namespaces: Iterable[str], now_s: float) -> int:
        """How many entries the next flush may have.

        Args:
            entries, seconds: of the flush that has just committed.
            namespaces: that it had entries of; the shard's own is the empty one.
        """
        shared = self._shared(namespaces, now_s)
        if entries:
            self._cost.learn(entries, seconds)
        if entries * 2 < self._items:
            return self._items
        fixed_s, each_s = self._cost.line()
        target_s = self._settings.shared_target_s if shared else self._settings.target_s
        room_s = max(target_s - fixed_s, fixed_s)
        items_max = self._settings.items_max
        wanted = int(min(room_s / each_s, items_max)) if each_s > 0 else items_max
        # Nobody knows what a flush costs that is far from all that were.
        near = max(self._items // 2, min(wanted, 2 * self._items))
        self._items = max(self._items_min, min(near, items_max))
        return self._items

    def _shared(self, namespaces: Iterable[str], now_s: float) -> bool:
        seen = self._seen
        for name in namespaces:
            if name:
                seen.pop(name, None)
                seen[name] = now_s
        while seen:
            first = next(iter(seen))
            if seen[first] > now_s - _SHARED_S:
                break
            del seen[first]
        return len(seen) > 1
