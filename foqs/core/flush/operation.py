"""Operations for a shard's writer: each holds the entries of one request, in columns.

The entries are of one kind, such as acks, other events, reserved keys to lease, or new items. Always
true: an entry gets one result; an abandoned operation gets no more results; the end
of an operation is reported to its caller once, in `report_end`. Knows nothing of flushes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from foqs.core.items.item import NUMBER_MAX, KeyedItem, NewItem, OrderKey, Row, TopicName
from foqs.core.items.item_with_history import ItemWithHistory
from foqs.core.items.life import Event, EventKind
from foqs.core.limits.in_flight import InFlight
from foqs_contract.errors import DeadlineExceeded, FoqsError, KeyConflict, UnknownOutcome

OPEN: Final = type("Open", (), {"__repr__": lambda self: "OPEN", "__slots__": ()})()
"""Stands for the result that an entry does not have yet. None is a result: success, without a value."""

SEALED: Final = type("Sealed", (), {"__repr__": lambda self: "SEALED", "__slots__": ()})()
"""Like OPEN, for an entry that is in a flush."""

_PENDING: Final = (OPEN, SEALED)


class AlreadyGone:
    """The result of an ack or cancel that found nothing to do: a success."""


ALREADY_GONE: Final = AlreadyGone()


@dataclass(slots=True, frozen=True)
class Repeated:
    """The outcome of a repeat: the id of the item that an earlier enqueue, or an earlier move, created."""

    id: str


class OperationCaller(Protocol):
    """Waits for the end of its operations: a call in flight, or a task of the shard."""

    def on_operation_finished(self, operation: Operation) -> None:
        """Called once for each operation, when all its entries have their results."""
        ...


class Lane(enum.IntEnum):
    """The kinds of operations in a flush, in order of precedence."""

    ACK = 0
    NACK = 1
    RELEASE = 2
    EXTEND = 3
    DUE = 4
    LEASE = 5
    PURGE = 6
    INSERT = 7


_LANE_BY_EVENT: Final[Mapping[EventKind, Lane]] = {
    EventKind.ACK: Lane.ACK,
    EventKind.CANCEL: Lane.ACK,
    EventKind.NACK: Lane.NACK,
    EventKind.REDRIVE: Lane.NACK,
    EventKind.UPDATE: Lane.NACK,
    EventKind.MOVE: Lane.NACK,
    EventKind.GIVE_UP: Lane.NACK,
    EventKind.RELEASE: Lane.RELEASE,
    EventKind.SUPERSEDE: Lane.RELEASE,
    EventKind.EXTEND: Lane.EXTEND,
    EventKind.DUE: Lane.DUE,
    EventKind.DELIVER: Lane.LEASE,
}


class Operation:
    """The base of all operations.

    Attributes:
        namespace: the namespace that it is scheduled for; empty for the shard's own operations.
        numbers: the numbers of its items; of an insert, the assigned ones.
        bytes: the bytes of the payloads, metadata, trace contexts and idempotency keys that it writes or looks up.
        read_bytes: bytes that one entry may make a flush read.
        is_whole: its entries are decided together in one flush, and are never divided.
        results: one for each entry: OPEN, SEALED, then a FoqsError or the result that the subclass states.
            None and ALREADY_GONE mean done.
        is_abandoned: no caller waits any more; later results are ignored.
    """

    __slots__ = (
        "_caller",
        "_open_count",
        "bytes",
        "is_abandoned",
        "is_whole",
        "lane",
        "namespace",
        "numbers",
        "read_bytes",
        "results",
    )

    def __init__(self, lane: Lane, namespace: str, numbers: Sequence[int], caller: OperationCaller | None) -> None:
        count = len(numbers)
        self.lane = lane
        self.namespace = namespace
        self.numbers = numbers
        self.bytes = 0
        self.read_bytes = 0
        self.is_whole = False
        self.results: list[Any] = [OPEN] * count
        self.is_abandoned = False
        self._open_count = count
        self._caller = caller

    def __len__(self) -> int:
        return len(self.results)

    def __bool__(self) -> bool:
        return len(self) > 0

    def size(self, start: int, stop: int) -> int:
        """Return the bytes that these entries write."""
        return 0

    @property
    def not_inserted_count(self) -> int:
        """The number of new items that are not charged: repeats and key conflicts of inserts, and all that completions left out."""
        return 0

    @property
    def is_open(self) -> bool:
        """Whether any entry has no result yet."""
        return self._open_count > 0

    def seal(self, start: int, stop: int) -> None:
        """Put entries into a flush. From here on, their outcome may be unknown."""
        self.results[start:stop] = [SEALED] * (stop - start)

    def unseal(self, start: int, stop: int) -> None:
        """Let entries wait again, because their flush was refused and wrote nothing."""
        if not self.is_abandoned:
            self.results[start:stop] = [OPEN] * (stop - start)

    def settle(self, start: int, results: Sequence[Any]) -> bool:
        """Record the results of the entries from `start` on, unless the operation was abandoned.

        Returns whether they were the last ones. If so, `report_end` must follow.
        """
        if self.is_abandoned or not results:
            return False
        self.results[start : start + len(results)] = results
        self._open_count -= len(results)
        return not self._open_count

    def fail(self, start: int, stop: int, error: FoqsError) -> None:
        """Settle the entries from `start` to `stop` that have no result with `error`. Report the end if none is left."""
        if self.is_abandoned or not self._open_count:
            return
        self._settle_pending(start, stop, error, error)

    def abandon(self) -> list[int]:
        """Settle all entries, because no caller waits any more. Return the places of those that were not sealed."""
        if self.is_abandoned:
            return []
        self.is_abandoned = True
        withdrawn = [place for place, result in enumerate(self.results) if result is OPEN]
        if self._open_count:
            late = DeadlineExceeded("the deadline passed before this was written; nothing was changed; try again")
            unknown = UnknownOutcome(
                "the deadline passed while this was being written; it may be written, now or later, so check before you "
                "repeat it"
            )
            self._settle_pending(0, len(self.results), late, unknown)
        return withdrawn

    def report_end(self) -> None:
        """Notify the caller that all entries have their results. No other place does that."""
        # Drops the reference to the caller, which refers to this operation: a cycle would keep both alive.
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.on_operation_finished(self)

    def outcomes(self, shard: int) -> list[Any]:
        """Return the results as the caller's outcomes. `shard` is the first part of its items' ids."""
        return self.results

    def _settle_pending(self, start: int, stop: int, if_open: FoqsError, if_sealed: FoqsError) -> None:
        """Settle the entries from `start` to `stop` that have no result. Report the end if none is left."""
        results = self.results
        for place in range(start, stop):
            result = results[place]
            if result is OPEN or result is SEALED:
                results[place] = if_open if result is OPEN else if_sealed
                self._open_count -= 1
        if not self._open_count:
            self.report_end()


class Acks(Operation):
    """Acks of items by their tokens. Results: None (acked), ALREADY_GONE."""

    __slots__ = ("tokens",)

    def __init__(
        self, namespace: str, numbers: Sequence[int], tokens: Sequence[int], caller: OperationCaller | None
    ) -> None:
        super().__init__(Lane.ACK, namespace, numbers, caller)
        self.tokens = tokens


class Events(Operation):
    """Other events, all of one lane. Results: None (done), ALREADY_GONE."""

    __slots__ = ("events",)

    def __init__(self, namespace: str, events: Sequence[Event], caller: OperationCaller | None) -> None:
        super().__init__(_LANE_BY_EVENT[events[0].kind], namespace, [event.id for event in events], caller)
        self.events = events
        self.bytes = self.size(0, len(events))

    def size(self, start: int, stop: int) -> int:
        return sum(len(event.metadata) for event in self.events[start:stop] if event.metadata)


class Dues(Events):
    """Items that may be due, by number. Results: None.

    Args:
        rows: the rows that were read, without payload, by number. They stay valid until
            they are written, because no earlier event on these numbers is pending, and
            none of them occurs twice in `numbers`.
        timer_dues: for each number, the due of its entry in the timer table; empty for
            leases. The flush deletes an entry that its row does not have.
    """

    __slots__ = ("rows", "timer_dues")

    def __init__(
        self,
        numbers: Sequence[int],
        rows: Mapping[int, Row],
        caller: OperationCaller | None,
        timer_dues: Sequence[int] = (),
    ) -> None:
        super().__init__("", [Event(EventKind.DUE, number) for number in numbers], caller)
        self.rows = rows
        self.timer_dues = timer_dues


class Leases(Operation):
    """Leases of reserved items for one caller. Results: the leased row, or None if it could not be leased.

    Args:
        spans: the topics, each with its order keys.
        lease_ms: the length of the leases; None for each item's own.
        read_bytes: bytes that a flush may have to read for one of them, at most.
    """

    __slots__ = ("lease_ms", "spans")

    def __init__(
        self,
        namespace: str,
        spans: Sequence[tuple[TopicName, Sequence[OrderKey]]],
        lease_ms: int | None,
        read_bytes: int,
        caller: OperationCaller | None,
    ) -> None:
        numbers = [key & NUMBER_MAX for _, order_keys in spans for key in order_keys]
        super().__init__(Lane.LEASE, namespace, numbers, caller)
        self.spans = spans
        self.lease_ms = lease_ms
        self.read_bytes = read_bytes

    def order_keys_at(self, places: Sequence[int]) -> list[tuple[TopicName, list[OrderKey]]]:
        """Return the order keys at these places, by topic and in order."""
        found: list[tuple[TopicName, list[OrderKey]]] = []
        selected, start = set(places), 0
        for topic, order_keys in self.spans:
            part = [key for place, key in enumerate(order_keys, start) if place in selected]
            start += len(order_keys)
            if part:
                found.append((topic, part))
        return found


class Inserts(Operation):
    """New items, numbered from `first_number`: all of them are restored, or none.

    Results: None (inserted), or the number of the first item of its idempotency key.
    In that case nothing is inserted, and no item gets the entry's own number.

    Args:
        accepted_ms: the time at which they were accepted, on the arrival clock: their place in the order.
        has_idempotency_keys: all items have idempotency keys; otherwise none has.
        is_whole: all items are inserted, or none; see `Operation`.

    Attributes:
        has_key_ends: some of the keys have an end.
        in_flight: counts the entries that have no result yet; None if they are not counted.
    """

    __slots__ = ("accepted_ms", "has_idempotency_keys", "has_key_ends", "in_flight", "items")

    def __init__(
        self,
        namespace: str,
        items: Sequence[NewItem],
        first_number: int,
        accepted_ms: int,
        caller: OperationCaller | None,
        *,
        has_idempotency_keys: bool = False,
        is_whole: bool = False,
    ) -> None:
        super().__init__(Lane.INSERT, namespace, range(first_number, first_number + len(items)), caller)
        self.items = items
        self.is_whole = is_whole
        self.accepted_ms = accepted_ms
        self.has_idempotency_keys = has_idempotency_keys
        self.has_key_ends = has_idempotency_keys and any(end is not None for end in self.key_ends(0, len(items)))
        self.in_flight: InFlight | None = None
        self.bytes = self.size(0, len(items))

    def size(self, start: int, stop: int) -> int:
        items = self.items[start:stop]
        items_bytes = sum([len(item.payload) + len(item.metadata) for item in items])
        items_bytes += sum([len(item.trace_context) for item in items if item.trace_context is not None])
        items_bytes += sum([len(item.item_group) for item in items if item.item_group is not None])
        return (
            items_bytes + sum(map(len, self.idempotency_keys(start, stop)))
            if self.has_idempotency_keys
            else items_bytes
        )

    def settle(self, start: int, results: Sequence[Any]) -> bool:
        if self.in_flight is not None:
            self._leave_in_flight(self.in_flight, start, start + len(results))
        return super().settle(start, results)

    def outcomes(self, shard: int) -> list[Any]:
        """Return an id for each committed item, `Repeated` for each repeat, or an error."""
        if self.has_idempotency_keys:
            return [
                f"{shard}-{number}"
                if result is None
                else Repeated(f"{shard}-{result}")
                if type(result) is int
                else result
                for number, result in zip(self.numbers, self.results, strict=True)
            ]
        return [
            f"{shard}-{number}" if result is None else result
            for number, result in zip(self.numbers, self.results, strict=True)
        ]

    @property
    def is_restore(self) -> bool:
        """Whether its items are restored with their history."""
        return isinstance(self.items[0], ItemWithHistory)

    @property
    def not_inserted_count(self) -> int:
        if not self.has_idempotency_keys:
            return 0
        return sum([type(result) is int or isinstance(result, KeyConflict) for result in self.results])

    def _settle_pending(self, start: int, stop: int, if_open: FoqsError, if_sealed: FoqsError) -> None:
        if self.in_flight is not None:
            self._leave_in_flight(self.in_flight, start, stop)
        super()._settle_pending(start, stop, if_open, if_sealed)

    def _leave_in_flight(self, in_flight: InFlight, start: int, stop: int) -> None:
        """Stop counting the entries that have no result yet, because they are about to get one."""
        entries = zip(self.items[start:stop], self.results[start:stop], strict=True)
        in_flight.remove([item for item, result in entries if result in _PENDING])

    def idempotency_keys(self, start: int, stop: int) -> list[bytes]:
        """Return the idempotency keys of these entries. Only if `has_idempotency_keys`."""
        return [item.idempotency_key for item in cast("Sequence[KeyedItem]", self.items[start:stop])]

    def digests(self, start: int, stop: int) -> list[bytes]:
        """Return the digests of these entries. Only if `has_idempotency_keys`."""
        return [item.digest for item in cast("Sequence[KeyedItem]", self.items[start:stop])]

    def key_ends(self, start: int, stop: int) -> list[int | None]:
        """Return the ends of the keys of these entries. Only if `has_idempotency_keys`."""
        return [item.key_until_ms for item in cast("Sequence[KeyedItem]", self.items[start:stop])]
