"""The ready index of one shard: which READY items come next, topic by topic.

A sorted window of keys per topic. Always true between two flushes: a window
holds exactly the topic's READY keys at or below its boundary that are not
reserved. The boundary None is +infinity: the table holds no READY key beyond
the window. A topic without a window has no READY item beyond those reserved.
Eviction lowers a boundary, a refill raises it. Knows keys, never rows, and
nobody who reads a table.

A re-keyed item is discarded by its old key and added by its new one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from foqs.core.items.item import NUMBER_MAX, OrderKey, TopicName, pack_order_key, unpack_order_key

BELOW_ALL: Final[OrderKey] = 0
"""Lower than every key, as no item has the number 0: the boundary of a window that covers nothing yet."""

_COMPACT_FRACTION: Final = 4
"""A window's list is compacted when more than one slot in so many was taken: a few words moved for each key."""


_REFILL_KEYS_MIN: Final = 500
"""A refill reads as many keys as this where the window has room, even with more topics than there is room for."""


class _Window:
    """`keys[start:]` are what it holds; what is before `start` was taken and waits for the list to be compacted."""

    __slots__ = ("boundary", "is_evictable", "keys", "prefetched_to", "refill", "start", "topic")

    def __init__(self, topic: TopicName, boundary: OrderKey | None, keys: Iterable[OrderKey] = ()) -> None:
        self.topic = topic
        self.boundary = boundary
        self.keys: list[OrderKey] = [*keys]
        self.start = 0
        self.prefetched_to: OrderKey = BELOW_ALL
        self.refill: Refill | None = None
        self.is_evictable = False

    def __len__(self) -> int:
        return len(self.keys) - self.start


class Refill:
    """A read that extends a topic's window: up to `limit` READY keys above `after`, in order.

    It is void, and its result is ignored, once its window was forgotten,
    discovered anew or lowered.
    """

    __slots__ = ("_window", "after", "changes", "changes_max", "limit", "topic")

    def __init__(
        self, window: _Window, after: OrderKey, limit: int, changes: dict[int, OrderKey | None], changes_max: int
    ) -> None:
        self.topic = window.topic
        self.after = after
        self.limit = limit
        self.changes = changes
        """By number, what is known better than from the read: the key of what became READY, None of what did not stay it.

        What is taken needs no note: it lay at or below `after`, where nothing is read.
        """
        self.changes_max = changes_max
        self._window = window

    def record_changes(self, numbers: Iterable[int], keys: Iterable[OrderKey | None]) -> None:
        """These were touched since the read began. So much that it does not fit makes the refill void."""
        self.changes.update(zip(numbers, keys, strict=False))
        if len(self.changes) > self.changes_max:
            self._window.refill = None


