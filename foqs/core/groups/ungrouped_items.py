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
        changes: the keys that have become heads since `TopicHeads.take_changes`, or are none any more.
    """

    def __init__(self) -> None:
        self.keys: list[OrderKey] = []
        self.reserved: dict[int, OrderKey] = {}
        self.changes: dict[OrderKey, bool] = {}

    def __contains__(self, key: OrderKey) -> bool:
        at = bisect_left(self.keys, key)
        return at < len(self.keys) and self.keys[at] == key

    def add(self, key: OrderKey) -> None:
        """Add an item that waits. A known one is ignored."""
        at = bisect_left(self.keys, key)
        if at < len(self.keys) and self.keys[at] == key:
            return
        self.keys.insert(at, key)
        if key & NUMBER_MAX in self.reserved:
            self.reserved[key & NUMBER_MAX] = key
        else:
            self.changes[key] = True

    def discard(self, key: OrderKey) -> None:
        """Remove an item that does not wait any more. An unknown one is ignored."""
        self.changes[key] = False
        at = bisect_left(self.keys, key)
        if at < len(self.keys) and self.keys[at] == key:
            del self.keys[at]

    def end_reservation(self, number: int) -> None:
        """End the reservation of an item, if it was reserved. It is a head again if it still waits."""
        key = self.reserved.pop(number, None)
        if key is not None and key in self:
            self.changes[key] = True

    def forget_above(self, boundary: OrderKey) -> None:
        """Forget the items above the boundary, which has fallen."""
        end = bisect_right(self.keys, boundary)
        self.changes.update(dict.fromkeys(self.keys[end:], False))
        del self.keys[end:]

    def forget_all(self) -> None:
        """Forget all items. Reservations stay."""
        self.keys.clear()
        self.changes.clear()

    @property
    def units(self) -> int:
        """Its memory, in units."""
        return len(self.keys) // KEYS_PER_UNIT

    def heads(self) -> list[OrderKey]:
        """Return the items that may be reserved."""
        return [key for key in self.keys if key & NUMBER_MAX not in self.reserved] if self.reserved else [*self.keys]
