"""The rows of an export, as items to restore.

Holds `restored_items`. Always true: a row gives the same item and the same key whenever
it is read. Pure; a row has the columns of `item_frame.read_items` with payload and
details; moments are microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from foqs_client.types import RestoredItem


def restored_items(rows: Iterable[Mapping[str, Any]], export: str) -> tuple[list[RestoredItem], int]:
    """Return the items of these rows, and how many rows are left out because their TTL had ended.

    Args:
        export: the name of the export, at most 100 bytes: it makes the keys of items that have none.
    """
    items, expired = [], 0
    for row in rows:
        if row["ttl_remaining"] is not None and row["ttl_remaining"] <= 0:
            expired += 1
        else:
            items.append(_restored_item(row, export))
    return items, expired


def _restored_item(row: Mapping[str, Any], export: str) -> RestoredItem:
    key = row["idempotency_key"]
    # A ready item has no due time. The time of its enqueue is its place among others of its priority.
    moment_us = row["enqueued_at"] if row["due_at"] is None else row["due_at"]
    return RestoredItem(
        topic=row["topic"],
        payload=row["payload"] or b"",
        priority=row["priority"],
        metadata=row["metadata"] or b"",
        restore_key=f"{export}/{row['id']}" if key is None else None,
        idempotency_key=key,
        deliver_after_ms=moment_us // 1_000,
        lease_ms=row["lease"],
        ttl_ms=row["ttl_remaining"],
        ttl_remaining_ms=row["ttl_remaining"],
        at_most_once=bool(row["at_most_once"]),
        attempts_max=row["attempts_max"],
        attempt=row["attempt"],
        state=row["state"],
        trace_context=row["trace_context"],
        group=row.get("item_group"),  # an older export has no such column
    )
