"""All metrics of a host: name, kind, labels and meaning. docs/metrics.md is generated from it.

Always true: /metrics shows these metrics and those of the process (`process_*`);
times are in seconds, sizes in bytes; the number of label values is bounded, and
names beyond a limit are counted together as `other`. Knows nothing of how a
value is obtained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

BREAKER_STATES: Final = ("closed", "half-open", "open")
"""The states of a shard's circuit breaker."""


@dataclass(slots=True, frozen=True)
class MetricDescription:
    """One metric. A counter's name is followed by `_total` where it is shown."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str

    @property
    def exposed_name(self) -> str:
        """Return the name in queries; a histogram's name stands for its `_bucket`, `_sum` and `_count`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _counter(name: str, text: str, *labels: str) -> MetricDescription:
    return MetricDescription(f"foqs_{name}", "counter", labels, text)


def _gauge(name: str, text: str, *labels: str) -> MetricDescription:
    return MetricDescription(f"foqs_{name}", "gauge", labels, text)


def _histogram(name: str, text: str, *labels: str) -> MetricDescription:
    return MetricDescription(f"foqs_{name}", "histogram", labels, text)


EVENT_METRICS: Final = (
    _counter("enqueued_items", "Items whose enqueue was committed"),
    _counter("delivered_items", "Items delivered: their leases were committed"),
    _counter("acked_items", "Items acked"),
    _counter("nacked_items", "Items nacked"),
    _counter("released_items", "Items released"),
    _counter("timed_out_items", "Items whose lease, TTL or retention ended"),
    _counter("dead_lettered_items", "Items that became dead"),
    _counter("moved_items", "Items moved to another topic"),
    _histogram("flush_duration_seconds", "Duration of a committed flush, with its retries", "shard"),
    _histogram("flush_items", "Operations of a committed flush", "shard"),
    _counter("flush_retries", "Flushes that were run again", "shard"),
    _counter(
        "unknown_commit_outcomes",
        "Flushes whose connection was lost during their COMMIT, so that their outcome was unknown",
        "shard",
    ),
    _counter(
        "fenced_ownerships", "Times that this host found another owner, or lost transactions, on a shard", "shard"
    ),
    _counter("shard_breaker_changes", "Times that the shard's circuit breaker entered the state", "shard", "state"),
    _histogram(
        "acquire_duration_seconds",
        "Time from the assignment of a shard to this host, or from its loss, until it is served; `_count` is the number of acquired shards",
    ),
    _histogram(
        "handover_duration_seconds", "Time from the request to hand a shard over until all its operations are written"
    ),
    _counter("authentications", "Connections that authenticated as this principal", "principal"),
    _counter("authentication_failures", "Attempts to authenticate with a wrong token"),
    _counter("tls_handshake_failures", "TLS handshakes that failed"),
    _counter(
        "bulk_job_items",
        "Items that bulk jobs changed at this host, or could not change: changed, failed",
        "action",
        "outcome",
    ),
    _counter("calls", "Answered calls, by method (or sqs. and the action) and code: OK or the error", "method", "code"),
    _histogram("enqueue_duration_seconds", "Duration of an enqueue call, from its read to its reply"),
    _histogram(
        "dequeue_duration_seconds", "Duration of a dequeue call, from its read to its reply, with its wait for items"
    ),
    _histogram("ack_duration_seconds", "Duration of an ack call, from its read to its reply"),
    _histogram("nack_duration_seconds", "Duration of a nack call, from its read to its reply"),
)
"""The metrics of events, counted as the events happen."""

