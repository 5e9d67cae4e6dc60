"""Every metric of a host: its name, kind, labels and meaning. docs/metrics.md is drawn from it.

Always true: what a host shows at /metrics is this and the process's own
(`process_*`); times are seconds, sizes bytes; labels are shards, kinds, methods,
codes and states, whose number is bounded, or names that are capped, beyond
which all others together are `other`. Knows nothing of how a value is had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(slots=True, frozen=True)
class MetricDescription:
    """One metric. A counter's name is followed by `_total` where it is shown."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str

    @property
    def exposed_name(self) -> str:
        """The name in queries; a histogram's stands for its `_bucket`, `_sum` and `_count`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _counter(name: str, text: str, *labels: str) -> MetricDescription:
    return MetricDescription(f"foqs_{name}", "counter", labels, text)


def _gauge(name: str, text: str, *labels: str) -> MetricDescription:
    return MetricDescription(f"foqs_{name}", "gauge", labels, text)


def _histogram(name: str, text: str, *labels: str) -> MetricDescription:
    return MetricDescription(f"foqs_{name}", "histogram", labels, text)


EVENT_METRICS: Final = (
    _counter("enqueued_items", "Items whose enqueue was committed"),
    _counter("dequeued_items", "Items handed out, the lease committed"),
    _counter("acked_items", "Items done"),
    _counter("nacked_items", "Items given back as not done"),
    _counter("released_items", "Items given back untried"),
    _counter("expired_items", "Items whose lease, TTL or retention ended by itself"),
    _counter("dead_lettered_items", "Items given up"),
    _histogram("flush_duration_seconds", "A committed transaction, its reruns included", "shard"),
    _histogram("flush_items", "Operations of a committed transaction", "shard"),
    _counter("flush_retries", "Transactions that were run again", "shard"),
    _counter("unknown_commits", "Transactions whose outcome had to be found out", "shard"),
    _counter("fenced_shards", "Times that another owner was found on a shard", "shard"),
    _counter("shard_breaker_changes", "Times that a shard's breaker entered a state", "shard", "state"),
    _histogram(
        "takeover_duration_seconds",
        "From when a shard was given to this host, or was lost by it, until it is served; its count is that of takeovers",
    ),
    _histogram("handover_duration_seconds", "From when a shard was to be given back until all of it was written"),
    _counter("authentications", "Connections that showed a token or certificate of this principal", "principal"),
    _counter("authentication_failures", "Wrong tokens shown"),
    _counter("tls_handshake_failures", "TLS handshakes that came to nothing"),
    _counter("calls", "Calls answered, by method and OK or error code", "method", "code"),
    _histogram("enqueue_duration_seconds", "enqueue, from read to reply"),
    _histogram("dequeue_duration_seconds", "dequeue, from read to reply, its wait for work included"),
    _histogram("ack_duration_seconds", "ack, from read to reply"),
    _histogram("nack_duration_seconds", "nack, from read to reply"),
)
"""Counted as they happen."""

SAMPLED_METRICS: Final = (
    _gauge("shard_state", "1 for the state the shard is in", "shard", "state"),
    _gauge(
        "shard_breaker_state",
        "1 for the state the breaker of a served shard is in; open refuses new items",
        "shard",
        "state",
    ),
    _gauge("shard_epoch", "The number of this ownership of the shard", "shard"),
    _gauge("ready_items", "Items that may be delivered", "shard"),
    _gauge("deferred_items", "Items that wait for their time", "shard"),
    _gauge("leased_items", "Items that consumers have", "shard"),
    _gauge("dead_items", "Items given up and kept", "shard"),
    _gauge("counts_lag", "1 until the shard's items were counted after a takeover", "shard"),
    _gauge(
        "oldest_ready_age_seconds",
        "How long the oldest ready item in memory has been ready; absent when there is none",
        "shard",
    ),
    _gauge(
        "namespace_items",
        "Items of the namespaces with the most of them; all others together are `other`",
        "namespace",
        "state",
    ),
    _gauge(
        "topic_ready_items",
        "Ready items of the topics with the most of them; all others together are `other`",
        "namespace",
        "topic",
    ),
    _gauge("writer_queue_items", "Operations that wait for a flush", "shard", "kind"),
    _gauge("writer_queue_bytes", "Payload and metadata that they write or have a flush read", "shard", "kind"),
    _gauge("writer_held_items", "Operations that wait for an earlier one on the same item", "shard"),
    _gauge("writer_suspects", "Parts of flushes that the database refused and that are tried alone", "shard"),
    _gauge("flush_items_limit", "Operations that the next flush may have, by the time the last ones took", "shard"),
    _counter("refused_writes", "Single operations that the database refused for good", "shard"),
    _gauge("database_up", "1 while the shard's database answers", "shard"),
    _counter("database_reconnects", "Connections made anew after one was lost", "shard"),
    _gauge("reads_waiting", "Refills, loads and looks that wait for the reading connection", "shard"),
    _counter("read_failures", "Reads beside the flushes that lost their connection", "shard"),
    _gauge("ready_index_keys", "Ready items whose place in the order is in memory", "shard"),
    _gauge("ready_index_bytes", "About what these take", "shard"),
    _gauge("ready_index_reserved_keys", "Of them, those taken for a hand-out that is not committed yet", "shard"),
    _gauge("ready_index_topics", "Topics that have, or may have, ready items", "shard"),
    _counter("ready_index_refills", "Reads that extended a topic's window", "shard"),
    _counter("ready_index_evicted_keys", "Keys that were put out of full windows; they are read again", "shard"),
    _gauge("timer_watermark_age_seconds", "Since when everything due is known to be applied", "shard"),
    _gauge("timer_overdue_seconds", "For how long the next scan for due items has been due", "shard"),
    _gauge("timer_sweep_age_seconds", "Since the last scan of due items of all times; absent before it", "shard"),
    _counter("due_items", "Items whose moment came, by what ended: delay, lease, ttl, retention", "shard", "kind"),
    _counter("repeated_keys", "Enqueues whose key named an item already", "shard"),
    _counter("conflicting_keys", "Enqueues whose key named another item", "shard"),
    _counter("key_reruns", "Transactions run again because a key in them was taken", "shard"),
    _counter("key_clearings", "Transactions that cleared away keys whose time was over", "shard"),
    _counter("purged_rows", "Rows of purged topics that were deleted", "shard"),
    _gauge("purging_topics", "Purged topics whose rows are still being deleted", "shard"),
    _gauge("row_cache_items", "Rows in memory, just written or loaded ahead", "pool"),
    _gauge("row_cache_bytes", "What they take", "pool"),
    _gauge("row_cache_limit_bytes", "What they may take", "pool"),
    _counter("limited_items", "Items that came beyond a limit of their namespace: rate, items, bytes, topics", "limit"),
    _gauge("connections", "Open client connections"),
    _gauge("connections_limit", "Connections that may be open"),
    _counter("connections_refused", "Connections refused because there were too many"),
    _gauge("calls_in_flight", "Calls begun and not answered"),
    _gauge("calls_in_flight_limit", "Calls that may be in flight"),
    _gauge("calls_in_flight_bytes", "What frames begun and calls in flight hold"),
    _gauge("calls_in_flight_limit_bytes", "What they may hold"),
    _gauge("waiting_dequeues", "Dequeues that wait for work"),
)
"""Asked for at each scrape."""

CLUSTER_METRICS: Final = (
    _gauge("cluster_standing", "1 for how the host stands with its cluster; only serving hands out", "standing"),
    _gauge(
        "cluster_serve_seconds",
        "How long it would go on serving if ZooKeeper answered no more; 0 while it serves nothing",
    ),
    _counter("cluster_sessions", "Sessions with ZooKeeper that this host has begun"),
    _gauge("cluster_hosts", "Hosts that are there, as this one read it last"),
    _gauge("cluster_shards", "Shards of this host's tier, wherever they are, by their state", "state"),
    _gauge("plan_version", "The version of the plan that was read last; hosts that stay behind do not follow it"),
    _gauge("plan_trouble", "1 while this host cannot follow the plan, or as the elected one cannot make it"),
    _gauge("planner_elected", "1 at the host that plans"),
)
"""The same, of hosts in a cluster; a host that is alone has none of it."""

TIER_METRICS: Final = (
    _counter("exchanges", "Answers of other hosts that told what they have"),
    _counter("exchange_failures", "Such answers that did not come in time, or were refusals"),
    _gauge("peer_summaries_age_seconds", "How old what the most silent other host told is; 0 without other hosts"),
    _gauge("peer_topics", "Topics of other hosts that this one remembers; one topic at two hosts counts twice"),
)
"""The same; what hosts of a tier tell each other."""

METRICS: Final = EVENT_METRICS + SAMPLED_METRICS + CLUSTER_METRICS + TIER_METRICS

_PAGE_HEADER: Final = """\
# Metrics

What `/metrics` on the HTTP port shows, in Prometheus' text format; `process_*` (memory, CPU, open files) are beside these. A histogram has `_bucket`, `_sum` and `_count`. Counters and gauges of a shard begin anew with each ownership. The gauges of a page are of one moment; its counters are read one after the other. [configs/alerts.yml](../configs/alerts.yml) has alerts on them, [runbook.md](runbook.md) says what to do.

"""


def render_page() -> str:
    """docs/metrics.md: `python -c "from foqs.telemetry.metric_table import page; print(page(), end='')" > docs/metrics.md`."""
    rows = [
        f"| `{each.exposed_name}` | {each.kind} | {', '.join(each.labels)} | {each.text} |"
        for each in sorted(METRICS, key=lambda each: each.name)
    ]
    return _PAGE_HEADER + "\n".join(["| name | kind | labels | what it is |", "|---|---|---|---|", *rows]) + "\n"
