"""The keys of a shard's dirty items in order: by topic and state, by due, and by number.

A flush collects the keys that it adds and removes, and they enter together. Always true between two flushes:
the keys here are those of the dirty items, no more and no less. Knows no items.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, TypeAlias

from foqs.core.items.item import NUMBER_MAX, OrderKey, State
from foqs.core.journal.sorted_keys import SortedKeys

Group: TypeAlias = tuple[str, str, State]
"""(namespace, topic, state)."""

ItemKeys: TypeAlias = tuple[Group, OrderKey, int]
"""The keys of one item that exists. The last one is its due, see `pack_due`, or `NO_DUE`."""

NO_DUE: Final = -1
"""Nothing is due, or only the end of a lease."""
_NUMBER_BITS: Final = NUMBER_MAX.bit_length()


def pack_due(due_ms: int, number: int) -> int:
    """Return (due_ms, number) in one integer that sorts like the tuple."""
    return due_ms << _NUMBER_BITS | number


def unpack_due(due_key: int) -> tuple[int, int]:
    """Return the (due_ms, number) of a key."""
    return due_key >> _NUMBER_BITS, due_key & NUMBER_MAX


class DirtyKeys:
    """The keys of all dirty items. A flush calls `add`, `replace` and `remove` for items, and then `commit`."""

    def __init__(self) -> None:
        self._order_keys: dict[Group, SortedKeys] = {}
        self.dues: Final = SortedKeys()
        self.numbers: Final = SortedKeys()
        """Also those of ended items."""
        self._order_keys_removed: defaultdict[Group, list[OrderKey]] = defaultdict(list)
        self._order_keys_added: defaultdict[Group, list[OrderKey]] = defaultdict(list)
        self._dues_removed: list[int] = []
        self._dues_added: list[int] = []
        self._numbers_removed: list[int] = []
        self._numbers_added: list[int] = []

    def order_keys(self, group: Group) -> SortedKeys:
        """Return the order keys of a topic's items in a state."""
        return self._order_keys.get(group) or SortedKeys()

    def has_state(self, state: State) -> bool:
        """Return whether any item is in a state. Looks at each topic."""
        return any(found is state for _, _, found in self._order_keys)

    def add(self, number: int, keys: ItemKeys | None) -> None:
        """Add an item that was not dirty; no keys: it has ended."""
        self._numbers_added.append(number)
        if keys is not None:
            self._add(keys)

    def remove(self, number: int, keys: ItemKeys | None) -> None:
        """Remove an item that is not dirty any more."""
        self._numbers_removed.append(number)
        if keys is not None:
            self._remove(keys)

    def replace(self, former: ItemKeys | None, keys: ItemKeys | None) -> None:
        """Change the keys of an item that stays dirty."""
        if former != keys:
            if former is not None:
                self._remove(former)
            if keys is not None:
                self._add(keys)

    def _add(self, keys: ItemKeys) -> None:
        group, order_key, due_key = keys
        self._order_keys_added[group].append(order_key)
        if due_key != NO_DUE:
            self._dues_added.append(due_key)

    def _remove(self, keys: ItemKeys) -> None:
        group, order_key, due_key = keys
        self._order_keys_removed[group].append(order_key)
        if due_key != NO_DUE:
            self._dues_removed.append(due_key)

    def commit(self) -> None:
        """Bring the keys up to the flush whose items were added, replaced and removed."""
        known = self._order_keys
        for group, order_keys in self._order_keys_removed.items():
            sorted_keys = known[group]
            sorted_keys.remove(order_keys)
            if not sorted_keys and group not in self._order_keys_added:
                del known[group]
        for group, order_keys in self._order_keys_added.items():
            added_to = known.get(group)
            if added_to is None:
                added_to = known[group] = SortedKeys()
            added_to.add(order_keys)
        self._order_keys_removed.clear()
        self._order_keys_added.clear()
        self.dues.remove(self._dues_removed)
        self.dues.add(self._dues_added)
        self.numbers.remove(self._numbers_removed)
        self.numbers.add(self._numbers_added)
        self._dues_removed, self._dues_added, self._numbers_removed, self._numbers_added = [], [], [], []

    # ------------------------------------------------------------------- check

    def check(self, expected: dict[int, ItemKeys | None]) -> None:
        """Assert that the keys are those of these items, by number."""
        for sorted_keys in (self.dues, self.numbers, *self._order_keys.values()):
            sorted_keys.check()
        numbers = self.numbers.first_after(-1, len(expected) + 1)
        assert numbers == sorted(expected), "invariant 22: the numbers in order are not those of the dirty items"
        existing = [keys for keys in expected.values() if keys is not None]
        dues = sorted(due_key for _, _, due_key in existing if due_key != NO_DUE)
        assert self.dues.first_after(-1, len(dues) + 1) == dues, (
            "invariant 10: the dues are not those of the dirty items"
        )
        groups: defaultdict[Group, list[OrderKey]] = defaultdict(list)
        for group, order_key, _ in existing:
            groups[group].append(order_key)
        assert groups.keys() == self._order_keys.keys(), "invariant 13: a group of keys is missing, or is empty"
        for group, order_keys in groups.items():
            found = self._order_keys[group].first_after(-1, len(order_keys) + 1)
            assert found == sorted(order_keys), f"invariant 13: the keys of {group} are not those of its dirty items"
