"""A host's samples at a scrape: the values of `SAMPLED_METRICS`.

Always true: a scrape reads and changes nothing; its cost is bounded: it reads at
most TOPICS_SCANNED_MAX topics and counts the others as `other`. Knows nothing of
the format.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Final

from foqs.core.items.item import State, TopicName
from foqs.core.journal.journal_status import JournalStatus
from foqs.core.memory.order_samples import OrderSamples
from foqs.queue.engine import Engine
from foqs.queue.reads.listings import counts_by_state
from foqs.rpc.server import RpcServer
from foqs.shard.shard import OwnedShard
from foqs.shard.snapshot import ShardSnapshot
from foqs.telemetry.metric_table import BREAKER_STATES
from foqs.telemetry.metrics import Samples
from foqs.telemetry.named_topics import OTHER, OTHER_TOPICS, NamedTopics

SHARD_STATES: Final = ("free", "acquiring", "recovering", "owned", "draining", "lost")
"""The states of a shard, as in ShardInfo of thrift/foqs.thrift."""

DUE_KINDS: Final = ("deliver_after", "lease", "ttl", "retention")

LIMITS: Final = ("rate", "items", "bytes", "topics")
"""The limits of a namespace's enqueues."""

NAMESPACES_MAX: Final = 50
"""The maximum number of namespaces with their own series, of all shards together."""

TOPICS_SCANNED_MAX: Final = 10_000
"""The maximum number of topics that a scrape reads, of all shards together: some milliseconds of the event loop."""

ORDER_KEY_BYTES: Final = 48
"""The memory of one order key: an integer of 128 bits and its place in a list."""

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
    "foqs_group_units": lambda shard: shard.group_units,
    "foqs_group_limit_units": lambda shard: shard.group_units_max,
    "foqs_group_pages": lambda shard: shard.group_pages,
    "foqs_forgotten_groups": lambda shard: shard.forgotten_groups,
    "foqs_full_group_topics": lambda shard: shard.full_topics,
    "foqs_timer_watermark_age_seconds": lambda shard: _seconds(shard.watermark_age_ms),
    "foqs_timer_overdue_seconds": lambda shard: _seconds(shard.overdue_ms),
    "foqs_timer_sweep_age_seconds": lambda shard: _seconds(shard.sweep_age_ms),
    "foqs_lease_ranges": lambda shard: shard.lease_ranges,
    "foqs_lease_ranges_limit": lambda shard: shard.lease_ranges_max,
    "foqs_lease_walk_running": lambda shard: float(shard.is_lease_walk_running),
    "foqs_lease_walks": lambda shard: shard.lease_walks,
    "foqs_repeated_enqueues": lambda shard: shard.keys_repeated,
    "foqs_key_conflicts": lambda shard: shard.keys_in_conflict,
    "foqs_key_flush_retries": lambda shard: shard.key_reruns,
    "foqs_key_expiry_flushes": lambda shard: shard.key_expiry_flushes,
    "foqs_purged_rows": lambda shard: shard.purged_rows,
    "foqs_purging_topics": lambda shard: shard.purging_topics,
}

_JOURNAL_METRICS: Final[dict[str, Callable[[JournalStatus], float]]] = {
    "foqs_journal_dirty_items": lambda journal: journal.dirty_items,
    "foqs_journal_memory_bytes": lambda journal: journal.memory_bytes,
    "foqs_journal_rows": lambda journal: journal.rows,
    "foqs_journal_bytes": lambda journal: journal.live_bytes,
    "foqs_journal_written_back_rows": lambda journal: journal.written_back,
    "foqs_journal_lag_seconds": lambda journal: journal.lag_ms / 1_000,
    "foqs_journal_refused_items": lambda journal: journal.refused,
    "foqs_journal_replay_seconds": lambda journal: journal.replay_ms / 1_000,
}


class HostSampler:
    """Samples one host. It remembers which topics have series of their own."""

    def __init__(self, engine: Engine, server: RpcServer, stopwatch_s: Callable[[], float]) -> None:
        self._engine = engine
        self._server = server
        self._stopwatch_s = stopwatch_s
        self._named_topics = NamedTopics(engine.topic_rates)

    def sample(self) -> Samples:
        """Return the samples of `SAMPLED_METRICS`."""
        engine = self._engine
        samples: _SampleLists = defaultdict(list)
        _add_shards_samples(samples, engine)
        shards = list(engine.shards.values())
        items = _add_namespace_samples(samples, shards)
        now_s = self._stopwatch_s()
        named = self._named_topics.update(items, now_s)
        _add_topic_samples(samples, shards, named)
        _add_group_samples(samples, shards, named)
        acked, acked_rest = self._named_topics.acked_items()
        samples["foqs_topic_acked_items"] += [*acked.items(), (OTHER_TOPICS, acked_rest)]
        _add_order_samples(samples, engine.queue.order_meter.samples, named, now_s)
        for pool, budget in engine.budgets.items():
            samples["foqs_row_cache_items"].append(((pool,), budget.items))
            samples["foqs_row_cache_bytes"].append(((pool,), budget.bytes))
            samples["foqs_row_cache_limit_bytes"].append(((pool,), budget.bytes_max))
        for limit in LIMITS:
            samples["foqs_limited_items"].append(((limit,), engine.queue.quota.limited_items[limit]))
        _add_server_samples(samples, self._server)
        samples["foqs_waiting_dequeues"].append(((), len(engine.queue.waiters)))
        return samples


def _add_shards_samples(samples: _SampleLists, engine: Engine) -> None:
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


