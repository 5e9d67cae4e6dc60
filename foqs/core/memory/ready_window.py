"""The window of one topic in the ready index: READY keys in order, and the read that extends it.

Always true: the keys are ascending, and none is above the boundary; a refill begins at the boundary. Knows no other topic.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import lt
from typing import Final

from foqs.core.items.item import ORDER_KEY_BITS, OrderKey, TopicName

BELOW_ALL: Final[OrderKey] = 0
"""Lower than every key, because no item has the number 0. The boundary of a window that covers nothing yet."""

ABOVE_ALL: Final[OrderKey] = 1 << ORDER_KEY_BITS
"""Higher than every key."""

_COMPACT_FRACTION: Final = 4
"""A window's list is compacted when more than 1 slot in this many is unused, so a key costs few moves."""


class Window:
    """The window of one topic: `order_keys[start:]`. The keys before were reserved, and stay until the list is compacted."""

    __slots__ = ("boundary", "first_unread", "is_evictable", "order_keys", "prefetched_to", "refill", "start", "topic")

    def __init__(self, topic: TopicName, boundary: OrderKey | None, order_keys: Iterable[OrderKey] = ()) -> None:
        self.topic = topic
        self.boundary = boundary
        self.first_unread: OrderKey | None = None
        """The first READY key above the boundary that is not reserved; None if it is unknown."""
        self.order_keys: list[OrderKey] = [*order_keys]
        self.start = 0
        self.prefetched_to: OrderKey = BELOW_ALL
        self.refill: Refill | None = None
        self.is_evictable = False

    def __len__(self) -> int:
        return len(self.order_keys) - self.start

    def __bool__(self) -> bool:
        return len(self) > 0

    def __contains__(self, key: OrderKey) -> bool:
        at = bisect_left(self.order_keys, key, self.start)
        return at < len(self.order_keys) and self.order_keys[at] == key

    @property
    def prefetched_end(self) -> int:
        """The place of the first key that is not prefetched."""
        return bisect_right(self.order_keys, self.prefetched_to, self.start)

    def insert(self, added: Sequence[OrderKey]) -> int:
        """Insert ascending keys up to the boundary. Return how many were not there before."""
        boundary, order_keys, start = self.boundary, self.order_keys, self.start
        if boundary is not None and added[-1] > boundary:
            end = bisect_right(added, boundary)
            if self.first_unread is not None and added[end] < self.first_unread:
                self.first_unread = added[end]
            added = added[:end]
            if not added:
                return 0
        size_before = len(order_keys) - start
        if size_before and added[-1] < order_keys[start] and len(added) <= start:
            # Released keys usually fit where they were before.
            self.start -= len(added)
            order_keys[self.start : start] = added
        else:
            merge_into(order_keys, start, added)
        return len(order_keys) - self.start - size_before

    def remove(self, key: OrderKey) -> bool:
        """Remove a key. Return whether it was there."""
        at = bisect_left(self.order_keys, key, self.start)
        if at == len(self.order_keys) or self.order_keys[at] != key:
            return False
        del self.order_keys[at]
        return True

    def keep_first(self, count: int) -> None:
        """Keep the best keys, at least one, and cover no more than these. A refill is void."""
        del self.order_keys[self.start + count :]
        self.boundary = self.order_keys[-1]
        self.first_unread = None
        self.prefetched_to = min(self.prefetched_to, self.boundary)
        self.refill = None

    def set_heads(
        self, removed: Iterable[OrderKey], added: Sequence[OrderKey], boundary: OrderKey | None, *, is_reset: bool
    ) -> None:
        """Follow the heads of a source; see `ReadyIndex.set_heads`."""
        order_keys = self.order_keys
        if is_reset:
            order_keys.clear()
            self.start = 0
        for key in removed:
            self.remove(key)
        if boundary is not None:
            del order_keys[bisect_right(order_keys, boundary, self.start) :]
        merge_into(order_keys, self.start, added)
        self.boundary = boundary

    def compact(self) -> bool:
        """Compact the list after keys were removed. Return whether nothing is left, and nothing can be read."""
        if self.start * _COMPACT_FRACTION > len(self.order_keys):
            del self.order_keys[: self.start]
            self.start = 0
        return not self.order_keys and self.boundary is None

    def check(self) -> None:
        """Assert that its keys are in order and at or below its boundary, and that its refill begins there."""
        order_keys, boundary, topic = self.order_keys[self.start :], self.boundary, self.topic
        assert all(map(lt, order_keys, order_keys[1:])), (
            f"invariant 13: the window of {topic} is not in order: {order_keys}"
        )
        if boundary is None:
            assert order_keys, f"invariant 13: the window of {topic} is empty and has no boundary"
        else:
            assert not order_keys or order_keys[-1] <= boundary, (
                f"invariant 13: the window of {topic} has {order_keys[-1]} above {boundary}"
            )
        assert self.first_unread is None or (boundary is not None and boundary < self.first_unread), (
            f"invariant 13: the first unread key of {topic} is in its window"
        )
        refill = self.refill
        assert refill is None or (refill.topic, refill.after) == (topic, boundary), (
            f"invariant 13: the refill of {topic} does not begin at its boundary {boundary}"
        )


class Refill:
    """A read of up to `limit` READY keys of a topic above `after`, in order.

    It extends the topic's window, or with `is_of_first_key` only tells which key is the first.
    It is void, and its result is ignored, if its window was forgotten, discovered
    again or lowered since.
    """

    __slots__ = ("_window", "after", "changes", "changes_max", "is_of_first_key", "limit", "topic")

    def __init__(
        self,
        window: Window,
        after: OrderKey,
        limit: int,
        changes: dict[int, OrderKey | None],
        changes_max: int,
        *,
        is_of_first_key: bool = False,
    ) -> None:
        self.topic = window.topic
        self.after = after
        self.limit = limit
        self.is_of_first_key = is_of_first_key
        self.changes = changes
        """Changes that the read may have missed, by number: the key of an item that became READY, else None.

        Reserved items need no entry: their keys are at or below `after`, which is not read.
        """
        self.changes_max = changes_max
        self._window = window

    def record_changes(self, numbers: Iterable[int], order_keys: Iterable[OrderKey | None]) -> None:
        """Record items that changed since the read began. The refill is void if there are too many."""
        self.changes.update(zip(numbers, order_keys, strict=False))
        if len(self.changes) > self.changes_max:
            self._window.refill = None


def merge_into(target: list[OrderKey], start: int, order_keys: Sequence[OrderKey]) -> None:
    """Insert ascending `order_keys` into the ascending `target[start:]`. Keys that are there already are left out.

    Keys that belong between the same two neighbours are inserted together.
    """
    if len(target) == start or (order_keys and order_keys[0] > target[-1]):
        target.extend(order_keys)
        return
    at, place = 0, start
    while at < len(order_keys):
        place = bisect_left(target, order_keys[at], place)
        if place == len(target):
            target.extend(order_keys[at:])
            return
        if target[place] == order_keys[at]:
            at += 1
            continue
        end = bisect_left(order_keys, target[place], at + 1)
        target[place:place] = order_keys[at:end]
        place += end - at
        at = end
