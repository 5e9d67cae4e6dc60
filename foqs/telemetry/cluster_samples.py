"""A host's metrics of its cluster: the samples of `CLUSTER_METRICS`, `TIER_METRICS` and `JOB_METRICS`.

Always true: a scrape sends no request; it shows what the host read last: the
agent's view, the gossip view, the record of the jobs. Knows nothing of the format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from foqs.cluster.gossip.gossip import Gossip
from foqs.cluster.membership import Membership
from foqs.cluster.order_probe import OrderProbe
from foqs.cluster.position_publisher import PositionPublisher
from foqs.queue.bulk_jobs.bulk_job import BulkJobRecords, BulkJobState
from foqs.telemetry.metrics import Samples
from foqs.telemetry.samples import SHARD_STATES
from shardmgr.host_promoters import HostPromoters
from shardmgr.model import ClusterView
from shardmgr.ownership import ownership_state_of
from shardmgr.primary import LossPolicy
from shardmgr.session_state import SessionState


def cluster_samples(membership: Membership, tier: str) -> Samples:
    """Return the samples of `CLUSTER_METRICS`; none of hosts and shards before the plan was read."""
    agent, planner, view = membership.agent, membership.planner, membership.agent.view
    is_failing = agent.problem is not None or (planner.is_elected and planner.problem is not None)
    samples: dict[str, Sequence[tuple[tuple[str, ...], float]]] = {
        "foqs_cluster_session_state": [((state.value,), float(state is agent.session_state)) for state in SessionState],
        "foqs_cluster_serving_left_seconds": [((), agent.serve_left_ms / 1_000)],
        "foqs_cluster_sessions": [((), float(membership.registry.session_number))],
        "foqs_plan_version": [((), float(-1 if agent.plan_version is None else agent.plan_version))],
        "foqs_plan_failing": [((), float(is_failing))],
        "foqs_planner_elected": [((), float(planner.is_elected))],
    }
    samples |= _database_samples(membership.promoters)
    if membership.positions is not None:
        samples |= _position_samples(membership.positions)
    if view is not None:
        states = _count_states(view, tier)
        samples["foqs_cluster_hosts"] = [((), float(len(view.members)))]
        samples["foqs_cluster_shards"] = [((state,), float(states[state])) for state in SHARD_STATES]
    return samples


def _database_samples(promoters: HostPromoters) -> dict[str, Sequence[tuple[tuple[str, ...], float]]]:
    """Return the samples of the databases for which this host has the elected promoter, and its counters of all.

    A command may be elected, or nobody if the entry cannot be read: then each host shows that the database does not serve.
    """
    rounds = promoters.rounds.items()
    serving = [((name,), float(each.is_reached and each.entry.is_serving)) for name, each in rounds]
    serving += [((name,), 0.0) for name in sorted(promoters.unserved - promoters.rounds.keys())]
    synced = [(name, each) for name, each in rounds if each.entry.policy is LossPolicy.SEMI_SYNC]
    return {
        "foqs_database_term": [((name,), float(each.entry.term)) for name, each in rounds],
        "foqs_database_serving": serving,
        "foqs_database_ackers": [((name,), float(len(each.entry.ackers))) for name, each in rounds],
        "foqs_database_proven_ackers": [((name,), float(len(each.proven))) for name, each in synced],
        "foqs_database_replaceable": [
            ((name,), float(not each.lacks_if_lost)) for name, each in synced if each.entry.is_serving
        ],
        "foqs_database_blocked": [((name,), float(bool(each.blocked))) for name, each in synced],
        # Also at hosts whose promoter is not elected: a counter that begins above 0 has no increase.
        "foqs_semisync_weakened": [((name,), float(count)) for name, count in promoters.weakened.items()],
        "foqs_semisync_unacknowledged": [((name,), float(count)) for name, count in promoters.unacknowledged.items()],
    }


def _position_samples(positions: PositionPublisher) -> dict[str, Sequence[tuple[tuple[str, ...], float]]]:
    """Return the samples of the databases with replicas of which this host owns shards."""
    return {
        "foqs_replica_lag_seconds": [(names, lag_ms / 1_000) for names, lag_ms in positions.lags_ms().items()],
        "foqs_replica_lag_max_seconds": [((name,), bound / 1_000) for name, bound in positions.bounds_ms().items()],
    }


def tier_samples(gossip: Gossip, order_probe: OrderProbe) -> Samples:
    """Return the samples of `TIER_METRICS`."""
    exchange = gossip.exchange
    return {
        "foqs_gossip_replies": [((), float(exchange.reply_count))],
        "foqs_gossip_failures": [((), float(exchange.failure_count))],
        "foqs_gossip_age_seconds": [((), exchange.oldest_view_age_s)],
        "foqs_order_probe_failures": [((), float(order_probe.failure_count))],
        "foqs_gossip_topics": [((), float(len(gossip.view)))],
    }


def _count_states(view: ClusterView, tier: str) -> Counter[str]:
    """Count the tier's shards by state."""
    members = {member.nonce: member for member in view.members}
    states: Counter[str] = Counter()
    for number, spec in view.layout.shards.items():
        if spec.tier == tier:
            assignment = view.plan.assignments.get(number)
            owner = None if assignment is None else members.get(assignment.nonce)
            states[ownership_state_of(number, assignment, owner)] += 1
    return states


def job_samples(jobs: BulkJobRecords) -> Samples:
    """Return the samples of `JOB_METRICS`."""
    states = Counter(job.state for job in jobs.by_id.values())
    return {"foqs_bulk_jobs": [((state.value,), float(states[state])) for state in BulkJobState]}
