"""The new items of a namespace in flight: accepted, and neither committed nor refused yet.

Counts items and payload bytes, as `NamespaceUsage` does for committed items, so the
two can be added. Of a completion only its growth counts: its new items less the item that
leaves with them, and never less than nothing, because it may fail. Always true: an item is
removed once, when it gets its result, however often its flush is retried. Knows nothing of
queues or flushes.
"""

from __future__ import annotations

from collections.abc import Sequence

from foqs.core.items.item import NewItem


class InFlight:
    """The items in flight of one namespace, in all shards of a host."""

    __slots__ = ("bytes", "items")

    def __init__(self) -> None:
        self.items = 0
        self.bytes = 0

    def add(self, items: Sequence[NewItem]) -> None:
        """Add items that a shard has accepted."""
        self.items += len(items)
        self.bytes += total_payload_bytes(items)

    def remove(self, items: Sequence[NewItem]) -> None:
        """Remove items that have their results."""
        self.items -= len(items)
        self.bytes -= total_payload_bytes(items)

    def add_growth(self, items: Sequence[NewItem], removed_bytes: int) -> None:
        """Add items that take the place of one with these payload bytes."""
        self.items += max(0, len(items) - 1)
        self.bytes += max(0, total_payload_bytes(items) - removed_bytes)

    def remove_growth(self, items: Sequence[NewItem], removed_bytes: int) -> None:
        """Remove what `add_growth` added."""
        self.items -= max(0, len(items) - 1)
        self.bytes -= max(0, total_payload_bytes(items) - removed_bytes)


def total_payload_bytes(items: Sequence[NewItem]) -> int:
    """Return the sum of the payload bytes, as `NamespaceUsage` will count them."""
    return sum([len(item.payload) for item in items])
