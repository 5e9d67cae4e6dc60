"""The turns of changes that wait for one another.

Always true: one holder at a time; namespaces take turns by weight, so many changes of one
delay those of the others by one change; a waiter that was cancelled leaves nothing behind.
Knows nothing of what is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from foqs.core.flush.fair_queue import FairScheduler


class Turns:
    """A lock that is fair between namespaces.

    Args:
        weight: returns the weight of a namespace, at least 1.
    """

    def __init__(self, weight: Callable[[str], int]) -> None:
        self._scheduler = FairScheduler(weight)
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        """The waiters of each namespace in the scheduler, first come first."""
        self._is_held = False

    @property
    def waiting_count(self) -> int:
        """The number of changes that wait."""
        return sum(map(len, self._waiting.values()))

    async def acquire(self, namespace: str) -> None:
        """Wait for a turn of the namespace. The caller must `release` it."""
        if not self._is_held:
            self._is_held = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(namespace, {})
        waiting[turn] = None
        self._scheduler.add(namespace)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # the turn had come
            else:
                waiting.pop(turn, None)
            raise

    def release(self) -> None:
        """Give the turn to the next one that waits."""
        scheduler = self._scheduler
        while scheduler:
            waiting = self._waiting[scheduler.first()]
            if waiting:
                turn = next(iter(waiting))
                del waiting[turn]
                if turn.done():
                    continue  # it was cancelled in this turn of the loop
                scheduler.charge(1.0)
                turn.set_result(None)
                return
            del self._waiting[scheduler.first()]
            scheduler.remove_first()
        self._is_held = False
