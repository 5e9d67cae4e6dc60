"""The items of a group in one place, as far as they are known.

Always true: the keys are those of all items of the place at or below the boundary, in order.
Knows no group, and not what a place means.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container
from typing import Final

from foqs.core.items.item import NUMBER_MAX, ORDER_KEY_BITS, OrderKey

BELOW_ALL: Final[OrderKey] = 0
"""Lower than every key: nothing is known."""
ABOVE_ALL: Final[OrderKey] = 1 << ORDER_KEY_BITS
"""Higher than every key: all items are known."""


class KnownKeys:
    """Sorted order keys up to a boundary, which is included."""

    __slots__ = ("boundary", "keys")

    def __init__(self, keys: list[OrderKey], boundary: OrderKey) -> None:
        self.keys = keys
        self.boundary = boundary

    @property
    def has_all(self) -> bool:
        return self.boundary == ABOVE_ALL

    def add(self, key: OrderKey) -> None:
        """Add an item. One above the boundary stays unknown."""
        if key <= self.boundary:
            at = bisect_left(self.keys, key)
            if at == len(self.keys) or self.keys[at] != key:
                self.keys.insert(at, key)

    def discard(self, key: OrderKey) -> None:
        """Remove an item. An unknown key is ignored."""
        at = bisect_left(self.keys, key)
        if at < len(self.keys) and self.keys[at] == key:
            del self.keys[at]

    def without(self, numbers: Container[int]) -> KnownKeys:
        """Return these keys, but for those of some numbers."""
        return KnownKeys([key for key in self.keys if key & NUMBER_MAX not in numbers], self.boundary)

    def forget_above(self, boundary: OrderKey) -> None:
        """Forget the items above a key."""
        del self.keys[bisect_right(self.keys, boundary) :]
        self.boundary = min(self.boundary, boundary)

    def limit_to(self, keys_max: int) -> None:
        """Forget the last items if there are too many."""
        if len(self.keys) > keys_max:
            del self.keys[keys_max:]
            self.boundary = self.keys[-1]


NO_ITEMS: Final = KnownKeys([], ABOVE_ALL)
"""A place without items. Shared, as most places have none: an item is never added to it."""
NOTHING_KNOWN: Final = KnownKeys([], BELOW_ALL)
"""A place of which nothing is known. To add an item to it changes nothing."""
