"""The READY keys of dirty items that lie above the windows of the ready index.

A refill reads the table and would not find them. Always true: a key is here exactly if its item is
dirty, READY, not reserved, and above the boundary of its topic's window. Each topic's keys are
sorted. Knows keys, and neither windows nor rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from foqs.core.items.item import OrderKey, TopicName


class KeptApartKeys:
    """The keys that are kept apart, by topic."""

    def __init__(self) -> None:
        self._keys: dict[TopicName, list[OrderKey]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def add_many(self, topic: TopicName, keys: Sequence[OrderKey]) -> None:
        """Add sorted keys that are not here yet. New items mostly come last, which costs no move."""
        if not keys:
            return
        known = self._keys.setdefault(topic, [])
        if known and keys[0] < known[-1]:
            known += keys
            known.sort()  # two runs: linear
        else:
            known += keys

    def discard(self, topic: TopicName, key: OrderKey) -> None:
        """Remove a key, if it is here: its item ended, was leased or written back, or has another key."""
        keys = self._keys.get(topic)
        if keys:
            place = bisect_left(keys, key)
            if keys[place : place + 1] == [key]:
                del keys[place]
                if not keys:
                    del self._keys[topic]

    def take_keys(self, topic: TopicName, boundary: OrderKey | None, keys_max: int) -> list[OrderKey]:
        """Remove and return the best keys up to a boundary that rises (None: all), at most `keys_max`."""
        keys = self._keys.get(topic, [])
        count = min(keys_max, len(keys) if boundary is None else bisect_right(keys, boundary))
        taken = keys[:count]
        del keys[:count]
        if not keys:
            self._keys.pop(topic, None)
        return taken

    def best(self, topic: TopicName) -> OrderKey | None:
        """Return the best key of a topic; None if none is kept apart."""
        keys = self._keys.get(topic)
        return keys[0] if keys else None

    def forget(self, topic: TopicName) -> None:
        """Remove all keys of a topic: it was purged."""
        self._keys.pop(topic, None)
