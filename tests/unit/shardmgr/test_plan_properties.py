"""Tests of the properties of every plan: random clusters, random changes, members that lie."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shardmgr.documents import parse_plan, render_plan
from shardmgr.model import EPOCH_MAX, Assignment, HeldShard, Layout, Member, Plan, ShardSpec
from shardmgr.ownership import OwnershipState
from shardmgr.plan import next_plan
from tests.support.example_counts import examples
from tests.support.plan_following import (
    NONE_OVERDUE,
    make_layout,
    make_member,
    owner_names,
    plans_until_stable,
    shard_counts,
)

TIERS = st.sampled_from(["default", "big"])
DATABASES = st.sampled_from(["db", "other"])
REGIONS = st.sampled_from(["", "eu", "us"])
NAMES = st.sampled_from("abcdefg")
SHARDS = st.integers(1, 12)
STATES = st.sampled_from([state.value for state in OwnershipState])
EPOCHS = st.integers(0, 9) | st.sampled_from([EPOCH_MAX - 1, EPOCH_MAX])
members = st.builds(make_member, NAMES, tier=TIERS, region=REGIONS, capacity=st.integers(1, 4), leaving=st.booleans())
clusters = st.lists(members, max_size=7, unique_by=lambda member: member.name)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    shards = {
        number: ShardSpec(number, draw(DATABASES), draw(TIERS), draw(st.integers(1, 5)), draw(REGIONS))
        for number in draw(st.sets(SHARDS))
    }
    return Layout(shards, draw(st.frozensets(NAMES, max_size=3)), draw(st.dictionaries(SHARDS, NAMES, max_size=3)))


@st.composite
def liars(draw: st.DrawFn) -> list[Member]:
    """Members that say anything, some of them the next incarnations of others."""
    holdings = st.dictionaries(SHARDS, st.builds(HeldShard, EPOCHS, STATES), max_size=4)
    return [
        replace(
            member,
            nonce=f"{member.nonce}-{draw(st.integers(1, 2))}",
            held_shards=draw(holdings),
            taken_epochs=draw(st.dictionaries(SHARDS, EPOCHS, max_size=3)),
        )
        for member in draw(clusters)
    ]


def fitting(layout: Layout, spec: ShardSpec, members: list[Member]) -> list[Member]:
    """Return the hosts that may get a shard, by a plain rule."""
    fit = [each for each in members if each.tier == spec.tier and not each.leaving and each.name not in layout.drained]
    pinned = [each for each in fit if each.name == layout.pins.get(spec.number)]
    home = [each for each in fit if spec.region and each.region == spec.region]
    return pinned or home or fit


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(layouts(), liars(), st.frozensets(SHARDS), st.integers(0, 3)), max_size=12))
def test_epochs_only_go_up_and_serve_one_member_whatever_is_announced(
    history: list[tuple[Layout, list[Member], frozenset[int], int]],
) -> None:
    plan = Plan()
    issued: dict[tuple[int, int], str] = {}
    for wanted, said, overdue, moves_max in history:
        before, plan = plan, next_plan(wanted, plan, said, overdue, moves_max)
        there = {member.nonce: member for member in said}
        assert parse_plan(render_plan(plan)) == plan
        for number, epoch in before.epochs.items():
            assert plan.epochs[number] >= epoch
        for number, assignment in plan.assignments.items():
            former = before.assignments.get(number)
            if former is not None and assignment.epoch == former.epoch:
                assert replace(assignment, leaving=former.leaving) == former
                assert assignment.leaving or not former.leaving
            else:
                assert not assignment.leaving
                assert assignment.epoch > before.epochs.get(number, 0)
                assert assignment.epoch == plan.epochs[number]
            assert issued.setdefault((number, assignment.epoch), assignment.nonce) == assignment.nonce
            assert assignment.nonce in there
        for number, former in before.assignments.items():
            if former.nonce in there and not former.leaving:
                after = plan.assignments.get(number)
                exhausted = after is None and plan.epochs[number] == EPOCH_MAX
                assert exhausted or (after is not None and after.nonce == former.nonce)


@settings(max_examples=examples(50), deadline=None)
@given(layouts(), clusters, st.lists(st.tuples(layouts(), clusters), max_size=2), st.integers(1, 4))
def test_members_that_follow_the_plan_bring_it_to_a_valid_rest(
    wanted: Layout, members: list[Member], earlier: list[tuple[Layout, list[Member]]], moves_max: int
) -> None:
    plan = Plan()
    for formerly, who in earlier:
        plan = plans_until_stable(formerly, plan, who, moves_max)[-1]
    plan = plans_until_stable(wanted, plan, members, moves_max)[-1]
    by_nonce = {member.nonce: member for member in members}
    assert plan.assignments.keys() == {
        number for number, spec in wanted.shards.items() if fitting(wanted, spec, members)
    }
    load = dict.fromkeys(by_nonce, 0)
    for number, assignment in plan.assignments.items():
        assert not assignment.leaving
        assert assignment.database == wanted.shards[number].database
        assert by_nonce[assignment.nonce] in fitting(wanted, wanted.shards[number], members)
        load[assignment.nonce] += wanted.shards[number].weight
    for number, assignment in plan.assignments.items():
        spec, owner = wanted.shards[number], by_nonce[assignment.nonce]
        for other in fitting(wanted, spec, members):
            if wanted.pins.get(number) != owner.name and other is not owner:
                share = load[owner.nonce] * other.capacity
                assert (load[other.nonce] + spec.weight) * owner.capacity >= share, (number, owner.name, other.name)


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 24), st.lists(st.sets(NAMES, min_size=1), min_size=1, max_size=5), st.integers(1, 5))
def test_equal_shards_on_equal_hosts_differ_by_one_at_most(count: int, history: list[set[str]], moves_max: int) -> None:
    plan = Plan()
    for names in history:
        plan = plans_until_stable(make_layout(count), plan, [make_member(name) for name in names], moves_max)[-1]
    carried = shard_counts(plan, *sorted(history[-1]))
    assert sum(carried) == count
    assert max(carried) - min(carried) <= 1


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 24), st.sets(NAMES, min_size=2), st.data())
def test_when_a_host_dies_no_shard_of_another_moves(count: int, names: set[str], data: st.DataObject) -> None:
    before = plans_until_stable(make_layout(count), Plan(), [make_member(name) for name in sorted(names)])[-1]
    dead = data.draw(st.sampled_from(sorted(names)))
    after = plans_until_stable(make_layout(count), before, [make_member(name) for name in sorted(names - {dead})])
    assert len(after) <= 2
    for number, assignment in before.assignments.items():
        if assignment.name != dead:
            assert after[-1].assignments[number] == assignment


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 24), st.sets(NAMES, min_size=2), st.integers(1, 5), st.data())
def test_joining_host_moves_only_the_shards_that_it_gets(
    count: int, names: set[str], moves_max: int, data: st.DataObject
) -> None:
    joins = data.draw(st.sampled_from(sorted(names)))
    before = plans_until_stable(make_layout(count), Plan(), [make_member(name) for name in sorted(names - {joins})])[-1]
    after = plans_until_stable(make_layout(count), before, [make_member(name) for name in sorted(names)], moves_max)[-1]
    for number, assignment in after.assignments.items():
        assert assignment.name == joins or assignment == before.assignments[number]
    assert len(owner_names(after)) == count


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 24), st.sets(NAMES, min_size=2), st.integers(1, 5), st.data())
def test_a_drained_host_is_emptied_and_nothing_else_moves(
    count: int, names: set[str], moves_max: int, data: st.DataObject
) -> None:
    cluster = [make_member(name) for name in sorted(names)]
    drained = data.draw(st.sampled_from(sorted(names)))
    before = plans_until_stable(make_layout(count), Plan(), cluster)[-1]
    plans = plans_until_stable(replace(make_layout(count), drained=frozenset({drained})), before, cluster, moves_max)
    assert len(plans) <= 3
    for number, assignment in plans[-1].assignments.items():
        assert assignment.name != drained
        assert before.assignments[number].name == drained or assignment == before.assignments[number]


@settings(max_examples=examples(50), deadline=None)
@given(layouts(), liars())
def test_a_plan_does_not_depend_on_the_order_in_which_anything_is_named(wanted: Layout, said: list[Member]) -> None:
    plan = Plan(
        {3: Assignment("a", "nonce-a-1", 4, "db"), 1: Assignment("b", "nonce-b-1", 2, "db", True)}, {1: 2, 3: 4}
    )
    turned = replace(wanted, shards=dict(list(wanted.shards.items())[::-1]))
    again = Plan(dict(list(plan.assignments.items())[::-1]), plan.epochs)
    assert next_plan(wanted, plan, said, NONE_OVERDUE, 2) == next_plan(turned, again, said[::-1], NONE_OVERDUE, 2)
