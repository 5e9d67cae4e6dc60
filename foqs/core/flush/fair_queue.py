"""Serves several namespaces in proportion to their weights.

The algorithm is start-time fair queueing: serving a name adds cost / weight to its
tag, and the name with the lowest tag is served next. Always true: a name that is
added starts at the tag of the last one served, so idle time earns no credit; a name
whose queue ran empty keeps its tag until its turn comes, so adding one entry at a
time gains nothing either. Pure.
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
        weight: returns the weight of a name, at least 1.
    """

    __slots__ = ("_count", "_names", "_order", "_virtual_time", "_weight")

    def __init__(self, weight: Callable[[str], int]) -> None:
        self._weight = weight
        self._order: list[tuple[float, int, str]] = []
        """A heap of (tag, tie-breaker, name)."""
        self._names: set[str] = set()
        self._virtual_time = 0.0
        self._count = 0

    def __len__(self) -> int:
        return len(self._order)

    def __bool__(self) -> bool:
        return len(self) > 0

    def add(self, name: str) -> None:
        """Add a name that has work, unless it is there."""
        if name not in self._names:
            self._names.add(name)
            self._count += 1
            heappush(self._order, (self._virtual_time, self._count, name))

    def first(self) -> str:
        """Return the name to serve next. There must be one."""
        return self._order[0][2]

    def charge(self, cost: float) -> None:
        """Charge the first name for being served. Among equal tags it comes last."""
        order = self._order
        start, _, name = order[0]
        self._count += 1
        end = start + cost / self._weight(name)
        heapreplace(order, (end, self._count, name))
        # A name that was served alone delayed no other, so new names start after it.
        self._virtual_time = start if len(order) > 1 else end

    def remove_first(self) -> None:
        """Remove the first name, which has no work, and forget its tag."""
        self._virtual_time, _, name = heappop(self._order)
        self._names.remove(name)

    def clear(self) -> None:
        """Remove all names."""
        self._order.clear()
        self._names.clear()
        self._virtual_time = 0.0


class FairQueue(Generic[T]):
    """A queue that is fair between namespaces, and first in, first out within one.

    Args:
        weight: returns the weight of a namespace, at least 1.
    """

    def __init__(self, weight: Callable[[str], int]) -> None:
        self._scheduler = FairScheduler(weight)
        self._queues: dict[str, deque[tuple[float, T]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __bool__(self) -> bool:
        return len(self) > 0

    def push(self, namespace: str, cost: float, entry: T) -> None:
        """Queue an entry that will take `cost` to serve."""
        queue = self._queues.get(namespace)
        if queue is None:
            queue = self._queues[namespace] = deque()
            self._scheduler.add(namespace)
        queue.append((cost, entry))
        self._size += 1

    def pop(self) -> T:
        """Remove and return the next entry. There must be one."""
        scheduler, queues = self._scheduler, self._queues
        while not (queue := queues[scheduler.first()]):
            del queues[scheduler.first()]
            scheduler.remove_first()
        cost, entry = queue.popleft()
        scheduler.charge(cost)
        self._size -= 1
        if not self._size:
            self._reset()
        return entry

    def remove_all(self) -> list[T]:
        """Remove and return all entries."""
        entries = [entry for queue in self._queues.values() for _, entry in queue]
        self._size = 0
        self._reset()
        return entries

    def _reset(self) -> None:
        self._queues.clear()
        self._scheduler.clear()
