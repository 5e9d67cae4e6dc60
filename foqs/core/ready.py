"""The ready index of one shard: which READY items come next, topic by topic.

Plain and exact: a sorted window of keys per topic. Always true: a window holds
exactly the topic's READY keys at or below its boundary that are not reserved.
The boundary None is +infinity: the table holds no READY key beyond the window.
A topic without a window has no READY item beyond those reserved. Eviction
lowers a boundary, refill raises it. Knows keys, never rows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from foqs.core.item import PRIORITY_MIN, Key

TopicName: TypeAlias = tuple[str, str]
"""(namespace, topic)."""

BELOW_ALL: Final[Key] = (PRIORITY_MIN - 1, 0, 0)
"""Lower than every key: the boundary of a window that covers nothing yet."""


@dataclass(slots=True)
class _Window:
    keys: list[Key] = field(default_factory=list)
    boundary: Key | None = None


class ReadyIndex:
    """READY keys of one shard.

    Args:
        window_keys_max: keys held per topic.
        keys_max: keys held over all topics; one per topic is always kept.
    """

    def __init__(self, window_keys_max: int, keys_max: int) -> None:
        self._window_keys_max = window_keys_max
        self._keys_max = keys_max
        self._windows: dict[TopicName, _Window] = {}
        self._reserved: dict[int, tuple[TopicName, Key]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def reserved(self) -> int:
        """Keys taken and neither settled nor given back."""
        return len(self._reserved)

    @property
    def room(self) -> int:
        """How many keys a refill should bring; at least one."""
        return max(1, min(self._window_keys_max // 2, self._keys_max - self._size))

    def topics(self) -> list[TopicName]:
        """The topics that have, or may have, READY items."""
        return list(self._windows)

    def discover(self, topic: TopicName) -> None:
        """Says that the table may hold READY items of `topic` that this index has not seen."""
        self._windows[topic] = _Window(boundary=BELOW_ALL)

    def add(self, topic: TopicName, key: Key) -> None:
        """An item became READY, or was re-keyed while READY."""
        window = self._windows.setdefault(topic, _Window())
        if window.boundary is not None and key > window.boundary:
            return
        insort(window.keys, key)
        self._size += 1
        if len(window.keys) > self._window_keys_max or (self._size > self._keys_max and len(window.keys) > 1):
            window.keys.pop()
            self._size -= 1
            window.boundary = window.keys[-1]

    def discard(self, topic: TopicName, key: Key) -> None:
        """An item is READY no longer; a reservation of it has nothing to give back. Unknown keys are ignored."""
        self._reserved.pop(key[2], None)
        window = self._windows.get(topic)
        if window is None:
            return
        at = bisect_left(window.keys, key)
        if at < len(window.keys) and window.keys[at] == key:
            del window.keys[at]
            self._size -= 1
            self._forget_if_empty(topic, window)

    def forget(self, topic: TopicName) -> None:
        """The table holds no READY item of `topic`: there is nothing to refill from."""
        window = self._windows.pop(topic, None)
        if window is not None:
            self._size -= len(window.keys)

    def head(self, topic: TopicName) -> Key | None:
        """The best key of the window; None when the window is empty."""
        window = self._windows.get(topic)
        return window.keys[0] if window and window.keys else None

    def window(self, topic: TopicName) -> Sequence[Key]:
        """The keys of the window, in order. Not to be kept or changed."""
        window = self._windows.get(topic)
        return window.keys if window else ()

    def oldest_ms(self, keys_max: int) -> int | None:
        """The least deliver_after_ms of the windows, looking at every head and at most `keys_max` other keys."""
        oldest: int | None = None
        for window in self._windows.values():
            part = window.keys[: 1 + max(keys_max, 0)]
            keys_max -= len(part)
            for key in part:
                if oldest is None or key[1] < oldest:
                    oldest = key[1]
        return oldest

    def take(self, topic: TopicName) -> Key:
        """Takes the best key out and reserves it. The window must not be empty."""
        window = self._windows[topic]
        key = window.keys.pop(0)
        self._size -= 1
        self._reserved[key[2]] = (topic, key)
        self._forget_if_empty(topic, window)
        return key

    def settle(self, number: int) -> None:
        """A reserved item was leased or is gone."""
        self._reserved.pop(number, None)

    def give_back(self, number: int) -> TopicName | None:
        """A reserved item was not handed out after all. Returns its topic; None when it was not reserved."""
        reserved = self._reserved.pop(number, None)
        if reserved is None:
            return None
        self.add(*reserved)
        return reserved[0]

    def needs_refill(self, topic: TopicName) -> bool:
        """True when the window is empty while the table may hold more."""
        window = self._windows.get(topic)
        return window is not None and not window.keys and window.boundary is not None

    def refill_after(self, topic: TopicName) -> Key | None:
        """The boundary: a refill reads the keys above it. None when there is nothing to read."""
        window = self._windows.get(topic)
        return window.boundary if window else None

    def refill(self, topic: TopicName, keys: Iterable[Key], *, complete: bool) -> None:
        """Takes in what a read above the boundary found.

        Args:
            keys: READY keys of the table above the boundary, in order and without a gap.
            complete: the table holds none beyond them.
        """
        window = self._windows.get(topic)
        if window is None:
            return
        for key in keys:
            window.boundary = key
            if key[2] not in self._reserved:
                window.keys.append(key)
                self._size += 1
        if complete:
            window.boundary = None
        self._forget_if_empty(topic, window)

    def _forget_if_empty(self, topic: TopicName, window: _Window) -> None:
        if not window.keys and window.boundary is None:
            del self._windows[topic]
