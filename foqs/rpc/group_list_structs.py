"""The lists of groups as the contract has them. Knows nothing of calls."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import Final

from foqs.core.groups.group_stats import GroupOrder, GroupRank, GroupState, rank_function
from foqs.core.items import validation
from foqs.queue.port import GroupList, GroupStats, WantedGroups
from foqs.rpc.filters import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX
from foqs.rpc.topic_policies import fairness_number
from foqs_contract.errors import InvalidArgument
from foqs_contract.idl import ttypes

_STATES: Final = ", ".join(f"{state.value} ({state.name})" for state in GroupState)
_ORDERS: Final = ", ".join(f"{order.value} ({order.name})" for order in GroupOrder)


def parse_wanted_groups(request: ttypes.ListGroupsRequest, namespace: str) -> WantedGroups:
    """Parse a request for groups. Raises FoqsError."""
    return WantedGroups(
        namespace,
        validation.decode_name(request.topic, "topic"),
        _parse_order(request.order),
        _parse_states(request.states),
        None if request.group is None else validation.decode_name(request.group, "group"),
        _parse_limit(request.limit),
    )


def _parse_limit(limit: int | None) -> int:
    return PAGE_LIMIT_DEFAULT if limit is None else validation.check_number(limit, 1, PAGE_LIMIT_MAX, "limit")


def _parse_order(value: int | None) -> GroupOrder:
    if value is None:
        return GroupOrder.SIZE
    try:
        return GroupOrder(value)
    except ValueError:
        raise InvalidArgument(f"{value} is not an order of groups; use one of {_ORDERS}", field="order") from None


def _parse_states(values: Sequence[int] | None) -> frozenset[GroupState] | None:
    if values is None:
        return None
    if not values:
        raise InvalidArgument("this is empty; name at least one state, or leave it out", field="states")
    states: set[GroupState] = set()
    for place, value in enumerate(values):
        try:
            states.add(GroupState(value))
        except ValueError:
            raise InvalidArgument(
                f"{value} is not a state of a group; use one of {_STATES}", field=f"states[{place}]"
            ) from None
    return frozenset(states)


def group_list(found: GroupList) -> ttypes.ListGroupsReply:
    """Return the reply of a host for its own shards."""
    rules = found.rules
    return ttypes.ListGroupsReply(
        [_group_stats(stats) for stats in found.groups],
        [ttypes.GroupCount(ttypes.GroupState(state), groups) for state, groups in sorted(found.counts.items())],
        found.ungrouped,
        found.is_partial or None,
        found.is_full or None,
        None if rules is None else rules.leases_max,
        None if rules is None else fairness_number(rules.fair),
        found.is_paused or None,
    )


def _group_stats(stats: GroupStats) -> ttypes.GroupStats:
    return ttypes.GroupStats(
        group=stats.group,
        shard=stats.shard,
        state=ttypes.GroupState(stats.state),
        ready=stats.ready,
        ready_more=stats.ready_more or None,
        leased=stats.leased,
        backing_off=stats.backing_off or None,
        priority=stats.priority,
        oldest_ready_age_ms=stats.oldest_ready_age_ms,
        blockers=list(stats.blockers) or None,
        resumes_in_ms=stats.resumes_in_ms,
        groups_before=stats.groups_before,
        weight=stats.weight,
    )


def merge_group_lists(
    replies: Sequence[ttypes.ListGroupsReply], request: ttypes.ListGroupsRequest
) -> ttypes.ListGroupsReply:
    """Merge the replies of hosts, at least one, into one: the first groups of all of them. Raises FoqsError for a bad request."""
    rank = rank_function(_parse_order(request.order))

    def rank_of(stats: ttypes.GroupStats) -> GroupRank:
        return rank(stats.ready or 0, bool(stats.ready_more), stats.oldest_ready_age_ms)

    counts: dict[int, int] = {}
    for reply in replies:
        for count in reply.counts or ():
            if count.state is not None:
                counts[count.state] = counts.get(count.state, 0) + (count.groups or 0)
    with_policy = next((reply for reply in replies if reply.group_leases_max or reply.fair), replies[0])
    ungrouped = [reply.ungrouped for reply in replies]
    return ttypes.ListGroupsReply(
        nlargest(
            _parse_limit(request.limit), [stats for reply in replies for stats in reply.groups or ()], key=rank_of
        ),
        [ttypes.GroupCount(ttypes.GroupState(state), groups) for state, groups in sorted(counts.items())],
        None if None in ungrouped else sum(filter(None, ungrouped)),
        any(reply.partial for reply in replies) or None,
        any(reply.full for reply in replies) or None,
        with_policy.group_leases_max,
        with_policy.fair,
        any(reply.paused for reply in replies) or None,
    )
