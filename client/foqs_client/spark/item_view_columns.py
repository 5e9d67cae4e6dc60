"""The columns of the items that a job reads, and their values.

Holds the columns of batches and streams, `view_values` and `delivery_values`. Always
true: moments are microseconds since 1970-01-01 UTC, in a batch on the clock of the
item's shard; durations are whole milliseconds. Pure; types have their names in Spark's DDL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from foqs_client.types import Delivery, ItemView

_ITEM: Final = {
    "id": "string",
    "shard": "int",
    "topic": "string",
    "state": "string",
    "priority": "int",
    "attempt": "int",
    "enqueued_at": "timestamp",
    "due_at": "timestamp",
    "lease_until": "timestamp",
    "age": "bigint",
    "payload_bytes": "int",
    "metadata": "binary",
    "dead_reason": "string",
}
_PAYLOAD: Final = {"payload": "binary"}
_DETAILS: Final = {
    "idempotency_key": "string",
    "ttl_remaining": "bigint",
    "lease": "bigint",
    "attempts_max": "int",
    "at_most_once": "boolean",
    "trace_context": "binary",
    "item_group": "string",
}


def batch_columns(*, payload: bool, details: bool) -> dict[str, str]:
    """Return the columns of a read: name and type."""
    return {**_ITEM, **(_PAYLOAD if payload else {}), **(_DETAILS if details else {})}


BATCH_COLUMNS: Final[Mapping[str, str]] = batch_columns(payload=True, details=True)
"""All columns that a read may have."""


STREAM_COLUMNS: Final[Mapping[str, str]] = {
    "id": "string",
    "shard": "int",
    "topic": "string",
    "priority": "int",
    "attempt": "int",
    "enqueued_at": "timestamp",
    "payload_bytes": "int",
    "metadata": "binary",
    "payload": "binary",
    "trace_context": "binary",
    "item_group": "string",
}
"""The columns of a stream."""


def ddl(columns: Mapping[str, str]) -> str:
    """Return columns as Spark's DDL."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _moment_after(now_us: int, remaining_ms: int | None) -> int | None:
    return None if remaining_ms is None else now_us + 1_000 * remaining_ms


_VALUES: Final[Mapping[str, Callable[[ItemView, int], Any]]] = {
    "shard": lambda view, now_us: int(view.id.partition("-")[0]),
    "enqueued_at": lambda view, now_us: now_us - 1_000 * (view.age_ms or 0),
    "due_at": lambda view, now_us: _moment_after(now_us, view.due_in_ms),
    "lease_until": lambda view, now_us: _moment_after(now_us, view.lease_remaining_ms),
    "age": lambda view, now_us: view.age_ms,
    "metadata": lambda view, now_us: view.metadata or b"",
    "ttl_remaining": lambda view, now_us: view.ttl_remaining_ms,
    "lease": lambda view, now_us: view.lease_ms,
    "item_group": lambda view, now_us: view.group,  # `group` is a word of SQL
}
"""How a value follows from an item and the time of its shard in microseconds; others are attributes of the item."""


def delivery_values(deliveries: Sequence[Delivery], now_ms: int) -> list[list[Any]]:
    """Return the values of each column of a stream, for items that were delivered at `now_ms`."""
    return [
        [each.id for each in deliveries],
        [int(each.id.partition("-")[0]) for each in deliveries],
        [each.topic for each in deliveries],
        [each.priority for each in deliveries],
        [each.attempt for each in deliveries],
        [1_000 * (now_ms - each.age_ms) for each in deliveries],
        [len(each.payload) for each in deliveries],
        [each.metadata for each in deliveries],
        [each.payload for each in deliveries],
        [each.trace_context for each in deliveries],
        [each.group for each in deliveries],
    ]


def view_values(views: Sequence[ItemView], now_ms: int, names: Sequence[str]) -> list[list[Any]]:
    """Return the values of each column, for items that were read at `now_ms` of their shard's clock."""
    now_us = 1_000 * now_ms
    return [
        [_VALUES[name](view, now_us) for view in views] if name in _VALUES else [getattr(view, name) for view in views]
        for name in names
    ]
