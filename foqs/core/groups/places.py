"""The place of an item in the line of its group.

Always true: a place follows from the state and the attempt of a row alone, so a row that is
applied twice changes nothing. Knows no group. See docs/design/groups.md.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

from foqs.core.items.item import ORDER_KEY_BITS, OrderKey, Row, State


class GroupPlace(enum.IntEnum):
    """The places. An item without one is not in the line: it is dead, or was never delivered and is deferred."""

    WAITING = 0
    """READY, and never delivered."""
    RETURNED = 1
    """READY, and delivered before."""
    BACKING_OFF = 2
    """DEFERRED, and delivered before."""
    LEASED = 3


UNGROUPED: Final = "\0"
"""The name under which items without a group are known. No group has this name."""

_FIRST_DELIVERY: Final = 1 << ORDER_KEY_BITS
"""In a run, items that were delivered before come before all others."""
_TOKEN_SHIFT: Final = ORDER_KEY_BITS + 1

Placed: TypeAlias = tuple[GroupPlace, OrderKey]
"""The place of an item, and its order key, which has its number. Of a leased item of a strict group: its key in its run."""


def place_of(state: State, attempt: int) -> GroupPlace | None:
    """Return the place of an item; None if it is not in the line."""
    if state is State.READY:
        return GroupPlace.RETURNED if attempt else GroupPlace.WAITING
    if state is State.LEASED:
        return GroupPlace.LEASED
    return GroupPlace.BACKING_OFF if state is State.DEFERRED and attempt else None


def line_place(row: Row, *, is_strict: bool) -> Placed | None:
    """Return the place and the key of a row's item as a shard needs them.

    Only a strict group has items that were delivered before come first. In other groups those that are READY wait alike.
    """
    if is_strict and row.item_group is not None:
        return placed_row(row)
    if row.state is State.READY:
        return GroupPlace.WAITING, row.order_key
    return (GroupPlace.LEASED, row.order_key) if row.state is State.LEASED else None


def group_name(row: Row) -> str:
    """Return the name of the group of a row's item; `UNGROUPED` if it has none."""
    return UNGROUPED if row.item_group is None else row.item_group.decode()


def placed_row(row: Row | None) -> Placed | None:
    """Return the place and the key of a row's item; None if there is no row, or it is not in the line."""
    if row is None:
        return None
    place = place_of(row.state, row.attempt)
    if place is GroupPlace.LEASED:
        return place, run_key(row)
    return None if place is None else (place, row.order_key)


def run_key(row: Row) -> OrderKey:
    """Return the key of a row with a lease, or whose lease has ended, in its run: runs by their token, and each in order.

    One flush leases a run, and gives it its own token. The number of the key is that of the item.
    """
    first = _FIRST_DELIVERY if row.attempt == 1 else 0
    return abs(row.token) << _TOKEN_SHIFT | first | row.order_key


def token_of(run_key: OrderKey) -> int:
    """Return the token of an item's key in its run."""
    return run_key >> _TOKEN_SHIFT
