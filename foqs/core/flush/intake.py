"""What waits for a shard's writer, and how its flushes are gathered.

`Intake` holds what waits and seals flushes: kinds in order of precedence, each
with a share it always gets and a cap it never exceeds; within a kind,
namespaces in turn by weight. Where little of one namespace waits beside much of
others, every other flush is a short one, so that what is little waits for little. Always true: an id waits or is sealed in one place
at most; a later event on it is held back until the earlier one is written, and
is then judged by what it finds. Bounded in items and bytes, and in both for
each namespace. Pure: what a work is, and who waits for it, is told in `work`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foqs.core.errors import Overloaded
from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.fair_queue import FairScheduler
from foqs.core.flush.work import Lane, Work

TURN_COST_MAX: Final = 64
"""The most that a turn may cost: an entry costs 1, and 1 for each KiB of it. The weight says how soon the next comes."""

_KIB: Final = 1024

_LANES: Final = tuple(Lane)


@dataclass(slots=True, frozen=True)
class LaneShare:
    """What a lane gets of a flush, in hundredths of its items: `least` beside one whenever it has that much, `most` ever."""

    percent_min: int
    percent_max: int


@dataclass(slots=True, frozen=True)
class IntakeLimits:
    """Limits of one shard's intake.

    Attributes:
        flush_items_max: entries of one flush; each lane may have one, whatever it says.
        flush_bytes_max: bytes that one lane of a flush writes, or may have to
            read; where a single entry is larger no other of its lane has any.
        express_items: entries of a short flush.
        queue_items_max: of events, and of inserts, that may wait.
        queue_bytes_max: bytes of events, and of inserts, that may wait.
        shares: by lane; the least of all add up to less than a flush.
    """

    flush_items_max: int
    flush_bytes_max: int
    express_items: int
    queue_items_max: int
    queue_bytes_max: int
    shares: Mapping[Lane, LaneShare]


LANE_SHARES: Final[Mapping[Lane, LaneShare]] = {
    Lane.ACK: LaneShare(20, 60),
    Lane.NACK: LaneShare(10, 40),
    Lane.RELEASE: LaneShare(5, 40),
    Lane.EXTEND: LaneShare(5, 40),
    Lane.DUE: LaneShare(10, 40),
    Lane.PURGE: LaneShare(2, 20),
    Lane.LEASE: LaneShare(20, 50),
    Lane.INSERT: LaneShare(20, 50),
}
"""Acks first: they free what everything else needs."""


class _LightNamespaces:
    """How many namespaces wait with few entries, of all kinds together. The shard's own, the empty one, is none."""

    __slots__ = ("_entries", "_entries_max", "count")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: dict[str, int] = {}
        self.count = 0

    def add(self, namespace: str, entries: int) -> None:
        """So many entries of a namespace came, or went."""
        if not namespace:
            return
        before = self._entries.get(namespace, 0)
        after = before + entries
        if after:
            self._entries[namespace] = after
        else:
            del self._entries[namespace]
        self.count += (0 < after <= self._entries_max) - (0 < before <= self._entries_max)

    def clear(self) -> None:
        self._entries.clear()
        self.count = 0


class _QueueQuota:
    """What waits of events, or of inserts, by namespace.

    A namespace may have `weight` times what is left free. So one alone fills
    half of it at weight 1, many get parts by their weights, and whoever comes
    next still finds some.
    """

    __slots__ = ("_bytes", "_bytes_max", "_items_max", "_light_namespaces", "_used", "_weight", "_weight_sum", "items")

    def __init__(
        self, items_max: int, bytes_max: int, light_namespaces: _LightNamespaces, weight: Callable[[str], int]
    ) -> None:
        self._light_namespaces = light_namespaces
        self._weight = weight
        self._items_max = items_max
        self._bytes_max = bytes_max
        self.items = 0
        self._bytes = 0
        self._used: dict[str, list[int]] = {}
        """Entries and bytes of each namespace, and its weight when it came."""
        self._weight_sum = 0
        """Of these namespaces together, but for the shard itself, the empty one."""

    def reserve(self, namespace: str, items: int, size: int, *, force: bool) -> bool:
        """Takes in so many entries and bytes; False when there is no room, which does not matter if `force`."""
        used = self._used.get(namespace)
        if not force:
            weight = self._weight(namespace)
            own_items, own_bytes, _ = used or (0, 0, 0)
            if own_items + items > weight * (self._items_max - self.items - items) or (
                size and own_bytes + size > weight * (self._bytes_max - self._bytes - size)
            ):
                return False
        if used is None:
            counted = self._weight(namespace) if namespace else 0
            self._used[namespace] = [items, size, counted]
            self._weight_sum += counted
        else:
            used[0] += items
            used[1] += size
        self.items += items
        self._bytes += size
        self._light_namespaces.add(namespace, items)
        return True

    def release_reservation(self, namespace: str, items: int, size: int) -> None:
        """So many entries and bytes wait no more."""
        self.items -= items
        self._bytes -= size
        self._light_namespaces.add(namespace, -items)
        used = self._used[namespace]
        used[0] -= items
        used[1] -= size
        if not used[0]:
            del self._used[namespace]
            self._weight_sum -= used[2]

    def backlog(self, namespace: str) -> tuple[int, float]:
        """Entries of a namespace, and its part by weight among those that have some, itself in any case."""
        used = self._used.get(namespace)
        if used is not None:
            return used[0], used[2] / self._weight_sum
        weight = self._weight(namespace)
        return 0, weight / (self._weight_sum + weight)

    def clear(self) -> None:
        self.items = 0
        self._bytes = 0
        self._used.clear()
        self._weight_sum = 0


