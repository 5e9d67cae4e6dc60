"""One lane of a shard's intake: its namespaces take turns by weight, and each one's parts are first in, first out.

Always true: what waits has no result yet, and its room is reserved in the quota. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from foqs.core.flush.batch import Part
from foqs.core.flush.fair_queue import FairScheduler
from foqs.core.flush.operation import OPEN, Operation
from foqs.core.flush.queue_quota import QueueQuota

TURN_COST_MAX: Final = 64
"""The maximum cost of a turn. An entry costs 1, plus 1 for each KiB. The weight decides how soon the next turn comes."""

_KIB: Final = 1024


class LaneQueue:
    """The queue of one lane: namespaces take turns, and each one's parts are first in, first out."""

    __slots__ = ("_queues", "_quota", "_scheduler", "bytes", "items")

    def __init__(self, weight: Callable[[str], int], quota: QueueQuota) -> None:
        self._scheduler = FairScheduler(weight)
        self._queues: dict[str, deque[Part[Any]]] = {}
        self._quota = quota
        self.items = 0
        self.bytes = 0
        """Bytes that its entries write, or may make a flush read."""

    def push(self, part: Part[Any]) -> None:
        operation = part.operation
        queue = self._queues.get(operation.namespace)
        if queue is None:
            queue = self._queues[operation.namespace] = deque()
            self._scheduler.add(operation.namespace)
        queue.append(part)
        self.items += part.count
        self.bytes += part.bytes + part.count * operation.read_bytes

    def pop(self, items: int, bytes_max: int) -> tuple[list[Part[Any]], list[Part[Any]]]:
        """Remove and return (parts with at most `items` entries and `bytes_max` bytes, parts of abandoned operations).

        An operation that is whole is returned as one part, and may exceed `items`. What comes first may exceed `bytes_max`.
        """
        if self.items <= items and self.bytes <= bytes_max:
            return self.pop_all()
        popped: list[Part[Any]] = []
        abandoned: list[Part[Any]] = []
        scheduler, queues = self._scheduler, self._queues
        # Turns are short enough that every waiting namespace gets one.
        turn_cost = max(1, min(TURN_COST_MAX, items // len(scheduler)))
        full = False
        while items > 0 and scheduler and not full:
            namespace = scheduler.first()
            queue = queues[namespace]
            if not queue:
                del queues[namespace]
                scheduler.remove_first()
                continue
            limit = cost = turn_cost if len(scheduler) > 1 else items + bytes_max // _KIB
            count = written = read = 0
            while queue and items > 0 and cost > 0:
                part = queue[0]
                operation, start = part.operation, part.start
                if operation.is_abandoned:
                    abandoned.append(queue.popleft())
                    count += part.count
                    written += part.bytes
                    read += part.count * operation.read_bytes
                    continue
                if operation.bytes or operation.read_bytes:
                    stop, size = _fitting_stop(part, min(items, cost), min(bytes_max, cost * _KIB))
                else:
                    stop, size = min(part.stop, start + items, start + cost), 0
                if stop == start or (operation.is_whole and stop < part.stop):
                    stop = part.stop if operation.is_whole else start + 1
                    size = (stop - start) * operation.read_bytes + operation.size(start, stop)
                    if size > bytes_max and popped:
                        full = True
                        break
                if stop == part.stop:
                    popped.append(queue.popleft())
                else:
                    popped.append(Part(operation, start, stop))
                    queue[0] = Part(operation, stop, part.stop)
                entries = stop - start
                count += entries
                items -= entries
                bytes_max = max(0, bytes_max - size)
                cost -= entries + size // _KIB
                written += size - entries * operation.read_bytes
                read += entries * operation.read_bytes
            scheduler.charge(limit - cost)
            self.items -= count
            self.bytes -= written + read
            self._quota.release_reservation(namespace, count, written)
        if not self.items:
            self._reset()
        return popped, abandoned

    def pop_all(self) -> tuple[list[Part[Any]], list[Part[Any]]]:
        """Remove all parts, and return them as `pop` does. Turns do not matter then."""
        popped: list[Part[Any]] = []
        abandoned: list[Part[Any]] = []
        for namespace, queue in self._queues.items():
            count = written = 0
            for part in queue:
                count += part.count
                written += part.bytes
                (abandoned if part.operation.is_abandoned else popped).append(part)
            if count:
                self._quota.release_reservation(namespace, count, written)
        self._reset()
        return popped, abandoned

    def remove(self, kind: type[Operation]) -> list[Part[Any]]:
        """Remove and return the parts of the operations of one kind."""
        removed: list[Part[Any]] = []
        for namespace, queue in self._queues.items():
            own = [part for part in queue if type(part.operation) is kind]
            if not own:
                continue
            kept = [part for part in queue if type(part.operation) is not kind]
            queue.clear()
            queue.extend(kept)
            count = sum([part.count for part in own])
            written = sum([part.bytes for part in own])
            self.items -= count
            self.bytes -= written + sum([part.count * part.operation.read_bytes for part in own])
            self._quota.release_reservation(namespace, count, written)
            removed += own
        return removed

    def _reset(self) -> None:
        self.items = 0
        self.bytes = 0
        self._queues.clear()
        self._scheduler.clear()

    def remove_all(self) -> list[Part[Any]]:
        """Remove and return all parts. The quota is not released."""
        parts = self.parts()
        self._reset()
        return parts

    def parts(self) -> list[Part[Any]]:
        """Return all parts that wait."""
        return [part for queue in self._queues.values() for part in queue]

    def check(self) -> None:
        """Assert that it knows its size, and that what waits has no result yet."""
        parts = self.parts()
        assert self.items == sum([part.count for part in parts]), "invariant 18: a lane does not know its entries"
        size = sum([part.bytes + part.count * part.operation.read_bytes for part in parts])
        assert self.bytes == size, f"invariant 18: a lane has {size} bytes and counts {self.bytes}"
        for part in parts:
            results = part.operation.results[part.start : part.stop]
            assert part.operation.is_abandoned or results.count(OPEN) == part.count, (
                f"invariant 16: an entry waits and has a result: {results}"
            )


def _fitting_stop(part: Part[Any], items: int, bytes_max: int) -> tuple[int, int]:
    """Return (the end of the entries of a part that fit, their bytes)."""
    operation, start = part.operation, part.start
    stop = min(part.stop, start + items)
    read_bytes = operation.read_bytes
    size = (stop - start) * read_bytes
    if operation.bytes:
        size += part.bytes if stop == part.stop else operation.size(start, stop)
    if size <= bytes_max:
        return stop, size
    size, stop = 0, start
    while size + (entry_bytes := read_bytes + operation.size(stop, stop + 1)) <= bytes_max:
        size += entry_bytes
        stop += 1
    return stop, size
