"""The plain ready index: the specification of the fast one.

Holds a sorted list of keys with a boundary per topic, and changes it key by key. A
refill reads the table at once, without concurrent changes. Always true: a window
holds exactly the topic's READY keys at or below its boundary that are not reserved.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from foqs.core.items.item import OrderKey, TopicName, order_key_number
from foqs.core.memory.ready_window import BELOW_ALL


class PlainReady:
    """The READY keys of one shard, at most `window_order_keys_max` per topic."""

    def __init__(self, window_order_keys_max: int) -> None:
        self._window_order_keys_max = window_order_keys_max
        self.windows: dict[TopicName, list[OrderKey]] = {}
        self.boundaries: dict[TopicName, OrderKey | None] = {}
        self.reserved: dict[int, OrderKey] = {}

    def discover(self, topic: TopicName) -> None:
        self.windows[topic] = []
        self.boundaries[topic] = BELOW_ALL

    def forget(self, topic: TopicName) -> None:
        self.windows.pop(topic, None)
        self.boundaries.pop(topic, None)

    def add(self, topic: TopicName, key: OrderKey) -> None:
        window = self.windows.setdefault(topic, [])
        boundary = self.boundaries.setdefault(topic, None)
        if key in window or order_key_number(key) in self.reserved or (boundary is not None and key > boundary):
            return
        insort(window, key)
        if len(window) > self._window_order_keys_max:
            window.pop()
            self.boundaries[topic] = window[-1]

    def discard(self, topic: TopicName, key: OrderKey) -> None:
        self.reserved.pop(order_key_number(key), None)
        if key in self.windows.get(topic, []):
            self.windows[topic].remove(key)

    def reserve(self, topic: TopicName, key: OrderKey) -> None:
        """Reserve a READY key, whether it is in the window or not."""
        if key in self.windows.get(topic, []):
            self.windows[topic].remove(key)
        self.reserved[order_key_number(key)] = key

    def confirm_reservation(self, number: int) -> int:
        return int(self.reserved.pop(number, None) is not None)

    def release_reservations(self, topic: TopicName, keys: Iterable[OrderKey]) -> bool:
        released = [key for key in keys if self.reserved.get(order_key_number(key)) == key]
        for key in released:
            del self.reserved[order_key_number(key)]
            self.add(topic, key)
        return bool(released)

    def best_key(self, topic: TopicName, ready: Iterable[OrderKey]) -> OrderKey | None:
        """Return the best key, after as many refills from the topic's `ready` keys as needed."""
        while not self.windows.get(topic) and (boundary := self.boundaries.get(topic)) is not None:
            read = sorted(key for key in ready if key > boundary)[: self._window_order_keys_max]
            self.windows[topic] = [key for key in read if order_key_number(key) not in self.reserved]
            self.boundaries[topic] = read[-1] if len(read) == self._window_order_keys_max else None
        return next(iter(self.windows.get(topic, [])), None)
