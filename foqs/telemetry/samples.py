"""A host's samples at a scrape: the values of `SAMPLED_METRICS`.

Always true: a scrape reads and changes nothing; its cost is bounded: it reads at
most TOPICS_SCANNED_MAX topics and counts the others as `other`. Knows nothing of
the format.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from heapq import nlargest
from operator import itemgetter
from typing import Final

from foqs.core.items.item import State
from foqs.queue.engine import Engine
from foqs.rpc.server import RpcServer
from foqs.shard.shard import Shard
from foqs.shard.snapshot import ShardSnapshot
from foqs.telemetry.metrics import Samples

SHARD_STATES: Final = ("free", "acquiring", "recovering", "owned", "draining", "lost")
"""The states of a shard, as in ShardInfo of thrift/foqs.thrift."""

BREAKER_STATES: Final = ("closed", "half-open", "open")
"""The states of a shard's circuit breaker."""

DUE_KINDS: Final = ("deliver_after", "lease", "ttl", "retention")

LIMITS: Final = ("rate", "items", "bytes", "topics")
"""The limits of a namespace's enqueues."""

NAMESPACES_MAX: Final = 50
TOPICS_MAX: Final = 50
"""The namespaces and topics with their own series, of all shards together."""

TOPICS_SCANNED_MAX: Final = 10_000
"""The topics that a scrape reads, of all shards together: some milliseconds of the event loop."""

OTHER: Final = "other"
ORDER_KEY_BYTES: Final = 48
"""An integer of 128 bits and its place in a list."""

_STATES: Final = (State.DEFERRED, State.READY, State.LEASED, State.DEAD)
_STATE_NAMES: Final = {state: state.name.lower() for state in _STATES}

_SampleLists = defaultdict[str, list[tuple[tuple[str, ...], float]]]

_SNAPSHOT_METRICS: Final[dict[str, Callable[[ShardSnapshot], float | None]]] = {
    "foqs_writer_blocked_items": lambda shard: shard.held_items,
    "foqs_writer_bisected_parts": lambda shard: shard.bisection_batch_count,
    "foqs_flush_items_limit": lambda shard: shard.flush_items_limit,
    "foqs_refused_writes": lambda shard: shard.refused_writes,
    "foqs_database_reconnects": lambda shard: shard.reconnects,
    "foqs_reads_waiting": lambda shard: shard.reads_waiting,
    "foqs_read_failures": lambda shard: shard.read_failures,
    "foqs_ready_index_items": lambda shard: shard.index_keys,
    "foqs_ready_index_bytes": lambda shard: shard.index_keys * ORDER_KEY_BYTES,
    "foqs_ready_index_reserved_items": lambda shard: shard.index_reserved,
    "foqs_ready_index_topics": lambda shard: shard.index_topics,
    "foqs_ready_index_refills": lambda shard: shard.refills,
    "foqs_ready_index_evicted_items": lambda shard: shard.evicted_keys,
    "foqs_timer_watermark_age_seconds": lambda shard: _seconds(shard.watermark_age_ms),
    "foqs_timer_overdue_seconds": lambda shard: _seconds(shard.overdue_ms),
    "foqs_timer_sweep_age_seconds": lambda shard: _seconds(shard.sweep_age_ms),
    "foqs_repeated_enqueues": lambda shard: shard.keys_repeated,
    "foqs_key_conflicts": lambda shard: shard.keys_in_conflict,
    "foqs_key_flush_retries": lambda shard: shard.key_reruns,
    "foqs_key_expiry_flushes": lambda shard: shard.key_expiry_flushes,
    "foqs_purged_rows": lambda shard: shard.purged_rows,
    "foqs_purging_topics": lambda shard: shard.purging_topics,
}


