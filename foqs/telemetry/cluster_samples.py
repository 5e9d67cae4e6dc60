"""What a host shows of its cluster at a scrape: the readings of `metric_table.CLUSTER`.

Always true: a scrape asks nobody; it reads what the agent read last. Knows
nothing of the format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from foqs.cluster.membership import Membership
from foqs.telemetry.metrics import Samples
from foqs.telemetry.samples import SHARD_STATES
from shardmgr.model import ClusterView
from shardmgr.ownership_progress import ownership_state_of
from shardmgr.session_state import SessionState


def cluster_samples(membership: Membership, tier: str) -> Samples:
    """Every reading, as things are now; of hosts and shards none before the plan was read."""
    agent, planner, view = membership.agent, membership.planner, membership.agent.view
    troubled = agent.problem is not None or (planner.is_elected and planner.problem is not None)
    found: dict[str, Sequence[tuple[tuple[str, ...], float]]] = {
        "foqs_cluster_standing": [((each.value,), float(each is agent.session_state)) for each in SessionState],
        "foqs_cluster_serve_seconds": [((), agent.serve_left_ms / 1_000)],
        "foqs_cluster_sessions": [((), float(membership.registry.session_number))],
        "foqs_plan_version": [((), float(-1 if agent.plan_version is None else agent.plan_version))],
        "foqs_plan_trouble": [((), float(troubled))],
        "foqs_planner_elected": [((), float(planner.is_elected))],
    }
    if view is not None:
        states = _count_states(view, tier)
        found["foqs_cluster_hosts"] = [((), float(len(view.members)))]
        found["foqs_cluster_shards"] = [((state,), float(states[state])) for state in SHARD_STATES]
    return found


def _count_states(view: ClusterView, tier: str) -> Counter[str]:
    """How many shards of the tier are in each state."""
    members = {member.nonce: member for member in view.members}
    states: Counter[str] = Counter()
    for number, spec in view.layout.shards.items():
        if spec.tier == tier:
            assignment = view.plan.assignments.get(number)
            owner = None if assignment is None else members.get(assignment.nonce)
            states[ownership_state_of(number, assignment, owner)] += 1
    return states
