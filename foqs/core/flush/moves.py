"""The operation that moves items to another topic.

A moved item is a new item with a number of its own, in the same shard. Always true: an
entry has its new number and place when it is in a flush, and keeps them however often the
flush is repeated. Knows nothing of rows or keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foqs.core.flush.operation import Lane, Operation, OperationCaller, Repeated
from foqs.core.items.life import Event


class Moves(Operation):
    """MOVE events. Results: None (moved), or the number of the new item if an earlier call moved the item.

    Args:
        read_bytes: the length of the longest payload that the database may have to copy for one of them.

    Attributes:
        new_numbers: the numbers of the new items; 0 for an entry that was not in a flush yet.
    """

    __slots__ = ("events", "new_numbers")

    def __init__(
        self, namespace: str, events: Sequence[Event], read_bytes: int, caller: OperationCaller | None
    ) -> None:
        super().__init__(Lane.NACK, namespace, [event.id for event in events], caller)
        self.events = list(events)
        self.new_numbers = [0] * len(events)
        self.read_bytes = read_bytes

    def number(self, start: int, stop: int, first_number: int, accepted_ms: int) -> None:
        """Give the entries consecutive numbers, and the place of items that are accepted now."""
        self.new_numbers[start:stop] = range(first_number, first_number + stop - start)
        self.events[start:stop] = [replace(event, accepted_ms=accepted_ms) for event in self.events[start:stop]]

    def outcomes(self, shard: int) -> list[Any]:
        """Return the id of each new item, `Repeated` for one that an earlier call has moved, or an error."""
        return [
            f"{shard}-{number}" if result is None else Repeated(f"{shard}-{result}") if type(result) is int else result
            for number, result in zip(self.new_numbers, self.results, strict=True)
        ]