class ReadyIndex:
    """READY keys of one shard.

    When full, the topics least recently taken from or refilled lose keys from
    the ends of their windows.

    Args:
        window_keys_max: keys held per topic.
        keys_max: keys held over all topics; one per topic is always kept.
    """

    def __init__(self, window_keys_max: int, keys_max: int) -> None:
        self._window_keys_max = window_keys_max
        self._keys_max = keys_max
        self._windows: dict[TopicName, _Window] = {}
        self._evictable: OrderedDict[_Window, None] = OrderedDict()
        """Every window with more than one key, and perhaps others; the coldest first."""
        self._reserved: dict[int, OrderKey] = {}
        self._reserved_key_max: OrderKey = BELOW_ALL
        """No reserved key lies above it."""
        self._size = 0
        self.refill_count = 0
        """Reads that were taken in."""
        self.evicted_count = 0
        """Keys left to the table because a window, or the index, was full."""

    def __len__(self) -> int:
        return self._size

    @property
    def reserved_count(self) -> int:
        """Keys taken and neither settled nor given back."""
        return len(self._reserved)

    # --------------------------------------------------------------- looking

    def topics(self) -> list[TopicName]:
        """The topics that have, or may have, READY items beyond those reserved."""
        return list(self._windows)

    @property
    def topic_count(self) -> int:
        """How many topics have, or may have, READY items beyond those reserved."""
        return len(self._windows)

    def filter_known(self, topics: Collection[TopicName]) -> list[TopicName]:
        """Those that have, or may have, READY items beyond those reserved, in their order."""
        windows = self._windows
        if windows.keys().isdisjoint(topics):
            return []
        return [topic for topic in topics if topic in windows]

    def best_key(self, topic: TopicName) -> OrderKey | None:
        """The best key of the window; None when the window is empty."""
        window = self._windows.get(topic)
        return window.keys[window.start] if window else None

    def best_key_bound(self, topic: TopicName) -> OrderKey | None:
        """No READY key beyond those reserved lies below this one: `head`, or else the boundary; None: there is none."""
        window = self._windows.get(topic)
        if window is None:
            return None
        return window.keys[window.start] if window else window.boundary

    def __contains__(self, topic: TopicName) -> bool:
        """The topic has, or may have, READY items beyond those reserved."""
        return topic in self._windows

    def window_len(self, topic: TopicName) -> int:
        """How many keys the window holds."""
        window = self._windows.get(topic)
        return 0 if window is None else len(window)

    def peek(self, topic: TopicName, count: int) -> list[OrderKey]:
        """The best keys of the window, in order, at most `count`."""
        window = self._windows.get(topic)
        return [] if window is None else window.keys[window.start : window.start + count]

    def peek_with_boundary(self, topic: TopicName, count: int) -> tuple[list[OrderKey], OrderKey | None]:
        """(what `peek` says, what `boundary` says)."""
        window = self._windows.get(topic)
        return ([], None) if window is None else (window.keys[window.start : window.start + count], window.boundary)

    def boundary(self, topic: TopicName) -> OrderKey | None:
        """The greatest key that the window covers; None when the table holds nothing beyond the window."""
        window = self._windows.get(topic)
        return None if window is None else window.boundary

    def is_reserved(self, number: int) -> bool:
        """The item's key was taken, and neither settled nor given back."""
        return number in self._reserved

    def rank(self, topic: TopicName, key: OrderKey) -> tuple[int, OrderKey | None]:
        """How many keys of the window are better than `key`, and above which key the table may hold more; None: none."""
        window = self._windows.get(topic)
        if window is None:
            return 0, None
        better = bisect_left(window.keys, key, window.start) - window.start
        boundary = window.boundary
        return better, boundary if boundary is not None and boundary < key else None

    def oldest_ms(self, keys_max: int, topic: TopicName | None = None) -> int | None:
        """The least deliver_after_ms of the windows, or of a topic's, looking at every head and at most `keys_max` other keys."""
        oldest: int | None = None
        windows = self._windows.values() if topic is None else filter(None, [self._windows.get(topic)])
        for window in windows:
            at, keys = window.start, window.keys
            # Within a priority the first key is the oldest; the next one to look at is of the next priority.
            while at < len(keys):
                priority, after_ms, _ = unpack_order_key(keys[at])
                if oldest is None or after_ms < oldest:
                    oldest = after_ms
                if keys_max <= 0 or at + 1 == len(keys):
                    break
                at = bisect_left(keys, pack_order_key(priority + 1, 0, 0), at)
                keys_max -= 1
        return oldest

    # ---------------------------------------------------- what the table did

    def discover(self, topic: TopicName) -> None:
        """The table may hold READY items of `topic` that this index has not seen."""
        self.forget(topic)
        self._windows[topic] = _Window(topic, BELOW_ALL)

    def forget(self, topic: TopicName) -> None:
        """The table holds no READY item of `topic`: there is nothing to refill from."""
        window = self._windows.get(topic)
        if window is not None:
            self._size -= len(window)
            self._remove_window(window)

    def forget_all(self, topics: Iterable[TopicName]) -> None:
        """As `forget`, of many topics, of which mostly none has a window any more."""
        windows = self._windows
        for topic in topics:
            if topic in windows:
                self.forget(topic)

    def add(self, topic: TopicName, key: OrderKey) -> None:
        """An item became READY, or was re-keyed while READY. One that is here already, or reserved, is left as it is."""
        self.add_many(topic, (key,))

    def add_many(self, topic: TopicName, keys: Sequence[OrderKey]) -> None:
        """As `add`, for keys in ascending order."""
        if keys and keys[0] <= self._reserved_key_max:
            reserved = self._reserved
            keys = [key for key in keys if key & NUMBER_MAX not in reserved]
        if keys:
            self._add_ready(topic, keys)

    def discard(self, topic: TopicName, key: OrderKey) -> None:
        """An item is READY no longer; a reservation of it has nothing to give back. Unknown keys are ignored."""
        number = key & NUMBER_MAX
        self._reserved.pop(number, None)
        window = self._windows.get(topic)
        if window is None:
            return
        if window.refill is not None:
            window.refill.record_changes((number,), (None,))
        keys = window.keys
        at = bisect_left(keys, key, window.start)
        if at < len(keys) and keys[at] == key:
            del keys[at]
            self._size -= 1
            self._compact(window)

    # -------------------------------------------------------------- hand-out

    def reserve(self, topic: TopicName, count: int, key_max: OrderKey | None = None) -> list[OrderKey]:
        """Takes the best keys out, in order, and reserves them: at most `count`, none above `key_max`."""
        window = self._windows.get(topic)
        if window is None or count <= 0:
            return []
        keys, start = window.keys, window.start
        if len(keys) == 1 and window.boundary is None and not start and (key_max is None or keys[0] <= key_max):
            # Where there are many topics, most hold one: it goes, and its window with it.
            key = keys[0]
            self._reserved[key & NUMBER_MAX] = key
            if key > self._reserved_key_max:
                self._reserved_key_max = key
            self._size -= 1
            self._remove_window(window)
            return keys
        end = min(start + count, len(keys))
        if key_max is not None and end > start and keys[end - 1] > key_max:
            end = bisect_right(keys, key_max, start, end)
        taken = keys[start:end]
        if not taken:
            return taken
        self._reserved.update([(key & NUMBER_MAX, key) for key in taken])
        if taken[-1] > self._reserved_key_max:
            self._reserved_key_max = taken[-1]
        window.start = end
        self._size -= len(taken)
        if window.is_evictable:
            self._evictable.move_to_end(window)
        self._compact(window)
        return taken

    def confirm_reservations(self, numbers: Iterable[int]) -> int:
        """Reserved items were leased or are gone. Returns how many of them were still reserved.

        Another was re-keyed since it was taken, and is perhaps in a window:
        `discard` it by its row's key.
        """
        reserved = self._reserved
        before = len(reserved)
        for number in numbers:
            reserved.pop(number, None)
        if not reserved:
            self._reserved_key_max = BELOW_ALL
        return before - len(reserved)

    def release_reservations(self, topic: TopicName, keys: Iterable[OrderKey]) -> bool:
        """Reserved items were not handed out after all. Returns whether any of them still was reserved."""
        reserved = self._reserved
        # A key of another reservation of the same number is a former one: it has nothing to give back.
        back = [key for key in keys if reserved.get(key & NUMBER_MAX) == key]
        if not back:
            return False
        for key in back:
            del reserved[key & NUMBER_MAX]
        back.sort()
        self._add_ready(topic, back)
        return True

    # ---------------------------------------------------------------- refill

    def needs_refill(self, topic: TopicName) -> bool:
        """True when the window is empty while the table may hold more."""
        return self.is_low(topic, 1)

    def is_low(self, topic: TopicName, keys_min: int) -> bool:
        """True when the window holds fewer than `keys_min` keys while the table may hold more."""
        window = self._windows.get(topic)
        return window is not None and window.boundary is not None and len(window) < keys_min

    def start_refill(self, topic: TopicName) -> Refill | None:
        """What to read to extend the window; None when there is nothing to read or to make room for, or one is open.

        The read may run beside everything else; `finish_refill` or `cancel_refill` ends it.
        """
        window = self._windows.get(topic)
        if window is None or window.boundary is None or window.refill is not None:
            return None
        half = max(1, self._window_keys_max // 2)
        # What topics in use read must not put each other out, or each would be read anew for every take.
        share = max(_REFILL_KEYS_MIN, self._keys_max // (2 * max(1, len(self._evictable))), self._keys_max - self._size)
        limit = min(half, share, self._keys_max, self._window_keys_max - len(window))
        if limit <= 0:
            return None
        # What is reserved now may lie above the boundary, and be leased while the read runs.
        noted: dict[int, OrderKey | None] = dict.fromkeys(self._reserved)
        window.refill = Refill(window, window.boundary, limit, noted, len(noted) + self._keys_max)
        return window.refill

    def finish_refill(self, refill: Refill, keys: Sequence[OrderKey], complete: bool) -> None:
        """Takes in what the read found. Only between two flushes: whatever is committed was said here.

        Args:
            keys: READY keys of the table above `refill.after`, in order and
                without a gap, as they were at some moment since `start_refill`.
            complete: the table held none beyond them.
        """
        window = self._windows.get(refill.topic)
        if window is None or window.refill is not refill:
            return
        window.refill = None
        self.refill_count += 1
        boundary = None if complete else keys[-1] if keys else refill.after
        noted = refill.changes
        # What was at or below the old boundary is in the window, or was taken from it.
        known = [key for key in noted.values() if key is not None and key > refill.after]
        found = [key for key in keys if key & NUMBER_MAX not in noted] if noted else list(keys)
        if known:
            found += known
            found.sort()
        window.boundary = boundary
        self._mark_recently_used(window)
        if found:
            self._insert_keys(window, found)
        self._compact(window)

    def cancel_refill(self, refill: Refill) -> None:
        """The read failed or is not wanted any more."""
        window = self._windows.get(refill.topic)
        if window is not None and window.refill is refill:
            window.refill = None

    # -------------------------------------------------------------- prefetch

    def prefetched_count(self, topic: TopicName) -> int:
        """How many keys of the window, from the head, are loaded."""
        window = self._windows.get(topic)
        return 0 if window is None else bisect_right(window.keys, window.prefetched_to, window.start) - window.start

    def not_prefetched(self, topic: TopicName, count: int) -> list[OrderKey]:
        """Those of the first `count` keys of the window that are not loaded."""
        window = self._windows.get(topic)
        if window is None:
            return []
        return window.keys[bisect_right(window.keys, window.prefetched_to, window.start) : window.start + count]

    def set_prefetched(self, topic: TopicName, key: OrderKey) -> None:
        """The rows of the window's keys up to `key` are loaded, or will be."""
        window = self._windows.get(topic)
        if window is not None:
            window.prefetched_to = key

    # ---------------------------------------------------------------- inside

    def _add_ready(self, topic: TopicName, keys: Sequence[OrderKey]) -> None:
        window = self._windows.get(topic)
        if window is None:
            window = self._windows[topic] = _Window(topic, None, keys)
            self._on_window_grown(window, len(keys))
            return
        if window.refill is not None:
            window.refill.record_changes([key & NUMBER_MAX for key in keys], keys)
        self._insert_keys(window, keys)

    def _insert_keys(self, window: _Window, keys: Sequence[OrderKey]) -> None:
        """Puts ascending `keys` into the window as far as its boundary and the limits allow."""
        boundary = window.boundary
        if boundary is not None and keys[-1] > boundary:
            keys = keys[: bisect_right(keys, boundary)]
            if not keys:
                return
        held, start = window.keys, window.start
        before = len(held) - start
        if not before or keys[0] > held[-1]:
            held.extend(keys)
        elif keys[-1] < held[start] and len(keys) <= start:
            # What was given back mostly finds the place that it left.
            window.start -= len(keys)
            held[window.start : start] = keys
        else:
            _merge_into(held, start, keys)
        self._on_window_grown(window, len(held) - window.start - before)

    def _on_window_grown(self, window: _Window, added: int) -> None:
        """A window holds so many more keys, perhaps more than there is room for."""
        now = len(window)
        self._size += added
        if now > 1 and not window.is_evictable:
            window.is_evictable = True
            self._evictable[window] = None
        if now > self._window_keys_max:
            self._lower_boundary(window, self._window_keys_max)
        if self._size > self._keys_max:
            self._evict()

    def _evict(self) -> None:
        """Takes keys from the coldest windows until the rest fits; a window that has no more to give leaves the list."""
        while self._size > self._keys_max and self._evictable:
            window = next(iter(self._evictable))
            self._lower_boundary(window, max(1, len(window) - (self._size - self._keys_max)))
            if len(window) <= 1:
                del self._evictable[window]
                window.is_evictable = False

    def _lower_boundary(self, window: _Window, keys_max: int) -> None:
        """Keeps the best `keys_max` keys, at least one: the rest is left to the table."""
        if len(window) <= keys_max:
            return
        self._size -= len(window) - keys_max
        self.evicted_count += len(window) - keys_max
        del window.keys[window.start + keys_max :]
        window.boundary = window.keys[-1]
        window.prefetched_to = min(window.prefetched_to, window.boundary)
        window.refill = None

    def _mark_recently_used(self, window: _Window) -> None:
        if window.is_evictable:
            self._evictable.move_to_end(window)

    def _compact(self, window: _Window) -> None:
        """Compacts the list after keys went; drops a window that is empty and has nothing to be refilled from."""
        keys, start = window.keys, window.start
        if start * _COMPACT_FRACTION > len(keys):
            del keys[:start]
            window.start = 0
        if not keys and window.boundary is None:
            self._remove_window(window)

    def _remove_window(self, window: _Window) -> None:
        del self._windows[window.topic]
        if window.is_evictable:
            del self._evictable[window]


def _merge_into(target: list[OrderKey], start: int, keys: Sequence[OrderKey]) -> None:
    """Inserts ascending `keys` into the ascending `held[start:]`, which is not empty, but for those it has already.

    Neighbours that fall into one gap go in together.
    """
    at, place = 0, start
    while at < len(keys):
        place = bisect_left(target, keys[at], place)
        if place == len(target):
            target.extend(keys[at:])
            return
        if target[place] == keys[at]:
            at += 1
            continue
        end = bisect_left(keys, target[place], at + 1)
        target[place:place] = keys[at:end]
        place += end - at
        at = end
