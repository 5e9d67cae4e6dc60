"""The memory that the journals of a host's shards may take, and how much of it is used.

Always true: a shard may use its even part, whatever the others use. Knows no items. Pure.
"""

from __future__ import annotations

from typing import Final

MEMORY_BYTES_MAX: Final = 512 << 20
"""The dirty items of all shards of a host, with payloads, metadata and trace contexts."""


class JournalBudget:
    """The budget of one host."""

    def __init__(self, bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._bytes_max: Final = bytes_max
        self._uses: dict[object, int] = {}
        self._sum = 0

    def set_use(self, shard: object, memory_bytes: int) -> None:
        """Note what a shard uses now. `shard` is any object of its own."""
        self._sum += memory_bytes - self._uses.get(shard, 0)
        self._uses[shard] = memory_bytes

    def release(self, shard: object) -> None:
        """Forget a shard."""
        self._sum -= self._uses.pop(shard, 0)

    def fullness_percent(self, shard: object) -> int:
        """Return the part of the limit that a shard uses: of that of the host, or of its even part if that is less."""
        shards, own = max(1, len(self._uses)), self._uses.get(shard, 0)
        return 100 * min(self._sum, own * shards) // self._bytes_max