SAMPLED_METRICS: Final = (
    _gauge("shard_state", "1 for the state of the shard", "shard", "state"),
    _gauge(
        "shard_breaker_state",
        "1 for the state of the circuit breaker of a served shard; in state `open` the shard refuses new items",
        "shard",
        "state",
    ),
    _gauge("shard_epoch", "The epoch of this ownership of the shard", "shard"),
    _gauge("ready_items", "READY items", "shard"),
    _gauge("deferred_items", "DEFERRED items", "shard"),
    _gauge("leased_items", "LEASED items", "shard"),
    _gauge("dead_items", "DEAD items", "shard"),
    _gauge("counts_lag", "1 from a takeover until the shard's items are counted", "shard"),
    _gauge(
        "oldest_ready_age_seconds",
        "How long the oldest item that the shard knows has been READY; absent if it knows none. After a takeover it knows a topic once it is dequeued, listed or scraped",
        "shard",
    ),
    _gauge(
        "namespace_items",
        "Items of the namespaces with the most items; all others together are `other`",
        "namespace",
        "state",
    ),
    _gauge(
        "topic_items",
        "Items of the topics with the most items or the most acks at this host; all others together are `other`",
        "namespace",
        "topic",
        "state",
    ),
    _gauge(
        "topic_oldest_ready_age_seconds",
        "How long the oldest item of these topics has been READY; absent if there is none, or it is not read yet: the next scrape has it. `other` has it only if it is older than theirs",
        "namespace",
        "topic",
    ),
    _gauge(
        "topic_groups",
        "Groups in memory of those of these topics whose policy has rules for groups, in fair topics with the items without a group; all other topics together are `other`",
        "namespace",
        "topic",
    ),
    _gauge(
        "topic_deliverable_items",
        "READY items that no group holds back, of those of these topics whose policy limits the leases of a group; as far as they are in memory, and 1 while there may be one",
        "namespace",
        "topic",
    ),
    _counter(
        "topic_acked_items",
        "Acked items of these topics, each since it has a series of its own; acks of all others are `other`",
        "namespace",
        "topic",
    ),
    _gauge(
        "topic_displacement_items",
        "Better READY items that a delivery of the topic passed over in the tier: quantile of the last 200 samples of this host in 10 minutes",
        "namespace",
        "topic",
        "quantile",
    ),
    _gauge(
        "topic_passed_over_age_seconds",
        "For how long the best item that a delivery of the topic passed over had been READY; 0 if it passed over none. The samples are those of `foqs_topic_displacement_items`",
        "namespace",
        "topic",
        "quantile",
    ),
    _counter("order_samples", "Deliveries for which the better READY items in the tier were counted"),
    _counter(
        "order_deliveries",
        "Deliveries for which these samples count: all of a sample's topic since the sample before. The next three are estimates for them",
    ),
    _counter(
        "order_passed_over_deliveries",
        "Deliveries that passed over a better item; by what the best was better: its priority, or its age alone, which may be an error of clocks",
        "by",
    ),
    _counter("order_displacement_items", "The sum of the better items over which the deliveries passed"),
    _counter(
        "order_passed_over_seconds",
        "The sum of the times for which the best items that the deliveries passed over had been READY",
    ),
    _gauge("writer_queue_items", "Operations that wait for a flush", "shard", "kind"),
    _gauge(
        "writer_queue_bytes",
        "Payload, metadata and trace context of the operations that wait for a flush: bytes to write or to read",
        "shard",
        "kind",
    ),
    _gauge("writer_blocked_items", "Operations that wait for an earlier one on the same item", "shard"),
    _gauge("writer_bisected_parts", "Parts of rejected flushes that are tried separately", "shard"),
    _gauge("flush_items_limit", "Operations that the next flush may have; slow flushes lower it", "shard"),
    _counter(
        "refused_writes",
        "Single operations that the database rejected for good, and write-backs for which it had no room",
        "shard",
    ),
    _gauge("database_up", "1 while the shard's database answers", "shard"),
    _counter("database_reconnects", "New connections to the database after one was lost", "shard"),
    _gauge("reads_waiting", "Refills, prefetches and other reads that wait for the read connection", "shard"),
    _counter("read_failures", "Reads outside flushes that lost their connection", "shard"),
    _gauge("ready_index_items", "Items in the ready index", "shard"),
    _gauge("ready_index_bytes", "Estimated memory of the ready index", "shard"),
    _gauge(
        "ready_index_reserved_items",
        "Items of the ready index that are reserved for a delivery that is not committed yet",
        "shard",
    ),
    _gauge("ready_index_topics", "Topics that have, or may have, READY items", "shard"),
    _counter("ready_index_refills", "Refills: reads that extended a topic's window", "shard"),
    _counter(
        "ready_index_evicted_items", "Items that were evicted from full windows; a refill reads them again", "shard"
    ),
    _gauge(
        "group_units",
        "Memory of the groups of topics with a limit or turns: a group takes one unit, and one more for each 8 known items",
        "shard",
    ),
    _gauge("group_limit_units", "Memory that these groups may take: an eighth of shard.ready_index_items_max", "shard"),
    _counter("group_pages", "Pages of up to 500 rows that were read for topics with a limit or turns", "shard"),
    _counter("forgotten_groups", "Groups that left a full memory; their items are read again", "shard"),
    _gauge(
        "full_group_topics",
        "Topics with a limit whose memory is full of groups under delivery: others wait until some have ended",
        "shard",
    ),
    _gauge("timer_watermark_age_seconds", "Time since the moment up to which all due items are processed", "shard"),
    _gauge("timer_overdue_seconds", "How long the next scan for due items is overdue", "shard"),
    _gauge("timer_sweep_age_seconds", "Time since the last full scan for due items; absent before the first", "shard"),
    _gauge(
        "lease_ranges",
        "Memory of the remembered lease ends, in ranges of 16 bytes; a slot of time counts as 24 ranges",
        "shard",
    ),
    _gauge("lease_ranges_limit", "Memory that the remembered lease ends may take, in ranges", "shard"),
    _gauge(
        "lease_walk_running",
        "1 while a lease walk reads all LEASED rows, because the shard was taken over or had no room to remember their ends",
        "shard",
    ),
    _counter(
        "lease_walks", "Ended lease walks, each over all LEASED rows; the first one follows the takeover", "shard"
    ),
    _counter(
        "due_items", "Items that became due, by what ended: deliver_after, lease, ttl, retention", "shard", "kind"
    ),
    _counter("repeated_enqueues", "Enqueues that repeated an earlier one with the same idempotency key", "shard"),
    _counter("key_conflicts", "Enqueues whose idempotency key belongs to a different item", "shard"),
    _counter("key_flush_retries", "Flushes that were run again because an idempotency key was already in use", "shard"),
    _counter("key_expiry_flushes", "Flushes that deleted expired idempotency keys", "shard"),
    _counter("purged_rows", "Deleted rows of purged topics", "shard"),
    _gauge("purging_topics", "Purged topics whose rows are still being deleted", "shard"),
    _gauge("journal_dirty_items", "Items that the journal has and whose rows are not written yet", "shard"),
    _gauge("journal_memory_bytes", "Memory of the items whose rows are not written yet, with payloads", "shard"),
    _gauge("journal_rows", "Rows of the journal that are not trimmed yet", "shard"),
    _gauge("journal_bytes", "Bytes of the rows of the journal that are not trimmed yet", "shard"),
    _counter("journal_written_back_rows", "Rows that were written or deleted because the journal had them", "shard"),
    _gauge("journal_lag_seconds", "How long the oldest item of the journal has been due to get its row", "shard"),
    _gauge(
        "journal_refused_items", "Items whose rows the database refuses, or whose payloads the journal lacks", "shard"
    ),
    _gauge("journal_replay_seconds", "Duration of the replay of the journal at the takeover", "shard"),
    _gauge("row_cache_items", "Rows in the row cache, by pool: written or prefetched", "pool"),
    _gauge("row_cache_bytes", "Memory of the rows in the row cache", "pool"),
    _gauge("row_cache_limit_bytes", "Memory that the rows in the row cache may take", "pool"),
    _counter("limited_items", "Items over a limit of their namespace: rate, items, bytes or topics", "limit"),
    _gauge("connections", "Open client connections"),
    _gauge("connections_limit", "Connections that may be open"),
    _counter("connections_refused", "Connections refused because too many were open"),
    _gauge("calls_in_flight", "Busy calls: calls in flight that do not wait for items"),
    _gauge("calls_in_flight_limit", "Busy calls that may be in flight"),
    _gauge("calls_in_flight_bytes", "Memory of the calls in flight and of frames that are being read"),
    _gauge("calls_in_flight_limit_bytes", "Memory that calls in flight and frames that are being read may take"),
    _gauge("waiting_dequeues", "Dequeues that wait for items"),
)
"""The metrics that every host samples at each scrape."""

