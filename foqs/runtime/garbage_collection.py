"""Settings of Python's garbage collector that avoid long pauses.

Reference counts free almost everything that a host drops. The items and rows in
memory are hundreds of thousands of objects; a full collection scans each of
them, and the host serves no calls meanwhile. So new objects are collected
often, in small portions, and old objects rarely, in case that there are cycles
among them.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

GENERATION_0_THRESHOLD: Final = 10_000
"""New objects since the last collection that start the next one: about a millisecond of work."""
GENERATION_1_THRESHOLD: Final = 20
"""Collections of new objects after which their survivors are scanned again."""
GENERATION_2_THRESHOLD: Final = 1 << 30
FULL_COLLECTION_INTERVAL_S: Final = 600.0


class GarbageCollection:
    """Tunes the garbage collector of this process between `start` and `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._previous_threshold = gc.get_threshold()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Tune the collector; exclude all current objects from collections."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(GENERATION_0_THRESHOLD, GENERATION_1_THRESHOLD, GENERATION_2_THRESHOLD)
        self._schedule_full_collection()

    def stop(self) -> None:
        """Restore the previous settings. Safe to repeat, and without a start."""
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
