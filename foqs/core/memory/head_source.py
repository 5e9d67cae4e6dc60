"""What decides on the window of a topic whose groups have rules: its heads are the keys that are offered.

Knows no group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from foqs.core.items.item import OrderKey


class HeadSource(Protocol):
    """The groups of a topic, as its window sees them."""

    @property
    def takes_turns(self) -> bool:
        """Whether a reserved head may be followed by a new one, which comes before others in the window."""
        ...

    def reserve(self, order_keys: Iterable[OrderKey]) -> None:
        """Note that a dequeue has reserved heads. Not called if it `takes_turns`."""
        ...

    def reserve_in_turn(
        self, heads: Sequence[OrderKey], count: int, last: OrderKey
    ) -> tuple[list[OrderKey], int, list[OrderKey]]:
        """Reserve at most `count` heads up to `last`, one after the other: each may be followed by a new one at once.

        Args:
            heads: the first `count` heads, in order.

        Returns:
            The reserved heads in this order; how many of the first heads are among them; and the new heads that are not, in order.
        """
        ...

    @property
    def gives_runs(self) -> bool:
        """Whether a head may be reserved together with items behind it."""
        ...

    def reserve_run(self, head: OrderKey, items_max: int, is_free: Callable[[int], bool]) -> list[OrderKey]:
        """Reserve a head, and items behind it of which nothing waits to be written. Return all, in the order of delivery."""
        ...

    def end_reservations(self, numbers: Iterable[int]) -> None:
        """Note that reservations have ended. Other numbers are ignored."""
        ...
