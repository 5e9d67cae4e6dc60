"""Lists of the groups of a topic: the results, and their conversion from Thrift.

Always true: a state that a newer host names is its number. Knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foqs_client.conversion import fairness_name
from foqs_client.errors import InvalidArgument
from foqs_contract.idl import ttypes

GROUP_STATES: Final = ("eligible", "leased", "backing_off", "unread", "idle")
"""The states of a group. The numbers of the contract begin with 1."""
GROUP_ORDERS: Final = ("size", "age")
"""The orders of a list of groups, with the same numbers."""


@dataclass(slots=True, frozen=True)
class ListedGroup:
    """A group of a topic, as its host has it in memory. A value that does not apply, or is not known, is None.

    Attributes:
        group: its name.
        shard: the number of its shard.
        state: "eligible": an item of it may be delivered now. "leased": as many of its items are leased as the topic's policy
            allows. "backing_off": strict order, and its first item was delivered before and waits for the end of its backoff.
            "unread": its next item is still to be read from the table. "idle": no item of it waits.
        ready: its known ready items, but for those that are being delivered.
        ready_more: it has more ready items than these.
        leased: its items that are leased or being delivered.
        backing_off: strict order: its items that wait for the end of a backoff.
        priority: the priority of its first ready item.
        oldest_ready_age_ms: the time since its first ready item could be delivered.
        blockers: the ids of at most 10 items that hold it back.
        resumes_in_ms: the time until the backoff ends that holds it back.
        groups_before: of a fair topic: how many groups of its host have their turn before it.
        weight: of a fair topic: how many times as much it gets as a group of weight 1.
    """

    group: str
    shard: int
    state: str
    ready: int
    ready_more: bool
    leased: int | None
    backing_off: int
    priority: int | None
    oldest_ready_age_ms: int | None
    blockers: tuple[str, ...]
    resumes_in_ms: int | None
    groups_before: int | None
    weight: int | None


@dataclass(slots=True, frozen=True)
class ListedGroups:
    """The first groups of a topic in an order.

    Attributes:
        groups: the groups; none if the topic has no policy for groups.
        counts: how many groups are in each state, also those that are not in `groups`.
        ungrouped: the known ready items without a group; None if one group was asked for.
        partial: groups may be missing, or have more items: the hosts do not have all ready items of the topic in memory.
        full: as many groups are under delivery as fit into the memory of a shard, so others of the topic wait.
        group_leases_max: the policy's limit on the leases of a group.
        fair: what the groups share by taking turns, "items" or "time".
        paused: nothing of the topic is delivered until it is resumed.
    """

    groups: list[ListedGroup]
    counts: Mapping[str, int]
    ungrouped: int | None
    partial: bool
    full: bool
    group_leases_max: int | None
    fair: str | None
    paused: bool


def list_request(
    namespace: str, topic: str, order: str, states: Sequence[str] | None, group: str | None, limit: int
) -> ttypes.ListGroupsRequest:
    """Return the request for groups. Raises InvalidArgument."""
    numbers = None
    if states is not None:
        numbers = [ttypes.GroupState(_number(state, GROUP_STATES, "states", "a state of a group")) for state in states]
    number = ttypes.GroupOrder(_number(order, GROUP_ORDERS, "order", "an order of groups"))
    return ttypes.ListGroupsRequest(namespace, topic, number, numbers, group, limit)


def _number(name: str, names: Sequence[str], field: str, what: str) -> int:
    if name not in names:
        raise InvalidArgument(f"{name!r} is not {what}; use one of {', '.join(names)}", field=field)
    return names.index(name) + 1


def _state_name(number: int | None) -> str:
    number = int(number or 0)
    return GROUP_STATES[number - 1] if 0 < number <= len(GROUP_STATES) else str(number)


def group_list(reply: ttypes.ListGroupsReply) -> ListedGroups:
    return ListedGroups(
        groups=[_group(stats) for stats in reply.groups or ()],
        counts={_state_name(count.state): count.groups or 0 for count in reply.counts or ()},
        ungrouped=reply.ungrouped,
        partial=bool(reply.partial),
        full=bool(reply.full),
        group_leases_max=reply.group_leases_max,
        fair=fairness_name(reply.fair),
        paused=bool(reply.paused),
    )


def _group(stats: ttypes.GroupStats) -> ListedGroup:
    return ListedGroup(
        group=stats.group or "",
        shard=stats.shard or 0,
        state=_state_name(stats.state),
        ready=stats.ready or 0,
        ready_more=bool(stats.ready_more),
        leased=stats.leased,
        backing_off=stats.backing_off or 0,
        priority=stats.priority,
        oldest_ready_age_ms=stats.oldest_ready_age_ms,
        blockers=tuple(stats.blockers or ()),
        resumes_in_ms=stats.resumes_in_ms,
        groups_before=stats.groups_before,
        weight=stats.weight,
    )
