"""The item that an outbox row stands for.

Always true: the item follows from the row and from nothing else, so it never changes between two sends. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

from foqs_client.outbox.new_rows import COLUMNS
from foqs_client.outbox.row_groups import OutboxRow
from foqs_client.types import Item
from foqs_contract.key_slots import KEY_SLOT_COUNT

READ_COLUMNS: Final = ("id", *COLUMNS)
"""What a relay reads of a row, in order."""


def outbox_row(values: Sequence[Any], *, may_be_queued: bool = False) -> OutboxRow:
    """Return the row of the values of `READ_COLUMNS`."""
    row = dict(zip(READ_COLUMNS, values, strict=True))
    return OutboxRow(row["id"], row["row_group"], _item(row), may_be_queued=may_be_queued)


def _item(row: dict[str, Any]) -> Item:
    return Item(
        row["topic"],
        bytes(row["payload"]),
        priority=row["priority"],
        metadata=bytes(row["metadata"] or b""),
        delay_ms=row["delay_ms"],
        deliver_after_ms=row["deliver_after_ms"],
        lease_ms=row["lease_ms"],
        ttl_ms=row["ttl_ms"],
        at_most_once=bool(row["at_most_once"]),
        attempts_max=row["attempts_max"],
        idempotency_key=row["idempotency_key"] or _key(row["event_id"], row["row_group"]),
        trace_context=None if row["trace_context"] is None else bytes(row["trace_context"]),
    )


def _key(event_id: str, row_group: str | None) -> str:
    """Return the key that a row gets. All rows of a group have one slot, so they meet one shard."""
    slot = crc32((row_group or event_id).encode()) % KEY_SLOT_COUNT
    return f"~{slot:03x}{event_id}"
