"""The rows that an enqueue adds to an outbox: their columns, checked.

Holds `new_rows`. Always true: a row with a field that every host refuses is refused here, in the user's
transaction; each row has a random name of its own, of which its idempotency key is made. Pure, but for that name.
Knows no namespace and no clock: a lease above `lease_ms_max`, or a TTL that ends before `deliver_after_ms`, is found by
the host, and the row is parked.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

from foqs_client.errors import InvalidArgument, LimitExceeded
from foqs_client.types import Item
from foqs_contract.size_ceilings import METADATA_BYTES_CEILING

ENQUEUE_ROWS_MAX: Final = 10_000
"""Rows of one enqueue."""
PAYLOAD_BYTES_MAX: Final = 10_240
"""What a namespace allows unless it is set."""
NAME_BYTES_MAX: Final = 255
TRACE_CONTEXT_BYTES_MAX: Final = 512
TIME_MS_MAX: Final = 253_402_300_799_999
I32_MAX: Final = (1 << 31) - 1

COLUMNS: Final = (
    "event_id",
    "topic",
    "row_group",
    "payload",
    "priority",
    "metadata",
    "delay_ms",
    "deliver_after_ms",
    "lease_ms",
    "ttl_ms",
    "attempts_max",
    "at_most_once",
    "idempotency_key",
    "trace_context",
)
"""What an enqueue gives. The database gives the others."""

_NUMBERS: Final = (
    ("priority", -I32_MAX - 1, I32_MAX),
    ("delay_ms", 0, TIME_MS_MAX),
    ("deliver_after_ms", -TIME_MS_MAX, TIME_MS_MAX),
    ("lease_ms", 1, TIME_MS_MAX),
    ("ttl_ms", 1, TIME_MS_MAX),
    ("attempts_max", 0, I32_MAX),
)


def new_rows(
    items: Sequence[Item],
    row_groups: Sequence[str | None] | None,
    payload_bytes_max: int,
    event_ids: Sequence[str] | None = None,
) -> list[tuple[Any, ...]]:
    """Return the values of `COLUMNS` for each item.

    Args:
        event_ids: for each item, a random name of 32 hexadecimal digits that was not used yet. None: they are made here.

    Raises:
        InvalidArgument, LimitExceeded: an item is wrong; `field` names it.
    """
    if len(items) > ENQUEUE_ROWS_MAX:
        raise LimitExceeded(
            f"there are {len(items)} items; one call may have at most {ENQUEUE_ROWS_MAX}; make several calls",
            field="items",
        )
    groups = [None] * len(items) if row_groups is None else row_groups
    if len(groups) != len(items):
        raise InvalidArgument(
            f"there are {len(groups)} row groups for {len(items)} items; give one for each item, or None",
            field="row_groups",
        )
    names = [uuid.uuid4().hex for _ in items] if event_ids is None else event_ids
    return [
        _new_row(item, name, group, place, payload_bytes_max)
        for place, (item, name, group) in enumerate(zip(items, names, groups, strict=True))
    ]


def _new_row(item: Item, event_id: str, row_group: str | None, place: int, payload_bytes_max: int) -> tuple[Any, ...]:
    path = f"items[{place}]."
    check_item(item, payload_bytes_max, path)
    if row_group is not None:
        check_name(row_group, f"row_groups[{place}]")
        if item.idempotency_key is not None:
            raise InvalidArgument(
                "an item with a row group has the key of its row; leave out one of the two",
                field=f"{path}idempotency_key",
            )
    if item.group is not None:
        raise InvalidArgument("an outbox has no groups of items yet; give a row group", field=f"{path}group")
    return (
        event_id,
        item.topic,
        row_group,
        item.payload,
        item.priority,
        item.metadata or None,
        item.delay_ms,
        item.deliver_after_ms,
        item.lease_ms,
        item.ttl_ms,
        item.attempts_max,
        int(item.at_most_once),
        item.idempotency_key,
        item.trace_context,
    )


def check_item(item: Item, payload_bytes_max: int, path: str = "") -> None:
    """Raise InvalidArgument or LimitExceeded for an item that every host refuses. Its `field` begins with `path`."""
    check_name(item.topic, f"{path}topic")
    _check_bytes(item.payload, payload_bytes_max, f"{path}payload")
    _check_bytes(item.metadata, METADATA_BYTES_CEILING, f"{path}metadata")
    if item.trace_context is not None:
        _check_bytes(item.trace_context, TRACE_CONTEXT_BYTES_MAX, f"{path}trace_context")
    if item.idempotency_key is not None:
        check_name(item.idempotency_key, f"{path}idempotency_key")
    for name, low, high in _NUMBERS:
        value = getattr(item, name)
        if value is None and name != "priority":
            continue
        if not (isinstance(value, int) and low <= value <= high):
            raise InvalidArgument(f"{value!r} is not a number from {low} to {high}", field=f"{path}{name}")
    _check_times(item, path)


def check_name(name: str, field: str) -> None:
    """Raise InvalidArgument for what cannot be a topic, a key or a row group."""
    if not (isinstance(name, str) and name and "\0" not in name and _is_short_text(name)):
        raise InvalidArgument(f"{name!r} is not 1 to {NAME_BYTES_MAX} bytes of text without NUL", field=field)


def _is_short_text(name: str) -> bool:
    try:
        return len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:  # of a lone surrogate
        return False


def _check_bytes(data: bytes, bytes_max: int, field: str) -> None:
    if not isinstance(data, bytes):
        raise InvalidArgument(f"this is {type(data).__name__}; give bytes", field=field)
    if len(data) > bytes_max:
        raise LimitExceeded(f"this has {len(data)} bytes; at most {bytes_max} are allowed; shorten it", field=field)


def _check_times(item: Item, path: str) -> None:
    if item.delay_ms is None:
        return
    if item.deliver_after_ms is not None:
        raise InvalidArgument("give either delay_ms or deliver_after_ms, not both", field=f"{path}delay_ms")
    if item.ttl_ms is not None and item.ttl_ms <= item.delay_ms:
        raise InvalidArgument(
            "the item would expire before it could be delivered; give a longer ttl_ms", field=f"{path}ttl_ms"
        )
