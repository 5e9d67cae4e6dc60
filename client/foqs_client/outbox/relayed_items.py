"""The item that an outbox row stands for.

Always true: the item follows from the row and from nothing else, so it never changes between two sends; of a row that is no
item, as another program may write it, the item is the error with which it is parked. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

from foqs_client.errors import FoqsError
from foqs_client.outbox.new_rows import COLUMNS, check_item, check_name
from foqs_client.outbox.row_groups import OutboxRow, places_of_bytes
from foqs_client.types import Item
from foqs_contract.key_slots import KEY_SLOT_COUNT

READ_COLUMNS: Final = ("id", *COLUMNS)
"""What a relay reads of a row, in order."""
_PAYLOAD_BYTES_MAX: Final = 1 << 31
"""The namespace has the limit."""


def outbox_row(values: Sequence[Any], *, may_be_queued: bool = False) -> OutboxRow:
    """Return the row of the values of `READ_COLUMNS`. Its item is an `Item`, or a FoqsError that names the column."""
    row = dict(zip(READ_COLUMNS, values, strict=True))
    group, payload = row["row_group"], row["payload"]
    places = places_of_bytes(len(payload) if isinstance(payload, bytes | bytearray | memoryview | str) else 0)
    try:
        check_name(row["event_id"], "event_id")
        if group is not None:
            check_name(group, "row_group")
        item = _item(row)
        check_item(item, _PAYLOAD_BYTES_MAX)
    except FoqsError as error:
        return OutboxRow(row["id"], group if isinstance(group, str) else None, error, may_be_queued, places)
    return OutboxRow(row["id"], group, item, may_be_queued, places)


def _item(row: dict[str, Any]) -> Item:
    return Item(
        row["topic"],
        _bytes(row["payload"]),
        priority=row["priority"],
        metadata=_bytes(row["metadata"] or b""),
        delay_ms=row["delay_ms"],
        deliver_after_ms=row["deliver_after_ms"],
        lease_ms=row["lease_ms"],
        ttl_ms=row["ttl_ms"],
        at_most_once=bool(row["at_most_once"]),
        attempts_max=row["attempts_max"],
        idempotency_key=row["idempotency_key"] or _key(row["event_id"], row["row_group"]),
        trace_context=None if row["trace_context"] is None else _bytes(row["trace_context"]),
    )


def _bytes(value: Any) -> Any:
    """Return bytes as a driver gives them. On SQLite a column may hold what is none; `check_item` refuses it."""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else value


def _key(event_id: str, row_group: str | None) -> str:
    """Return the key that a row gets. All rows of a group have one slot, so they meet one shard."""
    slot = crc32((row_group or event_id).encode()) % KEY_SLOT_COUNT
    return f"~{slot:03x}{event_id}"
