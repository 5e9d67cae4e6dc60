"""What a host counts, under the names that operators see.

Holds one registry of its own, so that two hosts in one process do not mix.
Always true: counters are fed by the domain's facts, a batch at a time; gauges
are asked for when somebody scrapes, never kept. Knows nothing of what the facts
mean; their names are in the table of metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from foqs.telemetry.metric_table import CLUSTER_METRICS, METRICS, SAMPLED_METRICS, TIER_METRICS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

PRINCIPALS_MAX: Final = 100
"""Further principals are counted together, as `other`."""

_SECONDS_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_ITEMS_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)

# The library's *_created series double the page and nobody reads them; it knows only a switch for all.
disable_created_metrics()  # type: ignore[no-untyped-call]


Samples: TypeAlias = Mapping[str, Sequence[tuple[tuple[str, ...], float]]]
"""By name, as in the table of metrics: the values of each label, and the value."""

_DESCRIPTIONS: Final = {each.name: each for each in METRICS}


class Metrics:
    """The counters of one host.

    Each method states a fact; none fails, none waits. Counts are items, times
    are seconds.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._items: defaultdict[str, int] = defaultdict(int)
        """By metric."""
        self._flushes: dict[int, tuple[_PlainHistogram, _PlainHistogram]] = {}
        """By shard, the seconds and the items of each."""
        self._flush_retries = self._counter("foqs_flush_retries")
        self._unknown_commits = self._counter("foqs_unknown_commits")
        self._fenced = self._counter("foqs_fenced_shards")
        self._breaker_changes = self._counter("foqs_shard_breaker_changes")
        self._acquire_seconds = self._histogram("foqs_takeover_duration_seconds", _SECONDS_BUCKETS)
        self._handover_seconds = self._histogram("foqs_handover_duration_seconds", _SECONDS_BUCKETS)
        self._authentications = self._counter("foqs_authentications")
        self._principals: set[str] = set()
        self._authentication_failures = self._counter("foqs_authentication_failures")
        self._handshake_failures = self._counter("foqs_tls_handshake_failures")
        self._calls: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._call_seconds = {
            method: _PlainHistogram(_SECONDS_BUCKETS) for method in ("enqueue", "dequeue", "ack", "nack")
        }
        self._registry.register(_FlushCollector(self._items, self._flushes))
        self._registry.register(_CallCollector(self._calls, self._call_seconds))
        ProcessCollector(registry=self._registry)

    def items_enqueued(self, item_count: int) -> None:
        """So many items are committed."""
        self._items["foqs_enqueued_items"] += item_count

    def items_delivered(self, item_count: int) -> None:
        """The leases of so many items are committed."""
        self._items["foqs_dequeued_items"] += item_count

    def items_acked(self, item_count: int) -> None:
        """So many items are done and gone."""
        self._items["foqs_acked_items"] += item_count

    def items_nacked(self, item_count: int) -> None:
        """So many items came back as not done."""
        self._items["foqs_nacked_items"] += item_count

    def items_released(self, item_count: int) -> None:
        """So many items came back untried."""
        self._items["foqs_released_items"] += item_count

    def items_timed_out(self, item_count: int) -> None:
        """The lease, TTL or retention of so many items ended by itself."""
        self._items["foqs_expired_items"] += item_count

    def items_dead_lettered(self, item_count: int) -> None:
        """So many items were given up."""
        self._items["foqs_dead_lettered_items"] += item_count

    def flush_committed(self, shard: int, entry_count: int, seconds: float) -> None:
        """A transaction of `entry_count` operations was committed."""
        flushes = self._flushes.get(shard)
        if flushes is None:
            flushes = self._flushes[shard] = _PlainHistogram(_SECONDS_BUCKETS), _PlainHistogram(_ITEMS_BUCKETS)
        flushes[0].add(seconds)
        flushes[1].add(entry_count)

    def flush_retried(self, shard: int) -> None:
        """A transaction was rolled back and is run again."""
        self._flush_retries.labels(str(shard)).inc()

    def commit_outcome_unknown(self, shard: int) -> None:
        """The connection was lost around a COMMIT."""
        self._unknown_commits.labels(str(shard)).inc()

    def shard_fenced(self, shard: int) -> None:
        """Another owner has the shard."""
        self._fenced.labels(str(shard)).inc()

    def breaker_changed(self, shard: int, state: str) -> None:
        """The shard's breaker is closed, open or half-open from now on."""
        self._breaker_changes.labels(str(shard), state).inc()

    def shard_acquired(self, shard: int, seconds: float) -> None:
        """The shard is served, so long after it was to be."""
        self._acquire_seconds.observe(seconds)

    def shard_handed_over(self, shard: int, seconds: float) -> None:
        """What waited is written and the shard given back, so long after that was asked."""
        self._handover_seconds.observe(seconds)

    def call(self, method: str, code: str, seconds: float) -> None:
        """A call was answered; `method` is one of the service's own names, `code` OK or an error code."""
        self._calls[method, code] += 1
        durations = self._call_seconds.get(method)
        if durations is not None:
            durations.add(seconds)

    def authenticated(self, principal: str) -> None:
        """A connection has this principal from now on."""
        if principal not in self._principals and len(self._principals) >= PRINCIPALS_MAX:
            principal = "other"
        self._principals.add(principal)
        self._authentications.labels(principal).inc()

    def authentication_failed(self) -> None:
        """A wrong token, or none, was shown."""
        self._authentication_failures.inc()

    def handshake_failed(self) -> None:
        """A TLS handshake was refused, broken off or not done in time."""
        self._handshake_failures.inc()

    def add_sampler(self, sample: Callable[[], Samples]) -> None:
        """Asks `sample` at every scrape from now on; call it once."""
        self._registry.register(_SampleCollector(sample))

    def render(self) -> Iterator[bytes]:
        """Everything in Prometheus' text format, a metric at a time: the whole takes so long that calls notice."""
        for metric in self._registry.collect():
            yield generate_latest(_CollectedMetric(metric))

    def _counter(self, name: str) -> Counter:
        described = _DESCRIPTIONS[name]
        return Counter(name, described.text, described.labels, registry=self._registry)

    def _histogram(self, name: str, buckets: Sequence[float]) -> Histogram:
        described = _DESCRIPTIONS[name]
        return Histogram(name, described.text, described.labels, registry=self._registry, buckets=buckets)


