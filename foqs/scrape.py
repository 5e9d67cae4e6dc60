"""What a host shows of itself at a scrape: the readings of the table of metrics, taken from its parts.

Always true: a scrape reads what is there and changes nothing; what it costs is
bounded, whatever the host holds: at most TOPICS_LOOKED_AT topics are looked at,
and the others count as `other`. Knows nothing of the format.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from heapq import nlargest
from operator import itemgetter
from typing import Final

from foqs.core.item import State
from foqs.metrics import Readings
from foqs.service.engine import Engine
from foqs.shard.figures import Figures
from foqs.shard.shard import Shard
from foqs.wire.server import WireServer

SHARD_STATES: Final = ("free", "acquiring", "recovering", "owned", "draining", "lost")
"""The states of a shard, as in ShardInfo of thrift/foqs.thrift."""

BREAKER_STATES: Final = ("closed", "half-open", "open")
"""The states of a shard's breaker."""

DUE_KINDS: Final = ("delay", "lease", "ttl", "retention")

LIMITS: Final = ("rate", "items", "bytes", "topics")
"""Of a namespace's enqueues."""

NAMESPACES_MAX: Final = 50
TOPICS_MAX: Final = 50
"""So many have series of their own, of all shards together."""

TOPICS_LOOKED_AT: Final = 10_000
"""Of all shards together: some milliseconds of the event loop."""

OTHER: Final = "other"
KEY_BYTES: Final = 48
"""An integer of 128 bits and its place in a list."""

_STATES: Final = (State.DEFERRED, State.READY, State.LEASED, State.DEAD)
_NAMED: Final = {state: state.name.lower() for state in _STATES}

_Samples = defaultdict[str, list[tuple[tuple[str, ...], float]]]

_FIGURES: Final[dict[str, Callable[[Figures], float | None]]] = {
    "foqs_writer_held_items": lambda shard: shard.held_items,
    "foqs_writer_suspects": lambda shard: shard.suspects,
    "foqs_flush_items_limit": lambda shard: shard.flush_items_limit,
    "foqs_refused_writes": lambda shard: shard.refused_writes,
    "foqs_database_reconnects": lambda shard: shard.reconnects,
    "foqs_reads_waiting": lambda shard: shard.reads_waiting,
    "foqs_read_failures": lambda shard: shard.read_failures,
    "foqs_ready_index_keys": lambda shard: shard.index_keys,
    "foqs_ready_index_bytes": lambda shard: shard.index_keys * KEY_BYTES,
    "foqs_ready_index_reserved_keys": lambda shard: shard.index_reserved,
    "foqs_ready_index_topics": lambda shard: shard.index_topics,
    "foqs_ready_index_refills": lambda shard: shard.refills,
    "foqs_ready_index_evicted_keys": lambda shard: shard.evicted_keys,
    "foqs_timer_watermark_age_seconds": lambda shard: _seconds(shard.watermark_age_ms),
    "foqs_timer_overdue_seconds": lambda shard: _seconds(shard.overdue_ms),
    "foqs_timer_sweep_age_seconds": lambda shard: _seconds(shard.sweep_age_ms),
    "foqs_repeated_keys": lambda shard: shard.keys_repeated,
    "foqs_conflicting_keys": lambda shard: shard.keys_in_conflict,
    "foqs_key_reruns": lambda shard: shard.key_reruns,
    "foqs_key_clearings": lambda shard: shard.key_clearings,
    "foqs_purged_rows": lambda shard: shard.purged_rows,
    "foqs_purging_topics": lambda shard: shard.purging_topics,
}


