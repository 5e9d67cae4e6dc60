"""Long polls: who waits for which topics, first come first served.

Always true: a waiter that is woken, or gives up, stands in no queue any more.
Whoever is woken looks for itself; if it leaves something behind it must pass
the wake-up on, so that none is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from foqs.core.ready import TopicName


class Waiter:
    """One dequeue that found nothing yet."""

    __slots__ = ("future", "topics")

    def __init__(self, topics: Sequence[TopicName], future: asyncio.Future[None]) -> None:
        self.topics = topics
        self.future = future


class Waiters:
    """The queues of waiting dequeues, by topic."""

    def __init__(self) -> None:
        self._queues: dict[TopicName, dict[Waiter, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def join(self, topics: Sequence[TopicName]) -> Waiter:
        """Queues up for any of `topics`."""
        waiter = Waiter(topics, asyncio.get_running_loop().create_future())
        for topic in topics:
            self._queues.setdefault(topic, {})[waiter] = None
        self._count += 1
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Steps out of every queue; safe to repeat."""
        found = False
        for topic in waiter.topics:
            queue = self._queues.get(topic)
            if queue is not None and waiter in queue:
                found = True
                del queue[waiter]
                if not queue:
                    del self._queues[topic]
        self._count -= found

    def wake(self, topics: Iterable[TopicName]) -> None:
        """Wakes the first waiter of each topic."""
        for topic in topics:
            queue = self._queues.get(topic)
            if queue:
                waiter = next(iter(queue))
                self.leave(waiter)
                if not waiter.future.done():
                    waiter.future.set_result(None)

    def wake_all(self) -> None:
        """Wakes everybody."""
        while self._queues:
            self.wake(list(self._queues))
