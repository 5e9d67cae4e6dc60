"""The memory that the journals of a host's shards may take, and how much of it is used.

Always true: a shard may use its even part, whatever the others use. Knows no items. Pure.
"""

from __future__ import annotations

from typing import Final

DIRTY_ITEMS_MAX: Final = 500_000
"""Dirty items of all shards of a host. One takes about 700 bytes and its payload if it is young, else about 200."""
YOUNG_BYTES_MAX: Final = 256 << 20
"""Payloads of the young items of all shards of a host."""


class JournalBudget:
    """The budget of one host."""

    def __init__(self, items_max: int = DIRTY_ITEMS_MAX, young_bytes_max: int = YOUNG_BYTES_MAX) -> None:
        self._limits: Final = (items_max, young_bytes_max)
        self._uses: dict[object, tuple[int, int]] = {}
        self._sums = (0, 0)

    def set_use(self, shard: object, items: int, young_bytes: int) -> None:
        """Note what a shard uses now. `shard` is any object of its own."""
        former = self._uses.get(shard, (0, 0))
        self._uses[shard] = (items, young_bytes)
        self._sums = (self._sums[0] + items - former[0], self._sums[1] + young_bytes - former[1])

    def release(self, shard: object) -> None:
        """Forget a shard."""
        if shard in self._uses:
            self.set_use(shard, 0, 0)
            del self._uses[shard]

    def fullness_percent(self, shard: object) -> int:
        """Return the part of its limits that a shard uses: of those of the host, or of its even part if that is less."""
        shards, own = max(1, len(self._uses)), self._uses.get(shard, (0, 0))
        parts = zip(self._sums, own, self._limits, strict=True)
        return max(100 * min(of_all, mine * shards) // limit for of_all, mine, limit in parts)
