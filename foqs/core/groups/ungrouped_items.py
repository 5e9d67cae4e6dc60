"""The waiting items of a topic that have no group, up to the boundary of the topic. They have no limit: all are heads.

Always true: an item that a dequeue has reserved stays here until a flush changes its row. Knows no group.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from foqs.core.groups.group import KEYS_PER_UNIT
from foqs.core.items.item import NUMBER_MAX, OrderKey


class UngroupedItems:
    """Their keys, in order.

    Attributes:
        keys: those up to the boundary of the topic, in order.
        reserved: the keys of the items that dequeues have reserved, by number.
    """

    def __init__(self) -> None:
        self.keys: list[OrderKey] = []
        self.reserved: dict[int, OrderKey] = {}

    def __contains__(self, key: OrderKey) -> bool:
        at = bisect_left(self.keys, key)
        return at < len(self.keys) and self.keys[at] == key

    def add(self, key: OrderKey) -> bool:
        """Add an item that waits. Return whether it is a new head."""
        at = bisect_left(self.keys, key)
        if at < len(self.keys) and self.keys[at] == key:
            return False
        self.keys.insert(at, key)
        if key & NUMBER_MAX in self.reserved:
            self.reserved[key & NUMBER_MAX] = key
            return False
        return True

    def discard(self, key: OrderKey) -> None:
        """Remove an item that does not wait any more. An unknown one is ignored."""
        at = bisect_left(self.keys, key)
        if at < len(self.keys) and self.keys[at] == key:
            del self.keys[at]

    def end_reservation(self, number: int) -> OrderKey | None:
        """End the reservation of an item. Return its key if it is a head again."""
        key = self.reserved.pop(number, None)
        return key if key is not None and key in self else None

    def forget_above(self, boundary: OrderKey) -> list[OrderKey]:
        """Forget the items above the boundary, which has fallen, and return their keys."""
        end = bisect_right(self.keys, boundary)
        forgotten = self.keys[end:]
        del self.keys[end:]
        return forgotten

    @property
    def units(self) -> int:
        """Its memory, in units."""
        return len(self.keys) // KEYS_PER_UNIT

    def heads(self) -> list[OrderKey]:
        """Return the items that may be reserved."""
        return [key for key in self.keys if key & NUMBER_MAX not in self.reserved] if self.reserved else [*self.keys]