CLUSTER_METRICS: Final = (
    _gauge(
        "cluster_session_state", "1 for the session state of the host; only a host in state `serving` delivers", "state"
    ),
    _gauge(
        "cluster_serving_left_seconds",
        "How long the host can serve without another reply from ZooKeeper; 0 while it serves nothing",
    ),
    _counter("cluster_sessions", "Sessions with ZooKeeper that this host has started"),
    _gauge("cluster_hosts", "Hosts of the cluster, by the last read of this host"),
    _gauge("cluster_shards", "Shards of this host's tier on all hosts, by state", "state"),
    _gauge(
        "plan_version",
        "The version of the plan that was read last; a host with an older version does not follow the plan",
    ),
    _gauge("plan_failing", "1 while this host cannot follow the plan, or cannot write it as the elected planner"),
    _gauge("planner_elected", "1 at the host with the elected planner"),
    _gauge(
        "database_term",
        "The term of the primary of a database with a server in each region; at the host with its elected promoter only",
        "database",
    ),
    _gauge(
        "database_serving",
        "1 while the promoter reaches the primary and hosts may use it; 0 while it is away or is being replaced, or the entry cannot be read",
        "database",
    ),
    _gauge("database_ackers", "Ackers of the primary; with the policy async its replicas", "database"),
    _gauge(
        "database_proven_ackers",
        "Those of them that are reached and have all that they acknowledged, with the policy semi-sync",
        "database",
    ),
    _gauge(
        "database_replaceable",
        "While the primary serves, with the policy semi-sync: 1 if hosts would replace it by themselves if it were lost now",
        "database",
    ),
    _gauge(
        "database_blocked",
        "With the policy semi-sync: 1 while commits of the primary wait for an ack that nobody sends, so that writes wait; also "
        "0 while the primary is not reached",
        "database",
    ),
    _counter(
        "semisync_weakened",
        "Looks of this host's promoter, while it was elected, at which the primary did not wait for acks as it must, with the policy "
        "semi-sync",
        "database",
    ),
    _counter(
        "semisync_unacknowledged",
        "Commits that returned because a wait for an ack had ended, between two looks of this host's promoter at the same primary "
        "while it was elected, with the policy semi-sync",
        "database",
    ),
    _gauge(
        "replica_lag_seconds",
        "How long ago the oldest item was inserted at most that the replica is not known to have, of the shards of this host; 0 if "
        "it has all",
        "database",
        "server",
    ),
    _gauge(
        "replica_lag_max_seconds",
        "With the policy async: shards of this host accept no new items once the nearest replica lags by this",
        "database",
    ),
)
"""The metrics of a cluster, sampled at each scrape of a host in one. A host alone has none of them."""

