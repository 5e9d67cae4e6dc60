"""Where a READY item waits in its group, what holds it back, and how old the oldest one is.

Always true: a result is of what a topic has in memory at the moment. Reads only that, and changes nothing.
"""

from __future__ import annotations

from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.items.item import OrderKey, unpack_order_key


def find_holders(groups: TopicGroups, name: str, key: OrderKey, *, is_full: bool) -> list[int] | None:
    """Return what holds a READY item back; see `Group.holders`. An empty list: there is no room for it, or for its group.

    Args:
        is_full: the memory of the topic is full.
    """
    group = groups.get(groups.own_name(name, key))
    found = None if group is None else group.holders(key, groups.limit)
    if found is not None or not is_full or (group is not None and group.offers(key)) or key in groups.ungrouped:
        return found
    return [] if group is None or not groups.is_read else None


def place_in_turn(groups: TopicGroups, name: str, key: OrderKey) -> tuple[OrderKey | None, int]:
    """Return where a READY item of a fair topic waits: the head of its group, and how many known items of the group come before it.

    None: the group offers nothing, or is not known yet.
    """
    group = groups.get(groups.own_name(name, key))
    return (None, 0) if group is None or not group.heads else (group.heads[0], group.items_before(key))


def items_before(groups: TopicGroups, name: str, key: OrderKey) -> int | None:
    """Return how many known READY items of its group come before a READY item; None if its group is not in memory."""
    group = groups.get(groups.own_name(name, key))
    return None if group is None else group.items_before(key)


def oldest_ms(groups: TopicGroups, groups_max: int) -> int | None:
    """Return the lowest deliver_after_ms of known READY items, also of those that their group holds back.

    Examines the first items of at most `groups_max` groups, so the result is approximate.
    """
    first = [*groups.ungrouped.keys[:1]]
    for group in groups.some_groups(groups_max):
        first += [*group.waiting[:1], *group.returned[:1]]
    return min((unpack_order_key(key)[1] for key in first), default=None)