def host_samples(engine: Engine, server: RpcServer) -> Samples:
    """Return the samples of `SAMPLED_METRICS`."""
    samples: _SampleLists = defaultdict(list)
    for status in engine.queue.shard_statuses():
        name = str(status.shard)
        for state in SHARD_STATES:
            samples["foqs_shard_state"].append(((name, state), float(state == status.state)))
        samples["foqs_shard_epoch"].append(((name,), status.epoch))
        shard = engine.shards.get(status.shard)
        samples["foqs_database_up"].append(((name,), float(shard is not None and shard.unavailable_reason is None)))
        if shard is not None:
            for state in BREAKER_STATES:
                samples["foqs_shard_breaker_state"].append(((name, state), float(state == shard.breaker_state)))
            _add_shard_samples(samples, name, shard)
    _add_item_samples(samples, list(engine.shards.values()))
    for pool, budget in engine.budgets.items():
        samples["foqs_row_cache_items"].append(((pool,), budget.items))
        samples["foqs_row_cache_bytes"].append(((pool,), budget.bytes))
        samples["foqs_row_cache_limit_bytes"].append(((pool,), budget.bytes_max))
    for limit in LIMITS:
        samples["foqs_limited_items"].append(((limit,), engine.queue.quota.limited_items[limit]))
    for name, value in {
        "foqs_connections": len(server.connections),
        "foqs_connections_limit": server.limits.connections_max,
        "foqs_connections_refused": server.refused_connection_count,
        "foqs_calls_in_flight": server.calls_in_flight,
        "foqs_calls_in_flight_limit": server.limits.calls_in_flight_max,
        "foqs_calls_in_flight_bytes": server.byte_budget.reserved_bytes,
        "foqs_calls_in_flight_limit_bytes": server.byte_budget.bytes_max,
        "foqs_waiting_dequeues": len(engine.queue.waiters),
    }.items():
        samples[name].append(((), value))
    return samples


def _add_shard_samples(samples: _SampleLists, name: str, shard: Shard) -> None:
    counts = shard.counts
    for state in _STATES:
        samples[f"foqs_{_STATE_NAMES[state]}_items"].append(((name,), counts.totals[state]))
    samples["foqs_counts_lag"].append(((name,), float(counts.is_lagging)))
    oldest_ms = shard.oldest_ready_age_ms()
    if oldest_ms is not None:
        samples["foqs_oldest_ready_age_seconds"].append(((name,), oldest_ms / 1_000))
    snapshot = shard.snapshot()
    for kind, items in snapshot.queue_items.items():
        samples["foqs_writer_queue_items"].append(((name, kind), items))
        samples["foqs_writer_queue_bytes"].append(((name, kind), snapshot.queue_bytes[kind]))
    for kind in DUE_KINDS:
        samples["foqs_due_items"].append(((name, kind), snapshot.due_counts.get(kind, 0)))
    for metric, read in _SNAPSHOT_METRICS.items():
        value = read(snapshot)
        if value is not None:
            samples[metric].append(((name,), value))


def _add_item_samples(samples: _SampleLists, shards: list[Shard]) -> None:
    """Add the items by namespace and by topic, for those with the most items; the rest is summed up."""
    namespaces: defaultdict[str, Counter[State]] = defaultdict(Counter)
    topics: Counter[tuple[str, str]] = Counter()
    for shard in shards:
        for namespace, topic, counts in shard.counts.first_topics(TOPICS_SCANNED_MAX // len(shards)):
            topics[namespace, topic] += counts[State.READY]
            counted = namespaces[namespace]
            for state in _STATES:
                counted[state] += counts[state]
    totals = {state: sum(shard.counts.totals[state] for shard in shards) for state in _STATES}
    # A namespace or topic that is named `other` counts among the others: no two series may have the same labels.
    namespaces.pop(OTHER, None)
    topics.pop((OTHER, OTHER), None)
    named = _largest((name, counted.total()) for name, counted in namespaces.items())
    for namespace in sorted(named):
        for state in _STATES:
            samples["foqs_namespace_items"].append(((namespace, _STATE_NAMES[state]), namespaces[namespace][state]))
    for state in _STATES:
        rest = totals[state] - sum(namespaces[namespace][state] for namespace in named)
        samples["foqs_namespace_items"].append(((OTHER, _STATE_NAMES[state]), rest))
    ready = nlargest(TOPICS_MAX, topics.items(), key=itemgetter(1))
    for (namespace, topic), items in sorted(ready):
        if items:
            samples["foqs_topic_ready_items"].append(((namespace, topic), items))
    rest = totals[State.READY] - sum(items for _, items in ready)
    samples["foqs_topic_ready_items"].append(((OTHER, OTHER), rest))


def _largest(sizes: Iterable[tuple[str, int]]) -> list[str]:
    return [name for name, _ in nlargest(NAMESPACES_MAX, sizes, key=itemgetter(1))]


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000
