"""Queues the operations for a shard's writer, and composes its flushes.

`Intake` holds the waiting operations and seals flushes. Lanes come in order of precedence;
each has a minimum share of a flush and a maximum. Within a lane, namespaces take turns
by weight. While a namespace with a small backlog waits beside large ones, every other
flush is a *small flush*, so that small backlogs wait less. Always true: a number waits
or is sealed in at most one place; a later event on it is held back until the earlier
one is written, and then applies to the new row. Bounded in items and bytes, in total
and for each namespace. Pure: `operation` defines the operations and their callbacks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.completions import Completions
from foqs.core.flush.lane_queue import LaneQueue
from foqs.core.flush.operation import Lane, Operation
from foqs.core.flush.queue_quota import LightNamespaces, QueueQuota
from foqs_contract.errors import Overloaded

_KIB: Final = 1024

_LANES: Final = tuple(Lane)


@dataclass(slots=True, frozen=True)
class LaneShare:
    """A lane's share of the entries of a flush.

    At least one entry and `percent_min`, if that many wait; at most `percent_max`.
    """

    percent_min: int
    percent_max: int


@dataclass(slots=True, frozen=True)
class IntakeLimits:
    """Limits of one shard's intake.

    Attributes:
        flush_items_max: entries of one flush; each lane may have one entry in any case.
        flush_bytes_max: bytes that one lane of a flush writes, or may have to
            read. An entry larger than that is the only one of its lane.
        small_flush_items: entries of a small flush.
        queue_items_max: entries that may wait in each of three groups: inserts, callers' events, and the shard's own
            operations.
        queue_bytes_max: bytes that may wait in each of these groups.
        shares: by lane; the minimums sum to less than 100 %.
    """

    flush_items_max: int
    flush_bytes_max: int
    small_flush_items: int
    queue_items_max: int
    queue_bytes_max: int
    shares: Mapping[Lane, LaneShare]


LANE_SHARES: Final[Mapping[Lane, LaneShare]] = {
    Lane.ACK: LaneShare(20, 60),
    Lane.NACK: LaneShare(10, 40),
    Lane.RELEASE: LaneShare(5, 40),
    Lane.EXTEND: LaneShare(5, 40),
    Lane.DUE: LaneShare(10, 60),
    Lane.LEASE: LaneShare(20, 50),
    Lane.PURGE: LaneShare(2, 60),
    Lane.INSERT: LaneShare(20, 50),
}
"""Acks come first, because they free the room that all others need.

