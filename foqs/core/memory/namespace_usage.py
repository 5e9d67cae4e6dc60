"""How much each namespace has in a shard: items and bytes of payload, in whatever state.

Counted from committed changes. Until `found` has brought what was there before
the first of them, it holds the changes alone, and may be negative; what `least`
says is never more than there is, so whoever refuses by it refuses rightly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from foqs.core.items.item import Row

_NAMESPACE: Final = attrgetter("namespace")
_BYTES: Final = attrgetter("payload_bytes")


class NamespaceUsage:
    """Items and bytes by namespace. One that has neither is forgotten."""

    def __init__(self) -> None:
        self._usage: dict[str, list[int]] = {}

    def lower_bound(self, namespace: str) -> tuple[int, int]:
        """(items, bytes) that the namespace has at least; exact once `found`."""
        items, size = self._usage.get(namespace, (0, 0))
        return max(0, items), max(0, size)

    def on_rows_inserted(self, rows: Sequence[Row]) -> None:
        """New rows are committed."""
        self._change(rows, 1)

    def on_rows_deleted(self, rows: Sequence[Row]) -> None:
        """Rows are gone, committed."""
        self._change(rows, -1)

    def add_initial(self, usage: Iterable[tuple[str, int, int]]) -> None:
        """(namespace, items, bytes) that the table held before the first change; a namespace may stand in it often."""
        for namespace, items, size in usage:
            self._add(namespace, items, size)

    def restart_initial(self) -> None:
        """`found` will bring what the table holds now."""
        self._usage.clear()

    def _change(self, rows: Sequence[Row], sign: int) -> None:
        names = set(map(_NAMESPACE, rows))
        if len(names) == 1:
            self._add(names.pop(), sign * len(rows), sign * sum(map(_BYTES, rows)))
            return
        items: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for row in rows:
            items[row.namespace] += 1
            sizes[row.namespace] += row.payload_bytes
        for namespace, count in items.items():
            self._add(namespace, sign * count, sign * sizes[namespace])

    def _add(self, namespace: str, items: int, size: int) -> None:
        held = self._usage.get(namespace)
        if held is None:
            held = self._usage[namespace] = [0, 0]
        held[0] += items
        held[1] += size
        if not held[0] and not held[1]:
            del self._usage[namespace]
