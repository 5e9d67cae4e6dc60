"""The order keys of READY dirty items, by topic, for reads of the ready items in order.

Each list is sorted. It may have keys of items that are not READY or dirty any more: whoever reads
asks about each key. Always true: each READY dirty item has its key here. Knows no items.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from foqs.core.items.item import OrderKey, TopicName


class ReadyKeys:
    """The keys of all topics."""

    def __init__(self) -> None:
        self._keys: dict[TopicName, list[OrderKey]] = {}

    def add_many(self, topic: TopicName, order_keys: list[OrderKey]) -> None:
        """Add keys, at least one. New items mostly come last, which costs no move."""
        order_keys.sort()
        known = self._keys.get(topic)
        if known is None:
            self._keys[topic] = order_keys
            return
        in_order = order_keys[0] > known[-1]
        known += order_keys
        if not in_order:
            known.sort()  # two runs: linear

    def first_after(
        self, topic: TopicName, after: OrderKey | None, keys_max: int, is_ready: Callable[[OrderKey], bool]
    ) -> list[OrderKey]:
        """Return the first keys above `after` of which `is_ready` is true, at most `keys_max`."""
        known: Sequence[OrderKey] = self._keys.get(topic, ())
        found: list[OrderKey] = []
        for at in range(0 if after is None else bisect_right(known, after), len(known)):
            if len(found) >= keys_max:
                break
            key = known[at]
            if (not found or found[-1] != key) and is_ready(key):
                found.append(key)
        return found

    def drop_old_keys(self, topic: TopicName, items: int, is_ready: Callable[[OrderKey], bool]) -> None:
        """Drop keys that do not count any more if they are most of the keys of a topic with this number of dirty items."""
        known = self._keys.get(topic)
        if known is not None and len(known) > 2 * items + 64:
            kept = sorted({key for key in known if is_ready(key)})
            if kept:
                self._keys[topic] = kept
            else:
                del self._keys[topic]

    def forget(self, topic: TopicName) -> None:
        """Drop all keys of a topic without dirty items."""
        self._keys.pop(topic, None)
