"""Hosts that follow a plan at once, and the number of plans until nothing is left to do.

Always true: a shard is served by the host and with the epoch of the plan; a shard
that is leaving is released. Knows nothing of registries or time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardmgr.model import Assignment, HeldShard, Layout, Member, Plan, ShardSpec
from shardmgr.plan import next_plan

NONE_OVERDUE: frozenset[int] = frozenset()


def make_member(
    name: str, *, tier: str = "default", region: str = "", capacity: int = 1, leaving: bool = False
) -> Member:
    """A member whose nonce is made of its name."""
    return Member(name, f"nonce-{name}", f"{name}:7000", tier, region, capacity, leaving=leaving)


def make_layout(count: int, *, first: int = 1, weight: int = 1) -> Layout:
    """Shards that are all alike."""
    return Layout({number: ShardSpec(number, "db", weight=weight) for number in range(first, first + count)})


def follow_plan(members: Sequence[Member], plan: Plan) -> list[Member]:
    """Return the entries of the members once they have followed the plan."""
    return [replace(member, held_shards=_holdings(member, plan.assignments), taken_epochs={}) for member in members]


def plans_until_stable(layout: Layout, plan: Plan, members: Sequence[Member], moves_max: int = 1) -> list[Plan]:
    """The plans one after another, the given one first, the last one at rest."""
    plans = [plan]
    # Each shard is let go and assigned at most a few times; more would be going round in circles.
    for _ in range(10 + 8 * len(layout.shards) + 2 * len(plan.assignments)):
        following = next_plan(layout, plans[-1], follow_plan(members, plans[-1]), NONE_OVERDUE, moves_max)
        if following == plans[-1]:
            return plans
        plans.append(following)
    raise AssertionError(f"not at rest after {len(plans)} plans: {plans[-3:]}")


def owner_names(plan: Plan) -> dict[int, str]:
    """Return the name of each shard's planned owner."""
    return {number: assignment.name for number, assignment in sorted(plan.assignments.items())}


def shard_counts(plan: Plan, *names: str) -> list[int]:
    """Return the number of shards of each host."""
    return [list(owner_names(plan).values()).count(name) for name in names]


def _holdings(member: Member, assignments: Mapping[int, Assignment]) -> dict[int, HeldShard]:
    return {
        number: HeldShard(assignment.epoch, "free" if assignment.leaving else "owned")
        for number, assignment in assignments.items()
        if assignment.nonce == member.nonce
    }
