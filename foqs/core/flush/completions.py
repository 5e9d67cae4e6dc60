"""The operation that completes items: it acks each of them and inserts the items that follow from it, or does neither.

The new items are in the shard of the acked one. Always true: one flush decides an entry as a whole; an entry has a
number of its own, which its record names, and its new items have the numbers after it; it has them when it is in a
flush, and keeps them however often the flush is repeated. Knows nothing of rows or keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from foqs.core.flush.operation import OPEN, SEALED, Lane, Operation, OperationCaller
from foqs.core.items.item import KeyedItem, NewItem
from foqs.core.limits.in_flight import InFlight
from foqs_contract.errors import FoqsError, UnknownOutcome

NEW_ITEM_BYTES: Final = 1_024
"""What a new item counts beside its bytes, so that one flush, and one turn of a namespace, takes about as many new rows of
completions as of inserts: an entry costs as much as a KiB."""


class CompletionEntry(NamedTuple):
    """One item to ack, and the items that follow from it.

    Attributes:
        number: of the item to ack.
        token: of the lease with which it was delivered.
        items: at least one.
        digest: of the token and the items as the caller gave them: a repeat has the same.
        first_place: the place of its first item in the call, by which errors name items.
    """

    number: int
    token: int
    items: Sequence[NewItem]
    digest: bytes
    first_place: int = 0


class NewNumbers(NamedTuple):
    """The result of a completion: the numbers of its items, in their order.

    An item that repeats the one of its own idempotency key has the number of that one.
    `is_repeat`: an earlier attempt wrote the completion.
    """

    numbers: Sequence[int]
    is_repeat: bool


@dataclass(slots=True, frozen=True)
class CompletedIds:
    """The outcome of a completion: the ids of its items. `is_repeat`: an earlier attempt wrote it."""

    ids: list[str]
    is_repeat: bool


class Completions(Operation):
    """Completions of items. Results: `NewNumbers`.

    Args:
        accepted_ms: the time at which they were accepted, on the arrival clock: the new items' place in the order.

    Attributes:
        own_numbers: for each entry the number before that of its first new item, which no item has; 0 for an entry that
            was not in a flush yet.
        in_flight: counts the growth of the entries that have no result yet; None if it is not counted.
        removed_bytes: for each entry the payload bytes of its acked item, by which `in_flight` counts it; 0 if unknown.
    """

    __slots__ = ("accepted_ms", "entries", "in_flight", "own_numbers", "removed_bytes")

    def __init__(
        self, namespace: str, entries: Sequence[CompletionEntry], accepted_ms: int, caller: OperationCaller | None
    ) -> None:
        super().__init__(Lane.NACK, namespace, [entry.number for entry in entries], caller)
        self.entries = entries
        self.accepted_ms = accepted_ms
        self.own_numbers = [0] * len(entries)
        self.in_flight: InFlight | None = None
        self.removed_bytes: Sequence[int] = ()
        self.bytes = self.size(0, len(entries))

    def size(self, start: int, stop: int) -> int:
        return sum([new_item_bytes(item) for entry in self.entries[start:stop] for item in entry.items])

    def number_count(self, start: int, stop: int) -> int:
        """Return how many numbers these entries need: one each, and one for each new item."""
        return sum([1 + len(entry.items) for entry in self.entries[start:stop]])

    def number(self, start: int, stop: int, first_number: int) -> None:
        """Give these entries and their new items consecutive numbers."""
        for place in range(start, stop):
            self.own_numbers[place] = first_number
            first_number += 1 + len(self.entries[place].items)

    def outcomes(self, shard: int) -> list[Any]:
        """Return `CompletedIds` for each entry that was written, now or by an earlier attempt, or an error."""
        return [
            result
            if isinstance(result, FoqsError)
            else CompletedIds([f"{shard}-{number}" for number in result.numbers], result.is_repeat)
            for result in self.results
        ]

    @property
    def not_inserted_count(self) -> int:
        """The number of new items that were certainly not inserted. Those of an unknown outcome may be."""
        count = 0
        for entry, result, own in zip(self.entries, self.results, self.own_numbers, strict=True):
            if isinstance(result, NewNumbers) and not result.is_repeat:
                count += sum([not own < number <= own + len(entry.items) for number in result.numbers])
            elif not isinstance(result, UnknownOutcome):
                count += len(entry.items)
        return count

    def count_in_flight(self, in_flight: InFlight, removed_bytes: Sequence[int]) -> None:
        """Count the growth of its entries until they have results. See the attributes."""
        self.in_flight, self.removed_bytes = in_flight, removed_bytes
        for entry, size in zip(self.entries, removed_bytes, strict=True):
            in_flight.add_growth(entry.items, size)

    def settle(self, start: int, results: Sequence[Any]) -> bool:
        if self.in_flight is not None:
            self._leave_in_flight(self.in_flight, start, start + len(results))
        return super().settle(start, results)

    def _settle_pending(self, start: int, stop: int, if_open: FoqsError, if_sealed: FoqsError) -> None:
        if self.in_flight is not None:
            self._leave_in_flight(self.in_flight, start, stop)
        super()._settle_pending(start, stop, if_open, if_sealed)

    def _leave_in_flight(self, in_flight: InFlight, start: int, stop: int) -> None:
        """Stop counting the growth of the entries that have no result yet, because they are about to get one."""
        for place in range(start, stop):
            result = self.results[place]
            if result is OPEN or result is SEALED:
                in_flight.remove_growth(self.entries[place].items, self.removed_bytes[place])


def new_item_bytes(item: NewItem) -> int:
    """Return what a new item counts in a flush and in a queue."""
    size = NEW_ITEM_BYTES + len(item.payload) + len(item.metadata)
    if item.trace_context is not None:
        size += len(item.trace_context)
    if item.item_group is not None:
        size += len(item.item_group)
    return size + len(item.idempotency_key) if isinstance(item, KeyedItem) else size
