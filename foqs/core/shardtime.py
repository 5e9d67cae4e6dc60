"""A shard's own time: the database's clock at takeover, then a steady one.

Never behind what any former owner saved, so leases and delays do not jump when
a shard moves; never goes back. Reads no clock itself.
"""

from __future__ import annotations

from collections.abc import Callable


class ShardTime:
    """Milliseconds since 1970-01-01 UTC, as this shard counts them.

    Args:
        monotonic_ms: a clock that never goes back.
        database_ms: the database's clock, read just now.
        saved_ms: the shard's time when it was last written.
    """

    def __init__(self, monotonic_ms: Callable[[], int], database_ms: int, saved_ms: int) -> None:
        self._monotonic_ms = monotonic_ms
        self._offset_ms = max(database_ms, saved_ms) - monotonic_ms()

    def now_ms(self) -> int:
        return self._monotonic_ms() + self._offset_ms
