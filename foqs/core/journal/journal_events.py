"""What one flush did to items, as the journal keeps it: absolute values, in the order in which replay applies them.

Always true: in one flush a number is at most once in `added`, `changed` and `ended`; a number
in `current` counts last. Pure. Knows nothing of bytes and of what an owner remembers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from foqs.core.items.item import Row, State


class Base(NamedTuple):
    """The row of an item that is not current any more, as far as others need it: counts, its timer entry and its order key."""

    namespace: str
    topic: str
    state: State
    due_ms: int | None
    payload_bytes: int
    priority: int
    deliver_after_ms: int


class Rewrite(NamedTuple):
    """The columns of a row that few events change: its place in the order, and two more."""

    priority: int
    deliver_after_ms: int
    expires_at_ms: int | None
    metadata: bytes


class ItemChange(NamedTuple):
    """The columns that an event gives an item that exists already. `rewrite` None: those are as they were."""

    number: int
    namespace: str
    topic: str
    state: State
    due_ms: int | None
    token: int
    attempt: int
    first_delivered_at_ms: int | None
    rewrite: Rewrite | None = None


@dataclass(slots=True)
class FlushEvents:
    """The events of one flush.

    Attributes:
        added: items without a row; `payload` is not among the events, but its length is.
        changed: items that exist already.
        ended: items that are gone.
        bases: the rows of those changed and ended items whose rows were current until this flush.
        current: items whose rows this flush wrote or deleted. Their events end here.
    """

    added: list[Row] = field(default_factory=list)
    changed: list[ItemChange] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    bases: dict[int, Base] = field(default_factory=dict)
    current: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.ended or self.current)


def base_of(row: Row) -> Base:
    """Return the base of an item that has this row."""
    return Base(row.namespace, row.topic, row.state, row.due_ms, row.payload_bytes, row.priority, row.deliver_after_ms)


def change_of(old: Row, new: Row) -> ItemChange:
    """Return the change from one row to another of the same item.

    An item that is READY keeps its place in the order in the change, because the next owner has to
    know it without the row.
    """
    is_rewritten = (
        new.state is State.READY
        or new.priority != old.priority
        or new.deliver_after_ms != old.deliver_after_ms
        or new.expires_at_ms != old.expires_at_ms
        or new.metadata != old.metadata
    )
    return ItemChange(
        new.id,
        new.namespace,
        new.topic,
        new.state,
        new.due_ms,
        new.token,
        new.attempt,
        new.first_delivered_at_ms,
        Rewrite(new.priority, new.deliver_after_ms, new.expires_at_ms, new.metadata) if is_rewritten else None,
    )


def merged_change(former: ItemChange, later: ItemChange) -> ItemChange:
    """Return both changes as one."""
    return later if later.rewrite is not None else later._replace(rewrite=former.rewrite)


def apply_change(row: Row, change: ItemChange) -> Row:
    """Return the item as it is now, from its row or its row before this change."""
    new = row.copy()
    new.state, new.due_ms, new.token, new.attempt = change.state, change.due_ms, change.token, change.attempt
    new.first_delivered_at_ms = change.first_delivered_at_ms
    rewrite = change.rewrite
    if rewrite is not None:
        new.priority, new.deliver_after_ms, new.expires_at_ms, new.metadata = rewrite
    return new
