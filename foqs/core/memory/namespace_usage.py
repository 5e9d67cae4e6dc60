"""The usage of a shard by each namespace: items in any state, and their payload bytes.

Counts committed changes. Until `add_initial` has added all that was there before the
first change, it holds the changes only and may be negative. `lower_bound` never
exceeds the true usage, so a refusal that is based on it is justified.
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
    """Items and bytes by namespace. A namespace with neither is forgotten."""

    def __init__(self) -> None:
        self._usage: dict[str, list[int]] = {}

    def lower_bound(self, namespace: str) -> tuple[int, int]:
        """Return the (items, bytes) that the namespace has at least. Exact once the initial usage is added."""
        items, size = self._usage.get(namespace, (0, 0))
        return max(0, items), max(0, size)

    def on_rows_inserted(self, rows: Sequence[Row]) -> None:
        """Count committed new rows."""
        self._change(rows, 1)

    def on_rows_deleted(self, rows: Sequence[Row]) -> None:
        """Subtract rows whose deletion is committed."""
        self._change(rows, -1)

    def add_initial(self, usage: Iterable[tuple[str, int, int]]) -> None:
        """Add (namespace, items, bytes) as the table held them before the first change. A namespace may occur repeatedly."""
        for namespace, items, size in usage:
            self._add(namespace, items, size)

    def restart_initial(self) -> None:
        """Start again from the present table: `add_initial` will add what it holds now."""
        self._usage.clear()

    def _change(self, rows: Sequence[Row], sign: int) -> None:
        namespaces = set(map(_NAMESPACE, rows))
        if len(namespaces) == 1:
            self._add(namespaces.pop(), sign * len(rows), sign * sum(map(_BYTES, rows)))
            return
        items: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for row in rows:
            items[row.namespace] += 1
            sizes[row.namespace] += row.payload_bytes
        for namespace, count in items.items():
            self._add(namespace, sign * count, sign * sizes[namespace])

    def _add(self, namespace: str, items: int, size: int) -> None:
        usage = self._usage.get(namespace)
        if usage is None:
            usage = self._usage[namespace] = [0, 0]
        usage[0] += items
        usage[1] += size
        if not usage[0] and not usage[1]:
            del self._usage[namespace]