Inserts come last, and have at most half of a flush, so that as many items can be removed as are inserted.
"""


class Intake:
    """The queue of a shard's writer.

    Args:
        weight: returns the weight of a namespace, at least 1.
    """

    def __init__(self, limits: IntakeLimits, weight: Callable[[str], int]) -> None:
        self._limits = limits
        self._light_namespaces = LightNamespaces(limits.small_flush_items // 2)
        self._event_quota = QueueQuota(limits.queue_items_max, limits.queue_bytes_max, self._light_namespaces, weight)
        self._insert_quota = QueueQuota(limits.queue_items_max, limits.queue_bytes_max, self._light_namespaces, weight)
        self._internal_quota = QueueQuota(
            limits.queue_items_max, limits.queue_bytes_max, self._light_namespaces, weight
        )
        """The room for the shard's own operations: a flood of dequeues must not keep acks out."""
        quotas = dict.fromkeys((Lane.LEASE, Lane.DUE, Lane.PURGE), self._internal_quota) | {
            Lane.INSERT: self._insert_quota
        }
        self._quotas = [quotas.get(lane, self._event_quota) for lane in Lane]
        self._queues = [LaneQueue(weight, quota) for quota in self._quotas]
        self._busy_numbers: set[int] = set()
        """The numbers of all events that wait in a lane or are sealed."""
        self._held_back: dict[int, deque[tuple[Operation, int]]] = {}
        """Later events by number. All these numbers are in `_busy_numbers`."""
        self._items_max = limits.flush_items_max
        self.is_small_flush = False
        """Whether the last sealed flush was a small flush."""

    def __len__(self) -> int:
        return self._event_quota.items + self._internal_quota.items + self._insert_quota.items

    def __bool__(self) -> bool:
        return len(self) > 0

    def waiting_by_lane(self) -> list[tuple[Lane, int, int]]:
        """Return (lane, waiting entries, bytes that they write or may make a flush read) for each lane."""
        return [(lane, queue.items, queue.bytes) for lane, queue in zip(Lane, self._queues, strict=True)]

    @property
    def new_items_max(self) -> int:
        """How many items the waiting inserts and completions insert at most."""
        count = self._insert_quota.items
        for part in self._queues[Lane.NACK].parts():
            if type(part.operation) is Completions:
                count += part.operation.number_count(part.start, part.stop)
        for held in self._held_back.values():
            for operation, place in held:
                if type(operation) is Completions:
                    count += operation.number_count(place, place + 1)
        return count

    def lease_backlog(self, namespace: str) -> tuple[int, float]:
        """Return the waiting entries of a namespace in the lanes LEASE, DUE and PURGE, and its share (0 to 1) by weight."""
        return self._internal_quota.backlog(namespace)

    @property
    def has_waiting_leases(self) -> bool:
        """Whether leases are left that the last sealed flush could not take."""
        return self._queues[Lane.LEASE].items > 0

    @property
    def held_back_count(self) -> int:
        """The count of events that wait for an earlier event on the same number."""
        return sum(map(len, self._held_back.values()))

    @property
    def items_max(self) -> int:
        """The maximum of entries in the next flush."""
        return self._items_max

    def is_free(self, number: int) -> bool:
        """Return whether no event on this number waits or is in a flush, so that the next one finds the present row."""
        return number not in self._busy_numbers

    def submit(self, operation: Operation, *, is_internal: bool = False) -> None:
        """Queue an operation with at least one entry.

        Args:
            is_internal: an operation of the shard itself. It is bounded by its cause, so no limit applies.

        Raises:
            Overloaded: there is no room; nothing was queued.
        """
        lane, namespace, numbers = operation.lane, operation.namespace, operation.numbers
        quota = self._quotas[lane]
        if not quota.reserve(namespace, len(numbers), operation.bytes, force=is_internal):
            raise Overloaded("the shard's write queue is full; try again later, or at another host", retry_after_ms=100)
        if lane is not Lane.INSERT:
            busy = self._busy_numbers
            if not busy.isdisjoint(numbers):
                self._submit_in_parts(operation)
                return
            before = len(busy)
            busy.update(numbers)
            if len(busy) - before < len(numbers):
                # A number occurs twice in the operation.
                busy.difference_update(numbers)
                self._submit_in_parts(operation)
                return
        self._queues[lane].push(Part(operation, 0, len(numbers)))

    def _submit_in_parts(self, operation: Operation) -> None:
        """Queue the entries whose numbers are free, and hold the others back."""
        busy, queue = self._busy_numbers, self._queues[operation.lane]
        start = 0
        for place, number in enumerate(operation.numbers):
            if number not in busy:
                busy.add(number)
                continue
            if start < place:
                queue.push(Part(operation, start, place))
            start = place + 1
            self._held_back.setdefault(number, deque()).append((operation, place))
        if start < len(operation):
            queue.push(Part(operation, start, len(operation)))

    def _release_numbers(self, numbers: Sequence[int]) -> None:
        """Free these numbers, and queue the next event on each."""
        self._busy_numbers.difference_update(numbers)
        if self._held_back:
            for number in [number for number in numbers if number in self._held_back]:
                self._submit_held_back(number)

    def _submit_held_back(self, number: int) -> None:
        held = self._held_back[number]
        while held:
            operation, place = held.popleft()
            if not operation.is_abandoned:
                self._busy_numbers.add(number)
                self._queues[operation.lane].push(Part(operation, place, place + 1))
                break
            self._quotas[operation.lane].release_reservation(operation.namespace, 1, operation.size(place, place + 1))
        if not held:
            del self._held_back[number]

    def set_flush_items_max(self, items: int) -> None:
        """Set the maximum of entries in the next flushes, within the limit."""
        self._items_max = max(1, min(items, self._limits.flush_items_max))

    def seal(self, *, with_inserts: bool = True) -> Batch:
        """Return the next batch and seal its entries. `on_flush_ended` must be called before the next one."""
        batch = Batch()
        shares, bytes_max = self._limits.shares, self._limits.flush_bytes_max
        waiting = [(lane, queue) for lane, queue in zip(_LANES, self._queues, strict=True) if queue.items]
        if waiting and not with_inserts and waiting[-1][0] is Lane.INSERT:
            waiting.pop()
        items_max = self._items_max
        self.is_small_flush = self._should_be_small()
        if self.is_small_flush:
            items_max = min(items_max, self._limits.small_flush_items)
            bytes_max = min(bytes_max, self._limits.small_flush_items * _KIB)
        total = room = max(items_max, len(waiting))
        # Each lane gets one entry and its share of the rest. These never sum to more than `total`.
        shared = total - len(waiting)
        minimums = [min(queue.items, 1 + shared * shares[lane].percent_min // 100) for lane, queue in waiting]
        kept_for_later_lanes = sum(minimums)
        for (lane, queue), minimum in zip(waiting, minimums, strict=True):
            kept_for_later_lanes -= minimum
            maximum = max(1, total * shares[lane].percent_max // 100)
            parts, abandoned = queue.pop(min(maximum, room - kept_for_later_lanes), bytes_max)
            if lane is not Lane.INSERT:
                for part in abandoned:
                    self._release_numbers(part.numbers)
            for part in parts:
                part.operation.seal(part.start, part.stop)
            batch.add(parts)
            if not parts:
                # All was withdrawn. The one entry that each lane may have does not go to another lane.
                total = max(items_max, total - 1)
            room = total - len(batch)
        return batch

    def _should_be_small(self) -> bool:
        """Return whether small backlogs wait beside large ones. Never twice in a row, so that the large ones proceed."""
        return (
            not self.is_small_flush
            and self._light_namespaces.count > 0
            and len(self) > 2 * self._limits.small_flush_items
        )

    def pop_inserts(self) -> list[Part[Any]]:
        """Remove and return all waiting inserts."""
        return self._queues[Lane.INSERT].pop_all()[0]

    def pop_completions(self) -> list[Part[Any]]:
        """Remove and return all completions that wait and are not held back by an earlier event."""
        parts = self._queues[Lane.NACK].remove(Completions)
        for part in parts:
            self._release_numbers(part.numbers)
        return parts

    def on_flush_ended(self, batch: Batch) -> None:
        """Free the numbers of a batch that was committed or refused."""
        self._release_numbers(batch.event_numbers)
        self._release_numbers(batch.lease_numbers)
        for part in batch.purges:
            self._release_numbers(part.numbers)

    def remove_all(self) -> list[Part[Any]]:
        """Remove and return all waiting parts."""
        parts = [part for queue in self._queues for part in queue.remove_all()]
        parts += [Part(operation, place, place + 1) for held in self._held_back.values() for operation, place in held]
        self._held_back.clear()
        self._busy_numbers.clear()
        for quota in self._quotas:
            quota.clear()
        self._light_namespaces.clear()
        return parts

    # ------------------------------------------------------------------- check

    def check(self, sealed: Batch) -> None:
        """Assert what is always true. `sealed` is the batch for which `on_flush_ended` must still be called."""
        for queue in self._queues:
            queue.check()
        numbers = [*sealed.event_numbers, *sealed.lease_numbers]
        waiting = [part for queue in self._queues[: Lane.INSERT] for part in queue.parts()]
        for part in (*sealed.purges, *waiting):
            numbers += part.numbers
        counted = Counter(numbers)
        assert len(counted) == len(numbers), f"two events wait or are sealed: {counted.most_common(1)} (number, events)"
        assert self._busy_numbers == counted.keys(), "a number is free while an event on it waits, or the reverse"
        assert self._held_back.keys() <= self._busy_numbers, "an event is held back and no other one is before it"
        self._check_quotas()

    def _check_quotas(self) -> None:
        for quota in (self._event_quota, self._insert_quota, self._internal_quota):
            used: dict[str, tuple[int, int]] = {}
            lanes = [lane for lane in _LANES if self._quotas[lane] is quota]
            entries = [
                (part.operation, part.count, part.bytes) for lane in lanes for part in self._queues[lane].parts()
            ]
            for held in self._held_back.values():
                entries += [(each, 1, each.size(at, at + 1)) for each, at in held if self._quotas[each.lane] is quota]
            for operation, count, size in entries:
                before_items, before_bytes = used.get(operation.namespace, (0, 0))
                used[operation.namespace] = (before_items + count, before_bytes + size)
            quota.check(used)
        assert self._insert_quota.items <= self._limits.queue_items_max, "invariant 18: too many inserts wait"
