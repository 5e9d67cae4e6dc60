"""The conversion between rows and tuples, for all SQL stores.

Always true: `COLUMNS` is the order of `Row`'s fields, so a tuple read in that
order is a row's arguments. Knows nothing of dialects, tables or connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from foqs.core.flush.fence import Fence, Owner
from foqs.core.flush.writes import LeaseUpdate
from foqs.core.items.item import DeliveryPolicy, OrderKey, Row, State, pack_order_key
from foqs.store.port import IdPage, IdRange, LeaseEnd, StoreUnusable
from foqs.store.row_columns import COLUMNS, FIRST_LEASE_COLUMNS, LEASE_COLUMNS

OWNER_COLUMNS: Final = tuple(field.name for field in fields(Owner))
"""The order of `Owner`'s fields."""

FENCE_COLUMNS: Final = tuple(field.name for field in fields(Fence) if field.name not in ("epoch", "nonce"))
"""The columns of the owner row that a flush writes."""

KEY_COLUMNS: Final = ("namespace", "name", "id", "digest", "until_ms")
"""The order of `IdempotencyKey`'s fields."""

COLUMNS_WITH_PAYLOAD: Final = ", ".join(COLUMNS)
COLUMNS_WITHOUT_PAYLOAD: Final = ", ".join("NULL" if name == "payload" else name for name in COLUMNS)


def columns_with_payload_up_to(length: str) -> str:
    """Return the columns, with NULL for a longer payload, so that the database does not read it."""
    payload = f"CASE WHEN payload_bytes <= {length} THEN payload END"
    return ", ".join(payload if name == "payload" else name for name in COLUMNS)


POLICIES: Final = {int(policy): policy for policy in DeliveryPolicy}
STATES: Final = {int(state): state for state in State}


# columns: begin tuples
def row_of(values: Sequence[Any]) -> Row:
    """Make a row from a tuple in the order of `COLUMNS`, whose names are text already."""
    # Converted first, because a compiled `Row` checks the types of its fields. Named, because that is fastest.
    (
        id,
        namespace,
        topic,
        priority,
        deliver_after_ms,
        enqueued_at_ms,
        lease_ms,
        ttl_ms,
        expires_at_ms,
        policy,
        attempts_max,
        payload_bytes,
        payload,
        metadata,
        state,
        due_ms,
        token,
        attempt,
        trace_context,
        first_delivered_at_ms,
        item_group,
    ) = values
    return Row(
        id,
        namespace,
        topic,
        priority,
        deliver_after_ms,
        enqueued_at_ms,
        lease_ms,
        ttl_ms,
        expires_at_ms,
        POLICIES[policy],
        attempts_max,
        payload_bytes,
        payload,
        metadata,
        STATES[state],
        due_ms,
        token,
        attempt,
        trace_context,
        first_delivered_at_ms,
        item_group,
    )


def all_values(row: Row) -> tuple[int | str | bytes | None, ...]:
    """Return a row as a tuple in the order of `COLUMNS`."""
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
        row.trace_context,
        row.first_delivered_at_ms,
        row.item_group,
    )


def mutable_values(row: Row) -> tuple[int | str | bytes | None, ...]:
    """Return a row's mutable columns in the order of `MUTABLE_COLUMNS`."""
    return (
        row.priority,
        row.deliver_after_ms,
        row.expires_at_ms,
        row.metadata,
        int(row.state),
        row.due_ms,
        row.token,
        row.attempt,
        row.first_delivered_at_ms,
    )


# columns: end


def lease_columns(lease: LeaseUpdate) -> tuple[str, ...]:
    """Return the columns that a lease writes. The fields of `LeaseUpdate` have their names."""
    return LEASE_COLUMNS if lease.first_delivered_at_ms is None else FIRST_LEASE_COLUMNS


fence_values: Final = attrgetter(*FENCE_COLUMNS)
"""Returns a fence as a tuple in the order of `FENCE_COLUMNS`."""


def order_keys_of(found: Iterable[tuple[int, int, int]]) -> list[OrderKey]:
    """Make order keys from tuples of (priority, deliver_after_ms, id)."""
    return [pack_order_key(priority, after, number) for priority, after, number in found]


def lease_ends_of(found: Iterable[tuple[int, int, int, int | None]]) -> list[LeaseEnd]:
    """Make lease ends from tuples of (priority, deliver_after_ms, id, due_ms)."""
    return [
        (pack_order_key(priority, after, number), due_ms)
        for priority, after, number, due_ms in found
        if due_ms is not None
    ]


def id_page(rows: list[Row], ids: IdRange, read_count: int, last_read: int | None) -> IdPage:
    """Make a page by id of its rows, the number of rows that were read, and the last id of those."""
    if len(rows) == ids.limit:
        return IdPage(rows, rows[-1].id)
    return IdPage(rows, last_read if read_count == ids.rows_max else None)


def owner_of(values: Sequence[Any] | None) -> Owner:
    """Make the owner row from a tuple in the order of `OWNER_COLUMNS`, whose nonce is text already.

    Raises:
        StoreUnusable: `values` is None.
    """
    if values is None:
        raise StoreUnusable(
            "the owner row is missing, so no host can own the shard; restore the shard's tables from a backup"
        )
    return Owner(*values)