def readings(engine: Engine, wire: WireServer) -> Readings:
    """Every reading of the table of metrics, as things are now."""
    found: _Samples = defaultdict(list)
    for status in engine.queue.shards():
        name = str(status.shard)
        for state in SHARD_STATES:
            found["foqs_shard_state"].append(((name, state), float(state == status.state)))
        found["foqs_shard_epoch"].append(((name,), status.epoch))
        shard = engine.shards.get(status.shard)
        found["foqs_database_up"].append(((name,), float(shard is not None and shard.trouble is None)))
        if shard is not None:
            for state in BREAKER_STATES:
                found["foqs_shard_breaker_state"].append(((name, state), float(state == shard.breaker)))
            _shard(found, name, shard)
    _items(found, list(engine.shards.values()))
    for pool, budget in engine.budgets.items():
        found["foqs_row_cache_items"].append(((pool,), budget.items))
        found["foqs_row_cache_bytes"].append(((pool,), budget.bytes))
        found["foqs_row_cache_limit_bytes"].append(((pool,), budget.bytes_max))
    for limit in LIMITS:
        found["foqs_limited_items"].append(((limit,), engine.queue.quota.limited[limit]))
    for name, value in {
        "foqs_connections": len(wire.connections),
        "foqs_connections_limit": wire.limits.connections_max,
        "foqs_connections_refused": wire.connections_refused,
        "foqs_calls_in_flight": wire.calls_in_flight,
        "foqs_calls_in_flight_limit": wire.limits.calls_in_flight_max,
        "foqs_calls_in_flight_bytes": wire.room.used,
        "foqs_calls_in_flight_limit_bytes": wire.room.bytes_max,
        "foqs_waiting_dequeues": len(engine.queue.waiters),
    }.items():
        found[name].append(((), value))
    return found


def _shard(found: _Samples, name: str, shard: Shard) -> None:
    counts = shard.counts
    for state in _STATES:
        found[f"foqs_{_NAMED[state]}_items"].append(((name,), counts.totals[state]))
    found["foqs_counts_lag"].append(((name,), float(counts.lag)))
    oldest_ms = shard.oldest_ready_age_ms()
    if oldest_ms is not None:
        found["foqs_oldest_ready_age_seconds"].append(((name,), oldest_ms / 1_000))
    figures = shard.figures()
    for kind, items in figures.queue_items.items():
        found["foqs_writer_queue_items"].append(((name, kind), items))
        found["foqs_writer_queue_bytes"].append(((name, kind), figures.queue_bytes[kind]))
    for kind in DUE_KINDS:
        found["foqs_due_items"].append(((name, kind), figures.due.get(kind, 0)))
    for metric, read in _FIGURES.items():
        value = read(figures)
        if value is not None:
            found[metric].append(((name,), value))


def _items(found: _Samples, shards: list[Shard]) -> None:
    """By namespace and by topic, of those with the most items; the rest together."""
    namespaces: defaultdict[str, Counter[State]] = defaultdict(Counter)
    topics: Counter[tuple[str, str]] = Counter()
    for shard in shards:
        for namespace, topic, counts in shard.counts.some(TOPICS_LOOKED_AT // len(shards)):
            topics[namespace, topic] += counts[State.READY]
            tally = namespaces[namespace]
            for state in _STATES:
                tally[state] += counts[state]
    totals = {state: sum(shard.counts.totals[state] for shard in shards) for state in _STATES}
    # One that is itself called so is among the others: no two series may have the same labels.
    namespaces.pop(OTHER, None)
    topics.pop((OTHER, OTHER), None)
    named = _most((name, tally.total()) for name, tally in namespaces.items())
    for namespace in sorted(named):
        for state in _STATES:
            found["foqs_namespace_items"].append(((namespace, _NAMED[state]), namespaces[namespace][state]))
    for state in _STATES:
        rest = totals[state] - sum(namespaces[namespace][state] for namespace in named)
        found["foqs_namespace_items"].append(((OTHER, _NAMED[state]), rest))
    ready = nlargest(TOPICS_MAX, topics.items(), key=itemgetter(1))
    for (namespace, topic), items in sorted(ready):
        if items:
            found["foqs_topic_ready_items"].append(((namespace, topic), items))
    rest = totals[State.READY] - sum(items for _, items in ready)
    found["foqs_topic_ready_items"].append(((OTHER, OTHER), rest))


def _most(sizes: Iterable[tuple[str, int]]) -> list[str]:
    return [name for name, _ in nlargest(NAMESPACES_MAX, sizes, key=itemgetter(1))]


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000
