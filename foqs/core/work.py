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
from foqs.core.item import NUMBER_MAX, Key, KeyedItem, NewItem, Row, TopicName
from foqs.core.life import Event, Kind
from foqs.core.underway import UnderWay

OPEN: Final = type("Open", (), {"__repr__": lambda self: "OPEN", "__slots__": ()})()
"""The result of an entry that has none yet. None is a result: done, and nothing to say."""

SEALED: Final = type("Sealed", (), {"__repr__": lambda self: "SEALED", "__slots__": ()})()
"""The same, of an entry that is in a flush."""


_NONE_YET: Final = (OPEN, SEALED)


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


_LANES: Final[Mapping[Kind, Lane]] = {
    Kind.ACK: Lane.ACK,
    Kind.CANCEL: Lane.ACK,
    Kind.NACK: Lane.NACK,
    Kind.REDRIVE: Lane.NACK,
    Kind.UPDATE: Lane.NACK,
    Kind.RELEASE: Lane.RELEASE,
    Kind.EXTEND: Lane.EXTEND,
    Kind.DUE: Lane.DUE,
    Kind.HAND_OUT: Lane.LEASE,
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
        "_finished",
        "_open",
        "abandoned",
        "bytes",
        "lane",
        "namespace",
        "numbers",
        "read_bytes",
        "results",
    )

    def __init__(self, lane: Lane, namespace: str, numbers: Sequence[int], finished: Callable[[], None]) -> None:
        count = len(numbers)
        self.lane = lane
        self.namespace = namespace
        self.numbers = numbers
        self.bytes = 0
        self.read_bytes = 0
        self.results: list[Any] = [OPEN] * count
        self.abandoned = False
        self._open = count
        self._finished = finished

    def __len__(self) -> int:
        return len(self.results)

    def size(self, start: int, stop: int) -> int:
        """Bytes that these entries write."""
        return 0

    @property
    def is_open(self) -> bool:
        """Some entry has no result yet."""
        return self._open > 0

    def seal(self, start: int, stop: int) -> None:
        """The entries enter a flush: from here on their outcome may be unknown."""
        self.results[start:stop] = [SEALED] * (stop - start)

    def unseal(self, start: int, stop: int) -> None:
        """The flush they were in was refused and wrote nothing: they wait again."""
        if not self.abandoned:
            self.results[start:stop] = [OPEN] * (stop - start)

    def settle(self, start: int, results: Sequence[Any]) -> None:
        """Gives entries from `start` on their results, and tells who waits when they were the last."""
        tells: list[Callable[[], None]] = []
        self.record(start, results, tells)
        for tell in tells:
            tell()

    def record(self, start: int, results: Sequence[Any], tells: MutableSequence[Callable[[], None]]) -> None:
        """Gives entries from `start` on their results. Of a work that was given up, they stand already.

        When they were the last, what tells who waits is added to `tells`: it is the caller's to call.
        """
        if self.abandoned or not results:
            return
        self.results[start : start + len(results)] = results
        self._open -= len(results)
        if not self._open:
            tells.append(self._let_go())

    def expire(self) -> list[int]:
        """Nobody waits any more: withdraws what is not sealed; returns those places."""
        if self.abandoned:
            return []
        self.abandoned = True
        unknown = UnknownOutcome("the time ran out while this was being written; it may be, or become, written")
        late = DeadlineExceeded("the time ran out before this was written; it was withdrawn, try again")
        withdrawn = []
        for place, result in enumerate(self.results):
            if result is SEALED:
                self.results[place] = unknown
            elif result is OPEN:
                self.results[place] = late
                withdrawn.append(place)
        if self._open:
            self._open = 0
            self._let_go()()
        return withdrawn

    def fail(self, start: int, stop: int, error: FoqsError) -> None:
        """Settles with `error` whatever of these entries is open."""
        if self.abandoned or not self._open:
            return
        for place in range(start, stop):
            if self.results[place] in _NONE_YET:
                self.results[place] = error
                self._open -= 1
        if not self._open:
            self._let_go()()

    def _let_go(self) -> Callable[[], None]:
        """What tells who waits, once; he is let go of, as he holds this work, and a cycle would outlive its use."""
        finished, self._finished = self._finished, _nobody
        return finished


