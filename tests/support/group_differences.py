"""Compares the groups of a topic in memory with its rows (invariant 13)."""

from __future__ import annotations

from collections.abc import Iterable

from foqs.core.groups.group import STRICT
from foqs.core.groups.places import UNGROUPED, GroupPlace, group_name, line_place
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.items.item import OrderKey, Row


def differences_of_groups(groups: TopicGroups, rows: Iterable[Row]) -> list[str]:
    """Return how the groups in memory differ from the rows of their topic, if the rows of delivered items were read."""
    wanted: dict[str, dict[GroupPlace, list[OrderKey]]] = {}
    for row in rows:
        placed = line_place(row, is_strict=groups.limit == STRICT)
        name = groups.own_name(group_name(row), row.order_key)
        if placed is None or not groups.is_remembered(name, placed[0]):
            continue
        place, key = placed
        if place is not GroupPlace.WAITING or key <= groups.boundary:
            wanted.setdefault(name, {}).setdefault(place, []).append(key)
    found: list[str] = []
    ungrouped = sorted(wanted.pop(UNGROUPED, {}).get(GroupPlace.WAITING, []))
    if groups.ungrouped.keys != ungrouped:
        found.append(f"invariant 13: {groups.ungrouped.keys} are known without a group, and {ungrouped} wait")
    names = {
        group.name
        for group in groups.by_name.values()
        if group.known_waiting(groups.boundary) or group.leased or group.returned or group.backing_off
    }
    if not_there := names - set(wanted):
        found.append(f"invariant 13: {not_there} are in memory, and have no items")
    for name, places in wanted.items():
        group = groups.get(name)
        if group is None:
            found.append(f"invariant 13: {name} is not in memory, and has {places}")
            continue
        known = {
            GroupPlace.WAITING: group.known_waiting(groups.boundary),
            GroupPlace.RETURNED: [*group.returned],
            GroupPlace.BACKING_OFF: [*group.backing_off],
            GroupPlace.LEASED: [*group.leased],
        }
        rows_of = {place: sorted(places.get(place, [])) for place in GroupPlace}
        rows_of[GroupPlace.WAITING] = [key for key in rows_of[GroupPlace.WAITING] if key <= group.cut]
        if known != rows_of:
            found.append(f"invariant 13: {name} is known as {known} up to {group.cut}, and is {rows_of}")
    return found
