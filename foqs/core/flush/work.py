"""Work for a shard's writer: one caller's request, in columns.

Acks, other events, reserved keys to lease, or new items. Always true: an entry
gets one result; a work that nobody waits for any more takes none. Who waits is
told by the `finished` callback. Knows nothing of flushes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from typing import Any, Final, cast

from foqs.core.errors import DeadlineExceeded, FoqsError, UnknownOutcome
from foqs.core.items.item import NUMBER_MAX, KeyedItem, NewItem, OrderKey, Row, TopicName
from foqs.core.items.life import Event, EventKind
from foqs.core.limits.in_flight import InFlight

OPEN: Final = type("Open", (), {"__repr__": lambda self: "OPEN", "__slots__": ()})()
"""The result of an entry that has none yet. None is a result: done, and nothing to say."""

SEALED: Final = type("Sealed", (), {"__repr__": lambda self: "SEALED", "__slots__": ()})()
"""The same, of an entry that is in a flush."""


_PENDING: Final = (OPEN, SEALED)


class AlreadyGone:
    """The result of an ack or cancel that found nothing to do: a success."""


ALREADY_GONE: Final = AlreadyGone()


class Lane(enum.IntEnum):
    """What a flush carries, in order of precedence."""

    ACK = 0
    NACK = 1
    RELEASE = 2
    EXTEND = 3
    DUE = 4
    PURGE = 5
    LEASE = 6
    INSERT = 7


_LANE_BY_EVENT: Final[Mapping[EventKind, Lane]] = {
    EventKind.ACK: Lane.ACK,
    EventKind.CANCEL: Lane.ACK,
    EventKind.NACK: Lane.NACK,
    EventKind.REDRIVE: Lane.NACK,
    EventKind.UPDATE: Lane.NACK,
    EventKind.RELEASE: Lane.RELEASE,
    EventKind.EXTEND: Lane.EXTEND,
    EventKind.DUE: Lane.DUE,
    EventKind.DELIVER: Lane.LEASE,
}


class Work:
    """One request of `size` entries.

    Attributes:
        namespace: whose turn it takes; empty for the shard's own.
        numbers: the ids it is about; of an insert, those it will have.
        bytes: payload and metadata that it writes.
        read_bytes: what an entry may make a flush read.
        results: one for each entry: OPEN, SEALED, then what its subclass says or a FoqsError.
        abandoned: nobody waits any more; what commits later is for nobody.
    """

    __slots__ = (
        "_on_finished",
        "_open_count",
        "bytes",
        "is_abandoned",
        "lane",
        "namespace",
        "numbers",
        "read_bytes",
        "results",
    )

    def __init__(self, lane: Lane, namespace: str, numbers: Sequence[int], on_finished: Callable[[], None]) -> None:
        count = len(numbers)
        self.lane = lane
        self.namespace = namespace
        self.numbers = numbers
        self.bytes = 0
        self.read_bytes = 0
        self.results: list[Any] = [OPEN] * count
        self.is_abandoned = False
        self._open_count = count
        self._on_finished = on_finished

    def __len__(self) -> int:
        return len(self.results)

    def size(self, start: int, stop: int) -> int:
        """Bytes that these entries write."""
        return 0

    @property
    def is_open(self) -> bool:
        """Some entry has no result yet."""
        return self._open_count > 0

    def seal(self, start: int, stop: int) -> None:
        """The entries enter a flush: from here on their outcome may be unknown."""
        self.results[start:stop] = [SEALED] * (stop - start)

    def unseal(self, start: int, stop: int) -> None:
        """The flush they were in was refused and wrote nothing: they wait again."""
        if not self.is_abandoned:
            self.results[start:stop] = [OPEN] * (stop - start)

    def complete(self, start: int, results: Sequence[Any]) -> None:
        """Gives entries from `start` on their results, and tells who waits when they were the last."""
        tells: list[Callable[[], None]] = []
        self.record_results(start, results, tells)
        for tell in tells:
            tell()

    def record_results(
        self, start: int, results: Sequence[Any], callbacks: MutableSequence[Callable[[], None]]
    ) -> None:
        """Gives entries from `start` on their results. Of a work that was given up, they stand already.

        When they were the last, what tells who waits is added to `callbacks`: it is the caller's to call.
        """
        if self.is_abandoned or not results:
            return
        self.results[start : start + len(results)] = results
        self._open_count -= len(results)
        if not self._open_count:
            callbacks.append(self._pop_callback())

    def abandon(self) -> list[int]:
        """Nobody waits any more: withdraws what is not sealed; returns those places."""
        if self.is_abandoned:
            return []
        self.is_abandoned = True
        unknown = UnknownOutcome("the time ran out while this was being written; it may be, or become, written")
        late = DeadlineExceeded("the time ran out before this was written; it was withdrawn, try again")
        withdrawn = []
        for place, result in enumerate(self.results):
            if result is SEALED:
                self.results[place] = unknown
            elif result is OPEN:
                self.results[place] = late
                withdrawn.append(place)
        if self._open_count:
            self._open_count = 0
            self._pop_callback()()
        return withdrawn

    def fail(self, start: int, stop: int, error: FoqsError) -> None:
        """Settles with `error` whatever of these entries is open."""
        if self.is_abandoned or not self._open_count:
            return
        for place in range(start, stop):
            if self.results[place] in _PENDING:
                self.results[place] = error
                self._open_count -= 1
        if not self._open_count:
            self._pop_callback()()

    def _pop_callback(self) -> Callable[[], None]:
        """What tells who waits, once; he is let go of, as he holds this work, and a cycle would outlive its use."""
        finished, self._on_finished = self._on_finished, _no_callback
        return finished


def _no_callback() -> None:
    """Who waits for a work that has ended."""


class Acks(Work):
    """Acks of items by their tokens. Results: None (gone), ALREADY_GONE."""

    __slots__ = ("tokens",)

    def __init__(
        self, namespace: str, numbers: Sequence[int], tokens: Sequence[int], on_finished: Callable[[], None]
    ) -> None:
        super().__init__(Lane.ACK, namespace, numbers, on_finished)
        self.tokens = tokens


class Events(Work):
    """Other events, all of one lane. Results: their verdicts."""

    __slots__ = ("events",)

    def __init__(self, namespace: str, events: Sequence[Event], on_finished: Callable[[], None]) -> None:
        super().__init__(_LANE_BY_EVENT[events[0].kind], namespace, [event.id for event in events], on_finished)
        self.events = events
        self.bytes = self.size(0, len(events))

    def size(self, start: int, stop: int) -> int:
        return sum(len(event.metadata) for event in self.events[start:stop] if event.metadata)


class Dues(Events):
    """Items whose moment may have come, by their numbers. Results: their verdicts.

    Args:
        rows: those of them that were read, without payload, by number. They hold until
            they are written: each is of a number that no earlier event stands on.
    """

    __slots__ = ("rows",)

    def __init__(self, numbers: Sequence[int], rows: Mapping[int, Row], on_finished: Callable[[], None]) -> None:
        super().__init__("", [Event(EventKind.DUE, number) for number in numbers], on_finished)
        self.rows = rows


class HandOut(Work):
    """Reserved keys to lease to one caller. Results: the leased row, or None where there was none to lease.

    Args:
        spans: topics with their keys.
        lease_ms: None for each item's own.
        read_bytes: the most that a flush may have to read for one of them.
    """

    __slots__ = ("lease_ms", "spans")

    def __init__(
        self,
        namespace: str,
        spans: Sequence[tuple[TopicName, Sequence[OrderKey]]],
        lease_ms: int | None,
        read_bytes: int,
        on_finished: Callable[[], None],
    ) -> None:
        numbers = [key & NUMBER_MAX for _, keys in spans for key in keys]
        super().__init__(Lane.LEASE, namespace, numbers, on_finished)
        self.spans = spans
        self.lease_ms = lease_ms
        self.read_bytes = read_bytes

    def keys_at(self, places: Sequence[int]) -> list[tuple[TopicName, list[OrderKey]]]:
        """Topics with their keys at these places, which are in order."""
        found: list[tuple[TopicName, list[OrderKey]]] = []
        wanted, start = set(places), 0
        for topic, keys in self.spans:
            part = [key for place, key in enumerate(keys, start) if place in wanted]
            start += len(keys)
            if part:
                found.append((topic, part))
        return found


class Inserts(Work):
    """New items, numbered from `first_number`.

    Results: None (inserted), or the number of the first item of its key: nothing
    was inserted, and its own number names nothing.

    Args:
        has_keys: the items have idempotency keys, all of them; else none has.

    Attributes:
        under_way: counts the entries that have no result yet; None where nobody asks.
    """

    __slots__ = ("has_keys", "in_flight", "items")

    def __init__(
        self,
        namespace: str,
        items: Sequence[NewItem],
        first_number: int,
        on_finished: Callable[[], None],
        *,
        has_keys: bool = False,
    ) -> None:
        super().__init__(Lane.INSERT, namespace, range(first_number, first_number + len(items)), on_finished)
        self.items = items
        self.has_keys = has_keys
        self.in_flight: InFlight | None = None
        self.bytes = self.size(0, len(items))

    def size(self, start: int, stop: int) -> int:
        own = sum([len(item.payload) + len(item.metadata) for item in self.items[start:stop]])
        return own + sum(map(len, self.keys(start, stop))) if self.has_keys else own

    def record_results(
        self, start: int, results: Sequence[Any], callbacks: MutableSequence[Callable[[], None]]
    ) -> None:
        if self.in_flight is not None:
            self._leave_in_flight(self.in_flight, start, start + len(results))
        super().record_results(start, results, callbacks)

    def abandon(self) -> list[int]:
        if self.in_flight is not None:
            self._leave_in_flight(self.in_flight, 0, len(self))
        return super().abandon()

    def fail(self, start: int, stop: int, error: FoqsError) -> None:
        if self.in_flight is not None:
            self._leave_in_flight(self.in_flight, start, stop)
        super().fail(start, stop, error)

    def _leave_in_flight(self, in_flight: InFlight, start: int, stop: int) -> None:
        """Those of these entries that have no result yet are about to have one."""
        entries = zip(self.items[start:stop], self.results[start:stop], strict=True)
        in_flight.remove([item for item, result in entries if result in _PENDING])

    def keys(self, start: int, stop: int) -> list[bytes]:
        """The keys of these entries of a keyed work."""
        return [item.idempotency_key for item in cast("Sequence[KeyedItem]", self.items[start:stop])]

    def digests(self, start: int, stop: int) -> list[bytes]:
        """The digests of these entries of a keyed work."""
        return [item.digest for item in cast("Sequence[KeyedItem]", self.items[start:stop])]
