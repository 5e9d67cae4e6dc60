"""What a list shows of a group: its state, its figures, and its place among others.

Always true: the figures of a group cost the same, however many groups the topic has. Reads what `LimitedTopic` has in memory,
and changes nothing. Knows no shard and no row.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from foqs.core.groups.group import ABOVE_ALL, NO_LIMIT, Group
from foqs.core.groups.limited_topic import LimitedTopic
from foqs.core.items.item import NUMBER_MAX, OrderKey, unpack_order_key

BLOCKERS_MAX: Final = 10
"""The items that hold a group back and are named."""


class GroupState(enum.IntEnum):
    """What a group waits for. The numbers are those of the contract."""

    ELIGIBLE = 1
    """An item of it may be delivered now."""
    LEASED = 2
    """As many of its items are leased or reserved as the limit allows."""
    BACKING_OFF = 3
    """Strict order: its first item was delivered before, and is deferred."""
    UNREAD = 4
    """What it delivers next is still to be read."""
    IDLE = 5
    """No item of it waits."""


class GroupOrder(enum.IntEnum):
    """Which groups of a list come first. The numbers are those of the contract."""

    SIZE = 1
    """Those with more READY items than are known, the oldest first; then those with the most known ones."""
    AGE = 2
    """Those whose first READY item has waited longest."""


GroupRank: TypeAlias = tuple[int, int, int]
"""The group with the highest rank is the first of a list."""


@dataclass(slots=True, frozen=True)
class GroupFigures:
    """The figures of one group.

    Attributes:
        ready: its known READY items that are not reserved.
        has_more: it has more READY items above its cut.
        leased: its leased and reserved items; None if leases are not remembered.
        backing_off: strict order: its items that were delivered before and are deferred; 0 in other topics.
        first: the key of its first READY item; None if none is known.
        blockers: the numbers of the items that hold it back, at most `BLOCKERS_MAX`.
        resumes_at_ms: of a group that backs off: when that ends, on the clock of its shard.
        head: of a fair topic: the key with its turn; None if it has no turn now.
        weight: of a fair topic.
    """

    name: str
    state: GroupState
    ready: int
    has_more: bool
    leased: int | None
    backing_off: int
    first: OrderKey | None
    blockers: tuple[int, ...]
    resumes_at_ms: int | None
    head: OrderKey | None
    weight: int | None


def state_of(group: Group, limit: int) -> GroupState:
    """Return the state of a group of a topic with this limit."""
    if group.heads:
        return GroupState.ELIGIBLE
    if limit < NO_LIMIT and len(_busy(group)) >= limit:
        return GroupState.LEASED
    if group.backing_off:
        return GroupState.BACKING_OFF
    if group.may_wait:
        return GroupState.UNREAD
    return GroupState.IDLE


def first_ready(group: Group) -> OrderKey | None:
    """Return the key of the first READY item of a group; None if none is known."""
    return group.returned[0] if group.returned else group.waiting[0] if group.waiting else None


def figures_of(group: Group, topic: LimitedTopic) -> GroupFigures:
    """Return the figures of a group of this topic."""
    limit, turns = topic.groups.limit, topic.groups.turns
    state = state_of(group, limit)
    busy = _busy(group)
    blockers: list[int] = []
    resumes_at_ms: int | None = None
    if state is GroupState.LEASED:
        blockers = busy
    elif state is GroupState.BACKING_OFF:
        blockers = [group.backing_off[0] & NUMBER_MAX]
        place_ms = unpack_order_key(group.backing_off[0])[1]
        resumes_at_ms = topic.strict_items.backoff_ends.get(blockers[0], place_ms)
    return GroupFigures(
        group.name,
        state,
        len(group.waiting) + len(group.returned),
        group.cut < ABOVE_ALL,
        len(busy) if limit < NO_LIMIT or (turns is not None and turns.by_time) else None,
        len(group.backing_off),
        first_ready(group),
        tuple(blockers[:BLOCKERS_MAX]),
        resumes_at_ms,
        group.heads[0] if turns is not None and group.heads else None,
        None if turns is None else turns.weights.get(group.name, 1),
    )


def rank_function(order: GroupOrder) -> Callable[[int, bool, int | None], GroupRank]:
    """Return what gives a group its rank: from its known READY items, whether it has more, and the age of the first one."""
    return _rank_by_size if order is GroupOrder.SIZE else _rank_by_age


def _rank_by_size(ready: int, has_more: bool, age_ms: int | None) -> GroupRank:
    # How many items of a long group are known depends on when they were read.
    return has_more, 0 if has_more else ready, -1 if age_ms is None else age_ms


def _rank_by_age(ready: int, has_more: bool, age_ms: int | None) -> GroupRank:
    return -1 if age_ms is None else age_ms, has_more, ready


def _busy(group: Group) -> list[int]:
    """Return the numbers of its leased and reserved items, each once."""
    leased = [key & NUMBER_MAX for key in group.leased]
    return [*dict.fromkeys([*leased, *group.reserved])] if group.reserved else leased