TIER_METRICS: Final = (
    _counter("gossip_replies", "Gossip replies of other hosts"),
    _counter("gossip_failures", "Gossip requests that failed or timed out"),
    _gauge("gossip_age_seconds", "Age of the oldest gossip view of another host; 0 without other hosts"),
    _counter(
        "order_probe_failures",
        "Requests of the order meter that a host did not answer; it counts as having no better item",
    ),
    _gauge("gossip_topics", "Topics of other hosts that this host remembers; one topic at two hosts counts twice"),
)
"""The metrics of the gossip with other hosts of the tier, sampled at each scrape of a host in a cluster."""

JOB_METRICS: Final = (_gauge("bulk_jobs", "Bulk jobs on record, as this host read them last", "state"),)
"""The metrics of bulk jobs, sampled at each scrape."""

RELAY_METRICS: Final = (
    _gauge("relay_owner", "1 while this relay works on its outbox, 0 while another one does"),
    _gauge(
        "relay_lag_rows", "Rows in the outbox, those beyond 100,000 by their ids; only at the relay that works on it"
    ),
    _gauge("relay_lag_seconds", "Age of the oldest row by the user's database; only at the relay that works on it"),
    _gauge("relay_parked", "Rows that wait for a decision; only at the relay that works on the outbox"),
    _counter("relay_sent_rows", "Rows that the queue has answered with an id"),
    _counter("relay_parked_rows", "Rows that were parked"),
    _counter("relay_refused_rows", "Sends of rows that were refused for a while, or not answered; they are sent again"),
    _counter("relay_rounds", "Transactions of the relay"),
    _counter("relay_sweeps", "Reads of the whole outbox"),
    _counter("relay_inbox_pruned_rows", "Rows of the inbox that were deleted; with --inbox"),
    _gauge(
        "relay_inbox_waiting_rows", "Old rows of the inbox that stay, because their items may come again; with --inbox"
    ),
    _gauge(
        "relay_inbox_other_rows", "Old rows of the inbox that stay, because they are of other namespaces; with --inbox"
    ),
)
"""The metrics of `foqs relay`, sampled at each scrape of its own HTTP server."""

