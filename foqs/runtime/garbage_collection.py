"""Python's collector of cycles, kept from stopping the host.

What a queue throws away is freed by counting references; what it keeps, items
that wait and rows that are remembered, is hundreds of thousands of objects. A full
collection looks at each of them and serves nobody meanwhile. So new objects are
collected as ever, in small portions, and old ones once in a long while, in
case that something of the long-lived was a cycle after all.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

GENERATION_0_THRESHOLD: Final = 10_000
"""More objects than this, since the last time, and the new ones are looked at: about a millisecond."""
GENERATION_1_THRESHOLD: Final = 20
"""So many such rounds, and what they left is looked at again."""
GENERATION_2_THRESHOLD: Final = 1 << 30
FULL_COLLECTION_INTERVAL_S: Final = 600.0


class GarbageCollection:
    """Sets the collector of this process while it is started."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._previous_threshold = gc.get_threshold()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """What is there now is taken to live for ever."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(GENERATION_0_THRESHOLD, GENERATION_1_THRESHOLD, GENERATION_2_THRESHOLD)
        self._schedule_full_collection()

    def stop(self) -> None:
        """As it was before; safe to repeat, and without a start."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.set_threshold(*self._previous_threshold)
            gc.unfreeze()

    def _schedule_full_collection(self) -> None:
        self._timer = self._loop.call_later(FULL_COLLECTION_INTERVAL_S, self._collect_all)

    def _collect_all(self) -> None:
        gc.collect()
        self._schedule_full_collection()
