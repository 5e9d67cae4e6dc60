"""How much room remembered rows may take, over all the caches that share it.

A budget counts bytes and rows and never holds more than its limits. That for
rows just written and that for rows loaded ahead also divide their room between
namespaces. Knows sizes, not which rows are held, nor where.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from foqs.core.items.item import Row

ROW_BYTES: Final = 512
"""What a row costs in memory, besides payload and metadata."""

_FIRST_GUESS_BYTES: Final = 2_048
"""What a row is taken for in a namespace of which none was loaded yet."""

_NAMES_MAX: Final = 10_000
"""So many namespaces have their longest payload remembered."""

_ACTIVE_S: Final = 1.0
"""A namespace that asked for room counts for so long."""


def size_of(rows: Collection[Row]) -> int:
    """The bytes that these rows take, as far as their payload is here."""
    content = sum([len(row.metadata) if row.payload is None else len(row.metadata) + len(row.payload) for row in rows])
    return ROW_BYTES * len(rows) + content


class Budget:
    """At most `bytes_max` bytes and `items_max` rows; `bytes` and `items` are what is held of them."""

    def __init__(self, bytes_max: int, items_max: int) -> None:
        self.bytes_max: Final = bytes_max
        self.items_max: Final = items_max
        self.bytes = 0
        self.items = 0

    def fits(self, items: int, size: int) -> bool:
        """Whether so many rows of `size` bytes altogether have room."""
        return self.items + items <= self.items_max and self.bytes + size <= self.bytes_max

    def rows_that_fit(self, rows: list[Row], size: int) -> list[Row]:
        """Of rows of `size` bytes altogether, those that have room when each is taken in that fits beside the ones before it."""
        if self.fits(len(rows), size):
            return rows
        fitting: list[Row] = []
        size = 0
        for row in rows:
            row_size = size_of((row,))
            if self.fits(len(fitting) + 1, size + row_size):
                fitting.append(row)
                size += row_size
        return fitting

    def new_rows_that_fit(self, rows: list[Row], size: int) -> list[Row]:
        """As `fitting`, of rows that were not held yet."""
        return self.rows_that_fit(rows, size)

    def add(self, rows: list[Row], size: int) -> None:
        """Takes in rows of `size` bytes altogether, which fit."""
        self.items += len(rows)
        self.bytes += size

    def remove(self, rows: list[Row], size: int) -> None:
        """Gives back the room of rows of `size` bytes altogether."""
        self.items -= len(rows)
        self.bytes -= size


class _DividedBudget(Budget):
    """A budget that knows what each namespace holds."""

    def add(self, rows: list[Row], size: int) -> None:
        self._change_by_namespace(rows, size, 1)

    def remove(self, rows: list[Row], size: int) -> None:
        self._change_by_namespace(rows, size, -1)

    def _change_by_namespace(self, rows: list[Row], size: int, sign: int) -> None:
        parts = _group_by_namespace(rows)
        for name, part in parts.items():
            part_size = size if len(parts) == 1 else size_of(part)
            self._change_namespace(name, sign * len(part), sign * part_size)

    def _change_namespace(self, namespace: str, items: int, size: int) -> None:
        """The namespace holds so much more, or less."""
        self.items += items
        self.bytes += size


class WrittenRowsBudget(_DividedBudget):
    """A budget for rows just written, divided between the namespaces that hold something.

    A namespace may hold as much as is left free, so one alone has half of it:
    items that nobody takes keep no room from those of others.
    """

    def __init__(self, bytes_max: int, items_max: int) -> None:
        super().__init__(bytes_max, items_max)
        self._held: dict[str, tuple[int, int]] = {}
        """Rows and bytes of each namespace."""

    def new_rows_that_fit(self, rows: list[Row], size: int) -> list[Row]:
        parts = _group_by_namespace(rows)
        if len(parts) == 1:
            return self._namespace_rows_that_fit(rows, size, 0, 0)
        admitted: list[Row] = []
        size = 0
        for part in parts.values():
            taken = self._namespace_rows_that_fit(part, size_of(part), len(admitted), size)
            admitted += taken
            size += size_of(taken)
        return admitted

    def _namespace_rows_that_fit(self, rows: list[Row], size: int, other_items: int, other_size: int) -> list[Row]:
        """Those of a namespace's rows that have room, beside so many others that are about to enter."""
        own, own_bytes = self._held.get(rows[0].namespace, (0, 0))
        items_max = self.items_max - self.items - other_items - own
        bytes_max = self.bytes_max - self.bytes - other_size - own_bytes
        return Budget(bytes_max // 2, items_max // 2).rows_that_fit(rows, size)

    def _change_namespace(self, namespace: str, items: int, size: int) -> None:
        super()._change_namespace(namespace, items, size)
        held, held_bytes = self._held.get(namespace, (0, 0))
        if held + items:
            self._held[namespace] = held + items, held_bytes + size
        else:
            del self._held[namespace]


class LongestPayloads:
    """The longest payload that is known of each namespace, however short its new ones must be now.

    What is not remembered cannot be weighed before it is read: it is taken to be as
    long as this. It only grows while the namespace lives; all is forgotten when there are too many names.
    """

    def __init__(self) -> None:
        self._payload_bytes: dict[str, int] = {}

    def payload_bytes_max(self, namespace: str) -> int:
        """0 when nothing is known."""
        return self._payload_bytes.get(namespace, 0)

    def forget(self, namespace: str) -> None:
        """Drops what is known: the namespace was deleted, and holds nothing."""
        self._payload_bytes.pop(namespace, None)

    def record(self, namespace: str, payload_bytes: int) -> None:
        """Notes that the namespace holds, or may hold, such a payload."""
        if payload_bytes > self._payload_bytes.get(namespace, 0):
            if len(self._payload_bytes) >= _NAMES_MAX:
                self._payload_bytes.clear()
            self._payload_bytes[namespace] = payload_bytes


class _Tenant:
    """What a namespace holds, set aside room included, and when it asked last."""

    __slots__ = ("bytes", "items", "last_request_s", "row_bytes", "weight")

    def __init__(self) -> None:
        self.bytes = 0
        self.items = 0
        self.weight = 0.0
        self.last_request_s = 0.0
        self.row_bytes = _FIRST_GUESS_BYTES


class PrefetchBudget(_DividedBudget):
    """A budget for rows loaded ahead, divided between the namespaces that hold or want something.

    Half of it is for whoever comes first. Of the rest a namespace gets what it
    lacks of its share, by weight, among those that hold something or asked a
    moment ago. So one that is alone may have everything, and one that comes
    later gets its share as soon as rows of the others go.
    """

    def __init__(self, bytes_max: int, items_max: int) -> None:
        super().__init__(bytes_max, items_max)
        self._tenants: dict[str, _Tenant] = {}
        self._tenants_max = 64
        """When there are more, those that count no longer go."""

    @property
    def namespace_count(self) -> int:
        """How many namespaces are known."""
        return len(self._tenants)

    def reserve(self, namespace: str, weight: float, items: int, now_s: float) -> tuple[int, int]:
        """Sets room aside for rows to be read. `weight` is above 0; `now_s` never goes back.

        Returns:
            (rows, bytes): how many of the `items` to read; what is set aside, to be given to `release`.
        """
        tenant = self._tenants.get(namespace) or self._add_tenant(namespace, now_s)
        tenant.weight = weight
        tenant.last_request_s = now_s
        since_s = now_s - _ACTIVE_S
        weights = sum(
            [other.weight for other in self._tenants.values() if other.items or other.last_request_s > since_s]
        )
        part = weight / weights
        room_items = _available(self.items_max, self.items, part, tenant.items)
        room_bytes = _available(self.bytes_max, self.bytes, part, tenant.bytes)
        # Whoever holds nothing may try one row: it may be smaller than those seen before.
        fitting = room_bytes // tenant.row_bytes or int(room_bytes > 0 and not tenant.items)
        count = max(0, min(items, room_items, fitting))
        size = min(count * tenant.row_bytes, room_bytes) if count else 0
        self._change_tenant(tenant, count, size)
        return count, size

    def release_reservation(self, namespace: str, items: int, size: int) -> None:
        """Gives back what `claim` set aside."""
        self._change_tenant(self._tenants[namespace], -items, -size)

    def learn_row_bytes(self, namespace: str, rows: Collection[Row]) -> None:
        """These were read, with payload or without: the next ones of the namespace are taken to be as large."""
        tenant = self._tenants.get(namespace)
        if rows and tenant is not None:
            unread = sum([row.payload_bytes for row in rows if row.payload is None])
            tenant.row_bytes = (size_of(rows) + unread) // len(rows)

    def _change_namespace(self, namespace: str, items: int, size: int) -> None:
        self._change_tenant(self._tenants.get(namespace) or self._add_tenant(namespace, 0.0), items, size)

    def _change_tenant(self, tenant: _Tenant, items: int, size: int) -> None:
        tenant.items += items
        tenant.bytes += size
        self.items += items
        self.bytes += size

    def _add_tenant(self, namespace: str, now_s: float) -> _Tenant:
        if len(self._tenants) >= self._tenants_max:
            since_s = now_s - _ACTIVE_S
            self._tenants = {
                name: tenant
                for name, tenant in self._tenants.items()
                if tenant.items or tenant.last_request_s > since_s
            }
            self._tenants_max = 64 + 2 * len(self._tenants)
        tenant = self._tenants[namespace] = _Tenant()
        return tenant


def _group_by_namespace(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows in groups; mostly all are of one namespace."""
    names = {row.namespace for row in rows}
    if len(names) == 1:
        return {names.pop(): rows}
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row.namespace, []).append(row)
    return parts


def _available(limit: int, used: int, fraction: float, own: int) -> int:
    """What of `limit` somebody may still get who holds `own` of it and whose share is `fraction`."""
    free = limit - used
    return min(free, max(free - limit // 2, int(limit * fraction) - own))
