"""How large flushes may be, so that they last about as long as they should.

A long flush makes everybody wait who comes while it runs, whatever his weight;
a small one pays for its transaction with fewer items. So there are two targets:
one for a namespace that is alone, and a shorter one as long as several share
the shard. Pure: times are seconds of any clock that does not go back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SHARED_S: Final = 2.0
"""A namespace counts for so long after its last entry."""


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


class Pace:
    """The pace of one shard's flushes."""

    def __init__(self, settings: PaceSettings) -> None:
        self._settings = settings
        self._items_min = min(settings.items_min, settings.items_max)
        self._items = settings.items_max
        self._seen: dict[str, float] = {}
        """When each namespace last had an entry; the one that was longest ago first."""

    def after(self, entries: int, seconds: float, namespaces: Iterable[str], now_s: float) -> int:
        """How many entries the next flush may have.

        Args:
            entries, seconds: of the flush that has just committed.
            namespaces: that it had entries of; the shard's own is the empty one.
        """
        target_s = self._settings.shared_target_s if self._shared(namespaces, now_s) else self._settings.target_s
        if seconds > target_s and entries >= self._items_min:
            self._items = max(self._items_min, int(entries * max(0.5, target_s / seconds)))
        elif entries * 2 >= self._items:
            self._items = min(self._settings.items_max, self._items + self._items // 4 + 1)
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
