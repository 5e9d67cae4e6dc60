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

from foqs.core.batch import Batch, Part
from foqs.core.errors import Overloaded
from foqs.core.fair import Turns
from foqs.core.work import Lane, Work

TURN_COST: Final = 64
"""The most that a turn may cost: an entry costs 1, and 1 for each KiB of it. The weight says how soon the next comes."""

_KIB: Final = 1024

_LANES: Final = tuple(Lane)


@dataclass(slots=True, frozen=True)
class Share:
    """What a lane gets of a flush, in hundredths of its items: `least` beside one whenever it has that much, `most` ever."""

    least: int
    most: int


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
    shares: Mapping[Lane, Share]


SHARES: Final[Mapping[Lane, Share]] = {
    Lane.ACK: Share(20, 60),
    Lane.NACK: Share(10, 40),
    Lane.RELEASE: Share(5, 40),
    Lane.EXTEND: Share(5, 40),
    Lane.DUE: Share(10, 40),
    Lane.PURGE: Share(2, 20),
    Lane.LEASE: Share(20, 50),
    Lane.INSERT: Share(20, 50),
}
"""Acks first: they free what everything else needs."""


class _Light:
    """How many namespaces wait with few entries, of all kinds together. The shard's own, the empty one, is none."""

    __slots__ = ("_entries", "_few", "count")

    def __init__(self, few: int) -> None:
        self._few = few
        self._entries: dict[str, int] = {}
        self.count = 0

    def change(self, namespace: str, entries: int) -> None:
        """So many entries of a namespace came, or went."""
        if not namespace:
            return
        before = self._entries.get(namespace, 0)
        after = before + entries
        if after:
            self._entries[namespace] = after
        else:
            del self._entries[namespace]
        self.count += (0 < after <= self._few) - (0 < before <= self._few)

    def clear(self) -> None:
        self._entries.clear()
        self.count = 0


class _Room:
    """What waits of events, or of inserts, by namespace.

    A namespace may have `weight` times what is left free. So one alone fills
    half of it at weight 1, many get parts by their weights, and whoever comes
    next still finds some.
    """

    __slots__ = ("_bytes", "_bytes_max", "_items_max", "_light", "_used", "_weight", "_weights", "items")

    def __init__(self, items_max: int, bytes_max: int, light: _Light, weight: Callable[[str], int]) -> None:
        self._light = light
        self._weight = weight
        self._items_max = items_max
        self._bytes_max = bytes_max
        self.items = 0
        self._bytes = 0
        self._used: dict[str, list[int]] = {}
        """Entries and bytes of each namespace, and its weight when it came."""
        self._weights = 0
        """Of these namespaces together, but for the shard itself, the empty one."""

    def enter(self, namespace: str, items: int, size: int, *, always: bool) -> bool:
        """Takes in so many entries and bytes; False when there is no room, which does not matter if `always`."""
        used = self._used.get(namespace)
        if not always:
            weight = self._weight(namespace)
            own_items, own_bytes, _ = used or (0, 0, 0)
            if own_items + items > weight * (self._items_max - self.items - items) or (
                size and own_bytes + size > weight * (self._bytes_max - self._bytes - size)
            ):
                return False
        if used is None:
            counted = self._weight(namespace) if namespace else 0
            self._used[namespace] = [items, size, counted]
            self._weights += counted
        else:
            used[0] += items
            used[1] += size
        self.items += items
        self._bytes += size
        self._light.change(namespace, items)
        return True

    def leave(self, namespace: str, items: int, size: int) -> None:
        """So many entries and bytes wait no more."""
        self.items -= items
        self._bytes -= size
        self._light.change(namespace, -items)
        used = self._used[namespace]
        used[0] -= items
        used[1] -= size
        if not used[0]:
            del self._used[namespace]
            self._weights -= used[2]

    def waiting(self, namespace: str) -> tuple[int, float]:
        """Entries of a namespace, and its part by weight among those that have some, itself in any case."""
        used = self._used.get(namespace)
        if used is not None:
            return used[0], used[2] / self._weights
        weight = self._weight(namespace)
        return 0, weight / (self._weights + weight)

    def clear(self) -> None:
        self.items = 0
        self._bytes = 0
        self._used.clear()
        self._weights = 0


