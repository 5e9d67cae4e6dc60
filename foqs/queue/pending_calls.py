"""Calls in flight that consist of one or more operations.

Always true: a call is done once: when all its operations are finished, or at its
deadline with the outcomes known then. Outcomes are in the order of the call's
entries. Knows nothing of where operations are submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from foqs.core.flush.operation import Operation
from foqs.core.limits.in_flight import InFlight
from foqs.runtime.deadlines import Deadlines
from foqs_contract.errors import FoqsError


class FanOutCall:
    """A call whose entries are spread over several operations: their `OperationCaller`."""

    __slots__ = (
        "_deadline_bucket",
        "_deadlines",
        "_on_done",
        "_open_count",
        "_operations",
        "accepted_count",
        "on_repeats",
        "outcomes",
    )

    def __init__(self, deadlines: Deadlines, entry_count: int, on_done: Callable[[list[Any]], None]) -> None:
        self.outcomes: list[Any] = [None] * entry_count
        self._deadlines = deadlines
        self._on_done: Callable[[list[Any]], None] | None = on_done
        self._deadline_bucket = 0
        self._operations: list[tuple[Operation, Sequence[int], int]] = []
        self._open_count = 0
        self.accepted_count = 0
        """The number of entries that are in operations."""
        self.on_repeats: Callable[[int], None] | None = None
        """Called with the number of items that are not charged, because they were not inserted; None if the rate is not limited."""

    def add_operation(self, operation: Operation, positions: Sequence[int], shard: int) -> None:
        """Add an operation of a shard. `positions` are the places of its entries in the call."""
        self._operations.append((operation, positions, shard))
        self._open_count += 1
        self.accepted_count += len(positions)

    def refuse(self, positions: Iterable[int], error: FoqsError) -> None:
        """Set the outcome of entries that are in no operation."""
        for position in positions:
            self.outcomes[position] = error

    def start(self, deadline: float) -> None:
        """Start to wait for the operations, which have all been added. None has finished yet."""
        self._deadline_bucket = self._deadlines.add(deadline, self)
        if not self._open_count:
            self._finish()

    def abandon(self) -> None:
        """Send no reply. The operations go on, and are given up at the deadline as always."""
        self._on_done = None

    def expire(self) -> None:
        for operation, _, _ in self._operations:
            if operation.is_open:
                operation.abandon()

    def on_operation_finished(self, operation: Operation) -> None:
        """Count a finished operation. After the last one, the call is done."""
        self._open_count -= 1
        if not self._open_count:
            self._finish()

    def _finish(self) -> None:
        """Reply with the outcomes of all entries."""
        self._deadlines.remove(self._deadline_bucket, self)
        for operation, positions, shard in self._operations:
            if self.on_repeats is not None and (count := operation.not_inserted_count):
                self.on_repeats(count)
            outcomes = operation.outcomes(shard)
            if len(outcomes) == len(self.outcomes):
                self.outcomes = outcomes
            else:
                for position, outcome in zip(positions, outcomes, strict=True):
                    self.outcomes[position] = outcome
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(self.outcomes)


class EnqueueCall(FanOutCall):
    """An enqueue. Its outcomes are ids and errors.

    Args:
        is_atomic: all items are written by one flush of one shard, or none; its outcomes are ids, or one error for all.

    Attributes:
        in_flight: counts its items until they have results; None if the backlog is not limited.
        has_absolute_times: whether items have both an absolute time and a TTL.
    """

    __slots__ = ("has_absolute_times", "in_flight", "is_atomic")

    def __init__(
        self, deadlines: Deadlines, entry_count: int, on_done: Callable[[list[Any]], None], *, is_atomic: bool = False
    ) -> None:
        super().__init__(deadlines, entry_count, on_done)
        self.is_atomic = is_atomic
        self.has_absolute_times = False
        self.in_flight: InFlight | None = None
