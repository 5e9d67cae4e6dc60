"""Requests for groups, and the merge of the lists of several hosts."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.groups.group_stats import GroupOrder, GroupState
from foqs.rpc.group_list_structs import merge_group_lists, parse_wanted_groups
from foqs_contract.errors import InvalidArgument, LimitExceeded
from foqs_contract.idl import ttypes

STATES = ttypes.GroupState


def request(**fields: Any) -> ttypes.ListGroupsRequest:
    return ttypes.ListGroupsRequest(topic=fields.pop("topic", b"t"), **fields)


def stats(group: str, ready: int, age_ms: int | None = 0, ready_more: bool | None = None) -> ttypes.GroupStats:
    return ttypes.GroupStats(group, ready=ready, ready_more=ready_more, oldest_ready_age_ms=age_ms)


def names(reply: ttypes.ListGroupsReply) -> list[str | None]:
    return [each.group for each in reply.groups or ()]


def test_missing_fields_have_defaults_and_others_are_parsed() -> None:
    plain = parse_wanted_groups(request(), "n")
    assert (plain.namespace, plain.topic, plain.order, plain.limit) == ("n", "t", GroupOrder.SIZE, 100)
    assert (plain.states, plain.group) == (None, None)
    full = parse_wanted_groups(
        request(order=2, states=[STATES.LEASED, STATES.IDLE, STATES.LEASED], group="é".encode(), limit=1_000), "n"
    )
    assert (full.order, full.group, full.limit) == (GroupOrder.AGE, "é", 1_000)
    assert full.states == frozenset({GroupState.LEASED, GroupState.IDLE})


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({"topic": None}, InvalidArgument, "topic"),
        ({"order": 3}, InvalidArgument, "order"),
        ({"states": []}, InvalidArgument, "states"),
        ({"states": [1, 6]}, InvalidArgument, "states[1]"),
        ({"group": b""}, InvalidArgument, "group"),
        ({"group": b"a\0"}, InvalidArgument, "group"),
        ({"limit": 0}, InvalidArgument, "limit"),
        ({"limit": 1_001}, LimitExceeded, "limit"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any], error: type[InvalidArgument], field: str) -> None:
    with pytest.raises(error) as refused:
        parse_wanted_groups(request(**fields), "n")
    assert refused.value.field == field


def test_lists_of_hosts_are_merged_by_rank_up_to_the_limit() -> None:
    one = ttypes.ListGroupsReply([stats("long", 64, 1, ready_more=True), stats("b", 5, 100)])
    two = ttypes.ListGroupsReply([stats("a", 7, None), stats("c", 5, 300)])
    assert names(merge_group_lists([one, two], request())) == ["long", "a", "c", "b"]
    assert names(merge_group_lists([one, two], request(order=2, limit=3))) == ["c", "b", "long"]


def test_counts_are_added_and_what_holds_on_one_host_holds_for_the_list() -> None:
    one = ttypes.ListGroupsReply(
        [], [ttypes.GroupCount(STATES.ELIGIBLE, 2), ttypes.GroupCount(STATES.IDLE, 1)], 4, partial=True
    )
    two = ttypes.ListGroupsReply(
        [], [ttypes.GroupCount(STATES.ELIGIBLE, 3)], 0, full=True, fair=ttypes.Fairness.TIME, paused=True
    )
    merged = merge_group_lists([one, two], request())
    assert [(count.state, count.groups) for count in merged.counts or ()] == [(STATES.ELIGIBLE, 5), (STATES.IDLE, 1)]
    assert (merged.ungrouped, merged.partial, merged.full, merged.paused) == (4, True, True, True)
    assert (merged.group_leases_max, merged.fair) == (None, ttypes.Fairness.TIME)
    alone = merge_group_lists([ttypes.ListGroupsReply([], [], None)] * 2, request())
    assert alone.ungrouped is alone.partial is alone.full is alone.paused is None
