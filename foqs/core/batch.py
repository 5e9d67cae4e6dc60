"""Work for a shard's writer, and how a flush is gathered from it.

A `Work` is one caller's request: events on existing items, or new items. Each
of its entries gets exactly one result. `Intake` holds what waits: events first
come first served, inserts likewise, and seals flushes in which an id occurs
once at most; a later event on the same id waits and is judged by what it then
finds. Bounded in items and bytes. Pure: who waits for a work is told by its
`finished` callback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from foqs.core.errors import DeadlineExceeded, FoqsError, Overloaded, UnknownOutcome
from foqs.core.item import NewItem, Row
from foqs.core.life import Event, Verdict

Result: TypeAlias = Verdict | Row | FoqsError
"""A verdict for an event, the row for an insert, or why neither."""


class Work:
    """One request: `events` or `inserts`, the latter with their numbers.

    Attributes:
        results: one for each entry, None while there is none.
        read_bytes: what the flush of one of its events may have to read.
        abandoned: nobody waits any more; what commits later is for nobody.
    """

    __slots__ = ("_finished", "_open", "_sealed", "abandoned", "bytes", "events", "inserts", "read_bytes", "results")

    def __init__(
        self,
        finished: Callable[[], None],
        events: Sequence[Event] = (),
        inserts: Sequence[tuple[int, NewItem]] = (),
        read_bytes: int = 0,
    ) -> None:
        self.events = events
        self.read_bytes = read_bytes
        self.inserts = inserts
        self.bytes = sum(len(item.payload) + len(item.metadata) for _, item in inserts)
        self.bytes += sum(len(event.metadata) for event in events if event.metadata)
        count = len(events) + len(inserts)
        self.results: list[Result | None] = [None] * count
        self.abandoned = False
        self._sealed = bytearray(count)
        self._open = count
        self._finished = finished

    def __len__(self) -> int:
        return len(self.results)

    @property
    def is_open(self) -> bool:
        """Some entry has no result yet."""
        return self._open > 0

    def seal(self, index: int) -> None:
        """The entry enters a flush: from here on its outcome may be unknown."""
        self._sealed[index] = 1

    def unseal(self, index: int) -> None:
        """The flush it was in was refused and wrote nothing: it waits again."""
        self._sealed[index] = 0

    def is_sealed(self, index: int) -> bool:
        return bool(self._sealed[index])

    def settle(self, index: int, result: Result) -> bool:
        """Gives an entry its result; False, and nothing happens, when it has one."""
        if self.results[index] is not None:
            return False
        self.results[index] = result
        self._open -= 1
        if not self._open:
            self._finished()
        return True

    def expire(self) -> list[int]:
        """Nobody waits any more: withdraws what is not sealed; returns those indexes."""
        self.abandoned = True
        withdrawn = []
        for index, result in enumerate(self.results):
            if result is not None:
                continue
            if self._sealed[index]:
                error: FoqsError = UnknownOutcome(
                    "the time ran out while this was being written; it may be, or become, written"
                )
            else:
                error = DeadlineExceeded("the time ran out before this was written; it was withdrawn, try again")
                withdrawn.append(index)
            self.settle(index, error)
        return withdrawn

    def fail(self, unsealed: FoqsError, sealed: FoqsError) -> None:
        """The writer is gone: settles whatever is open."""
        for index, result in enumerate(self.results):
            if result is None:
                self.settle(index, sealed if self._sealed[index] else unsealed)


Entry: TypeAlias = tuple[Work, int]
"""One event or insert of a work."""


class Intake:
    """What waits for a shard's next flushes.

    Args:
        flush_items_max: events, and inserts, that one flush takes.
        flush_bytes_max: payload and metadata bytes that one flush writes, and that it may have to read.
        queue_items_max: events, and inserts, that may wait.
        queue_bytes_max: bytes that may wait.
    """

    def __init__(self, flush_items_max: int, flush_bytes_max: int, queue_items_max: int, queue_bytes_max: int) -> None:
        self._flush_items_max = flush_items_max
        self._flush_bytes_max = flush_bytes_max
        self._queue_items_max = queue_items_max
        self._queue_bytes_max = queue_bytes_max
        self._events: deque[Entry] = deque()
        self._inserts: deque[Entry] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._events) + len(self._inserts)

    def submit(self, work: Work, *, internal: bool = False) -> None:
        """Queues a work.

        `internal`: the shard's own events, which are bounded by what causes
        them, pass the item limit.

        Raises:
            Overloaded: there is no room; nothing was queued.
        """
        queue = self._inserts if work.inserts else self._events
        if not internal and (
            len(queue) + len(work) > self._queue_items_max or self._bytes + work.bytes > self._queue_bytes_max
        ):
            raise Overloaded("the shard's write queue is full; try again later, or at another host", retry_after_ms=100)
        self._bytes += work.bytes
        queue.extend((work, index) for index in range(len(work)))

    def seal_events(self) -> list[Entry]:
        """The next events, each id once; they count as begun."""
        sealed: list[Entry] = []
        later: list[Entry] = []
        ids: set[int] = set()
        queue = self._events
        reads = 0
        while queue and len(sealed) < self._flush_items_max and reads < self._flush_bytes_max:
            work, index = queue.popleft()
            if work.results[index] is not None:
                self._release_bytes(work, index)
            elif work.events[index].id in ids:
                later.append((work, index))
            else:
                ids.add(work.events[index].id)
                work.seal(index)
                sealed.append((work, index))
                reads += work.read_bytes
                self._release_bytes(work, index)
        queue.extendleft(reversed(later))
        return sealed

    def seal_inserts(self) -> list[Entry]:
        """The next inserts; they count as begun."""
        sealed: list[Entry] = []
        size = 0
        queue = self._inserts
        while queue and len(sealed) < self._flush_items_max and size < self._flush_bytes_max:
            work, index = queue.popleft()
            self._release_bytes(work, index)
            if work.results[index] is None:
                _, item = work.inserts[index]
                size += len(item.payload) + len(item.metadata)
                work.seal(index)
                sealed.append((work, index))
        return sealed

    def drain(self) -> list[Work]:
        """Empties the queues; the works that still had entries in them, each once, in order."""
        works = dict.fromkeys(work for work, _ in [*self._events, *self._inserts])
        self._events.clear()
        self._inserts.clear()
        self._bytes = 0
        return list(works)

    def _release_bytes(self, work: Work, index: int) -> None:
        if not work.bytes:
            return
        if work.inserts:
            _, item = work.inserts[index]
            self._bytes -= len(item.payload) + len(item.metadata)
        else:
            self._bytes -= len(work.events[index].metadata or b"")
