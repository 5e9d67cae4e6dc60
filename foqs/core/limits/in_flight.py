"""What a namespace has under way: new items that were taken in and are neither committed nor refused yet.

Counts items and bytes of payload, as `usage` counts those that are committed, so
that both may be added. Always true: an item leaves once, with its result,
however often its flush is tried. Knows nothing of queues or flushes.
"""

from __future__ import annotations

from collections.abc import Sequence

from foqs.core.items.item import NewItem


class InFlight:
    """Of one namespace, over all shards of a host."""

    __slots__ = ("bytes", "items")

    def __init__(self) -> None:
        self.items = 0
        self.bytes = 0

    def add(self, items: Sequence[NewItem]) -> None:
        """A shard has taken these in."""
        self.items += len(items)
        self.bytes += total_payload_bytes(items)

    def remove(self, items: Sequence[NewItem]) -> None:
        """These have their results."""
        self.items -= len(items)
        self.bytes -= total_payload_bytes(items)


def total_payload_bytes(items: Sequence[NewItem]) -> int:
    """Bytes of their payloads: what they will count for when they are committed."""
    return sum([len(item.payload) for item in items])
