"""The batch of one flush: parts of operations.

Always true: a part has at least one entry and knows its numbers and bytes; a batch
knows the count of its entries and the numbers of its events. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from foqs.core.flush.completions import Completions
from foqs.core.flush.moves import Moves
from foqs.core.flush.operation import Acks, Dues, Events, Inserts, Leases, Operation
from foqs.core.flush.purge_markers import ClearPurgeMarker, DeletePurgedRows, SetPurgeMarker
from foqs.core.flush.replay_lookup import ReplayLookup
from foqs.core.items.idempotency_keys import KeyName, completed_item_key, completion_key, move_key
from foqs.core.items.item import KeyedItem, Row
from foqs_contract.errors import FoqsError

W = TypeVar("W", bound=Operation)


class Part(Generic[W]):
    """The entries `start` to `stop` of an operation, with their numbers and the bytes that they write."""

    __slots__ = ("bytes", "count", "numbers", "operation", "start", "stop")

    numbers: Sequence[int]

    def __init__(self, operation: W, start: int, stop: int) -> None:
        self.operation = operation
        self.start = start
        self.stop = stop
        self.count = stop - start
        if self.count == len(operation.numbers):
            self.numbers = operation.numbers
            self.bytes = operation.bytes
        else:
            self.numbers = operation.numbers[start:stop]
            self.bytes = operation.size(start, stop)

    def fail(self, error: FoqsError) -> None:
        self.operation.fail(self.start, self.stop, error)


class Batch:
    """The parts of operations that one flush carries out.

    Attributes:
        parts: all parts except direct deliveries, in order of precedence.
        acks, events, moves, completions, leases, inserts: the parts by the type of their operation.
        event_numbers: numbers of the acks, events, moves and completions.
        lease_numbers: numbers of the items to lease.
        dues: the parts among `events` that come from the timer service.
        direct_deliveries: leases of items that this batch inserts or finds due, which
            are written as LEASED at once. Each part is a whole operation.
        key_slots: key slots that the flush assigns to the shard.
        purges: purge markers to set or clear, and purged rows to delete.
        replay_lookups: lookups of repeats by their idempotency keys.
    """

    __slots__ = (
        "_entry_count",
        "acks",
        "completions",
        "direct_deliveries",
        "dues",
        "event_numbers",
        "events",
        "inserts",
        "key_slots",
        "lease_numbers",
        "leases",
        "moves",
        "parts",
        "purges",
        "replay_lookups",
    )

    def __init__(self, parts: Iterable[Part[Any]] = (), key_slots: Sequence[int] = ()) -> None:
        self.parts: list[Part[Any]] = []
        self.acks: list[Part[Acks]] = []
        self.events: list[Part[Events]] = []
        self.dues: list[Part[Dues]] = []
        self.moves: list[Part[Moves]] = []
        self.completions: list[Part[Completions]] = []
        self.leases: list[Part[Leases]] = []
        self.inserts: list[Part[Inserts]] = []
        self.event_numbers: list[int] = []
        self.lease_numbers: list[int] = []
        self.direct_deliveries: list[Part[Leases]] = []
        self.purges: list[Part[SetPurgeMarker] | Part[ClearPurgeMarker] | Part[DeletePurgedRows]] = []
        self.replay_lookups: list[Part[ReplayLookup]] = []
        self.key_slots = key_slots
        self._entry_count = 0
        self.add(parts)

    def __len__(self) -> int:
        """Return the count of entries, without the direct deliveries."""
        return self._entry_count

    def __bool__(self) -> bool:
        return len(self) > 0

    def add(self, parts: Iterable[Part[Any]]) -> None:
        for part in parts:
            kind = type(part.operation)
            if kind is Inserts:
                self.inserts.append(part)
            elif kind is Leases:
                self.leases.append(part)
                self.lease_numbers += part.numbers
            elif kind is Acks:
                self.acks.append(part)
                self.event_numbers += part.numbers
            elif kind is Events:
                self.events.append(part)
                self.event_numbers += part.numbers
            elif kind is Dues:
                self.dues.append(part)
                self.events.append(part)
                self.event_numbers += part.numbers
            elif kind is Moves:
                self.moves.append(part)
                self.event_numbers += part.numbers
            elif kind is Completions:
                self.completions.append(part)
                self.event_numbers += part.numbers
            elif kind is ReplayLookup:
                self.replay_lookups.append(part)
            else:
                self.purges.append(part)
            self.parts.append(part)
            self._entry_count += part.count

    @property
    def new_items_max(self) -> int:
        """How many items it inserts at most."""
        completed = [part.operation.number_count(part.start, part.stop) for part in self.completions]
        return sum([part.count for part in self.inserts]) + sum(completed)

    def due_rows(self) -> list[Mapping[int, Row]]:
        """Return the rows that were read for its dues, as they are in the table.

        A row is valid until the event on its number is written. So rows for other parts of
        the same operations, which an earlier flush may have written, are left out.
        """
        return [
            {number: row for number in part.numbers if (row := rows.get(number)) is not None}
            for part in self.dues
            if (rows := part.operation.rows)
        ]

    def dues_with_waiter(self) -> dict[int, int | None]:
        """Return the `lease_ms` of each due item that is delivered directly, by number."""
        if not (self.direct_deliveries and self.dues):
            return {}
        due = {number for part in self.dues for number in part.numbers}
        return {
            number: part.operation.lease_ms
            for part in self.direct_deliveries
            for number in part.numbers
            if number in due
        }

    def key_names(self) -> list[KeyName]:
        """Return the idempotency keys of its inserts. A key may occur twice."""
        return [
            (part.operation.namespace, key)
            for part in self.inserts
            if part.operation.has_idempotency_keys
            for key in part.operation.idempotency_keys(part.start, part.stop)
        ]

    def lookup_key_names(self, find_row: Callable[[int], Row | None]) -> list[KeyName]:
        """Return the idempotency keys that must be read. A key may occur twice.

        They are those of its replay lookups and moves, and of inserts some of whose keys have an end: an item whose end is
        over writes no row, so the database would not refuse it when the key is remembered. And those of the items of
        completions; the records of completions only of items that `find_row` does not find, because an item that is there
        was not completed.
        """
        names = [name for part in self.replay_lookups for name in part.operation.key_names(part.start, part.stop)]
        names += [(part.operation.namespace, move_key(number)) for part in self.moves for number in part.numbers]
        names += [
            (part.operation.namespace, key)
            for part in self.inserts
            if part.operation.has_key_ends
            for key in part.operation.idempotency_keys(part.start, part.stop)
        ]
        for part in self.completions:
            namespace = part.operation.namespace
            for completion in part.operation.entries[part.start : part.stop]:
                keyed = [(place, item) for place, item in enumerate(completion.items) if isinstance(item, KeyedItem)]
                names += [(namespace, item.idempotency_key) for _, item in keyed]
                if find_row(completion.number) is None:
                    names.append((namespace, completion_key(completion.number)))
                    names += [(namespace, completed_item_key(completion.number, place)) for place, _ in keyed]
        return names

    @property
    def adds_items(self) -> bool:
        """Whether it has new items, of inserts or of completions."""
        return bool(self.inserts or self.completions)

    @property
    def is_divisible(self) -> bool:
        """Whether `split` divides it: it has more than one entry, and is not one whole operation."""
        return len(self.parts) > 1 or (len(self) > 1 and not self.parts[0].operation.is_whole)

    def split(self) -> tuple[Batch, Batch]:
        """Return two batches of about half the entries each, in order and without direct deliveries.

        An operation that is whole is in one of them. The batch must be divisible; then neither is empty.
        """
        half = len(self) // 2
        first: list[Part[Any]] = []
        second: list[Part[Any]] = []
        for part in self.parts:
            middle = part.start + max(0, min(half, part.count))
            if part.operation.is_whole and middle < part.stop:
                middle = part.start if first else part.stop
            half -= part.count
            if middle > part.start:
                first.append(Part(part.operation, part.start, middle))
            if middle < part.stop:
                second.append(Part(part.operation, middle, part.stop))
        return Batch(first), Batch(second)

    def parts_without_items(self) -> list[Part[Any]]:
        """Return the parts that add no items, without direct deliveries."""
        return [*self.acks, *self.events, *self.moves, *self.leases, *self.purges, *self.replay_lookups]

    def reseal(self) -> Batch:
        """Seal the inserts of a refused flush again, except those abandoned since, and return a batch of them."""
        batch = Batch([part for part in self.inserts if not part.operation.is_abandoned])
        for part in batch.inserts:
            part.operation.seal(part.start, part.stop)
        return batch
