"""Rules for the groups of items: a key is unique within its group (invariant 3), and a group is in one shard (invariant 25).

Always true: as in `checker`, which checks that each delivery and row shows the group of the enqueue (invariant 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from foqs.core.items.item import SEQUENCE_BITS
from tests.support.clock_bounds import ClockBounds, earliest_lease_end_ms
from tests.support.history import CallEnd, Entry
from tests.support.item_histories import BY_ID, DeliveryReceipt, ItemHistories, ItemHistory

NAMES: Final = (
    "grouped items",
    "grouped items returned",
    "grouped items moved",
    "grouped items dead",
    "keys in two groups",
    "items behind others in runs",
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
        count["items behind others in runs"] += any(receipt.ahead for receipt in item.receipts)
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


def broken_limits(
    histories: ItemHistories, limits: Mapping[str, int], bounds: ClockBounds
) -> Iterator[tuple[int, list[str], str]]:
    """Yield (invariant, ids, problem) where consumers had more items of a group than its limit, or passed a delivered one.

    Args:
        limits: the limit of each topic that has always had one.
    """
    groups: dict[tuple[Any, str, str], list[tuple[DeliveryReceipt, ItemHistory]]] = {}
    for item in histories:
        group = item.requested("group")
        for receipt in item.receipts if group is not None else ():
            topic = receipt.result["topic"]
            if topic in limits:
                groups.setdefault((item.namespace, topic, group), []).append((receipt, item))
    for (_, topic, group), receipts in groups.items():
        held = [(*span, item, receipt) for receipt, item in receipts for span in _held_ms(item, receipt, bounds)]
        for requested_ms, granted_ms, _, item, receipt in held:
            others = {
                other.id
                for _, from_ms, until_ms, other, beside in held
                if other is not item
                and from_ms < requested_ms
                and granted_ms < until_ms
                and (limits[topic] > 1 or not _are_one_run(receipt, beside))
            }
            if len(others) >= limits[topic]:
                problem = (
                    f"{item.id} was leased until {granted_ms:.0f} ms while {len(others)} items of group {group} were"
                )
                yield 23, [item.id, *others], problem
        if limits[topic] == 1:
            for ids, problem in _broken_runs(receipts):
                yield 24, ids, f"group {group}: {problem}"
        for receipt, item in receipts:
            if limits[topic] == 1:
                for other, again in _passed(receipt, item, receipts):
                    yield (
                        24,
                        [item.id, other.id],
                        f"{receipt} passed an item of group {group}, which {again} brought again",
                    )


def _broken_runs(receipts: Sequence[tuple[DeliveryReceipt, ItemHistory]]) -> Iterator[tuple[list[str], str]]:
    """Yield (ids, problem) of runs that were out of order, and of tokens that settled something behind an early end.

    A new owner supersedes nothing before it has read the group. So only runs of an owner that has delivered afterwards are
    judged.
    """
    last_ms: dict[tuple[str, int], float] = {}
    for receipt, item in receipts:
        owner = _shard_of(item.id), _epoch_of(receipt)
        last_ms[owner] = max(last_ms.get(owner, 0.0), receipt.requested.at_ms)
    for receipt, item in receipts:
        for other, ahead in receipt.ahead:
            if ahead.token != receipt.token:
                yield [item.id, other.id], f"{receipt} and {ahead} are one run, and two leases"
            places = [(each.result["attempt"] == 1, each.result["priority"]) for each in (ahead, receipt)]
            if places[0][0] > places[1][0] or (places[0][0] == places[1][0] and places[0][1] > places[1][1]):
                yield [item.id, other.id], f"{receipt} is out of order in its run, behind {ahead}"
            elif places[0] == places[1] == (True, receipt.result["priority"]) and _came_before(item, other):
                yield [item.id, other.id], f"{receipt} is behind {ahead} in its run, and was enqueued before"
        until_ms = last_ms[_shard_of(item.id), _epoch_of(receipt)]
        ended = [
            entry
            for entry in receipt.possible_ends_ahead()
            if entry.end is CallEnd.OK and entry.returned is not None and not entry.requested.get("dead")
        ]
        for late in item.acknowledged_operations("ack", "nack", "extend", "release", token=receipt.token):
            for entry in ended:
                assert entry.returned is not None
                is_judged = late.returned is not None and late.returned.at_ms < until_ms
                if is_judged and entry.returned.before(late.invoked) and not _is_already_gone(late):
                    yield (
                        [item.id, entry.requested["id"]],
                        f"{late.call.name} succeeded behind {entry.call.name} in a run",
                    )


def _are_one_run(receipt: DeliveryReceipt, other: DeliveryReceipt) -> bool:
    """Return whether two deliveries of a strict group count as one lease: one call has asked for a run."""
    return other.call is receipt.call and receipt.call.args.get("run_max", 1) > 1


def _came_before(item: ItemHistory, other: ItemHistory) -> bool:
    """Return whether an item was certainly accepted before another one, and neither has got a place at the end since."""
    if item.possible_operations("redrive") or other.possible_operations("redrive") or not other.origins:
        return False
    accepted = [entry.returned for entry in item.enqueued if entry.returned is not None]
    return any(all(stamp.before(entry.invoked) for entry in other.origins) for stamp in accepted)


def _is_already_gone(entry: Entry) -> bool:
    """Return whether an ack found no item."""
    return bool(entry.result.get("already_gone")) if isinstance(entry.result, Mapping) else False


def _epoch_of(receipt: DeliveryReceipt) -> int:
    """Return the ownership that made a delivery."""
    return receipt.token >> SEQUENCE_BITS


def _held_ms(item: ItemHistory, receipt: DeliveryReceipt, bounds: ClockBounds) -> Iterator[tuple[float, float, float]]:
    """Yield each span of time in which the consumer certainly had a lease: when it was requested, from when, until when.

    The lease of a delivery is one, and that of each extension: an extension may come when the former lease has ended.
    """
    calls = [entry for op in BY_ID for entry in item.ops[op]]
    removals = [(entry.invoked, entry.returned) for entry in item.ops["cancel"]]
    removals += [(call.invoked, call.returned) for call in item.purges()]
    grants: list[tuple[float, float, Any, Entry | None]] = [
        (receipt.requested.at_ms, receipt.received.at_ms, receipt.call.args.get("lease_ms"), None)
    ]
    grants += [
        (entry.invoked.at_ms, entry.returned.at_ms, entry.requested.get("lease_ms"), entry)
        for entry in item.ops["extend"]
        if entry.end is CallEnd.OK and entry.returned is not None and entry.requested["token"] == receipt.token
    ]
    for requested_ms, from_ms, lease_ms, extension in grants:
        length_ms = item.requested("lease_ms", bounds.lease_ms_default) if lease_ms is None else lease_ms
        if length_ms is not None:
            ends = [
                entry.invoked.at_ms for entry in calls if entry is not extension and entry.invoked.at_ms >= requested_ms
            ]
            ends += [max(requested_ms, entry.invoked.at_ms) for entry in receipt.possible_ends_ahead()]
            ends += [earliest_lease_end_ms(other, ahead, bounds) for other, ahead in receipt.ahead[-1:]]
            # One that was under way may have ended the lease at once.
            ends += [
                max(requested_ms, invoked.at_ms)
                for invoked, returned in removals
                if returned is None or returned.at_ms >= requested_ms
            ]
            yield requested_ms, from_ms, min([requested_ms + bounds.shortest_ms(float(length_ms)), *ends])


def _passed(
    receipt: DeliveryReceipt, item: ItemHistory, receipts: Sequence[tuple[DeliveryReceipt, ItemHistory]]
) -> Iterator[tuple[ItemHistory, DeliveryReceipt]]:
    """Yield items of a strict group that were delivered before and after this delivery, and the later delivery."""
    ahead = [other.id for other, _ in receipt.ahead]
    for before, other in receipts:
        if other is item or other.id in ahead or not before.received.before(receipt.requested):
            continue
        if before.ahead or other.possible_operations("release", "redrive"):
            continue  # it may have been as new as the others
        for again in other.receipts:
            if again.token > before.token and receipt.received.before(again.requested):
                yield other, again


def _shard_of(id: str) -> str:
    return id.partition("-")[0]
