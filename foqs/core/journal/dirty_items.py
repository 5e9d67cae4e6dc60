"""The items of a shard whose rows are not current, as their owner remembers them.

An item is *young* (it has no row), *changed* (its row is as the item was) or *ended* (it is gone,
and its row is still there). Always true between two flushes: the rows, with these items over them,
are the items of the shard; `floor` is not above the first event of any of them. Changes only in
`apply`, after a commit, and while it is filled by a replay. Knows nothing of flush plans.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.items.item import OrderKey, Row, State, TopicName, order_key_number, pack_order_key
from foqs.core.journal.journal_events import Base, ItemChange, apply_change
from foqs.core.journal.ready_keys import ReadyKeys


@dataclass(slots=True)
class DirtyItem:
    """One item.

    Attributes:
        first: the place of its first event since its row was current.
        base: its row; None: it has none, so the item is young.
        row: the item, if it is young. The payload may be missing.
        change: what its row lacks, if it is changed. An ended item has neither `row` nor `change`.
        payload_offset: if it is young, where its payload is among those of the flush `first`.
    """

    first: Position
    base: Base | None
    row: Row | None = None
    change: ItemChange | None = None
    payload_offset: int = 0

    @property
    def is_ended(self) -> bool:
        return self.row is None and self.change is None

    @property
    def topic(self) -> TopicName:
        known = self.row or self.base
        assert known is not None
        return (known.namespace, known.topic)

    @property
    def state(self) -> State | None:
        """The state of the item; None if it is ended."""
        known = self.row or self.change
        return None if known is None else known.state

    def order_key(self, number: int) -> OrderKey:
        """Return the place of the item in the order. Not of one that is ended."""
        if self.row is not None:
            return self.row.order_key
        place = self.base if self.change is None or self.change.rewrite is None else self.change.rewrite
        assert place is not None
        return pack_order_key(place.priority, place.deliver_after_ms, number)

    @property
    def due_ms(self) -> int | None:
        """When the time must change the item, be it the end of a lease or another moment."""
        known = self.row or self.change
        return None if known is None else known.due_ms

    @property
    def timer_due_ms(self) -> int | None:
        """When the time must change the item, if that is not the end of a lease."""
        known = self.row or self.change
        return None if known is None or known.state is State.LEASED else known.due_ms


@dataclass(slots=True)
class _Block:
    """The items whose first events are those of one flush. Some of them may not be dirty any more."""

    first: Position
    numbers: deque[int] = field(default_factory=deque)


class DirtyItems:
    """The dirty items of one shard."""

    def __init__(self) -> None:
        self._items: dict[int, DirtyItem] = {}
        self._blocks: deque[_Block] = deque()
        """In the order of their first events. Each dirty item is in the block of its first event."""
        self._topics: dict[TopicName, dict[int, None]] = {}
        self._ready_keys = ReadyKeys()
        self._dues: list[tuple[int, int]] = []
        """A heap of (due_ms, number). The item may have another due, or be clean, since it was added."""
        self._ended: dict[int, None] = {}
        """The ended items, in the order in which they ended."""
        self.young_count: Final = _Counter()

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, number: int) -> bool:
        return number in self._items

    def get(self, number: int) -> DirtyItem | None:
        """Return a dirty item; None: the row of this number, if any, is current."""
        return self._items.get(number)

    def overlay(self, row: Row) -> Row | None:
        """Return the item of a row that was read from the table; None if it is ended."""
        item = self._items.get(row.id)
        if item is None:
            return row
        return None if item.change is None else apply_change(row, item.change)

    def in_topic(self, topic: TopicName) -> Iterator[tuple[int, DirtyItem]]:
        """Yield the dirty items of a topic. Nothing may change meanwhile."""
        for number in self._topics.get(topic, ()):
            yield number, self._items[number]

    def ready_keys(
        self, topic: TopicName, after: OrderKey | None, keys_max: int, purged_up_to: int = 0
    ) -> list[OrderKey]:
        """Return the first order keys above `after` of a topic's READY items with numbers above `purged_up_to`."""

        def counts(order_key: OrderKey) -> bool:
            return order_key_number(order_key) > purged_up_to and self._is_ready(order_key)

        return self._ready_keys.first_after(topic, after, keys_max, counts)

    def between(self, first: int, last: int) -> list[int]:
        """Return the numbers of dirty items from `first` to `last`, in order."""
        return sorted([number for number in self._items if first <= number <= last])

    def copied(self, topic: TopicName | None = None) -> tuple[list[int], list[DirtyItem]]:
        """Return the numbers and dirty items of a topic, or all, as of now, for a walk in steps: a change replaces an item."""
        if topic is None:
            return list(self._items), list(self._items.values())
        numbers = list(self._topics.get(topic, ()))
        return numbers, list(map(self._items.__getitem__, numbers))

    # -------------------------------------------------------------- write-back

    def oldest(self, rows_max: int, up_to: Position | None = None) -> list[int]:
        """Return the numbers of the oldest items, at most `rows_max`, with first events up to `up_to`."""
        found: list[int] = []
        for block in self._blocks:
            if len(found) >= rows_max or (up_to is not None and block.first > up_to):
                break
            for number in block.numbers:
                if self._is_in(block, number):
                    found.append(number)
                    if len(found) >= rows_max:
                        break
        return found

    @property
    def first(self) -> Position | None:
        """The first event of the oldest item; None if none is dirty."""
        oldest = self.oldest(1)
        return self._items[oldest[0]].first if oldest else None

    def ended(self, rows_max: int) -> list[int]:
        """Return the numbers of the items that ended first, in this order, at most `rows_max`."""
        return [*islice(self._ended, rows_max)]

    def floor(self, clean: Container[int], position: Position) -> Position:
        """Return the floor of a flush at `position` after which the items in `clean` are not dirty."""
        for block in self._blocks:
            if any(self._is_in(block, number) and number not in clean for number in block.numbers):
                return block.first
        return position

    # ------------------------------------------------------------------ timers

    def dues_up_to(self, due_ms: int) -> list[tuple[int, int]]:
        """Return (due_ms, number) of the items that are due up to then, in order. They stay until their flush."""
        dues = self._dues
        found: list[tuple[int, int]] = []
        while dues and dues[0][0] <= due_ms:
            entry = heappop(dues)
            if self._has_due(entry) and (not found or found[-1] != entry):
                found.append(entry)
        for entry in found:
            heappush(dues, entry)
        return found

    def next_due_ms(self, above_ms: int = -1) -> int | None:
        """Return the earliest due above a moment; None if nothing is due after it."""
        while self._dues and not self._has_due(self._dues[0]):
            heappop(self._dues)
        if not self._dues or self._dues[0][0] > above_ms:
            return self._dues[0][0] if self._dues else None
        return min([entry[0] for entry in self._dues if entry[0] > above_ms and self._has_due(entry)], default=None)

    # ----------------------------------------------------------------- changes

    def apply(self, changed: Mapping[int, DirtyItem], clean: Collection[int]) -> None:
        """Add or replace items, in the order of their first events, and remove those in `clean`."""
        items, ready = self._items, dict[TopicName, list[OrderKey]]()
        for number in clean:
            self._remove(number)
        for number, item in changed.items():
            former = items.get(number)
            if former is None or former.first != item.first:
                self._remove(number)
                self._add(number, item)
            else:
                self.young_count.add(former, -1)
            self.young_count.add(item, 1)
            items[number] = item
            state = item.state
            if state is None:
                self._ended[number] = None
            elif state is not State.LEASED:
                if state is State.READY:
                    ready.setdefault(item.topic, []).append(item.order_key(number))
                due_ms = item.due_ms
                if due_ms is not None and (former is None or former.timer_due_ms != due_ms):
                    heappush(self._dues, (due_ms, number))
        for topic, order_keys in ready.items():
            self._ready_keys.add_many(topic, order_keys)
            self._ready_keys.drop_old_keys(topic, len(self._topics[topic]), self._is_ready)
        self._drop_old_entries()

    def _add(self, number: int, item: DirtyItem) -> None:
        self._topics.setdefault(item.topic, {})[number] = None
        blocks = self._blocks
        if not blocks or blocks[-1].first < item.first:
            blocks.append(_Block(item.first))
        assert blocks[-1].first == item.first, f"the first event of {number} is older than one that is known already"
        blocks[-1].numbers.append(number)

    def _remove(self, number: int) -> None:
        item = self._items.pop(number, None)
        if item is not None:
            self.young_count.add(item, -1)
            self._ended.pop(number, None)
            numbers = self._topics[item.topic]
            del numbers[number]
            if not numbers:
                del self._topics[item.topic]
                self._ready_keys.forget(item.topic)

    def _drop_old_entries(self) -> None:
        """Drop what is not dirty any more: from the front of the blocks, and from the dues if most of them are old."""
        blocks = self._blocks
        while blocks:
            numbers = blocks[0].numbers
            while numbers and not self._is_in(blocks[0], numbers[0]):
                numbers.popleft()
            if numbers:
                break
            blocks.popleft()
        if len(self._dues) > 2 * len(self._items) + 64:
            self._dues = sorted({entry for entry in self._dues if self._has_due(entry)})

    def _is_in(self, block: _Block, number: int) -> bool:
        item = self._items.get(number)
        return item is not None and item.first == block.first

    def _is_ready(self, order_key: OrderKey) -> bool:
        number = order_key_number(order_key)
        item = self._items.get(number)
        return item is not None and item.state is State.READY and item.order_key(number) == order_key

    def _has_due(self, entry: tuple[int, int]) -> bool:
        item = self._items.get(entry[1])
        return item is not None and item.timer_due_ms == entry[0]

    # ------------------------------------------------------------------- check

    def items(self) -> Iterable[tuple[int, DirtyItem]]:
        """Return all dirty items, for tests."""
        return self._items.items()

    def check(self) -> None:
        """Assert what is always true of the parts."""
        in_blocks = [n for block in self._blocks for n in block.numbers if self._is_in(block, n)]
        assert sorted(in_blocks) == sorted(self._items), "invariant 20: a dirty item is in no block, or in two"
        in_topics = sorted(number for numbers in self._topics.values() for number in numbers)
        assert in_topics == sorted(self._items), "invariant 20: a dirty item is in no topic, or in two"
        dues = {(item.timer_due_ms, number) for number, item in self._items.items() if item.timer_due_ms is not None}
        assert dues <= set(self._dues), "invariant 10: the due of a dirty item is forgotten"
        for topic in self._topics:
            ready = [item.order_key(n) for n, item in self.in_topic(topic) if item.state is State.READY]
            assert self.ready_keys(topic, None, len(self)) == sorted(ready), (
                f"invariant 13: the READY keys of {topic} are not those of its dirty items"
            )
        ended = sorted(number for number, item in self._items.items() if item.is_ended)
        assert sorted(self._ended) == ended, "invariant 20: an ended item is not known as such, or another one is"
        young = sum(item.base is None for item in self._items.values())
        assert young == self.young_count.items, (
            f"invariant 18: {young} items are young, and {self.young_count.items} count"
        )


class _Counter:
    """Young items, and their payload bytes."""

    def __init__(self) -> None:
        self.items = 0
        self.payload_bytes = 0

    def add(self, item: DirtyItem, times: int) -> None:
        if item.row is not None:
            self.items += times
            self.payload_bytes += times * item.row.payload_bytes