class _CollectedMetric(Collector):
    """One metric, as it was collected."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


class _PlainHistogram:
    """How often which value came. Counted for every call and flush, so without the library's labels and locks."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, how many were no larger)."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))


_ITEM_COUNTERS: Final = (
    "foqs_enqueued_items",
    "foqs_dequeued_items",
    "foqs_acked_items",
    "foqs_nacked_items",
    "foqs_released_items",
    "foqs_expired_items",
    "foqs_dead_lettered_items",
)


class _FlushCollector(Collector):
    """What is counted with every flush."""

    def __init__(
        self, items: Mapping[str, int], flushes: Mapping[int, tuple[_PlainHistogram, _PlainHistogram]]
    ) -> None:
        self._items = items
        self._flushes = flushes

    def collect(self) -> Iterator[Metric]:
        for name in _ITEM_COUNTERS:
            yield CounterMetricFamily(name, _DESCRIPTIONS[name].text, value=self._items.get(name, 0))
        for place, name in enumerate(("foqs_flush_duration_seconds", "foqs_flush_items")):
            described = _DESCRIPTIONS[name]
            family = HistogramMetricFamily(name, described.text, labels=described.labels)
            for shard, spreads in sorted(self._flushes.items()):
                family.add_metric([str(shard)], spreads[place].buckets(), spreads[place].total)
            yield family


class _CallCollector(Collector):
    def __init__(self, calls: Mapping[tuple[str, str], int], durations: Mapping[str, _PlainHistogram]) -> None:
        self._calls = calls
        self._durations = durations

    def collect(self) -> Iterator[Metric]:
        described = _DESCRIPTIONS["foqs_calls"]
        calls = CounterMetricFamily(described.name, described.text, labels=described.labels)
        for labels, count in sorted(self._calls.items()):
            calls.add_metric(labels, count)
        yield calls
        for method, durations in self._durations.items():
            name = f"foqs_{method}_duration_seconds"
            yield HistogramMetricFamily(
                name, _DESCRIPTIONS[name].text, buckets=durations.buckets(), sum_value=durations.total
            )


class _SampleCollector(Collector):
    def __init__(self, sample: Callable[[], Samples]) -> None:
        self._sample = sample

    def collect(self) -> Iterator[Metric]:
        now = self._sample()
        for described in SAMPLED_METRICS + CLUSTER_METRICS + TIER_METRICS:
            kind = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
            family: Metric = kind(described.name, described.text, labels=described.labels)
            for labels, value in now.get(described.name, ()):
                family.add_metric(labels, value)  # type: ignore[attr-defined]
            yield family
