"""Holds the dequeues of a host, as a host does that is frozen or waits for its database.

Holds `FrozenDequeues`. Always true: a held dequeue gets no reply before `thaw`. A
dequeue that the server gave up stays without one. Knows nothing of connections.
"""

from __future__ import annotations

from typing import Any

from foqs.queue.port import Queue


class HeldDequeue:
    """A dequeue that waits for `FrozenDequeues.thaw`."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments: tuple[Any, ...] | None = arguments
        """None: the server gave it up, or it was passed on."""

    def abandon(self) -> None:
        self.arguments = None


class FrozenDequeues:
    """The held dequeues of one host, from now on.

    Attributes:
        held: all dequeues that arrived, oldest first.
    """

    def __init__(self, queue: Queue) -> None:
        self.held: list[HeldDequeue] = []
        self._queue = queue
        self._real = queue.dequeue
        queue.dequeue = self._hold  # type: ignore[assignment,method-assign]

    def thaw(self) -> None:
        """Pass on the held dequeues, and every later one at once."""
        self._queue.dequeue = self._real  # type: ignore[method-assign]
        for dequeue in self.held:
            arguments, dequeue.arguments = dequeue.arguments, None
            if arguments is not None:
                self._real(*arguments)

    def _hold(self, *arguments: Any) -> HeldDequeue:
        self.held.append(HeldDequeue(arguments))
        return self.held[-1]
