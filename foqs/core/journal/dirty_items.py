"""The items of a shard whose rows are not current, as their owner remembers them.

An item is *young* (it has no row), *changed* (its row is as the item was) or *ended* (it is gone,
and its row is still there). Always true between two flushes: the rows, with these items over them,
are the items of the shard; `floor` is not above the first event of any of them. Changes only in
`apply`, after a commit, and while it is filled by a replay. Knows nothing of flush plans.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import filterfalse, islice
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.items.item import NUMBER_MAX, OrderKey, Row, State, TopicName, order_key_number, pack_order_key
from foqs.core.journal.dirty_keys import NO_DUE, DirtyKeys, ItemKeys, pack_due, unpack_due
from foqs.core.journal.journal_events import Base, ItemChange, apply_change
from foqs.core.journal.unreadable_items import UnreadableItems

YOUNG_ITEM_BYTES: Final = 550
"""The size of a young item in memory, without payload, metadata and trace context."""
CHANGED_ITEM_BYTES: Final = 600
"""The size of a changed item in memory, without metadata."""
ENDED_ITEM_BYTES: Final = 350
"""The size of an ended item in memory."""
CARRIED_EVENT_BYTES: Final = 32
"""About what an item takes in the journal if it is carried forward, without payload, metadata and trace context."""
_PURGED_KEYS_STEP: Final = 1_000
"""How many keys are read at once to find some that are not purged."""


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

    @property
    def sizes(self) -> tuple[int, int]:
        """The bytes of this item in memory, and in the journal if it is carried forward."""
        row, change = self.row, self.change
        if row is not None:
            others = len(row.metadata) + (0 if row.trace_context is None else len(row.trace_context))
            others += 0 if row.item_group is None else len(row.item_group)
            payload_bytes = 0 if row.payload is None else len(row.payload)
            return YOUNG_ITEM_BYTES + others + payload_bytes, CARRIED_EVENT_BYTES + others + row.payload_bytes
        if change is None:
            return ENDED_ITEM_BYTES, CARRIED_EVENT_BYTES
        others = 0 if change.rewrite is None else len(change.rewrite.metadata)
        return CHANGED_ITEM_BYTES + others, CARRIED_EVENT_BYTES + others

    def has_content_of(self, former: DirtyItem) -> bool:
        """Return whether both are young, and their payloads and metadata are the same objects."""
        row, former_row = self.row, former.row
        if row is None or former_row is None:
            return False
        return row.payload is former_row.payload and row.metadata is former_row.metadata

    def keys(self, number: int) -> ItemKeys | None:
        """Return the keys of this item; None if it is ended."""
        row = self.row
        if row is not None:
            due_key = NO_DUE if row.due_ms is None or row.state is State.LEASED else pack_due(row.due_ms, number)
            return (row.namespace, row.topic, row.state), row.order_key, due_key
        change, base = self.change, self.base
        if change is None or base is None:
            return None
        due_key = NO_DUE if change.due_ms is None or change.state is State.LEASED else pack_due(change.due_ms, number)
        return (base.namespace, base.topic, change.state), self.order_key(number), due_key


class DirtyItems:
    """The dirty items of one shard."""

    def __init__(self) -> None:
        self._items: dict[int, DirtyItem] = {}
        self._blocks: dict[Position, dict[int, None]] = {}
        """The numbers of the items by their first events, both in order."""
        self._keys = DirtyKeys()
        self._ended: dict[int, None] = {}
        """The ended items, in the order in which they ended."""
        self.unreadable: Final = UnreadableItems()
        """They are in no block, so none of them is among the oldest."""
        self.memory_bytes = 0
        """The size of all items in memory."""
        self.carried_bytes = 0
        """What they would take in the journal if all were carried forward."""

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

    def order_keys(
        self, topic: TopicName, state: State, after: OrderKey | None, keys_max: int, purged_up_to: int = 0
    ) -> list[OrderKey]:
        """Return the first order keys above `after` of a topic's items in a state with numbers above `purged_up_to`."""
        known = self._keys.order_keys((*topic, state))
        begin = -1 if after is None else after
        if not purged_up_to:
            return known.first_after(begin, keys_max)
        found: list[OrderKey] = []
        while len(found) < keys_max and (page := known.first_after(begin, max(keys_max, _PURGED_KEYS_STEP))):
            found += [order_key for order_key in page if order_key_number(order_key) > purged_up_to]
            begin = page[-1]
        return found[:keys_max]

    @property
    def has_leased(self) -> bool:
        """Whether any item is leased. Looks at each topic."""
        return self._keys.has_state(State.LEASED)

    def numbers_after(self, after: int, last: int, numbers_max: int) -> list[int]:
        """Return the first numbers of dirty items above `after`, up to `last`, in order."""
        return self._keys.numbers.first_after(after, numbers_max, last)

    def copied(self) -> tuple[list[int], list[DirtyItem]]:
        """Return all numbers and dirty items as of now, for a walk in steps: a change replaces an item."""
        return list(self._items), list(self._items.values())

    # -------------------------------------------------------------- write-back

    def oldest(self, rows_max: int, up_to: Position | None = None, but: Container[int] = ()) -> list[int]:
        """Return the numbers of the oldest readable items, at most `rows_max`, with first events up to `up_to`.

        Args:
            but: items that are left out.
        """
        found: list[int] = []
        for first, numbers in self._blocks.items():
            if len(found) >= rows_max or (up_to is not None and first > up_to):
                break
            left = filterfalse(but.__contains__, numbers) if but else numbers
            found += islice(left, rows_max - len(found))
        return found

    @property
    def first(self) -> Position | None:
        """The first event of the oldest readable item; None: there is none."""
        return next(iter(self._blocks), None)

    def ended(self, rows_max: int, but: Container[int] = ()) -> list[int]:
        """Return the numbers of the items that ended first, in this order, at most `rows_max`; see `oldest`."""
        return [*islice(filterfalse(but.__contains__, self._ended), rows_max)]

    def floor(self, clean: Container[int], position: Position) -> Position:
        """Return the floor of a flush at `position` after which the items in `clean` are not dirty."""
        if self.unreadable:
            position = min(position, self.unreadable.floor(clean) or position)
        for first, numbers in self._blocks.items():
            if any(number not in clean for number in numbers):
                return min(first, position)
        return position

    def set_unreadable(self, number: int) -> bool:
        """Note that the journal lacks the payload of a young item. Returns whether that is new."""
        item = self._items.get(number)
        if number in self.unreadable or item is None or item.row is None:
            return False
        self._leave_block(number, item.first)
        self.unreadable.add(number, item.first, item.row.state)
        return True

    def with_first(self, first: Position) -> Collection[int]:
        """Return the readable items that have this first event."""
        return self._blocks.get(first, ())

    def carried_bytes_of(self, number: int) -> int:
        """Return about what an item takes in the journal if it is carried forward."""
        item = self._items.get(number)
        return 0 if item is None else item.sizes[1]

    # ------------------------------------------------------------------ timers

    def dues_after(self, after: tuple[int, int], last_ms: int, dues_max: int) -> list[tuple[int, int]]:
        """Return the first (due_ms, number) above `after`, up to `last_ms`, in order. Lease ends are not among them."""
        dues = self._keys.dues.first_after(pack_due(*after), dues_max, pack_due(last_ms, NUMBER_MAX))
        return [unpack_due(due) for due in dues]

    def next_due_ms(self, above_ms: int = -1) -> int | None:
        """Return the earliest due above a moment; None if nothing is due after it."""
        dues = self._keys.dues.first_after(pack_due(above_ms, NUMBER_MAX), 1)
        return unpack_due(dues[0])[0] if dues else None

    # ----------------------------------------------------------------- changes

    def apply(self, changed: Mapping[int, DirtyItem], clean: Collection[int]) -> None:
        """Add or replace items, in the order of their first events, and remove those in `clean`."""
        items, keys, unreadable = self._items, self._keys, self.unreadable
        memory_bytes, carried_bytes = self.memory_bytes, self.carried_bytes
        for number in clean:
            former = items.pop(number, None)
            if former is not None:
                self._leave_block(number, former.first)
                former_memory_bytes, former_carried_bytes = former.sizes
                memory_bytes -= former_memory_bytes
                carried_bytes -= former_carried_bytes
                former_keys = former.keys(number)
                keys.remove(number, former_keys)
                if former_keys is None:
                    del self._ended[number]
        for number, item in changed.items():
            former = items.get(number)
            items[number] = item
            item_keys = item.keys(number)
            if former is None:
                item_memory_bytes, item_carried_bytes = item.sizes
                memory_bytes += item_memory_bytes
                carried_bytes += item_carried_bytes
                self._enter_block(number, item.first)
                keys.add(number, item_keys)
            else:
                if not item.has_content_of(former):  # most are leased, and stay as large as they were
                    former_memory_bytes, former_carried_bytes = former.sizes
                    item_memory_bytes, item_carried_bytes = item.sizes
                    memory_bytes += item_memory_bytes - former_memory_bytes
                    carried_bytes += item_carried_bytes - former_carried_bytes
                keys.replace(former.keys(number), item_keys)
                if former.first != item.first:
                    self._leave_block(number, former.first)
                    self._enter_block(number, item.first)
                    self._ended.pop(number, None)
                elif unreadable and number in unreadable and item.row is not None:
                    unreadable.set_state(number, item.row.state)
            if item_keys is None:
                self._ended[number] = None
        self.memory_bytes, self.carried_bytes = memory_bytes, carried_bytes
        keys.commit()

    def _enter_block(self, number: int, first: Position) -> None:
        numbers = self._blocks.get(first)
        if numbers is None:
            assert not self._blocks or first > next(reversed(self._blocks)), (
                f"the first event of {number} is older than one that is known already"
            )
            numbers = self._blocks[first] = {}
        numbers[number] = None

    def _leave_block(self, number: int, first: Position) -> None:
        if number in self.unreadable:
            self.unreadable.remove(number)
            return
        numbers = self._blocks[first]
        del numbers[number]
        if not numbers:
            del self._blocks[first]

    # ------------------------------------------------------------------- check

    def items(self) -> Iterable[tuple[int, DirtyItem]]:
        """Return all dirty items, for tests."""
        return self._items.items()

    def check(self) -> None:
        """Assert what is always true of the parts."""
        in_blocks = {number: first for first, numbers in self._blocks.items() for number in numbers}
        unreadable = {number: self._items[number] for number in self.unreadable}
        assert self.unreadable.floor() == min((item.first for item in unreadable.values()), default=None)
        ready = [number for number, item in unreadable.items() if item.state is State.READY]
        assert sorted(self.unreadable.ready(len(ready) + 1)) == sorted(ready), "a READY item is not known as such"
        firsts = {number: item.first for number, item in self._items.items() if number not in unreadable}
        assert in_blocks == firsts, "invariant 22: a dirty item is not in the block of its first event"
        assert all(self._blocks.values()) and [*self._blocks] == sorted(self._blocks), "the blocks are not in order"
        self._keys.check({number: item.keys(number) for number, item in self._items.items()})
        ended = {number for number, item in self._items.items() if item.is_ended}
        assert self._ended.keys() == ended, "invariant 22: an ended item is not known as such, or another one is"
        sizes = [item.sizes for item in self._items.values()]
        memory_bytes, carried_bytes = sum(size for size, _ in sizes), sum(size for _, size in sizes)
        assert memory_bytes == self.memory_bytes, (
            f"invariant 18: dirty items take {memory_bytes} bytes, and {self.memory_bytes} count"
        )
        assert carried_bytes == self.carried_bytes, f"{self.carried_bytes} bytes to carry are {carried_bytes}"
