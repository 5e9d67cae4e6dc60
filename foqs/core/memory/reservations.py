"""The memory budgets for cached rows, which all row caches of a host share.

A budget counts bytes and rows and never exceeds its limits. The budgets for written
and for prefetched rows also divide their room among namespaces. Knows sizes, not
which rows are held, nor where.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Self

from foqs.core.items.item import Row

ROW_BYTES: Final = 512
"""The size of a row in memory, without payload, metadata and trace context."""

_ROWS_PER_MIB: Final = 800
"""Rows that a MiB of a budget may hold: fewer than fit if they are small, as each row also costs time and an entry of an index."""

_FIRST_GUESS_BYTES: Final = 2_048
"""The assumed size of a row in a namespace of which no row was read yet."""

_NAMES_MAX: Final = 10_000
"""The longest payload is remembered for at most this many namespaces."""

_ACTIVE_S: Final = 1.0
"""A namespace counts as active for this time after it asked for room."""


def size_of(rows: Collection[Row]) -> int:
    """Return the bytes that these rows take in memory."""
    content = sum([len(row.metadata) if row.payload is None else len(row.metadata) + len(row.payload) for row in rows])
    content += sum([len(row.trace_context) for row in rows if row.trace_context is not None])
    content += sum([len(row.item_group) for row in rows if row.item_group is not None])
    return ROW_BYTES * len(rows) + content


@dataclass(slots=True, frozen=True)
class CacheLimits:
    """The limits of the row caches of a host, all together."""

    written_bytes_max: int
    written_items_max: int
    prefetched_bytes_max: int
    prefetched_items_max: int

    @classmethod
    def of_bytes(cls, written_bytes_max: int, prefetched_bytes_max: int) -> Self:
        """Return the limits of budgets of these bytes."""
        items = [bytes_max * _ROWS_PER_MIB >> 20 for bytes_max in (written_bytes_max, prefetched_bytes_max)]
        return cls(written_bytes_max, items[0], prefetched_bytes_max, items[1])


class Budget:
    """The room for rows, `bytes_max` and `items_max`, and how much of it is in use, `bytes` and `items`."""

    def __init__(self, bytes_max: int, items_max: int) -> None:
        self.bytes_max: Final = bytes_max
        self.items_max: Final = items_max
        self.bytes = 0
        self.items = 0

    def fits(self, items: int, size: int) -> bool:
        """Return whether `items` more rows of `size` bytes in total fit."""
        return self.items + items <= self.items_max and self.bytes + size <= self.bytes_max

    def rows_that_fit(self, rows: list[Row], size: int) -> list[Row]:
        """Return the rows that fit, chosen in order. `size` is the total size of `rows`."""
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
        """Return the rows that fit, of rows that are not in the cache yet."""
        return self.rows_that_fit(rows, size)

    def add(self, rows: list[Row], size: int) -> None:
        """Count rows of `size` bytes in total, which must fit."""
        self.items += len(rows)
        self.bytes += size

    def remove(self, rows: list[Row], size: int) -> None:
        """Release the room of rows of `size` bytes in total."""
        self.items -= len(rows)
        self.bytes -= size


class _DividedBudget(Budget):
    """A budget that is counted by namespace."""

    def add(self, rows: list[Row], size: int) -> None:
        self._change_by_namespace(rows, size, 1)

    def remove(self, rows: list[Row], size: int) -> None:
        self._change_by_namespace(rows, size, -1)

    def _change_by_namespace(self, rows: list[Row], size: int, sign: int) -> None:
        groups = _group_by_namespace(rows)
        for namespace, group in groups.items():
            group_size = size if len(groups) == 1 else size_of(group)
            self._change_namespace(namespace, sign * len(group), sign * group_size)

    def _change_namespace(self, namespace: str, items: int, size: int) -> None:
        """Add rows and bytes to the use of a namespace; negative numbers subtract."""
        self.items += items
        self.bytes += size


class WrittenRowsBudget(_DividedBudget):
    """The budget for rows just written, divided among the namespaces that have some.

    A namespace may hold as much as is left free, so a single one gets half of it.
    Thus items that no consumer dequeues leave room for the items of others.
    """

    def __init__(self, bytes_max: int, items_max: int) -> None:
        super().__init__(bytes_max, items_max)
        self._held: dict[str, tuple[int, int]] = {}
        """Rows and bytes of each namespace."""

    def new_rows_that_fit(self, rows: list[Row], size: int) -> list[Row]:
        groups = _group_by_namespace(rows)
        if len(groups) == 1:
            return self._namespace_rows_that_fit(rows, size, 0, 0)
        all_fitting: list[Row] = []
        size = 0
        for group in groups.values():
            fitting = self._namespace_rows_that_fit(group, size_of(group), len(all_fitting), size)
            all_fitting += fitting
            size += size_of(fitting)
        return all_fitting

    def _namespace_rows_that_fit(self, rows: list[Row], size: int, other_items: int, other_size: int) -> list[Row]:
        """Return the rows of one namespace that fit beside others that are about to be added."""
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
    """The longest known payload of each namespace, even if its present limit is lower.

    A row that is not cached is assumed to have a payload of this length until it is read.
    A length only grows while the namespace exists. All are forgotten if there are too many.
    """

    def __init__(self) -> None:
        self._payload_bytes: dict[str, int] = {}

    def payload_bytes_max(self, namespace: str) -> int:
        """Return the longest known payload of a namespace; 0 if none is known."""
        return self._payload_bytes.get(namespace, 0)

    def forget(self, namespace: str) -> None:
        """Forget a namespace that was deleted."""
        self._payload_bytes.pop(namespace, None)

    def record(self, namespace: str, payload_bytes: int) -> None:
        """Record that the namespace has, or may have, a payload of this length."""
        if payload_bytes > self._payload_bytes.get(namespace, 0):
            if len(self._payload_bytes) >= _NAMES_MAX:
                self._payload_bytes.clear()
            self._payload_bytes[namespace] = payload_bytes


class _Tenant:
    """The use of the budget by one namespace, reservations included, and the time of its last request."""

    __slots__ = ("bytes", "items", "last_request_s", "row_bytes", "weight")

    def __init__(self) -> None:
        self.bytes = 0
        self.items = 0
        self.weight = 0.0
        self.last_request_s = 0.0
        self.row_bytes = _FIRST_GUESS_BYTES


class PrefetchBudget(_DividedBudget):
    """The budget for prefetched rows, divided among the namespaces that hold or want some.

    Half of it is first come, first served. From the other half, a namespace may fill
    up its share by weight among the namespaces that hold rows or asked recently. So a
    single namespace may use all of it, and a later one gets its share as soon as rows
    of the others are removed.
    """

    def __init__(self, bytes_max: int, items_max: int) -> None:
        super().__init__(bytes_max, items_max)
        self._tenants: dict[str, _Tenant] = {}
        self._tenants_max = 64
        """Above this count, inactive tenants are dropped."""

    @property
    def namespace_count(self) -> int:
        """The count of namespaces that are remembered."""
        return len(self._tenants)

    def reserve(self, namespace: str, weight: float, items: int, now_s: float) -> tuple[int, int]:
        """Reserve room for rows to be read. `weight` is above 0; `now_s` never goes back.

        Returns:
            (rows, bytes): how many of the `items` to read, and the bytes to give to `release_reservation`.
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
        # A namespace without rows may try one, which may be smaller than those before.
        fitting = room_bytes // tenant.row_bytes or int(room_bytes > 0 and not tenant.items)
        count = max(0, min(items, room_items, fitting))
        size = min(count * tenant.row_bytes, room_bytes) if count else 0
        self._change_tenant(tenant, count, size)
        return count, size

    def release_reservation(self, namespace: str, items: int, size: int) -> None:
        """Release what `reserve` reserved."""
        self._change_tenant(self._tenants[namespace], -items, -size)

    def learn_row_bytes(self, namespace: str, rows: Collection[Row]) -> None:
        """Learn the mean size of rows that were read, with payload or without. The next ones are assumed to be as large."""
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
    # Usually all rows are of one namespace.
    namespaces = {row.namespace for row in rows}
    if len(namespaces) == 1:
        return {namespaces.pop(): rows}
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.namespace, []).append(row)
    return groups


def _available(limit: int, used: int, fraction: float, own: int) -> int:
    """Return how much of `limit` a namespace that holds `own` and has a share of `fraction` may still get."""
    free = limit - used
    return min(free, max(free - limit // 2, int(limit * fraction) - own))
