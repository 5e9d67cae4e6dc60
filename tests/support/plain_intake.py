"""The plain intake, and helpers to make operations and to read batches.

`PlainIntake` is a list of single entries, first in, first out. It says which entries
a flush may take, not which it must. Knows nothing of the shares of lanes, or of turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.intake import LANE_SHARES, Intake, IntakeLimits
from foqs.core.flush.operation import Acks, Events, Inserts, Lane, Leases, Operation, OperationCaller
from foqs.core.flush.purge_markers import DeletePurgedRows
from foqs.core.items.item import OrderKey, TopicName
from foqs.core.items.life import Event, EventKind
from tests.support.builders import row
from tests.support.plain_flush import keys_of, make_item

LIMITS = IntakeLimits(
    flush_items_max=100,
    flush_bytes_max=10_000,
    small_flush_items=20,
    queue_items_max=10_000,
    queue_bytes_max=1_000_000,
    shares=LANE_SHARES,
)
W = TypeVar("W", bound=Operation)

KINDS = {
    Lane.ACK: EventKind.CANCEL,
    Lane.NACK: EventKind.NACK,
    Lane.RELEASE: EventKind.RELEASE,
    Lane.EXTEND: EventKind.EXTEND,
    Lane.DUE: EventKind.DUE,
    Lane.LEASE: EventKind.DELIVER,
}


def intake(weights: dict[str, int] | None = None, **limits: Any) -> Intake:
    return Intake(replace(LIMITS, **limits), lambda namespace: (weights or {}).get(namespace, 1))


def operation_of(caller: Caller, lane: Lane, first: int, count: int, namespace: str = "n") -> Operation:
    if lane is Lane.PURGE:
        purge = DeletePurgedRows([row(number) for number in range(first, first + count)], None)
        purge.namespace = namespace
        return purge
    if lane is Lane.INSERT:
        return caller.inserts(first, *[1] * count, namespace=namespace)
    return caller.events(KINDS[lane], *range(first, first + count), namespace=namespace)


def numbers_at(parts: list[Part[Any]]) -> list[int]:
    return [operation.numbers[place] for operation, place in entries_of(parts)]


def numbers_of(batch: Batch) -> list[int]:
    return numbers_at(batch.parts)


def namespaces_of(batch: Batch) -> Counter[str]:
    return Counter(operation.namespace for operation, _ in entries_of(batch.parts))


def lanes_of(batch: Batch) -> Counter[Lane]:
    return Counter(operation.lane for operation, _ in entries_of(batch.parts))


def is_within(parts: list[Part[Any]], bytes_max: int) -> bool:
    """Return whether the parts have at most `bytes_max` bytes, or a single entry, or whole operation, has all bytes."""
    sizes: list[int] = []
    for part in parts:
        each = [operation.size(place, place + 1) + operation.read_bytes for operation, place in entries_of([part])]
        sizes += [sum(each)] if part.operation.is_whole else each
    return sum(sizes) <= bytes_max or sum(map(bool, sizes)) == 1


def sealed(queue: Intake) -> Batch:
    """Return the next batch, as written at once."""
    batch = queue.seal()
    queue.on_flush_ended(batch)
    return batch


def whole(operation: W) -> Part[W]:
    """Return the part with all entries of an operation."""
    return Part(operation, 0, len(operation))


def finish(operation: Operation, start: int, results: Sequence[Any]) -> None:
    """Settle entries, and report the end after the last ones."""
    if operation.settle(start, results):
        operation.report_end()


@dataclass(slots=True)
class _CountingCaller:
    calls: list[int]
    place: int

    def on_operation_finished(self, operation: Operation) -> None:
        assert not operation.is_open
        self.calls[self.place] += 1


class Caller:
    """Makes operations and counts how often each of them called back."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def _next(self) -> OperationCaller:
        self.calls.append(0)
        return _CountingCaller(self.calls, len(self.calls) - 1)

    def acks(self, *numbers: int, namespace: str = "n", token: int = 1) -> Acks:
        return Acks(namespace, numbers, [token] * len(numbers), self._next())

    def events(self, kind: EventKind, *numbers: int, namespace: str = "n", metadata: bytes | None = None) -> Events:
        return Events(namespace, [Event(kind, number, metadata=metadata) for number in numbers], self._next())

    def delivery(self, *numbers: int, namespace: str = "n", read_bytes: int = 0) -> Leases:
        spans: list[tuple[TopicName, list[OrderKey]]] = [((namespace, "t"), keys_of(numbers))]
        return Leases(namespace, spans, None, read_bytes, self._next())

    def inserts(self, first: int, *sizes: int, namespace: str = "n", is_whole: bool = False) -> Inserts:
        items = [make_item(namespace=namespace, payload=bytes(size)) for size in sizes]
        return Inserts(namespace, items, first, 0, self._next(), is_whole=is_whole)


@dataclass(slots=True, eq=False)
class Entry:
    """One entry of an operation."""

    operation: Operation
    place: int

    @property
    def number(self) -> int:
        return self.operation.numbers[self.place]

    @property
    def is_event(self) -> bool:
        return not isinstance(self.operation, Inserts)


def entries_of(parts: Iterable[Part[Any]]) -> list[tuple[Operation, int]]:
    return [(part.operation, place) for part in parts for place in range(part.start, part.stop)]


@dataclass
class PlainIntake:
    """The waiting entries in order of submission, and the numbers that are being written."""

    waiting: list[Entry] = field(default_factory=list)
    in_flight: set[int] = field(default_factory=set)

    def submit(self, operation: Operation) -> None:
        self.waiting += [Entry(operation, place) for place in range(len(operation))]

    def withdraw(self, operation: Operation, places: list[int]) -> None:
        """Remove the entries of an abandoned operation. Checks that they are all that waits of it."""
        entries = [entry for entry in self.waiting if entry.operation is operation]
        assert [entry.place for entry in entries] == places
        self.waiting = [entry for entry in self.waiting if entry.operation is not operation]

    def may_seal(self) -> list[Entry]:
        """Return every insert, and the first event on each number that is not being written."""
        busy = set(self.in_flight)
        allowed: list[Entry] = []
        for entry in self.waiting:
            if not entry.is_event:
                allowed.append(entry)
            elif entry.number not in busy:
                busy.add(entry.number)
                allowed.append(entry)
        return allowed

    def seal(self, batch: Batch) -> None:
        """Remove the entries of a batch. Raises KeyError if one of them was not allowed in it."""
        allowed = {(entry.operation, entry.place): entry for entry in self.may_seal()}
        sealed_entries = [allowed.pop(entry) for entry in entries_of(batch.parts)]
        self.waiting = [entry for entry in self.waiting if entry not in sealed_entries]
        self.in_flight |= {entry.number for entry in sealed_entries if entry.is_event}

    def on_flush_ended(self) -> None:
        self.in_flight.clear()
