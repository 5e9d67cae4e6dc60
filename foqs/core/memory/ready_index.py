"""The ready index of one shard: which READY items come next, by topic.

Holds a sorted window of order keys per topic. Always true between two flushes: a
window holds exactly the topic's READY keys at or below its boundary that are not
reserved. A boundary of None is +infinity: the table holds no READY key beyond the
window. A topic without a window has no READY items except reserved ones. Eviction
lowers a boundary, a refill raises it. Knows keys, not rows, and reads no table.

If the key of an item changes, its old key is discarded and its new one added.

A topic with a limit on the leases of its groups has a `HeadSource`: its window holds the heads of the source, and
follows only them. Changes of its rows are for the source.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from foqs.core.items.item import NUMBER_MAX, OrderKey, TopicName, pack_order_key, unpack_order_key
from foqs.core.memory.head_source import HeadSource
from foqs.core.memory.ready_window import ABOVE_ALL, BELOW_ALL, Refill, Window

_REFILL_KEYS_MIN: Final = 500
"""A refill reads this many keys if the window has room, even if all topics together exceed `order_keys_max`."""


def _is_always_free(number: int) -> bool:
    return True


class ReadyIndex:
    """The READY keys of one shard.

    If it is full, the topics least recently dequeued or refilled lose keys from the
    ends of their windows.

    Args:
        window_order_keys_max: keys held per topic.
        order_keys_max: keys held of all topics; one per topic is always kept.
        is_free: returns whether an item may follow another one in a run: nothing of it waits to be written.
    """

    def __init__(
        self, window_order_keys_max: int, order_keys_max: int, is_free: Callable[[int], bool] = _is_always_free
    ) -> None:
        self._window_order_keys_max = window_order_keys_max
        self._order_keys_max = order_keys_max
        self._windows: dict[TopicName, Window] = {}
        self._evictable: OrderedDict[Window, None] = OrderedDict()
        """All windows with more than one key, and perhaps others; the least recently used first."""
        self._sources: dict[TopicName, HeadSource] = {}
        """What decides on the keys of the window, of topics that have such a thing."""
        self._source_reservations: dict[int, TopicName] = {}
        """The topic of each reserved item of a topic with a source, by its number."""
        self._touched_sources: dict[TopicName, None] = {}
        """Topics with a source of which reservations have ended since `take_touched_sources`."""
        self._head_count = 0
        """Keys in windows of sources, which bound them. They count beside `_size`, so that they evict no other key."""
        self._reserved: dict[int, OrderKey] = {}
        self._reserved_key_max: OrderKey = BELOW_ALL
        """An upper bound of the reserved keys."""
        self._size = 0
        self.refill_count = 0
        """Completed refills."""
        self.evicted_count = 0
        """Keys dropped because a window, or the index, was full."""
        self._is_free = is_free

    def __len__(self) -> int:
        return self._size + self._head_count

    def __bool__(self) -> bool:
        return len(self) > 0

    @property
    def reserved_count(self) -> int:
        """The count of keys that are reserved, and neither confirmed nor released."""
        return len(self._reserved)

    # --------------------------------------------------------------- queries

    def topics(self) -> list[TopicName]:
        """Return the topics that have, or may have, READY items that are not reserved."""
        return list(self._windows)

    @property
    def topic_count(self) -> int:
        """The count of `topics`."""
        return len(self._windows)

    def filter_known(self, topics: Collection[TopicName]) -> list[TopicName]:
        """Return which of these topics are in the index, in the given order."""
        windows = self._windows
        if windows.keys().isdisjoint(topics):
            return []
        return [topic for topic in topics if topic in windows]

    def best_key(self, topic: TopicName) -> OrderKey | None:
        """Return the best key of the window; None if the window is empty."""
        window = self._windows.get(topic)
        return window.order_keys[window.start] if window else None

    def first_known_key(self, topic: TopicName) -> OrderKey | None:
        """Return the best key, also if it is not in the window; None if it is unknown, or there is none."""
        window = self._windows.get(topic)
        if window is None:
            return None
        return window.order_keys[window.start] if window else window.first_unread

    def best_key_bound(self, topic: TopicName) -> OrderKey | None:
        """Return a lower bound of the READY keys that are not reserved; None if there are none."""
        window = self._windows.get(topic)
        if window is None:
            return None
        return window.order_keys[window.start] if window else window.boundary

    def __contains__(self, topic: TopicName) -> bool:
        """Return whether the topic has, or may have, READY items that are not reserved."""
        return topic in self._windows

    def window_size(self, topic: TopicName) -> int:
        """Return how many keys the window holds."""
        window = self._windows.get(topic)
        return 0 if window is None else len(window)

    def peek(self, topic: TopicName, count: int) -> list[OrderKey]:
        """Return at most `count` best keys of the window, in order."""
        window = self._windows.get(topic)
        return [] if window is None else window.order_keys[window.start : window.start + count]

    def peek_with_boundary(self, topic: TopicName, count: int) -> tuple[list[OrderKey], OrderKey | None]:
        """Return the results of `peek` and `boundary`."""
        window = self._windows.get(topic)
        return (
            ([], None) if window is None else (window.order_keys[window.start : window.start + count], window.boundary)
        )

    def boundary(self, topic: TopicName) -> OrderKey | None:
        """Return the greatest key that the window covers; None if the table holds no READY key beyond the window."""
        window = self._windows.get(topic)
        return None if window is None else window.boundary

    def reserved_numbers(self) -> list[int]:
        """Return the numbers of the reserved items."""
        return [*self._reserved]

    def is_reserved(self, number: int) -> bool:
        """Return whether the item's key is reserved, and neither confirmed nor released."""
        return number in self._reserved

    def rank(self, topic: TopicName, key: OrderKey) -> tuple[int, OrderKey | None]:
        """Return (the count of better keys in the window, the key above which the table may hold more of them, or None)."""
        window = self._windows.get(topic)
        if window is None:
            return 0, None
        better = bisect_left(window.order_keys, key, window.start) - window.start
        boundary = window.boundary
        return better, boundary if boundary is not None and boundary < key else None

    def oldest_ms(self, order_keys_max: int, topic: TopicName | None = None) -> int | None:
        """Return the lowest deliver_after_ms in all windows, or in a topic's. Of an empty window its first unread key counts.

        Examines the first key of each window and at most `order_keys_max` other keys, so the result is approximate.
        Fair topics are left out: their keys have turns in place of times.
        """
        oldest: int | None = None
        windows = (
            self._windows.values() if topic is None else [self._windows[name] for name in self.filter_known((topic,))]
        )
        for window in windows:
            if self._sources and self.takes_turns(window.topic):
                continue
            at, order_keys = window.start, window.order_keys
            if at == len(order_keys) and window.first_unread is not None:
                at, order_keys = 0, [window.first_unread]
            # The first key of each priority is the oldest one.
            while at < len(order_keys):
                priority, after_ms, _ = unpack_order_key(order_keys[at])
                if oldest is None or after_ms < oldest:
                    oldest = after_ms
                if order_keys_max <= 0 or at + 1 == len(order_keys):
                    break
                at = bisect_left(order_keys, pack_order_key(priority + 1, 0, 0), at)
                order_keys_max -= 1
        return oldest

    # ---------------------------------------------------- changes of the table

    def discover(self, topic: TopicName) -> None:
        """Give the topic a window that covers nothing: the table may hold READY items of it that are not in the index."""
        if topic not in self._sources:
            self.forget(topic)
            self._windows[topic] = Window(topic, BELOW_ALL)

    def forget(self, topic: TopicName) -> None:
        """Drop the window of a topic without READY items in the table."""
        window = self._windows.get(topic)
        if window is not None and topic not in self._sources:
            self._size -= len(window)
            self._remove_window(window)

    def forget_all(self, topics: Iterable[TopicName]) -> None:
        """Forget many topics. Fast for those without a window, which are most."""
        windows = self._windows
        for topic in topics:
            if topic in windows:
                self.forget(topic)

    def add(self, topic: TopicName, key: OrderKey) -> None:
        """Add an item that became READY, or got a new key. Does nothing if it is in the window or reserved."""
        self.add_many(topic, (key,))

    def add_many(self, topic: TopicName, order_keys: Sequence[OrderKey]) -> None:
        """Do as `add`, for keys in ascending order."""
        if order_keys and order_keys[0] <= self._reserved_key_max:
            reserved = self._reserved
            order_keys = [key for key in order_keys if key & NUMBER_MAX not in reserved]
        if order_keys and not (self._sources and topic in self._sources):
            self._add_ready(topic, order_keys)

    def discard(self, topic: TopicName, key: OrderKey) -> None:
        """Remove an item that is no longer READY, and its reservation. Unknown keys are ignored."""
        number = key & NUMBER_MAX
        self._reserved.pop(number, None)
        window = self._windows.get(topic)
        if window is None or (self._sources and topic in self._sources):
            return
        if window.refill is not None:
            window.refill.record_changes((number,), (None,))
        if key == window.first_unread:
            window.first_unread = None
        if window.remove(key):
            self._size -= 1
            self._compact(window)

    # ------------------------------------------------------- heads of a source

    def set_source(self, topic: TopicName, source: HeadSource, boundary: OrderKey | None) -> None:
        """Let a source decide on the window from now on, which is empty at first. It gets the heads with `set_heads`."""
        self.remove_source(topic)
        self.forget(topic)
        self._sources[topic] = source
        self.set_heads(topic, (), (), boundary, is_reset=True)

    def remove_source(self, topic: TopicName) -> None:
        """Let the window hold READY keys again. It covers nothing: a refill reads them."""
        if topic in self._sources:
            self.set_heads(topic, (), (), None, is_reset=True)
            del self._sources[topic]
            self.discover(topic)

    def takes_turns(self, topic: TopicName) -> bool:
        """Return whether the best key of the window must be searched after each reservation: the topic is fair."""
        return bool(self._sources) and topic in self._sources and self._sources[topic].takes_turns

    def has_source(self, topic: TopicName) -> bool:
        """Return whether a source decides on the window of this topic."""
        return topic in self._sources

    def set_heads(
        self,
        topic: TopicName,
        removed: Iterable[OrderKey],
        added: Sequence[OrderKey],
        boundary: OrderKey | None,
        *,
        is_reset: bool,
    ) -> None:
        """Follow the heads of the source: first the removed ones, then the added ones, in order. See `boundary`.

        Args:
            removed: keys that need not be in the window.
            is_reset: the window is emptied before.
        """
        window = self._windows.get(topic)
        if window is None:
            if not added and boundary is None:
                return
            window = self._windows[topic] = Window(topic, boundary)
        before = len(window)
        window.set_heads(removed, added, boundary, is_reset=is_reset)
        self._head_count += len(window) - before
        self._compact(window)

    # -------------------------------------------------------------- delivery

    def reserve(self, topic: TopicName, count: int) -> list[OrderKey]:
        """Reserve the best keys, at most `count`. Return them in order."""
        window = self._windows.get(topic)
        if window is None or count <= 0:
            return []
        if self._sources and self.takes_turns(topic):
            return self.reserve_in_turn(topic, count, ABOVE_ALL)
        order_keys, start = window.order_keys, window.start
        if len(order_keys) == 1 and window.boundary is None and not start:
            # A fast path: with many topics, most windows hold one key.
            key = order_keys[0]
            self._reserved[key & NUMBER_MAX] = key
            if key > self._reserved_key_max:
                self._reserved_key_max = key
            self._remove_window(window)
            if self._sources and topic in self._sources:
                self._reserve_at_source(topic, order_keys)
            else:
                self._size -= 1
            return order_keys
        end = min(start + count, len(order_keys))
        best = order_keys[start:end]
        if not best:
            return best
        self._reserved.update([(key & NUMBER_MAX, key) for key in best])
        if best[-1] > self._reserved_key_max:
            self._reserved_key_max = best[-1]
        window.start = end
        if window.is_evictable:
            self._evictable.move_to_end(window)
        self._compact(window)
        if self._sources and topic in self._sources:
            self._reserve_at_source(topic, best)
        else:
            self._size -= len(best)
        return best

    def reserve_in_turn(self, topic: TopicName, count: int, last: OrderKey) -> list[OrderKey]:
        """Reserve the best keys of a fair topic up to `last`, at most `count`. Return them in the order of their turns."""
        window = self._windows.get(topic)
        if window is None or count <= 0:
            return []
        start = window.start
        heads = window.order_keys[start : start + count]
        best, used, added = self._sources[topic].reserve_in_turn(heads, count, last)
        if best:
            self._reserved.update([(key & NUMBER_MAX, key) for key in best])
            self._reserved_key_max = max(self._reserved_key_max, max(best))
            self._source_reservations.update([(key & NUMBER_MAX, topic) for key in best])
            window.start = start + used
            self._head_count -= used
            self.set_heads(topic, (), added, window.boundary, is_reset=False)
        return best

    def gives_runs(self, topic: TopicName) -> bool:
        """Return whether heads of the topic may be reserved together with items behind them: its groups are strict."""
        return bool(self._sources) and topic in self._sources and self._sources[topic].gives_runs

    def reserve_run(self, topic: TopicName, items_max: int) -> list[OrderKey]:
        """Reserve the best key, and those of its run behind it, which are in no window. Return them in the order of delivery.

        Only if `gives_runs`.
        """
        window = self._windows.get(topic)
        if not window or items_max <= 0:
            return []
        run = self._sources[topic].reserve_run(window.order_keys[window.start], items_max, self._is_free)
        self._reserved.update([(key & NUMBER_MAX, key) for key in run])
        self._reserved_key_max = max(self._reserved_key_max, *run)
        self._source_reservations.update([(key & NUMBER_MAX, topic) for key in run])
        window.start += 1
        self._head_count -= 1
        self._compact(window)
        return run

    def _reserve_at_source(self, topic: TopicName, order_keys: Sequence[OrderKey]) -> None:
        self._head_count -= len(order_keys)
        self._source_reservations.update([(key & NUMBER_MAX, topic) for key in order_keys])
        self._sources[topic].reserve(order_keys)

    def _end_at_sources(self, numbers: Iterable[int]) -> None:
        """Let sources know which of their reservations have ended."""
        ended: dict[TopicName, list[int]] = {}
        for number in numbers:
            topic = self._source_reservations.pop(number, None)
            if topic is not None:
                ended.setdefault(topic, []).append(number)
        for topic, own in ended.items():
            source = self._sources.get(topic)
            if source is not None:
                source.end_reservations(own)
                self._touched_sources[topic] = None

    def take_touched_sources(self) -> list[TopicName]:
        """Return the topics with a source of which reservations have ended since the last call."""
        touched = [*self._touched_sources]
        self._touched_sources.clear()
        return touched

    def confirm_reservations(self, numbers: Iterable[int]) -> int:
        """End the reservations of items that were leased or are gone. Return how many of them were still reserved.

        The others got another key since and may be in a window: `discard` them by the keys of their rows.
        """
        reserved = self._reserved
        before = len(reserved)
        if self._source_reservations:
            numbers = list(numbers)
            self._end_at_sources(numbers)
        for number in numbers:
            reserved.pop(number, None)
        if not reserved:
            self._reserved_key_max = BELOW_ALL
        return before - len(reserved)

    def release_reservations(self, topic: TopicName, order_keys: Collection[OrderKey]) -> bool:
        """Put reserved items that were not delivered back into their window. Return whether any was still reserved."""
        reserved = self._reserved
        if self._sources and topic in self._sources:
            # The permit returns also if the item is not READY any more.
            numbers = [key & NUMBER_MAX for key in order_keys]
            self._end_at_sources(numbers)
            released_count = sum([reserved.pop(number, None) is not None for number in numbers])
            return released_count > 0
        is_of_former_source = bool(self._source_reservations) and self._end_of_former_source(order_keys)
        # If the reservation of a number has another key, this key is outdated.
        released = [key for key in order_keys if reserved.get(key & NUMBER_MAX) == key]
        if not released:
            return False
        for key in released:
            del reserved[key & NUMBER_MAX]
        if is_of_former_source:
            self.discover(topic)
            return True
        released.sort()
        self._add_ready(topic, released)
        return True

    def _end_of_former_source(self, order_keys: Collection[OrderKey]) -> bool:
        """Return whether keys were reserved while their topic had a source: they need not be keys of rows. A refill reads these."""
        former = self._source_reservations
        return len([key for key in order_keys if former.pop(key & NUMBER_MAX, None) is not None]) > 0

    # ---------------------------------------------------------------- refill

    def needs_refill(self, topic: TopicName) -> bool:
        """Return whether the window is empty and the table may hold more keys."""
        return self.is_low(topic, 1)

    def is_low(self, topic: TopicName, order_keys_min: int) -> bool:
        """Return whether the window holds fewer than `order_keys_min` keys and the table may hold more."""
        window = self._windows.get(topic)
        return window is not None and window.boundary is not None and len(window) < order_keys_min

    def start_refill(self, topic: TopicName) -> Refill | None:
        """Return the read that extends the window; None if there is nothing to read, no room, or a refill in progress.

        The read may run while the index changes. `finish_refill` or `cancel_refill` ends it.
        """
        window = self._windows.get(topic)
        if window is None or window.boundary is None or topic in self._sources:
            return None
        if window.refill is not None and not window.refill.is_of_first_key:
            return None
        half = max(1, self._window_order_keys_max // 2)
        # The refills of topics in use must not evict each other, or each dequeue would need a read.
        share = max(
            _REFILL_KEYS_MIN,
            self._order_keys_max // (2 * max(1, len(self._evictable))),
            self._order_keys_max - self._size,
        )
        limit = min(half, share, self._order_keys_max, self._window_order_keys_max - len(window))
        if limit <= 0:
            return None
        window.refill = self._new_refill(window, window.boundary, limit)
        return window.refill

    def start_first_key_read(self, topic: TopicName) -> Refill | None:
        """Return the read of the first key above an empty window; None if it is known, or a read is in progress.

        A refill does not wait for it: it makes it void. `finish_first_key_read` or `cancel_refill` ends it.
        """
        window = self._windows.get(topic)
        if window is None or window or window.boundary is None or topic in self._sources:
            return None
        if window.first_unread is not None or window.refill is not None:
            return None
        window.refill = self._new_refill(window, window.boundary, 1, is_of_first_key=True)
        return window.refill

    def _new_refill(self, window: Window, after: OrderKey, limit: int, *, is_of_first_key: bool = False) -> Refill:
        # Keys that are reserved now may lie above the boundary, and be leased while the read runs.
        changes: dict[int, OrderKey | None] = dict.fromkeys(self._reserved)
        changes_max = len(changes) + self._order_keys_max
        return Refill(window, after, limit, changes, changes_max, is_of_first_key=is_of_first_key)

    def finish_refill(self, refill: Refill, order_keys: Sequence[OrderKey], complete: bool) -> None:
        """Add the keys that the read found. Only between two flushes, when the index knows all commits.

        Args:
            order_keys: READY keys of the table above `refill.after`, in order and
                without a gap, as they were at some moment since `start_refill`.
            complete: the table held no READY key beyond them.
        """
        window = self._windows.get(refill.topic)
        if window is None or window.refill is not refill:
            return
        window.refill = None
        self.refill_count += 1
        boundary = None if complete else order_keys[-1] if order_keys else refill.after
        changes = refill.changes
        # Keys at or below the old boundary are in the window already, or were reserved.
        changed = [key for key in changes.values() if key is not None and key > refill.after]
        found = [key for key in order_keys if key & NUMBER_MAX not in changes] if changes else list(order_keys)
        if changed:
            found += changed
            found.sort()
        window.boundary = boundary
        window.first_unread = None
        self._mark_recently_used(window)
        if found:
            self._on_window_grown(window, window.insert(found))
        self._compact(window)

    def finish_first_key_read(self, refill: Refill, order_keys: Sequence[OrderKey]) -> None:
        """Note the first key above the window. `order_keys`: the key that the read found, or none. Else as `finish_refill`."""
        if not order_keys:
            self.finish_refill(refill, (), complete=True)
            return
        window = self._windows.get(refill.topic)
        if window is None or window.refill is not refill:
            return
        window.refill = None
        changes = refill.changes
        found = [key for key in order_keys if key & NUMBER_MAX not in changes]
        changed = [key for key in changes.values() if key is not None and key > refill.after]
        first = min([*found, *changed], default=None)
        # A key behind the one that was read, and has left, need not be the first.
        window.first_unread = first if first is not None and first <= order_keys[0] else None

    def cancel_refill(self, refill: Refill) -> None:
        """End a refill whose read failed or is no longer needed."""
        window = self._windows.get(refill.topic)
        if window is not None and window.refill is refill:
            window.refill = None

    # -------------------------------------------------------------- prefetch

    def prefetched_count(self, topic: TopicName) -> int:
        """Return how many of the window's first keys are prefetched."""
        window = self._windows.get(topic)
        return 0 if window is None else window.prefetched_end - window.start

    def not_prefetched(self, topic: TopicName, count: int) -> list[OrderKey]:
        """Return which of the first `count` keys of the window are not prefetched."""
        window = self._windows.get(topic)
        return [] if window is None else window.order_keys[window.prefetched_end : window.start + count]

    def set_prefetched(self, topic: TopicName, key: OrderKey) -> None:
        """Note that the rows of the window's keys up to `key` are prefetched, or will be."""
        window = self._windows.get(topic)
        if window is not None:
            window.prefetched_to = key

    # ----------------------------------------------------------------- check

    def check(self) -> None:
        """Assert what the keys alone show of what is always true. `ShardMemory` compares them with counts and rows."""
        windows = self._windows.values()
        order_keys = [key for window in windows for key in window.order_keys[window.start :]]
        head_count = sum([len(window) for window in windows if window.topic in self._sources])
        for window in windows:
            window.check()
            if window.topic in self._sources:
                continue
            assert len(window) <= self._window_order_keys_max, f"invariant 18: the window of {window.topic} is too long"
            assert len(window) <= 1 or window.is_evictable, f"invariant 18: {window.topic} cannot be evicted"
        assert (self._size, self._head_count) == (len(order_keys) - head_count, head_count), (
            f"invariant 13: the index has {len(order_keys)} keys, and counts {self._size} and {self._head_count} heads"
        )
        assert self._size <= self._order_keys_max or not any(
            len(window) > 1 and window.topic not in self._sources for window in windows
        ), "invariant 18: the index is too long"
        evictable = {window for window in windows if window.is_evictable}
        assert self._evictable.keys() == evictable, "invariant 18: another set of windows can be evicted"
        numbers = {key & NUMBER_MAX for key in order_keys}
        assert len(numbers) == len(order_keys), "invariant 13: an item is in the index twice"
        assert numbers.isdisjoint(self._reserved), "invariant 13: an item is in a window and reserved"
        assert max(self._reserved.values(), default=BELOW_ALL) <= self._reserved_key_max, (
            "invariant 13: a reserved key is above the bound of the reserved keys"
        )

    def check_ready(self, topic: TopicName, ready_count: int) -> None:
        """Assert that the window fits the count of the topic's READY items. Reserved ones may be of other topics."""
        window = self._windows.get(topic)
        held = 0 if window is None else len(window)
        assert held <= ready_count, f"invariant 13: {topic} has {held} keys in its window and {ready_count} READY items"
        if topic in self._sources:
            return  # its other items wait for heads
        assert (window is not None and window.boundary is not None) or ready_count <= held + len(self._reserved), (
            f"invariant 13: {topic} has {ready_count} READY items, {held} in its window, and no boundary"
        )

    def covers(self, topic: TopicName, key: OrderKey) -> bool:
        """Return whether this READY key is in its window, reserved, or above the boundary, so that a refill will read it.

        True for a topic with a source, which knows where the key is.
        """
        if topic in self._sources:
            return True
        window = self._windows.get(topic)
        number = key & NUMBER_MAX
        if self._reserved.get(number) == key or (number in self._reserved and number in self._source_reservations):
            return True
        if window is None:
            return False
        return (window.boundary is not None and key > window.boundary) or key in window

    def holds(self, topic: TopicName, key: OrderKey) -> bool:
        """Return whether this key is in its window, or its number is reserved."""
        window = self._windows.get(topic)
        return key & NUMBER_MAX in self._reserved or (window is not None and key in window)

    # ---------------------------------------------------------------- inside

    def _add_ready(self, topic: TopicName, order_keys: Sequence[OrderKey]) -> None:
        window = self._windows.get(topic)
        if window is None:
            window = self._windows[topic] = Window(topic, None, order_keys)
            self._on_window_grown(window, len(order_keys))
            return
        if window.refill is not None:
            window.refill.record_changes([key & NUMBER_MAX for key in order_keys], order_keys)
        self._on_window_grown(window, window.insert(order_keys))

    def _on_window_grown(self, window: Window, added: int) -> None:
        """Count the keys added to a window, and enforce the limits."""
        size = len(window)
        self._size += added
        if size > 1 and not window.is_evictable:
            window.is_evictable = True
            self._evictable[window] = None
        if size > self._window_order_keys_max:
            self._lower_boundary(window, self._window_order_keys_max)
        if self._size > self._order_keys_max:
            self._evict()

    def _evict(self) -> None:
        """Drop keys from the least recently used windows until the rest fits. A window keeps at least one key."""
        while self._size > self._order_keys_max and self._evictable:
            window = next(iter(self._evictable))
            self._lower_boundary(window, max(1, len(window) - (self._size - self._order_keys_max)))
            if len(window) <= 1:
                del self._evictable[window]
                window.is_evictable = False

    def _lower_boundary(self, window: Window, order_keys_max: int) -> None:
        """Keep the best `order_keys_max` keys, at least one, and drop the rest from memory."""
        if len(window) <= order_keys_max:
            return
        self._size -= len(window) - order_keys_max
        self.evicted_count += len(window) - order_keys_max
        window.keep_first(order_keys_max)

    def _mark_recently_used(self, window: Window) -> None:
        if window.is_evictable:
            self._evictable.move_to_end(window)

    def _compact(self, window: Window) -> None:
        """Compact the list after keys were removed. Drop the window if it is empty and cannot be refilled."""
        if window.compact():
            self._remove_window(window)

    def _remove_window(self, window: Window) -> None:
        del self._windows[window.topic]
        if window.is_evictable:
            del self._evictable[window]
