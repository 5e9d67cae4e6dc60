"""What the SQL stores share: the order of an item's columns, and rows to and from tuples.

Always true: `COLUMNS` is the order of `Row`'s fields, so a tuple read in that
order is a row's arguments. Knows nothing of dialects, tables or connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from foqs.core.flush.fence import Owner
from foqs.core.items.item import DeliveryPolicy, OrderKey, Row, State, pack_order_key
from foqs.store.port import StoreUnusable

COLUMNS: Final = (
    "id",
    "namespace",
    "topic",
    "priority",
    "deliver_after_ms",
    "enqueued_at_ms",
    "lease_ms",
    "ttl_ms",
    "expires_at_ms",
    "policy",
    "attempts_max",
    "payload_bytes",
    "payload",
    "metadata",
    "state",
    "due_ms",
    "token",
    "attempt",
)

MUTABLE_COLUMNS: Final = (
    "priority",
    "deliver_after_ms",
    "expires_at_ms",
    "metadata",
    "state",
    "due_ms",
    "token",
    "attempt",
)
"""The columns that an update writes."""

LEASE_COLUMNS: Final = ("state", "due_ms", "token", "attempt")
"""The columns that a lease writes."""

OWNER_COLUMNS: Final = ("epoch", "nonce", "flush", "clock_ms", "connection", "offset_ms")
"""The order of `Owner`'s fields."""

COLUMNS_WITH_PAYLOAD: Final = ", ".join(COLUMNS)
COLUMNS_WITHOUT_PAYLOAD: Final = ", ".join("NULL" if name == "payload" else name for name in COLUMNS)


def columns_with_payload_up_to(length: str) -> str:
    """The columns, but NULL for a payload that is longer: the database reads none of it."""
    some = f"CASE WHEN payload_bytes <= {length} THEN payload END"
    return ", ".join(some if name == "payload" else name for name in COLUMNS)


_POLICIES: Final = {int(policy): policy for policy in DeliveryPolicy}
_STATES: Final = {int(state): state for state in State}


def row_of(values: Sequence[Any]) -> Row:
    """The row of a tuple in the order of `COLUMNS`, its names already text."""
    row = Row(*values)
    row.policy = _POLICIES[row.policy]
    row.state = _STATES[row.state]
    return row


def order_keys_of(found: Iterable[tuple[int, int, int]]) -> list[OrderKey]:
    """The keys of tuples of (priority, deliver_after_ms, id)."""
    return [pack_order_key(priority, after, number) for priority, after, number in found]


def owner_of(values: Sequence[Any] | None) -> Owner:
    """The owner row of a tuple in the order of `OWNER_COLUMNS`, its nonce already text. Raises `StoreUnusable`: there is none."""
    if values is None:
        raise StoreUnusable(
            "the owner row is missing, so nobody knows who may write; bring the shard's tables back from a backup"
        )
    return Owner(*values)


def all_values(row: Row) -> tuple[int | str | bytes | None, ...]:
    """A row as a tuple in the order of `COLUMNS`."""
    return (
        row.id,
        row.namespace,
        row.topic,
        row.priority,
        row.deliver_after_ms,
        row.enqueued_at_ms,
        row.lease_ms,
        row.ttl_ms,
        row.expires_at_ms,
        int(row.policy),
        row.attempts_max,
        row.payload_bytes,
        row.payload,
        row.metadata,
        int(row.state),
        row.due_ms,
        row.token,
        row.attempt,
    )


def mutable_values(row: Row) -> tuple[int | bytes | None, ...]:
    """A row's mutable columns in the order of `MUTABLE_COLUMNS`."""
    return (
        row.priority,
        row.deliver_after_ms,
        row.expires_at_ms,
        row.metadata,
        int(row.state),
        row.due_ms,
        row.token,
        row.attempt,
    )