class _Line:
    """What waits in one lane: namespaces in turn, within one first come first served."""

    __slots__ = ("_queues", "_room", "_turns", "bytes", "items")

    def __init__(self, weight: Callable[[str], int], room: _Room) -> None:
        self._turns = Turns(weight)
        self._queues: dict[str, deque[Part[Any]]] = {}
        self._room = room
        self.items = 0
        self.bytes = 0
        """What all of it writes, or may have a flush read."""

    def push(self, part: Part[Any]) -> None:
        work = part.work
        queue = self._queues.get(work.namespace)
        if queue is None:
            queue = self._queues[work.namespace] = deque()
            self._turns.enter(work.namespace)
        queue.append(part)
        self.items += part.count
        self.bytes += part.bytes + part.count * work.read_bytes

    def take(self, items: int, bytes_max: int) -> tuple[list[Part[Any]], list[Part[Any]]]:
        """(parts of at most `items` entries and `bytes_max`, parts that nobody waits for any more)."""
        if self.items <= items and self.bytes <= bytes_max:
            return self.take_all()
        taken: list[Part[Any]] = []
        gone: list[Part[Any]] = []
        turns, queues = self._turns, self._queues
        # Turns are so short that everybody who waits has one.
        turn = max(1, min(TURN_COST, items // len(turns)))
        full = False
        while items > 0 and turns and not full:
            namespace = turns.first()
            queue = queues[namespace]
            if not queue:
                del queues[namespace]
                turns.leave()
                continue
            limit = cost = turn if len(turns) > 1 else items + bytes_max // _KIB
            count = written = needed = 0
            while queue and items > 0 and cost > 0:
                part = queue[0]
                work, start = part.work, part.start
                if work.abandoned:
                    gone.append(queue.popleft())
                    count += part.count
                    written += part.bytes
                    needed += part.count * work.read_bytes
                    continue
                if work.bytes or work.read_bytes:
                    stop, size = _fits(part, min(items, cost), min(bytes_max, cost * _KIB))
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
            self._room.leave(namespace, count, written)
        if not self.items:
            self._forget()
        return taken, gone

    def take_all(self) -> tuple[list[Part[Any]], list[Part[Any]]]:
        """All of it, as `take` would: whose turn it is does not matter."""
        taken: list[Part[Any]] = []
        gone: list[Part[Any]] = []
        for namespace, queue in self._queues.items():
            count = written = 0
            for part in queue:
                count += part.count
                written += part.bytes
                (gone if part.work.abandoned else taken).append(part)
            if count:
                self._room.leave(namespace, count, written)
        self._forget()
        return taken, gone

    def _forget(self) -> None:
        """Nothing waits, so nobody is behind anybody."""
        self.items = 0
        self.bytes = 0
        self._queues.clear()
        self._turns.clear()

    def drain(self) -> list[Part[Any]]:
        """Empties it, but for the room."""
        parts = [part for queue in self._queues.values() for part in queue]
        self._forget()
        return parts


def _fits(part: Part[Any], items: int, bytes_max: int) -> tuple[int, int]:
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
        self._light = _Light(limits.express_items // 2)
        self._events = _Room(limits.queue_items_max, limits.queue_bytes_max, self._light, weight)
        self._inserts = _Room(limits.queue_items_max, limits.queue_bytes_max, self._light, weight)
        self._own = _Room(limits.queue_items_max, limits.queue_bytes_max, self._light, weight)
        """Of what the shard itself asks for: a flood of dequeues keeps no ack out."""
        rooms = dict.fromkeys((Lane.LEASE, Lane.DUE, Lane.PURGE), self._own) | {Lane.INSERT: self._inserts}
        self._rooms = [rooms.get(lane, self._events) for lane in Lane]
        self._lines = [_Line(weight, room) for room in self._rooms]
        self._ids: set[int] = set()
        """Of every event that waits in a line or is sealed."""
        self._held: dict[int, deque[tuple[Work, int]]] = {}
        """Later events by id, all of them in `_ids`."""
        self._items_max = limits.flush_items_max
        self.is_express = False
        """The flush that was sealed last was a short one."""

    def __len__(self) -> int:
        return self._events.items + self._own.items + self._inserts.items

    def waiting(self) -> list[tuple[Lane, int, int]]:
        """Entries of each kind that wait for their turn, and the bytes that they write or have a flush read."""
        return [(lane, line.items, line.bytes) for lane, line in zip(Lane, self._lines, strict=True)]

    def asked_for(self, namespace: str) -> tuple[int, float]:
        """Entries of a namespace that wait to be leased, mostly, and its part by weight among those that have some."""
        return self._own.waiting(namespace)

    @property
    def leases_wait(self) -> bool:
        """More are to be leased than the flush that was sealed last could take."""
        return self._lines[Lane.LEASE].items > 0

    @property
    def held(self) -> int:
        """Events that wait for an earlier one on the same id."""
        return sum(map(len, self._held.values()))

    @property
    def items_max(self) -> int:
        """Entries that the next flush may have."""
        return self._items_max

    def is_free(self, number: int) -> bool:
        """No event on this id waits or is in a flush: the next one finds its row as it is now."""
        return number not in self._ids

    def submit(self, work: Work, *, internal: bool = False) -> None:
        """Queues a work, of at least one entry.

        `internal`: the shard's own events, which are bounded by what causes
        them, pass the limits.

        Raises:
            Overloaded: there is no room; nothing was queued.
        """
        lane, namespace, numbers = work.lane, work.namespace, work.numbers
        room = self._rooms[lane]
        if not room.enter(namespace, len(numbers), work.bytes, always=internal):
            raise Overloaded("the shard's write queue is full; try again later, or at another host", retry_after_ms=100)
        if lane is not Lane.INSERT:
            ids = self._ids
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
        self._lines[lane].push(Part(work, 0, len(numbers)))

    def _submit_in_parts(self, work: Work) -> None:
        """Queues the entries whose ids are free, and has the others wait for theirs."""
        ids, line = self._ids, self._lines[work.lane]
        start = 0
        for place, number in enumerate(work.numbers):
            if number not in ids:
                ids.add(number)
                continue
            if start < place:
                line.push(Part(work, start, place))
            start = place + 1
            self._held.setdefault(number, deque()).append((work, place))
        if start < len(work):
            line.push(Part(work, start, len(work)))

    def _free(self, numbers: Sequence[int]) -> None:
        """Nothing stands on these ids any more: the next event on each may come."""
        self._ids.difference_update(numbers)
        if self._held:
            for number in [number for number in numbers if number in self._held]:
                self._let_in(number)

    def _let_in(self, number: int) -> None:
        held = self._held[number]
        while held:
            work, place = held.popleft()
            if not work.abandoned:
                self._ids.add(number)
                self._lines[work.lane].push(Part(work, place, place + 1))
                break
            self._rooms[work.lane].leave(work.namespace, 1, work.size(place, place + 1))
        if not held:
            del self._held[number]

    def pace(self, items: int) -> None:
        """The next flushes take at most so many entries, within the limit."""
        self._items_max = max(1, min(items, self._limits.flush_items_max))

    def seal(self, *, inserts: bool = True) -> Batch:
        """The next batch; its entries count as begun. `written` must follow before the next."""
        batch = Batch()
        shares, bytes_max = self._limits.shares, self._limits.flush_bytes_max
        waiting = [(lane, line) for lane, line in zip(_LANES, self._lines, strict=True) if line.items]
        if waiting and not inserts and waiting[-1][0] is Lane.INSERT:
            waiting.pop()
        items_max = self._items_max
        self.is_express = self._somebody_waits_with_little()
        if self.is_express:
            items_max = min(items_max, self._limits.express_items)
            bytes_max = min(bytes_max, self._limits.express_items * _KIB)
        total = room = max(items_max, len(waiting))
        # One place each, and shares of the rest: together never more than there is.
        rest = total - len(waiting)
        least = [min(line.items, 1 + rest * shares[lane].least // 100) for lane, line in waiting]
        later = sum(least)
        for (lane, line), own in zip(waiting, least, strict=True):
            later -= own
            most = max(1, total * shares[lane].most // 100)
            parts, gone = line.take(min(most, room - later), bytes_max)
            if lane is not Lane.INSERT:
                for part in gone:
                    self._free(part.numbers)
            for part in parts:
                part.work.seal(part.start, part.stop)
            batch.add(parts)
            if not parts:
                # All of it was withdrawn: the place that a lane has in any case is nobody else's.
                total = max(items_max, total - 1)
            room = total - len(batch)
        return batch

    def _somebody_waits_with_little(self) -> bool:
        """And others with much; never twice in a row, so that much is not held up for long."""
        return not self.is_express and self._light.count > 0 and len(self) > 2 * self._limits.express_items

    def drop_inserts(self) -> list[Part[Any]]:
        """Takes out all new items that wait; no flush will have them."""
        return self._lines[Lane.INSERT].take_all()[0]

    def written(self, batch: Batch) -> None:
        """The batch is committed or was refused: its ids are free again."""
        self._free(batch.touched)
        self._free(batch.leased)
        for part in batch.purging:
            self._free(part.numbers)

    def drain(self) -> list[Part[Any]]:
        """Empties it; all that waited."""
        parts = [part for line in self._lines for part in line.drain()]
        parts += [Part(work, place, place + 1) for held in self._held.values() for work, place in held]
        self._held.clear()
        self._ids.clear()
        for room in self._rooms:
            room.clear()
        self._light.clear()
        return parts