METRICS: Final = EVENT_METRICS + SAMPLED_METRICS + CLUSTER_METRICS + TIER_METRICS + JOB_METRICS


@dataclass(slots=True, frozen=True)
class DeprecatedMetric:
    """An old name of a metric, under which it is also exported, from version `since` until version `removed_in`.

    Names are those of `MetricDescription`, without `_total`.
    """

    old: str
    new: str
    since: str
    removed_in: str


DEPRECATED_METRICS: tuple[DeprecatedMetric, ...] = ()
"""Metrics of the last version that were renamed."""

_PAGE_HEADER: Final = """\
# Metrics

The HTTP server shows these metrics at `/metrics`, in Prometheus' text format, beside `process_*` (memory, CPU, open files) of the process. A histogram has `_bucket`, `_sum` and `_count`. Counters and gauges of a shard start again with each ownership. The gauges of one scrape show one moment; its counters are read one after the other. On loopback the server answers only requests whose `Host` is `localhost` or an address; others are 403. A proxy in front of it sends such a `Host`. [configs/alerts.yml](../configs/alerts.yml) has alerts on the metrics; [runbook.md](runbook.md) says what to do about each.

"""

_RELAY_HEADER: Final = """
## Of a relay

`foqs relay --http-port PORT` shows these metrics, beside `process_*`, at its own `/metrics`. See [the outbox](outbox.md).

"""


def render_page() -> str:
    """Return docs/metrics.md: `python -c "from foqs.telemetry.metric_table import *; print(render_page(), end='')"`."""
    return _PAGE_HEADER + _rows(METRICS) + _RELAY_HEADER + _rows(RELAY_METRICS) + _deprecated_rows()


def _rows(metrics: Sequence[MetricDescription]) -> str:
    rows = [
        f"| `{metric.exposed_name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.text} |"
        for metric in sorted(metrics, key=lambda metric: metric.name)
    ]
    return "\n".join(["| name | kind | labels | meaning |", "|---|---|---|---|", *rows]) + "\n"


def _deprecated_rows() -> str:
    """Return the table of the old names; nothing if there are none."""
    rows = [f"| `{entry.old}` | `{entry.new}` | {entry.since} | {entry.removed_in} |" for entry in DEPRECATED_METRICS]
    header = ["", "| deprecated name | name | since | removed in |", "|---|---|---|---|"]
    return "\n".join([*header, *rows]) + "\n" if rows else ""
