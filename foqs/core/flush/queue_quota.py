"""The room for operations that wait in a shard's intake, and which namespaces have a small backlog.

Always true: what is reserved is what waits. Bounded in items and bytes, in total and for
each namespace. Knows numbers and namespaces, not operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


class LightNamespaces:
    """Counts the namespaces with a small backlog in all lanes together, without the shard's own (the empty name)."""

    __slots__ = ("_entries", "_entries_max", "count")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: dict[str, int] = {}
        self.count = 0

    def add(self, namespace: str, entries: int) -> None:
        """Add `entries` to a namespace's backlog; negative to remove them."""
        if not namespace:
            return
        before = self._entries.get(namespace, 0)
        after = before + entries
        if after:
            self._entries[namespace] = after
        else:
            del self._entries[namespace]
        self.count += (0 < after <= self._entries_max) - (0 < before <= self._entries_max)

    def clear(self) -> None:
        self._entries.clear()
        self.count = 0


class QueueQuota:
    """The room for the waiting entries of one group of lanes, by namespace.

    A namespace may use `weight` times the room that is left free. So a single one
    of weight 1 fills half of it, many get parts by their weights, and there is
    always some room for the next one.
    """

    __slots__ = ("_bytes", "_bytes_max", "_items_max", "_light_namespaces", "_used", "_weight", "_weight_sum", "items")

    def __init__(
        self, items_max: int, bytes_max: int, light_namespaces: LightNamespaces, weight: Callable[[str], int]
    ) -> None:
        self._light_namespaces = light_namespaces
        self._weight = weight
        self._items_max = items_max
        self._bytes_max = bytes_max
        self.items = 0
        self._bytes = 0
        self._used: dict[str, list[int]] = {}
        """Entries and bytes of each namespace, and its weight when it was added."""
        self._weight_sum = 0
        """The sum of these weights, without the shard's own (the empty name)."""

    def reserve(self, namespace: str, items: int, size: int, *, force: bool) -> bool:
        """Reserve room for entries and bytes. Return False if there is none; `force` reserves it in any case."""
        used = self._used.get(namespace)
        if not force:
            weight = self._weight(namespace)
            own_items, own_bytes, _ = used or (0, 0, 0)
            if own_items + items > weight * (self._items_max - self.items - items) or (
                size and own_bytes + size > weight * (self._bytes_max - self._bytes - size)
            ):
                return False
        if used is None:
            weight = self._weight(namespace) if namespace else 0
            self._used[namespace] = [items, size, weight]
            self._weight_sum += weight
        else:
            used[0] += items
            used[1] += size
        self.items += items
        self._bytes += size
        self._light_namespaces.add(namespace, items)
        return True

    def release_reservation(self, namespace: str, items: int, size: int) -> None:
        """Give back the room of entries and bytes that no longer wait."""
        self.items -= items
        self._bytes -= size
        self._light_namespaces.add(namespace, -items)
        used = self._used[namespace]
        used[0] -= items
        used[1] -= size
        if not used[0]:
            del self._used[namespace]
            self._weight_sum -= used[2]

    def backlog(self, namespace: str) -> tuple[int, float]:
        """Return the entries of a namespace, and its part by weight among itself and all namespaces with entries."""
        used = self._used.get(namespace)
        if used is not None:
            return used[0], used[2] / self._weight_sum
        weight = self._weight(namespace)
        return 0, weight / (self._weight_sum + weight)

    def clear(self) -> None:
        self.items = 0
        self._bytes = 0
        self._used.clear()
        self._weight_sum = 0

    def check(self, used: Mapping[str, tuple[int, int]]) -> None:
        """Assert that it counts the entries and bytes that wait, which are `used` by namespace."""
        counted = {namespace: (items, size) for namespace, (items, size, _) in self._used.items()}
        assert counted == used, f"invariant 18: {counted} is reserved for what waits, which is {used}"
        totals = (sum([items for items, _ in used.values()]), sum([size for _, size in used.values()]))
        assert (self.items, self._bytes) == totals, f"invariant 18: {self.items} entries wait instead of {totals}"
        assert self._weight_sum == sum([each[2] for each in self._used.values()]), "the weights do not sum up"
