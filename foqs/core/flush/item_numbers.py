"""The numbers that a shard's owner assigns to new items, and which of them are resolved.

Always true: numbers are assigned once, in ascending order. A number is resolved when
its item was committed, refused or withdrawn, or when it was left out: sequences are
shared by all shards of the host. Before that, no caller knows the number, and no reply
may say that its item is gone. Knows operations, not single items.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from foqs.core.flush.operation import OPEN, Inserts
from foqs.core.items.item import SEQUENCE_MAX, make_number
from foqs.core.timing.arrivals import Arrivals

_COMPACT_OPERATIONS: Final = 64
_COMPACT_BYTES: Final = 1 << 20
"""Resolved operations are dropped only when more operations or bytes than this are kept."""


class ItemNumbers:
    """Assigns numbers and tracks the operations that they belong to.

    Args:
        epoch: the epoch of the ownership.
        arrivals: assigns the sequences of all shards of the host. `start_sequences` was called before.
        is_being_written: returns whether an operation's items are in the flush in progress.
    """

    def __init__(self, epoch: int, arrivals: Arrivals, is_being_written: Callable[[Inserts], bool]) -> None:
        self._arrivals = arrivals
        self._is_being_written = is_being_written
        self._last_sequence = arrivals.last_sequence
        """The last sequence that this shard got."""
        self._zero = make_number(epoch, 1) - 1
        """The number of a sequence is this plus the sequence."""
        self._operations: list[Inserts] = []
        """In order of their numbers: all that are not resolved, and some that are."""
        self._compact_at = _COMPACT_OPERATIONS
        self._bytes = 0
        """Bytes of the operations kept, and of those dropped since the last compaction."""
        self._compact_bytes = _COMPACT_BYTES

    def can_assign(self, count: int) -> bool:
        """Return whether `count` numbers are left in this epoch."""
        # The host starts again with the first sequence when it has used up all of them.
        return self._arrivals.has_sequences(count) and self._last_sequence <= self._arrivals.last_sequence

    @property
    def next_number(self) -> int:
        """The first number that is not assigned."""
        return self._zero + max(self._last_sequence, self._arrivals.last_sequence) + 1

    def assign(self, operation: Inserts) -> None:
        """Assign the numbers from `next_number` on to this operation."""
        self._take_sequences(len(operation))
        self._operations.append(operation)
        self._bytes += operation.bytes
        if len(self._operations) > self._compact_at or self._bytes > self._compact_bytes:
            self._operations = [pending for pending in self._operations if self._is_pending(pending)]
            self._bytes = sum([pending.bytes for pending in self._operations])
            self._compact_at = max(_COMPACT_OPERATIONS, 2 * len(self._operations))
            self._compact_bytes = max(_COMPACT_BYTES, 2 * self._bytes)

    def assign_sealed(self, count: int) -> int:
        """Assign numbers to items that the flush being sealed writes, and return the first.

        They count as resolved: no caller knows them before the flush is committed.
        """
        first = self.next_number
        self._take_sequences(count)
        return first

    @property
    def resolved_up_to(self) -> int:
        """The last number before the first unresolved one."""
        operations = self._operations
        resolved = 0
        while resolved < len(operations) and not self._is_pending(operations[resolved]):
            resolved += 1
        if resolved:
            del operations[:resolved]
        return operations[0].numbers[0] - 1 if operations else self.next_number - 1

    def unresolved(self, numbers: Sequence[int]) -> list[int]:
        """Return which of `numbers`, at least one, are of this epoch and are not assigned yet or not resolved.

        Numbers of other epochs count as resolved: the table has their items. A number of
        a later epoch means that this owner was replaced, which the fence will detect.
        """
        if max(numbers) <= self.resolved_up_to:  # most acks: their items are older than all that waits
            return []
        ordered = sorted(numbers)
        found = _between(ordered, self.next_number, self._zero + SEQUENCE_MAX)
        # Thousands of operations may wait. Only those among the numbers matter.
        start = max(0, bisect_right(self._operations, ordered[0], key=_first_number) - 1)
        stop = bisect_right(self._operations, ordered[-1], lo=start, key=_first_number)
        for operation in self._operations[start:stop]:
            first = operation.numbers[0]
            own = _between(ordered, first, operation.numbers[-1])
            if not own:
                continue
            is_written, results = self._is_being_written(operation), operation.results
            if is_written or operation.is_open:
                found += [
                    number
                    for number in own
                    if (result := results[number - first]) is not None and (is_written or result is OPEN)
                ]
        return found

    def _take_sequences(self, count: int) -> None:
        self._arrivals.take_sequences(count)
        self._last_sequence = self._arrivals.last_sequence

    def _is_pending(self, operation: Inserts) -> bool:
        return operation.is_open or (operation.is_abandoned and self._is_being_written(operation))


def _between(ordered: Sequence[int], first: int, last: int) -> list[int]:
    """Return the numbers from `first` to `last` among these sorted ones."""
    start = bisect_left(ordered, first)
    if start == len(ordered) or ordered[start] > last:
        return []
    return list(ordered[start : bisect_right(ordered, last, start)])


def _first_number(operation: Inserts) -> int:
    return operation.numbers[0]
