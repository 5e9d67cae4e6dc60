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

NEW_MAX: Final = 10_000
"""More objects than this, since the last time, and the new ones are looked at: about a millisecond."""
YOUNG_ROUNDS: Final = 20
"""So many such rounds, and what they left is looked at again."""
NEVER: Final = 1 << 30
FULL_EVERY_S: Final = 600.0


class Garbage:
    """Sets the collector of this process while it is started."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before = gc.get_threshold()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """What is there now is taken to live for ever."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(NEW_MAX, YOUNG_ROUNDS, NEVER)
        self._wait()

    def stop(self) -> None:
        """As it was before; safe to repeat, and without a start."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.set_threshold(*self._before)
            gc.unfreeze()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(FULL_EVERY_S, self._full)

    def _full(self) -> None:
        gc.collect()
        self._wait()
