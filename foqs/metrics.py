"""What a host counts, under the names that operators see.

Holds one registry of its own, so that two hosts in one process do not mix.
Always true: counters are fed by the domain's facts, a batch at a time; gauges
are asked for when somebody scrapes, never kept. Labels are shards, methods and
codes of this host, so their number is bounded. Knows nothing of what the facts
mean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

SHARD_STATES: Final = ("free", "acquiring", "recovering", "owned", "draining", "lost")
"""The states of a shard, as in ShardInfo of thrift/foqs.thrift."""

BREAKER_STATES: Final = ("closed", "half-open", "open")
"""The states of a shard's breaker."""

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_ITEMS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)

# The library's *_created series double the page and nobody reads them; it knows only a switch for all.
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(slots=True, frozen=True)
class ShardGauges:
    """One shard at the moment of a scrape. `oldest_ready_age_ms` None: nothing is ready."""

    shard: int
    state: str
    ready: int
    deferred: int
    leased: int
    dead: int
    oldest_ready_age_ms: int | None
    writer_queue_items: int
    breaker: str


@dataclass(slots=True, frozen=True)
class Gauges:
    """The host at the moment of a scrape."""

    shards: Sequence[ShardGauges]
    connections: int
    waiting_dequeues: int


class Metrics:
    """The counters of one host.

    Each method states a fact; none fails, none waits. Counts are items, times
    are seconds.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._enqueued = self._counter("foqs_enqueued_items", "Items whose enqueue was committed")
        self._dequeued = self._counter("foqs_dequeued_items", "Items handed out, the lease committed")
        self._acked = self._counter("foqs_acked_items", "Items done")
        self._nacked = self._counter("foqs_nacked_items", "Items given back as not done")
        self._released = self._counter("foqs_released_items", "Items given back untried")
        self._expired = self._counter("foqs_expired_items", "Items whose lease, TTL or retention ended by itself")
        self._dead = self._counter("foqs_dead_lettered_items", "Items given up")
        self._flush_seconds = self._histogram(
            "foqs_flush_duration_seconds", "A committed transaction", _SECONDS, "shard"
        )
        self._flush_items = self._histogram(
            "foqs_flush_items", "Operations of a committed transaction", _ITEMS, "shard"
        )
        self._retries = self._counter("foqs_flush_retries", "Transactions that were run again", "shard")
        self._unknown = self._counter("foqs_unknown_commits", "Transactions whose outcome had to be found out", "shard")
        self._fenced = self._counter("foqs_fenced_shards", "Times that another owner was found on a shard", "shard")
        self._breaker_changes = self._counter(
            "foqs_shard_breaker_changes", "Times that a shard's breaker entered a state", "shard", "state"
        )
        self._calls: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._call_seconds = {method: _Durations() for method in ("enqueue", "dequeue", "ack", "nack")}
        self._registry.register(_CallCollector(self._calls, self._call_seconds))

    def enqueued(self, items: int) -> None:
        """So many items are committed."""
        self._enqueued.inc(items)

    def handed_out(self, items: int) -> None:
        """The leases of so many items are committed."""
        self._dequeued.inc(items)

    def acked(self, items: int) -> None:
        """So many items are done and gone."""
        self._acked.inc(items)

    def nacked(self, items: int) -> None:
        """So many items came back as not done."""
        self._nacked.inc(items)

    def released(self, items: int) -> None:
        """So many items came back untried."""
        self._released.inc(items)

    def expired(self, items: int) -> None:
        """The lease, TTL or retention of so many items ended by itself."""
        self._expired.inc(items)

    def dead(self, items: int) -> None:
        """So many items were given up."""
        self._dead.inc(items)

    def flushed(self, shard: int, items: int, seconds: float) -> None:
        """A transaction of `items` operations was committed."""
        self._flush_seconds.labels(str(shard)).observe(seconds)
        self._flush_items.labels(str(shard)).observe(items)

    def flush_retried(self, shard: int) -> None:
        """A transaction was rolled back and is run again."""
        self._retries.labels(str(shard)).inc()

    def unknown_commit(self, shard: int) -> None:
        """The connection was lost around a COMMIT."""
        self._unknown.labels(str(shard)).inc()

    def fenced(self, shard: int) -> None:
        """Another owner has the shard."""
        self._fenced.labels(str(shard)).inc()

    def breaker_changed(self, shard: int, state: str) -> None:
        """The shard's breaker is closed, open or half-open from now on."""
        self._breaker_changes.labels(str(shard), state).inc()

    def call(self, method: str, code: str, seconds: float) -> None:
        """A call was answered; `method` is one of the service's own names, `code` OK or an error code."""
        self._calls[method, code] += 1
        durations = self._call_seconds.get(method)
        if durations is not None:
            durations.counts[bisect_left(_SECONDS, seconds)] += 1
            durations.seconds += seconds

    def watch(self, gauges: Callable[[], Gauges]) -> None:
        """Asks `gauges` at every scrape from now on; call it once."""
        self._registry.register(_GaugeCollector(gauges))

    def page(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(name, text, labels, registry=self._registry, buckets=buckets)


class _Durations:
    """How often which time was taken. Counted for every call, so without the library's labels and locks."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.seconds = 0.0

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, how many took no longer)."""
        names = [*(str(bound) for bound in _SECONDS), "+Inf"]
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))