def _nobody() -> None:
    """Who waits for a work that has ended."""


class Acks(Work):
    """Acks of items by their tokens. Results: None (gone), ALREADY_GONE."""

    __slots__ = ("tokens",)

    def __init__(
        self, namespace: str, numbers: Sequence[int], tokens: Sequence[int], finished: Callable[[], None]
    ) -> None:
        super().__init__(Lane.ACK, namespace, numbers, finished)
        self.tokens = tokens


class Events(Work):
    """Other events, all of one lane. Results: their verdicts."""

    __slots__ = ("events",)

    def __init__(self, namespace: str, events: Sequence[Event], finished: Callable[[], None]) -> None:
        super().__init__(_LANES[events[0].kind], namespace, [event.id for event in events], finished)
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

    def __init__(self, numbers: Sequence[int], rows: Mapping[int, Row], finished: Callable[[], None]) -> None:
        super().__init__("", [Event(Kind.DUE, number) for number in numbers], finished)
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
        spans: Sequence[tuple[TopicName, Sequence[Key]]],
        lease_ms: int | None,
        read_bytes: int,
        finished: Callable[[], None],
    ) -> None:
        numbers = [key & NUMBER_MAX for _, keys in spans for key in keys]
        super().__init__(Lane.LEASE, namespace, numbers, finished)
        self.spans = spans
        self.lease_ms = lease_ms
        self.read_bytes = read_bytes

    def keys_at(self, places: Sequence[int]) -> list[tuple[TopicName, list[Key]]]:
        """Topics with their keys at these places, which are in order."""
        found: list[tuple[TopicName, list[Key]]] = []
        wanted, start = set(places), 0
        for topic, keys in self.spans:
            part = [key for place, key in enumerate(keys, start) if place in wanted]
            start += len(keys)
            if part:
                found.append((topic, part))
        return found


class Inserts(Work):
    """New items, numbered from `first`.

    Results: None (inserted), or the number of the first item of its key: nothing
    was inserted, and its own number names nothing.

    Args:
        keyed: the items have idempotency keys, all of them; else none has.

    Attributes:
        under_way: counts the entries that have no result yet; None where nobody asks.
    """

    __slots__ = ("items", "keyed", "under_way")

    def __init__(
        self,
        namespace: str,
        items: Sequence[NewItem],
        first: int,
        finished: Callable[[], None],
        *,
        keyed: bool = False,
    ) -> None:
        super().__init__(Lane.INSERT, namespace, range(first, first + len(items)), finished)
        self.items = items
        self.keyed = keyed
        self.under_way: UnderWay | None = None
        self.bytes = self.size(0, len(items))

    def size(self, start: int, stop: int) -> int:
        own = sum([len(item.payload) + len(item.metadata) for item in self.items[start:stop]])
        return own + sum(map(len, self.keys(start, stop))) if self.keyed else own

    def record(self, start: int, results: Sequence[Any], tells: MutableSequence[Callable[[], None]]) -> None:
        if self.under_way is not None:
            self._leave(self.under_way, start, start + len(results))
        super().record(start, results, tells)

    def expire(self) -> list[int]:
        if self.under_way is not None:
            self._leave(self.under_way, 0, len(self))
        return super().expire()

    def fail(self, start: int, stop: int, error: FoqsError) -> None:
        if self.under_way is not None:
            self._leave(self.under_way, start, stop)
        super().fail(start, stop, error)

    def _leave(self, under_way: UnderWay, start: int, stop: int) -> None:
        """Those of these entries that have no result yet are about to have one."""
        entries = zip(self.items[start:stop], self.results[start:stop], strict=True)
        under_way.left([item for item, result in entries if result in _NONE_YET])

    def keys(self, start: int, stop: int) -> list[bytes]:
        """The keys of these entries of a keyed work."""
        return [item.key for item in cast("Sequence[KeyedItem]", self.items[start:stop])]

    def digests(self, start: int, stop: int) -> list[bytes]:
        """The digests of these entries of a keyed work."""
        return [item.digest for item in cast("Sequence[KeyedItem]", self.items[start:stop])]
