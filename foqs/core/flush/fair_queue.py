"""Whose turn it is: several namespaces, served in proportion to their weights.

Start-time fair queueing: whoever was served moves on by cost over weight, and
the one that is least far comes next. Always true: nobody that has something to
do starts behind the one that was served last, so idling saves up nothing; and
one that has run dry keeps its place until its turn comes, so coming with one
thing at a time gains nothing either. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import Generic, TypeVar

T = TypeVar("T")


class FairScheduler:
    """The order in which names are served.

    Args:
        weight: of a name, at least 1.
    """

    __slots__ = ("_count", "_names", "_order", "_virtual_time", "_weight")

    def __init__(self, weight: Callable[[str], int]) -> None:
        self._weight = weight
        self._order: list[tuple[float, int, str]] = []
        """A heap of (how far it is, a number that tells equals apart, name)."""
        self._names: set[str] = set()
        self._virtual_time = 0.0
        self._count = 0

    def __len__(self) -> int:
        return len(self._order)

    def add(self, name: str) -> None:
        """It has something to do; nothing happens when it stands here already."""
        if name not in self._names:
            self._names.add(name)
            self._count += 1
            heappush(self._order, (self._virtual_time, self._count, name))

    def first(self) -> str:
        """Whose turn it is. There must be one."""
        return self._order[0][2]

    def charge(self, cost: float) -> None:
        """The first was served; of several that are equally far it comes last."""
        order = self._order
        start, _, name = order[0]
        self._count += 1
        end = start + cost / self._weight(name)
        heapreplace(order, (end, self._count, name))
        # What it took while nobody else was here was at nobody's expense.
        self._virtual_time = start if len(order) > 1 else end

    def remove_first(self) -> None:
        """The first has nothing to do: its place is forgotten."""
        self._virtual_time, _, name = heappop(self._order)
        self._names.remove(name)

    def clear(self) -> None:
        """Nobody has anything to do."""
        self._order.clear()
        self._names.clear()
        self._virtual_time = 0.0


class FairQueue(Generic[T]):
    """Things by namespace, first come first served within one.

    Args:
        weight: of a namespace, at least 1.
    """

    def __init__(self, weight: Callable[[str], int]) -> None:
        self._scheduler = FairScheduler(weight)
        self._queues: dict[str, deque[tuple[float, T]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, namespace: str, cost: float, entry: T) -> None:
        """Queues a thing that will keep the server busy for `cost`."""
        queue = self._queues.get(namespace)
        if queue is None:
            queue = self._queues[namespace] = deque()
            self._scheduler.add(namespace)
        queue.append((cost, entry))
        self._size += 1

    def pop(self) -> T:
        """The next thing. There must be one."""
        turns, queues = self._scheduler, self._queues
        while not (queue := queues[turns.first()]):
            del queues[turns.first()]
            turns.remove_first()
        cost, thing = queue.popleft()
        turns.charge(cost)
        self._size -= 1
        if not self._size:
            self._reset()
        return thing

    def drain(self) -> list[T]:
        """Empties it."""
        things = [thing for queue in self._queues.values() for _, thing in queue]
        self._size = 0
        self._reset()
        return things

    def _reset(self) -> None:
        """Nothing waits, so nobody is behind anybody."""
        self._queues.clear()
        self._scheduler.clear()
