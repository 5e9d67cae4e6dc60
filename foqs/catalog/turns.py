"""The turns of changes that wait for one another.

Always true: one holder at a time; namespaces take turns by weight, so many changes of one
delay those of the others by one change. Knows nothing of what is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from foqs.core.flush.fair_queue import FairQueue


class Turns:
    """A lock that is fair between namespaces.

    Args:
        weight: of a namespace, at least 1.
    """

    def __init__(self, weight: Callable[[str], int]) -> None:
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(weight)
        self._is_held = False

    async def acquire(self, namespace: str) -> None:
        """Wait for a turn of the namespace. The caller must `release` it."""
        if not self._is_held:
            self._is_held = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(namespace, 1.0, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # the turn had come
            raise

    def release(self) -> None:
        """Give the turn to the next one that waits."""
        while self._waiting:
            turn = self._waiting.pop()
            if not turn.done():
                turn.set_result(None)
                return
        self._is_held = False
