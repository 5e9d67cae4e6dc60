"""Rules for the groups of items: a key is unique within its group (invariant 3), and a group is in one shard (invariant 25).

Always true: as in `checker`, which checks that each delivery and row shows the group of the enqueue (invariant 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from tests.support.history import CallEnd, Entry
from tests.support.item_histories import ItemHistories

NAMES: Final = (
    "grouped items",
    "grouped items returned",
    "grouped items moved",
    "grouped items dead",
    "keys in two groups",
)
"""The keys of `count_occurrences`."""

_KeyInGroup: TypeAlias = tuple[Any, Any, str]


def count_occurrences(histories: ItemHistories) -> dict[str, int]:
    """Count what happened to items with groups, for a report."""
    count = dict.fromkeys(NAMES, 0)
    groups: dict[tuple[Any, str], set[str]] = {}
    for item in histories:
        group, key = item.requested("group"), item.requested("key")
        if group is None:
            continue
        count["grouped items"] += 1
        count["grouped items returned"] += len(item.receipts) > 1
        count["grouped items moved"] += bool(key) and key.startswith("move of ")
        count["grouped items dead"] += item.row is not None and item.row["state"] == "dead"
        if key is not None:
            groups.setdefault((item.namespace, key), set()).add(group)
    count["keys in two groups"] = sum(len(names) > 1 for names in groups.values())
    return count


def wrong_conflicts(histories: ItemHistories) -> Iterator[str]:
    """Yield each enqueue of a key in a group that was refused, although nothing else was enqueued with the key in this group."""
    refused: list[tuple[_KeyInGroup, Entry]] = []
    marks: dict[_KeyInGroup, set[str]] = {}
    for entries in histories.by_mark.values():
        for entry in entries:
            asked = entry.requested
            if asked.get("group") is None or asked.get("key") is None:
                continue
            name = (entry.call.args.get("namespace"), asked["group"], asked["key"])
            marks.setdefault(name, set()).add(asked["mark"])
            if entry.end is CallEnd.FAILED and entry.code == "KEY_CONFLICT" and not entry.call.args.get("atomic"):
                refused.append((name, entry))
    for name, entry in refused:
        if len(marks[name]) == 1:
            yield f"{entry.call.name} has a key conflict, but {name[2]} names one item in group {name[1]}"


def divided_groups(histories: ItemHistories) -> Iterator[tuple[list[str], str]]:
    """Yield (ids, problem) for each group with items in several shards."""
    shards: dict[tuple[Any, str], dict[str, str]] = {}
    for item in histories:
        group = item.requested("group")
        if group is not None:
            shards.setdefault((item.namespace, group), {}).setdefault(_shard_of(item.id), item.id)
    for (_, group), ids in shards.items():
        if len(ids) > 1:
            yield list(ids.values()), f"group {group} has items in the shards {', '.join(ids)}"


def _shard_of(id: str) -> str:
    return id.partition("-")[0]