class _CallCollector(Collector):
    def __init__(self, calls: Mapping[tuple[str, str], int], durations: Mapping[str, _Durations]) -> None:
        self._calls = calls
        self._durations = durations

    def collect(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "foqs_calls", "Calls answered, by method and OK or error code", labels=["method", "code"]
        )
        for labels, count in sorted(self._calls.items()):
            calls.add_metric(labels, count)
        yield calls
        for method, durations in self._durations.items():
            name = f"foqs_{method}_duration_seconds"
            yield HistogramMetricFamily(
                name, f"{method}, from read to reply", buckets=durations.buckets(), sum_value=durations.seconds
            )


class _GaugeCollector(Collector):
    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        now = self._gauges()
        counts: list[tuple[str, str, Callable[[ShardGauges], float | None]]] = [
            ("foqs_ready_items", "Items that may be delivered", lambda shard: shard.ready),
            ("foqs_deferred_items", "Items that wait for their time", lambda shard: shard.deferred),
            ("foqs_leased_items", "Items that consumers have", lambda shard: shard.leased),
            ("foqs_dead_items", "Items given up and kept", lambda shard: shard.dead),
            ("foqs_writer_queue_items", "Operations that wait for a flush", lambda shard: shard.writer_queue_items),
            (
                "foqs_oldest_ready_age_seconds",
                "How long the oldest ready item in memory has been ready; absent when there is none",
                lambda shard: None if shard.oldest_ready_age_ms is None else shard.oldest_ready_age_ms / 1_000,
            ),
        ]
        for name, text, read in counts:
            family = GaugeMetricFamily(name, text, labels=["shard"])
            for shard in now.shards:
                value = read(shard)
                if value is not None:
                    family.add_metric([str(shard.shard)], value)
            yield family
        states = GaugeMetricFamily("foqs_shard_state", "1 for the state the shard is in", labels=["shard", "state"])
        breakers = GaugeMetricFamily(
            "foqs_shard_breaker_state",
            "1 for the state the shard's breaker is in; open refuses new items",
            labels=["shard", "state"],
        )
        for shard in now.shards:
            for state in SHARD_STATES:
                states.add_metric([str(shard.shard), state], float(state == shard.state))
            for state in BREAKER_STATES:
                breakers.add_metric([str(shard.shard), state], float(state == shard.breaker))
        yield states
        yield breakers
        yield GaugeMetricFamily("foqs_connections", "Open client connections", value=now.connections)
        yield GaugeMetricFamily("foqs_waiting_dequeues", "Dequeues that wait for work", value=now.waiting_dequeues)
