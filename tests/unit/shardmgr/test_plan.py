"""Tests of the rules of planning, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardmgr.documents import render_plan
from shardmgr.model import EPOCH_MAX, Assignment, HeldShard, Layout, Member, Plan, ShardSpec
from shardmgr.plan import has_no_owner, next_plan
from shardmgr.primary import DatabaseServer, LossPolicy, Primaries, Primary, PrimaryState, ReplicationPosition
from tests.support.plan_following import (
    NONE_OVERDUE,
    follow_plan,
    make_layout,
    make_member,
    owner_names,
    plans_until_stable,
    shard_counts,
)

A, B, C = make_member("a"), make_member("b"), make_member("c")


def assigned(member: Member, epoch: int = 1, *, leaving: bool = False) -> Assignment:
    return Assignment(member.name, member.nonce, epoch, "db", leaving)


def plan_of(**by_shard: Assignment) -> Plan:
    """Shards are named s1, s2, ..."""
    numbered = {int(name[1:]): assignment for name, assignment in by_shard.items()}
    return Plan(numbered, {number: assignment.epoch for number, assignment in numbered.items()})


def holding(member: Member, shard: int, epoch: int, state: str) -> Member:
    return replace(member, held_shards={**member.held_shards, shard: HeldShard(epoch, state)})


def wanting(member: Member, shard: int, epoch: int) -> Member:
    return replace(member, taken_epochs={**member.taken_epochs, shard: epoch})


def step(
    layout: Layout, plan: Plan, *members: Member, overdue: frozenset[int] = NONE_OVERDUE, moves_max: int = 1
) -> Plan:
    return next_plan(layout, plan, members, overdue, moves_max)


# --------------------------------------------------------------------- assigning


def test_unassigned_shard_is_assigned_with_epoch_one() -> None:
    assert step(make_layout(1), Plan(), A) == plan_of(s1=assigned(A, 1))


def test_shards_are_spread_evenly_at_once() -> None:
    assert shard_counts(step(make_layout(7), Plan(), A, B, C), "a", "b", "c") == [3, 2, 2]


def test_the_order_of_members_does_not_matter() -> None:
    assert step(make_layout(7), Plan(), C, A, B) == step(make_layout(7), Plan(), A, B, C)


def test_shard_without_a_fitting_host_is_unassigned() -> None:
    assert step(make_layout(1), Plan()) == Plan()
    assert step(make_layout(1), Plan(), make_member("x", tier="other")) == Plan()
    assert step(make_layout(1), Plan(), make_member("x", leaving=True)) == Plan()
    assert step(replace(make_layout(1), drained=frozenset("a")), Plan(), A) == Plan()


def test_shards_of_a_lost_host_are_assigned_at_once_with_higher_epochs() -> None:
    before = plan_of(s1=assigned(A, 4), s2=assigned(B, 9))
    after = step(make_layout(2), before, B)
    assert after == plan_of(s1=assigned(B, 5), s2=assigned(B, 9))


def test_shard_that_leaves_a_lost_host_is_assigned_at_once() -> None:
    assert step(make_layout(1), plan_of(s1=assigned(A, 4, leaving=True)), B) == plan_of(s1=assigned(B, 5))


def test_restarted_host_is_another_member() -> None:
    again = replace(A, nonce="second")
    assert step(make_layout(1), plan_of(s1=assigned(A, 4)), again) == plan_of(s1=assigned(again, 5))


def test_epoch_of_an_unassigned_shard_is_kept() -> None:
    nobody = step(make_layout(1), plan_of(s1=assigned(A, 4)))
    assert nobody == Plan({}, {1: 4})
    assert step(make_layout(1), nobody, A) == plan_of(s1=assigned(A, 5))


def test_recorded_epoch_below_that_of_the_assignment_is_ignored() -> None:
    assert step(make_layout(1), Plan({1: assigned(A, 7)}, {1: 2}), B).assignments == {1: assigned(B, 8)}


# ------------------------------------------------------------------- higher epochs


def test_member_that_found_its_epoch_in_use_gets_a_higher_one() -> None:
    assert step(make_layout(1), plan_of(s1=assigned(A, 1)), wanting(A, 1, 57)) == plan_of(s1=assigned(A, 58))


def test_a_member_that_lost_its_shard_while_it_served_gets_the_next_epoch() -> None:
    assert step(make_layout(1), plan_of(s1=assigned(A, 4)), wanting(A, 1, 4)) == plan_of(s1=assigned(A, 5))


def test_answered_request_for_an_epoch_is_not_answered_again() -> None:
    before = plan_of(s1=assigned(A, 58))
    assert step(make_layout(1), before, wanting(A, 1, 57)) == before


def test_request_for_an_epoch_by_another_member_changes_no_owner() -> None:
    before = plan_of(s1=assigned(A, 4), s2=assigned(B, 4))
    assert step(make_layout(2), before, A, wanting(B, 1, 57)) == before


def test_next_epoch_is_above_every_epoch_that_a_member_found() -> None:
    assert step(make_layout(1), plan_of(s1=assigned(A, 4)), wanting(B, 1, 57)) == plan_of(s1=assigned(B, 58))


@pytest.mark.parametrize("found", [EPOCH_MAX, EPOCH_MAX - 1])
def test_shard_without_another_epoch_stays_unassigned(found: int) -> None:
    after = step(make_layout(1), plan_of(s1=assigned(A, 1)), wanting(A, 1, found))
    if found < EPOCH_MAX:
        assert after == plan_of(s1=assigned(A, EPOCH_MAX))
        after = step(make_layout(1), after, wanting(A, 1, EPOCH_MAX))
    assert after == Plan({}, {1: EPOCH_MAX})
    assert step(make_layout(1), after, A, B) == after


def test_a_shard_with_its_last_epoch_is_not_moved_for_balance() -> None:
    before = plan_of(s1=assigned(A, EPOCH_MAX), s2=assigned(A, EPOCH_MAX))
    assert step(make_layout(2), before, A, B) == before


# ------------------------------------------------------------------- handing over


def test_drained_host_hands_over_all_shards_at_once() -> None:
    before = plan_of(s1=assigned(A), s2=assigned(A), s3=assigned(B))
    after = step(replace(make_layout(3), drained=frozenset("a")), before, A, B)
    assert after == plan_of(s1=assigned(A, leaving=True), s2=assigned(A, leaving=True), s3=assigned(B))


def test_shard_with_a_new_database_is_handed_over_before_it_is_assigned_again() -> None:
    """Its number was removed and added again: the owner of the former database must stop."""
    before = plan_of(s1=assigned(A), s2=assigned(B))
    wanted = make_layout(2)
    wanted = replace(wanted, shards={**wanted.shards, 1: ShardSpec(1, "new")})
    asked = step(wanted, before, A, B, moves_max=0)
    assert asked == plan_of(s1=assigned(A, leaving=True), s2=assigned(B))
    given = step(wanted, asked, holding(A, 1, 1, "free"), B)
    assert given == plan_of(s1=replace(assigned(A, 2), database="new"), s2=assigned(B))


def test_last_host_hands_its_shards_over_when_it_leaves() -> None:
    before, going = plan_of(s1=assigned(A)), replace(A, leaving=True)
    asked = step(make_layout(1), before, going)
    assert asked == plan_of(s1=assigned(A, leaving=True))
    assert step(make_layout(1), asked, holding(going, 1, 1, "free")) == Plan({}, {1: 1})


@pytest.mark.parametrize("state", ["acquiring", "recovering", "owned", "draining", "lost"])
def test_shard_that_is_not_handed_over_yet_waits(state: str) -> None:
    before = plan_of(s1=assigned(A, 3, leaving=True))
    assert step(make_layout(1), before, holding(A, 1, 3, state), B) == before


def test_shard_that_was_handed_over_at_an_earlier_epoch_waits() -> None:
    before = plan_of(s1=assigned(A, 3, leaving=True))
    assert step(make_layout(1), before, holding(A, 1, 2, "free"), B) == before
    assert step(make_layout(1), before, A, B) == before


def test_shard_that_is_handed_over_is_assigned_with_a_higher_epoch() -> None:
    wanted = replace(make_layout(1), drained=frozenset("a"))
    before = plan_of(s1=assigned(A, 3, leaving=True))
    assert step(wanted, before, holding(A, 1, 3, "free"), B) == plan_of(s1=assigned(B, 4))


def test_leaving_owner_that_found_its_epoch_in_use_is_not_waited_for() -> None:
    wanted = replace(make_layout(1), drained=frozenset("a"))
    before = plan_of(s1=assigned(A, 3, leaving=True))
    assert step(wanted, before, wanting(A, 1, 3), B) == plan_of(s1=assigned(B, 4))


def test_overdue_handover_is_not_waited_for() -> None:
    wanted = replace(make_layout(2), drained=frozenset("a"))
    before = plan_of(s1=assigned(A, 3, leaving=True), s2=assigned(A, 3, leaving=True))
    after = step(wanted, before, A, B, overdue=frozenset({1}))
    assert after == plan_of(s1=assigned(B, 4), s2=assigned(A, 3, leaving=True))


def test_only_a_leaving_shard_can_be_overdue() -> None:
    before = plan_of(s1=assigned(A, 3), s2=assigned(B))
    assert step(make_layout(2), before, A, B, overdue=frozenset({1})) == before


def test_started_handover_is_finished_although_the_host_is_undrained() -> None:
    before = plan_of(s1=assigned(A, 3, leaving=True))
    assert step(make_layout(1), before, holding(A, 1, 3, "draining")) == before
    assert step(make_layout(1), before, holding(A, 1, 3, "free")) == plan_of(s1=assigned(A, 4))


def test_a_shard_that_left_the_layout_is_drained_and_its_epoch_stays() -> None:
    before = plan_of(s1=assigned(A, 3))
    asked = step(Layout(), before, A)
    assert asked == plan_of(s1=assigned(A, 3, leaving=True))
    assert step(Layout(), asked, holding(A, 1, 3, "draining")) == asked
    gone = step(Layout(), asked, holding(A, 1, 3, "free"))
    assert gone == Plan({}, {1: 3})
    assert step(make_layout(1), gone, A) == plan_of(s1=assigned(A, 4))


def test_a_shard_that_left_the_layout_with_its_host_is_gone_at_once() -> None:
    assert step(Layout(), plan_of(s1=assigned(A, 3))) == Plan({}, {1: 3})


def test_a_shard_of_another_tier_is_handed_over() -> None:
    moved = Layout({1: ShardSpec(1, "db", tier="big")})
    big = make_member("big", tier="big")
    assert owner_names(plans_until_stable(moved, plan_of(s1=assigned(A)), [A, big], moves_max=0)[-1]) == {1: "big"}


# ------------------------------------------------------------------------- balance


def test_a_plan_that_is_even_stays_as_it_is() -> None:
    before = plan_of(s1=assigned(B), s2=assigned(A), s3=assigned(A))
    assert step(make_layout(3), before, A, B) is not before
    assert step(make_layout(3), before, A, B) == before


def test_a_host_that_joins_gets_its_share_and_no_shard_moves_twice() -> None:
    members = [A, B]
    before = plans_until_stable(make_layout(9), Plan(), members)[-1]
    plans = plans_until_stable(make_layout(9), before, [*members, C])
    assert shard_counts(plans[-1], "a", "b", "c") == [3, 3, 3]
    assert sum(plans[-1].epochs.values()) == sum(before.epochs.values()) + 3


def test_moves_for_balance_are_bounded() -> None:
    before = plans_until_stable(make_layout(12), Plan(), [A])[-1]
    for moves_max in (0, 1, 3):
        asked = step(make_layout(12), before, A, B, moves_max=moves_max)
        assert sum(each.leaving for each in asked.assignments.values()) == moves_max
        assert step(make_layout(12), asked, A, B, moves_max=moves_max) == asked


def test_leaving_shard_counts_at_its_next_owner() -> None:
    before = plan_of(s1=assigned(A), s2=assigned(A), s3=assigned(A), s4=assigned(A))
    for first in (1, 2, 10):
        asked = step(make_layout(4), before, A, B, moves_max=first)
        asked = step(make_layout(4), asked, A, B, moves_max=10)
        assert sum(each.leaving for each in asked.assignments.values()) == 2


def test_a_drain_does_not_use_up_the_moves_for_balance() -> None:
    wanted = replace(make_layout(5), drained=frozenset("c"))
    before = plan_of(s1=assigned(A), s2=assigned(A), s3=assigned(A), s4=assigned(A), s5=assigned(C))
    asked = step(wanted, before, A, B, C)
    assert {number for number, each in asked.assignments.items() if each.leaving} == {1, 5}


def test_moves_of_different_weights_do_not_mix() -> None:
    wanted = Layout({number: ShardSpec(number, "db", weight=weight) for number, weight in enumerate((3, 2, 2, 2))})
    before = Plan({number: assigned(A) for number in wanted.shards}, dict.fromkeys(wanted.shards, 1))
    asked = step(wanted, before, A, B, moves_max=10)
    assert len({wanted.shards[number].weight for number, each in asked.assignments.items() if each.leaving}) == 1


def test_the_move_that_leaves_two_hosts_most_even_is_made() -> None:
    wanted = Layout({number: ShardSpec(number, "db", weight=weight) for number, weight in ((1, 1), (2, 4), (3, 3))})
    asked = step(wanted, plan_of(s1=assigned(A), s2=assigned(A), s3=assigned(A)), A, B)
    assert [number for number, each in asked.assignments.items() if each.leaving] == [2]


def test_a_host_of_twice_the_capacity_carries_twice_as_much() -> None:
    big = make_member("big", capacity=2)
    assert shard_counts(plans_until_stable(make_layout(9), Plan(), [A, big])[-1], "a", "big") == [3, 6]
    assert shard_counts(
        plans_until_stable(make_layout(9), plans_until_stable(make_layout(9), Plan(), [A])[-1], [A, big])[-1],
        "a",
        "big",
    ) == [3, 6]


def test_a_heavy_shard_weighs_as_much_as_many_light_ones() -> None:
    wanted = Layout({**make_layout(4).shards, 9: ShardSpec(9, "db", weight=4)})
    plan = step(wanted, Plan(), A, B)
    assert owner_names(plan) == {1: "b", 2: "b", 3: "b", 4: "b", 9: "a"}


# ------------------------------------------------------------------ tiers, regions, pins


def test_tiers_do_not_mix() -> None:
    wanted = Layout({**make_layout(4).shards, 9: ShardSpec(9, "db", tier="big")})
    plan = plans_until_stable(wanted, Plan(), [A, make_member("big", tier="big")])[-1]
    assert shard_counts(plan, "a", "big") == [4, 1]


def test_region_of_the_primary_is_preferred_to_an_even_distribution() -> None:
    wanted = Layout({number: ShardSpec(number, "db", region="eu") for number in range(6)})
    eu, us = make_member("eu", region="eu"), make_member("us", region="us")
    assert shard_counts(step(wanted, Plan(), eu, us), "eu", "us") == [6, 0]
    assert shard_counts(step(wanted, Plan(), us), "eu", "us") == [0, 6]
    draining = replace(wanted, drained=frozenset({"eu"}))
    assert shard_counts(step(draining, Plan(), eu, us), "eu", "us") == [0, 6]


def test_shards_move_to_a_host_of_their_region_a_few_at_a_time() -> None:
    wanted = Layout({number: ShardSpec(number, "db", region="eu") for number in range(6)})
    eu, us = make_member("eu", region="eu"), make_member("us", region="us")
    plans = plans_until_stable(wanted, step(wanted, Plan(), us), [eu, us], moves_max=2)
    assert shard_counts(plans[-1], "eu", "us") == [6, 0]
    assert max(sum(each.leaving for each in plan.assignments.values()) for plan in plans) == 2


def test_move_to_the_region_comes_before_balance() -> None:
    wanted = Layout({**make_layout(4).shards, 9: ShardSpec(9, "db", region="eu")})
    eu, us, new = make_member("eu", region="eu"), make_member("us", region="us"), make_member("new", region="us")
    before = plan_of(s1=assigned(us), s2=assigned(us), s3=assigned(us), s4=assigned(us), s9=assigned(new))
    asked = step(wanted, before, eu, us, new)
    assert [number for number, each in asked.assignments.items() if each.leaving] == [9]


def test_shards_without_a_region_balance_those_with_one() -> None:
    wanted = Layout({**make_layout(3).shards, 9: ShardSpec(9, "db", region="eu"), 8: ShardSpec(8, "db", region="eu")})
    plan = plans_until_stable(
        wanted, Plan(), [make_member("eu", region="eu"), make_member("us", region="us")], moves_max=2
    )[-1]
    assert shard_counts(plan, "eu", "us") in ([2, 3], [3, 2])


def test_a_pinned_shard_goes_to_its_host_and_stays_there() -> None:
    before = plans_until_stable(make_layout(4), Plan(), [A, B])[-1]
    pinned = replace(make_layout(4), pins={1: "b", 2: "b", 3: "b", 4: "b"})
    after = plans_until_stable(pinned, before, [A, B], moves_max=0)[-1]
    assert shard_counts(after, "a", "b") == [0, 4]


@pytest.mark.parametrize("gone", ["absent", "drained", "leaving", "of another tier"])
def test_pin_to_a_host_that_does_not_fit_has_no_effect(gone: str) -> None:
    pinned = replace(make_layout(2), pins={1: "b"}, drained=frozenset("b") if gone == "drained" else NOBODY_DRAINED)
    other = replace(B, leaving=gone == "leaving", tier="other" if gone == "of another tier" else "default")
    members = [A] if gone == "absent" else [A, other]
    assert owner_names(plans_until_stable(pinned, Plan(), members)[-1]) == {1: "a", 2: "a"}


def test_a_pin_outranks_the_region() -> None:
    wanted = Layout({1: ShardSpec(1, "db", region="eu")}, pins={1: "us"})
    eu, us = make_member("eu", region="eu"), make_member("us", region="us")
    plan = plans_until_stable(wanted, plan_of(s1=assigned(eu)), [eu, us])[-1]
    assert owner_names(plan) == {1: "us"}


def test_an_unpinned_shard_stays_where_it_is_unless_that_is_uneven() -> None:
    before = plans_until_stable(replace(make_layout(2), pins={1: "b", 2: "a"}), Plan(), [A, B])[-1]
    assert owner_names(before) == {1: "b", 2: "a"}
    assert step(make_layout(2), before, *follow_plan([A, B], before)) == before


NOBODY_DRAINED: frozenset[str] = frozenset()


# ---------------------------------------------------------------- primaries

SERVERS = {"s1": DatabaseServer("r1", 11), "s2": DatabaseServer("r2", 12)}
SERVING = Primary(1, "s1", LossPolicy.SEMI_SYNC, {"s2": "1.1"}, servers=SERVERS)
MOVED = replace(SERVING, term=2, server="s2", ackers={"s1": ""})
IN_R1, IN_R2 = make_member("a", region="r1"), make_member("b", region="r2")


def plan_with(entry: Primary, plan: Plan, *members: Member, overdue: frozenset[int] = NONE_OVERDUE) -> Plan:
    return next_plan(make_layout(2), plan, members, overdue, 1, Primaries({"db": entry}))


def in_term(member: Member, term: int, epoch: int = 1, *, leaving: bool = False) -> Assignment:
    return replace(assigned(member, epoch, leaving=leaving), term=term)


def test_shards_are_in_the_region_and_the_term_of_their_primary() -> None:
    plan = plan_with(SERVING, Plan(), IN_R1, IN_R2)
    assert plan == plan_of(s1=in_term(IN_R1, 1), s2=in_term(IN_R1, 1))
    assert plan_with(SERVING, plan, *follow_plan([IN_R1, IN_R2], plan)) == plan


@pytest.mark.parametrize("state", [state for state in PrimaryState if state is not PrimaryState.SERVING])
def test_while_an_entry_does_not_serve_its_shards_leave_and_get_no_owner(state: PrimaryState) -> None:
    entry = replace(SERVING, state=state)
    plan = plan_of(s1=in_term(IN_R1, 1), s2=in_term(IN_R1, 1))
    leaving = plan_with(entry, plan, IN_R1, IN_R2)
    assert leaving == plan_of(s1=in_term(IN_R1, 1, leaving=True), s2=in_term(IN_R1, 1, leaving=True))
    assert not has_no_owner(leaving, "db")
    one_overdue = plan_with(entry, leaving, IN_R1, IN_R2, overdue=frozenset({1}))
    assert owner_names(one_overdue) == {2: "a"}
    free = plan_with(entry, leaving, *follow_plan([IN_R1, IN_R2], leaving))
    assert free == Plan({}, {1: 1, 2: 1})
    assert has_no_owner(free, "db")
    assert plan_with(entry, free, IN_R1, IN_R2) == free
    found = plan_with(entry, plan, wanting(IN_R1, 1, 5), IN_R2)
    assert found.assignments[1].leaving


def test_plan_without_entries_is_written_as_hosts_without_entries_know_it() -> None:
    plan = next_plan(make_layout(2), Plan(), [IN_R1], NONE_OVERDUE, 1)
    assert b"term" not in render_plan(plan)
    assert b'"term":1' in render_plan(plan_with(SERVING, Plan(), IN_R1))


def test_shards_of_other_databases_stay_while_one_is_drained() -> None:
    other = Layout({3: ShardSpec(3, "other")})
    plan = next_plan(other, Plan(), [IN_R1], NONE_OVERDUE, 1)
    drained = Primaries({"db": replace(SERVING, state=PrimaryState.DRAINING)})
    assert next_plan(other, plan, follow_plan([IN_R1], plan), NONE_OVERDUE, 1, drained) == plan
    assert has_no_owner(plan, "db")


def test_shards_follow_their_primary_in_the_next_term_with_higher_epochs() -> None:
    after = plan_with(MOVED, Plan({}, {1: 1, 2: 1}), IN_R1, IN_R2)
    assert after == plan_of(s1=in_term(IN_R2, 2, 2), s2=in_term(IN_R2, 2, 2))


def test_assignment_of_an_earlier_term_leaves_although_the_entry_serves_again() -> None:
    """The planner has not seen the promotion, which was quicker than it."""
    plan = plan_of(s1=in_term(IN_R2, 1), s2=in_term(IN_R2, 2))
    leaving = plan_with(MOVED, plan, IN_R1, IN_R2)
    assert (leaving.assignments[1].leaving, leaving.assignments[2].leaving) == (True, False)
    after = plan_with(MOVED, leaving, *follow_plan([IN_R1, IN_R2], leaving))
    assert after.assignments[1] == in_term(IN_R2, 2, 2)


def test_first_entry_of_a_database_takes_its_shards_from_owners_without_a_term() -> None:
    plan = plan_of(s1=assigned(IN_R1), s2=assigned(IN_R1))
    assert all(each.leaving for each in plan_with(SERVING, plan, IN_R1).assignments.values())


def test_owner_whose_term_is_over_is_not_waited_for() -> None:
    """Its server is lost, so that it cannot write what waits."""
    revoking = replace(SERVING, state=PrimaryState.REVOKING)
    leaving = plan_with(revoking, plan_of(s1=in_term(IN_R1, 1), s2=in_term(IN_R2, 1)), IN_R1, IN_R2)
    assert plan_with(revoking, leaving, IN_R1, IN_R2) == leaving
    promoting = replace(
        MOVED, state=PrimaryState.PROMOTING, position=ReplicationPosition({"0-11": 3}), has_served=False
    )
    ended = plan_with(promoting, leaving, IN_R1, IN_R2)
    assert ended == Plan({}, {1: 1, 2: 1})
    assert plan_with(MOVED, leaving, IN_R1, IN_R2) == plan_of(s1=in_term(IN_R2, 2, 2), s2=in_term(IN_R2, 2, 2))
    adopted = replace(SERVING, state=PrimaryState.DRAINING, has_served=False)
    before = plan_of(s1=assigned(IN_R1, leaving=True), s2=assigned(IN_R1, leaving=True))
    assert plan_with(adopted, before, IN_R1) == before, "its owners write what waits"


MALFORMED = Primaries(malformed={"db": "primaries/db: term: Field required"})


def test_shards_of_a_database_whose_entry_cannot_be_read_stay_and_no_other_shard_waits_for_them() -> None:
    layout = Layout({**make_layout(2).shards, 3: ShardSpec(3, "other"), 4: ShardSpec(4, "other")})
    other = replace(assigned(IN_R1), database="other")
    plan = plan_of(s1=in_term(IN_R1, 2), s3=other, s4=other)
    after = next_plan(layout, plan, [IN_R1], NONE_OVERDUE, 1, MALFORMED)
    assert after == plan, "shard 2 has no owner, and gets none"
    joined = next_plan(layout, plan, [IN_R1, IN_R2], NONE_OVERDUE, 1, MALFORMED)
    assert [number for number, each in joined.assignments.items() if each.leaving] == [3]
    gone = next_plan(layout, plan, [IN_R2], NONE_OVERDUE, 1, MALFORMED)
    assert owner_names(gone) == {3: "b", 4: "b"}


def test_host_that_stops_gives_up_shards_of_a_database_whose_entry_cannot_be_read() -> None:
    plan = plan_of(s1=in_term(IN_R1, 2))
    stopping = replace(IN_R1, leaving=True)
    leaving = next_plan(make_layout(2), plan, [stopping, IN_R2], NONE_OVERDUE, 1, MALFORMED)
    assert leaving.assignments[1].leaving
    after = next_plan(make_layout(2), leaving, follow_plan([stopping, IN_R2], leaving), NONE_OVERDUE, 1, MALFORMED)
    assert owner_names(after) == {}