class _LaneQueue:
    """What waits in one lane: namespaces in turn, within one first come first served."""

    __slots__ = ("_queues", "_quota", "_scheduler", "bytes", "items")

    def __init__(self, weight: Callable[[str], int], quota: _QueueQuota) -> None:
        self._scheduler = FairScheduler(weight)
        self._queues: dict[str, deque[Part[Any]]] = {}
        self._quota = quota
        self.items = 0
        self.bytes = 0
        """What all of it writes, or may have a flush read."""

    def push(self, part: Part[Any]) -> None:
        work = part.work
        queue = self._queues.get(work.namespace)
        if queue is None:
            queue = self._queues[work.namespace] = deque()
            self._scheduler.add(work.namespace)
        queue.append(part)
        self.items += part.count
        self.bytes += part.bytes + part.count * work.read_bytes

    def pop(self, items: int, bytes_max: int) -> tuple[list[Part[Any]], list[Part[Any]]]:
        """(parts of at most `items` entries and `bytes_max`, parts that nobody waits for any more)."""
        if self.items <= items and self.bytes <= bytes_max:
            return self.pop_all()
        taken: list[Part[Any]] = []
        gone: list[Part[Any]] = []
        turns, queues = self._scheduler, self._queues
        # Turns are so short that everybody who waits has one.
        turn = max(1, min(TURN_COST_MAX, items // len(turns)))
        full = False
        while items > 0 and turns and not full:
            namespace = turns.first()
            queue = queues[namespace]
            if not queue:
                del queues[namespace]
                turns.remove_first()
                continue
            limit = cost = turn if len(turns) > 1 else items + bytes_max // _KIB
            count = written = needed = 0
            while queue and items > 0 and cost > 0:
                part = queue[0]
                work, start = part.work, part.start
                if work.is_abandoned:
                    gone.append(queue.popleft())
                    count += part.count
                    written += part.bytes
                    needed += part.count * work.read_bytes
                    continue
                if work.bytes or work.read_bytes:
                    stop, size = _fitting_stop(part, min(items, cost), min(bytes_max, cost * _KIB))
                else:
                    stop, size = min(part.stop, start + items, start + cost), 0
                if stop == start:
                    stop, size = start + 1, work.read_bytes + work.size(start, start + 1)
                    if size > bytes_max and taken:
                        full = True
                        break
                if stop == part.stop:
                    taken.append(queue.popleft())
                else:
                    taken.append(Part(work, start, stop))
                    queue[0] = Part(work, stop, part.stop)
                entries = stop - start
                count += entries
                items -= entries
                bytes_max = max(0, bytes_max - size)
                cost -= entries + size // _KIB
                written += size - entries * work.read_bytes
                needed += entries * work.read_bytes
            turns.charge(limit - cost)
            self.items -= count
            self.bytes -= written + needed
            self._quota.release_reservation(namespace, count, written)
        if not self.items:
            self._reset()
        return taken, gone

    def pop_all(self) -> tuple[list[Part[Any]], list[Part[Any]]]:
        """All of it, as `take` would: whose turn it is does not matter."""
        taken: list[Part[Any]] = []
        gone: list[Part[Any]] = []
        for namespace, queue in self._queues.items():
            count = written = 0
            for part in queue:
                count += part.count
                written += part.bytes
                (gone if part.work.is_abandoned else taken).append(part)
            if count:
                self._quota.release_reservation(namespace, count, written)
        self._reset()
        return taken, gone

    def _reset(self) -> None:
        """Nothing waits, so nobody is behind anybody."""
        self.items = 0
        self.bytes = 0
        self._queues.clear()
        self._scheduler.clear()

    def drain(self) -> list[Part[Any]]:
        """Empties it, but for the room."""
        parts = [part for queue in self._queues.values() for part in queue]
        self._reset()
        return parts


def _fitting_stop(part: Part[Any], items: int, bytes_max: int) -> tuple[int, int]:
    """(where what fits of a part ends, its bytes)."""
    work, start = part.work, part.start
    stop = min(part.stop, start + items)
    read_bytes = work.read_bytes
    size = (stop - start) * read_bytes
    if work.bytes:
        size += part.bytes if stop == part.stop else work.size(start, stop)
    if size <= bytes_max:
        return stop, size
    size, stop = 0, start
    while size + (more := read_bytes + work.size(stop, stop + 1)) <= bytes_max:
        size += more
        stop += 1
    return stop, size


class Intake:
    """What waits for a shard's next flushes.

    Args:
        weight: of a namespace, at least 1.
    """

    def __init__(self, limits: IntakeLimits, weight: Callable[[str], int]) -> None:
        self._limits = limits
        self._light_namespaces = _LightNamespaces(limits.express_items // 2)
        self._event_quota = _QueueQuota(limits.queue_items_max, limits.queue_bytes_max, self._light_namespaces, weight)
        self._insert_quota = _QueueQuota(limits.queue_items_max, limits.queue_bytes_max, self._light_namespaces, weight)
        self._internal_quota = _QueueQuota(
            limits.queue_items_max, limits.queue_bytes_max, self._light_namespaces, weight
        )
        """Of what the shard itself asks for: a flood of dequeues keeps no ack out."""
        rooms = dict.fromkeys((Lane.LEASE, Lane.DUE, Lane.PURGE), self._internal_quota) | {
            Lane.INSERT: self._insert_quota
        }
        self._quotas = [rooms.get(lane, self._event_quota) for lane in Lane]
        self._queues = [_LaneQueue(weight, room) for room in self._quotas]
        self._busy_numbers: set[int] = set()
        """Of every event that waits in a line or is sealed."""
        self._held_back: dict[int, deque[tuple[Work, int]]] = {}
        """Later events by id, all of them in `_busy_numbers`."""
        self._items_max = limits.flush_items_max
        self.is_express = False
        """The flush that was sealed last was a short one."""

    def __len__(self) -> int:
        return self._event_quota.items + self._internal_quota.items + self._insert_quota.items

    def waiting_by_lane(self) -> list[tuple[Lane, int, int]]:
        """Entries of each kind that wait for their turn, and the bytes that they write or have a flush read."""
        return [(lane, line.items, line.bytes) for lane, line in zip(Lane, self._queues, strict=True)]

    def lease_backlog(self, namespace: str) -> tuple[int, float]:
        """Entries of a namespace that wait to be leased, mostly, and its part by weight among those that have some."""
        return self._internal_quota.backlog(namespace)

    @property
    def has_waiting_leases(self) -> bool:
        """More are to be leased than the flush that was sealed last could take."""
        return self._queues[Lane.LEASE].items > 0

    @property
    def held_back_count(self) -> int:
        """Events that wait for an earlier one on the same id."""
        return sum(map(len, self._held_back.values()))

    @property
    def items_max(self) -> int:
        """Entries that the next flush may have."""
        return self._items_max

    def is_free(self, number: int) -> bool:
        """No event on this id waits or is in a flush: the next one finds its row as it is now."""
        return number not in self._busy_numbers

    def submit(self, work: Work, *, is_internal: bool = False) -> None:
        """Queues a work, of at least one entry.

        `is_internal`: the shard's own events, which are bounded by what causes
        them, pass the limits.

        Raises:
            Overloaded: there is no room; nothing was queued.
        """
        lane, namespace, numbers = work.lane, work.namespace, work.numbers
        room = self._quotas[lane]
        if not room.reserve(namespace, len(numbers), work.bytes, force=is_internal):
            raise Overloaded("the shard's write queue is full; try again later, or at another host", retry_after_ms=100)
        if lane is not Lane.INSERT:
            ids = self._busy_numbers
            if not ids.isdisjoint(numbers):
                self._submit_in_parts(work)
                return
            before = len(ids)
            ids.update(numbers)
            if len(ids) - before < len(numbers):
                # An id stands in it twice.
                ids.difference_update(numbers)
                self._submit_in_parts(work)
                return
        self._queues[lane].push(Part(work, 0, len(numbers)))

    def _submit_in_parts(self, work: Work) -> None:
        """Queues the entries whose ids are free, and has the others wait for theirs."""
        ids, line = self._busy_numbers, self._queues[work.lane]
        start = 0
        for place, number in enumerate(work.numbers):
            if number not in ids:
                ids.add(number)
                continue
            if start < place:
                line.push(Part(work, start, place))
            start = place + 1
            self._held_back.setdefault(number, deque()).append((work, place))
        if start < len(work):
            line.push(Part(work, start, len(work)))

    def _release_numbers(self, numbers: Sequence[int]) -> None:
        """Nothing stands on these ids any more: the next event on each may come."""
        self._busy_numbers.difference_update(numbers)
        if self._held_back:
            for number in [number for number in numbers if number in self._held_back]:
                self._submit_held_back(number)

    def _submit_held_back(self, number: int) -> None:
        held = self._held_back[number]
        while held:
            work, place = held.popleft()
            if not work.is_abandoned:
                self._busy_numbers.add(number)
                self._queues[work.lane].push(Part(work, place, place + 1))
                break
            self._quotas[work.lane].release_reservation(work.namespace, 1, work.size(place, place + 1))
        if not held:
            del self._held_back[number]

    def set_flush_items_max(self, items: int) -> None:
        """The next flushes take at most so many entries, within the limit."""
        self._items_max = max(1, min(items, self._limits.flush_items_max))

    def seal(self, *, with_inserts: bool = True) -> Batch:
        """The next batch; its entries count as begun. `written` must follow before the next."""
        batch = Batch()
        shares, bytes_max = self._limits.shares, self._limits.flush_bytes_max
        waiting = [(lane, line) for lane, line in zip(_LANES, self._queues, strict=True) if line.items]
        if waiting and not with_inserts and waiting[-1][0] is Lane.INSERT:
            waiting.pop()
        items_max = self._items_max
        self.is_express = self._should_be_express()
        if self.is_express:
            items_max = min(items_max, self._limits.express_items)
            bytes_max = min(bytes_max, self._limits.express_items * _KIB)
        total = room = max(items_max, len(waiting))
        # One place each, and shares of the rest: together never more than there is.
        rest = total - len(waiting)
        least = [min(line.items, 1 + rest * shares[lane].percent_min // 100) for lane, line in waiting]
        later = sum(least)
        for (lane, line), own in zip(waiting, least, strict=True):
            later -= own
            most = max(1, total * shares[lane].percent_max // 100)
            parts, gone = line.pop(min(most, room - later), bytes_max)
            if lane is not Lane.INSERT:
                for part in gone:
                    self._release_numbers(part.numbers)
            for part in parts:
                part.work.seal(part.start, part.stop)
            batch.add(parts)
            if not parts:
                # All of it was withdrawn: the place that a lane has in any case is nobody else's.
                total = max(items_max, total - 1)
            room = total - len(batch)
        return batch

    def _should_be_express(self) -> bool:
        """And others with much; never twice in a row, so that much is not held up for long."""
        return not self.is_express and self._light_namespaces.count > 0 and len(self) > 2 * self._limits.express_items

    def pop_inserts(self) -> list[Part[Any]]:
        """Takes out all new items that wait; no flush will have them."""
        return self._queues[Lane.INSERT].pop_all()[0]

    def on_flush_ended(self, batch: Batch) -> None:
        """The batch is committed or was refused: its ids are free again."""
        self._release_numbers(batch.event_numbers)
        self._release_numbers(batch.hand_out_numbers)
        for part in batch.purges:
            self._release_numbers(part.numbers)

    def drain(self) -> list[Part[Any]]:
        """Empties it; all that waited."""
        parts = [part for line in self._queues for part in line.drain()]
        parts += [Part(work, place, place + 1) for held in self._held_back.values() for work, place in held]
        self._held_back.clear()
        self._busy_numbers.clear()
        for room in self._quotas:
            room.clear()
        self._light_namespaces.clear()
        return parts