def _add_server_samples(samples: _SampleLists, server: RpcServer) -> None:
    for name, value in {
        "foqs_connections": len(server.connections),
        "foqs_connections_limit": server.limits.connections_max,
        "foqs_connections_refused": server.refused_connection_count,
        "foqs_calls_in_flight": server.calls_in_flight - server.waiting_calls.call_count,
        "foqs_calls_in_flight_limit": server.limits.calls_in_flight_max,
        "foqs_calls_in_flight_bytes": server.byte_budget.reserved_bytes,
        "foqs_calls_in_flight_limit_bytes": server.byte_budget.bytes_max,
    }.items():
        samples[name].append(((), value))


def _add_shard_samples(samples: _SampleLists, name: str, shard: OwnedShard) -> None:
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
    if snapshot.journal is not None:
        for metric, read_journal in _JOURNAL_METRICS.items():
            samples[metric].append(((name,), read_journal(snapshot.journal)))


def _add_namespace_samples(samples: _SampleLists, shards: list[OwnedShard]) -> Counter[TopicName]:
    """Add the items of the namespaces with the most items; the rest is summed up. Returns the items by topic."""
    namespaces: defaultdict[str, Counter[State]] = defaultdict(Counter)
    topics: Counter[TopicName] = Counter()
    for shard in shards:
        for namespace, topic, counts in shard.counts.first_topics(TOPICS_SCANNED_MAX // len(shards)):
            topics[namespace, topic] += sum(counts)
            counted = namespaces[namespace]
            for state in _STATES:
                counted[state] += counts[state]
    totals = _totals(shards)
    namespaces.pop(OTHER, None)  # no two series may have the same labels
    named = _largest((name, counted.total()) for name, counted in namespaces.items())
    for namespace in sorted(named):
        for state in _STATES:
            samples["foqs_namespace_items"].append(((namespace, _STATE_NAMES[state]), namespaces[namespace][state]))
    for state in _STATES:
        rest = totals[state] - sum(namespaces[namespace][state] for namespace in named)
        samples["foqs_namespace_items"].append(((OTHER, _STATE_NAMES[state]), rest))
    return topics


def _add_topic_samples(samples: _SampleLists, shards: list[OwnedShard], named: Sequence[TopicName]) -> None:
    """Add the items and ages of the named topics; the rest is summed up."""
    rest = _totals(shards)
    oldest_ms = -1
    for topic in named:
        counts = counts_by_state(topic, shards)
        for state in _STATES:
            rest[state] -= counts[state]
            samples["foqs_topic_items"].append(((*topic, _STATE_NAMES[state]), counts[state]))
        age_ms = _oldest_ready_age_ms(shards, topic)
        if age_ms >= 0:
            samples["foqs_topic_oldest_ready_age_seconds"].append((topic, age_ms / 1_000))
            oldest_ms = max(oldest_ms, age_ms)
    for state in _STATES:
        samples["foqs_topic_items"].append(((*OTHER_TOPICS, _STATE_NAMES[state]), rest[state]))
    age_ms = _oldest_ready_age_ms(shards)
    if age_ms > oldest_ms:
        samples["foqs_topic_oldest_ready_age_seconds"].append((OTHER_TOPICS, age_ms / 1_000))


def _add_group_samples(samples: _SampleLists, shards: list[OwnedShard], named: Sequence[TopicName]) -> None:
    """Add the groups of the named topics that have rules for groups, and what their groups do not hold back."""
    rest = sum([len(limited.groups) for shard in shards for limited in shard.memory.limited_topics.values()])
    for topic in named:
        memories = [shard.memory for shard in shards if topic in shard.memory.limited_topics]
        if memories:
            groups = sum([len(memory.limited_topics[topic].groups) for memory in memories])
            rest -= groups
            samples["foqs_topic_groups"].append((topic, groups))
            if any(topic in memory.limited_names for memory in memories):
                deliverable = sum([memory.deliverable_count(topic) for memory in memories])
                samples["foqs_topic_deliverable_items"].append((topic, deliverable))
    samples["foqs_topic_groups"].append((OTHER_TOPICS, rest))


def _add_order_samples(samples: _SampleLists, order: OrderSamples, named: Sequence[TopicName], now_s: float) -> None:
    """Add the displacement of deliveries. Topics without samples have no quantiles."""
    samples["foqs_order_samples"].append(((), order.count))
    samples["foqs_order_deliveries"].append(((), order.deliveries))
    samples["foqs_order_passed_over_deliveries"] += [
        (("priority",), order.by_priority),
        (("age",), order.by_age),
    ]
    samples["foqs_order_displacement_items"].append(((), order.items))
    samples["foqs_order_passed_over_seconds"].append(((), order.passed_over_ms / 1_000))
    for topic in named:
        found = order.of_topic(topic, now_s)
        if found is not None:
            samples["foqs_topic_displacement_items"] += [
                ((*topic, "0.5"), found.items_p50),
                ((*topic, "0.99"), found.items_p99),
            ]
            samples["foqs_topic_passed_over_age_seconds"] += [
                ((*topic, "0.5"), found.age_ms_p50 / 1_000),
                ((*topic, "0.99"), found.age_ms_p99 / 1_000),
            ]


def _oldest_ready_age_ms(shards: list[OwnedShard], topic: TopicName | None = None) -> int:
    """Return the age of the oldest READY item, of a topic or of all; -1 if there is none."""
    ages_ms = [shard.oldest_ready_age_ms(topic) for shard in shards]
    return max((age_ms for age_ms in ages_ms if age_ms is not None), default=-1)


def _totals(shards: list[OwnedShard]) -> dict[State, int]:
    return {state: sum(shard.counts.totals[state] for shard in shards) for state in _STATES}


def _largest(sizes: Iterable[tuple[str, int]]) -> list[str]:
    return [name for name, _ in nlargest(NAMESPACES_MAX, sizes, key=itemgetter(1))]


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000
