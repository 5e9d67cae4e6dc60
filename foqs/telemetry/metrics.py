"""The metrics of one host, under the names that operators see.

Holds its own registry, so that two hosts in one process do not mix. Always true:
counters are fed by events of the domain, a batch at a time; gauges are sampled
at each scrape and not stored. Knows nothing of what the events mean; the names
are in the table of metrics.
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

from foqs.telemetry import metric_table
from foqs.telemetry.metric_table import (
    BREAKER_STATES,
    CLUSTER_METRICS,
    JOB_METRICS,
    METRICS,
    SAMPLED_METRICS,
    TIER_METRICS,
)
from foqs_contract.bulk_actions import CHANGES

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

PRINCIPALS_MAX: Final = 100
"""The most principals that are counted apart. Further ones are counted together as `other`."""

_SECONDS_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_ITEMS_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)

# The library's *_created series double the page and are not used. They can only be switched off for the whole process.
disable_created_metrics()  # type: ignore[no-untyped-call]


Samples: TypeAlias = Mapping[str, Sequence[tuple[tuple[str, ...], float]]]
"""By metric name: (label values, value) pairs."""

_DESCRIPTIONS: Final = {metric.name: metric for metric in METRICS}


class Metrics:
    """The counters of one host.

    Each method records an event. None fails, none waits. Counts are items, times
    are seconds.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._items: defaultdict[str, int] = defaultdict(int)
        """Counts of items by metric."""
        self._flushes: dict[int, tuple[_PlainHistogram, _PlainHistogram]] = {}
        """By shard: the seconds and the entries of its flushes."""
        self._flush_retries = self._counter("foqs_flush_retries")
        self._unknown_outcomes = self._counter("foqs_unknown_commit_outcomes")
        self._fenced = self._counter("foqs_fenced_ownerships")
        self._breaker_changes = self._counter("foqs_shard_breaker_changes")
        self._acquire_seconds = self._histogram("foqs_acquire_duration_seconds", _SECONDS_BUCKETS)
        self._handover_seconds = self._histogram("foqs_handover_duration_seconds", _SECONDS_BUCKETS)
        self._authentications = self._counter("foqs_authentications")
        self._principals: set[str] = set()
        self._authentication_failures = self._counter("foqs_authentication_failures")
        self._handshake_failures = self._counter("foqs_tls_handshake_failures")
        self._bulk_items = self._counter("foqs_bulk_job_items")
        for action in CHANGES:  # each counter is shown from the start
            self.bulk_items(action, 0, 0)
        self._calls: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._call_seconds = {
            method: _PlainHistogram(_SECONDS_BUCKETS) for method in ("enqueue", "dequeue", "ack", "nack")
        }
        self._registry.register(_FlushCollector(self._items, self._flushes))
        self._registry.register(_CallCollector(self._calls, self._call_seconds))
        ProcessCollector(registry=self._registry)

    def items_enqueued(self, item_count: int) -> None:
        """Record that items were committed."""
        self._items["foqs_enqueued_items"] += item_count

    def items_delivered(self, item_count: int) -> None:
        """Record that the leases of items were committed."""
        self._items["foqs_delivered_items"] += item_count

    def items_acked(self, item_count: int) -> None:
        """Record that items were acked and deleted."""
        self._items["foqs_acked_items"] += item_count

    def items_nacked(self, item_count: int) -> None:
        """Record that items were nacked."""
        self._items["foqs_nacked_items"] += item_count

    def items_released(self, item_count: int) -> None:
        """Record that items were released."""
        self._items["foqs_released_items"] += item_count

    def items_timed_out(self, item_count: int) -> None:
        """Record that the lease, TTL or retention of items ended."""
        self._items["foqs_timed_out_items"] += item_count

    def items_dead_lettered(self, item_count: int) -> None:
        """Record that items became dead."""
        self._items["foqs_dead_lettered_items"] += item_count

    def items_moved(self, item_count: int) -> None:
        """Record that items were moved to another topic."""
        self._items["foqs_moved_items"] += item_count

    def flush_committed(self, shard: int, entry_count: int, seconds: float) -> None:
        """Record that a flush of `entry_count` entries was committed in this time."""
        flushes = self._flushes.get(shard)
        if flushes is None:
            flushes = self._flushes[shard] = _PlainHistogram(_SECONDS_BUCKETS), _PlainHistogram(_ITEMS_BUCKETS)
        flushes[0].add(seconds)
        flushes[1].add(entry_count)

    def flush_retried(self, shard: int) -> None:
        """Record that a flush was rolled back and is run again."""
        self._flush_retries.labels(str(shard)).inc()

    def commit_outcome_unknown(self, shard: int) -> None:
        """Record that the connection was lost around a COMMIT."""
        self._unknown_outcomes.labels(str(shard)).inc()

    def shard_fenced(self, shard: int) -> None:
        """Record that another owner has the shard."""
        self._fenced.labels(str(shard)).inc()

    def breaker_changed(self, shard: int, state: str) -> None:
        """Record that the shard's circuit breaker is closed, open or half-open now."""
        self._breaker_changes.labels(str(shard), state).inc()

    def shard_acquired(self, shard: int, seconds: float) -> None:
        """Record that the shard is served, `seconds` after its assignment or loss."""
        self._acquire_seconds.observe(seconds)
        # A counter that appears with its first event has no increase: an alert would miss that event.
        for counter in (self._flush_retries, self._unknown_outcomes, self._fenced):
            counter.labels(str(shard))
        for state in BREAKER_STATES:
            self._breaker_changes.labels(str(shard), state)

    def shard_handed_over(self, shard: int, seconds: float) -> None:
        """Record that the shard was handed over, `seconds` after the request."""
        self._handover_seconds.observe(seconds)

    def call(self, method: str, code: str, seconds: float) -> None:
        """Record that a call was answered; `method` is a name of the service, `code` is OK or an error code."""
        self._calls[method, code] += 1
        durations = self._call_seconds.get(method)
        if durations is not None:
            durations.add(seconds)

    def authenticated(self, principal: str) -> None:
        """Record that a connection authenticated as this principal."""
        if principal not in self._principals and len(self._principals) >= PRINCIPALS_MAX:
            principal = "other"
        self._principals.add(principal)
        self._authentications.labels(principal).inc()

    def authentication_failed(self) -> None:
        """Record that a client showed a wrong token or none."""
        self._authentication_failures.inc()

    def handshake_failed(self) -> None:
        """Record that a TLS handshake was refused, broken off or too slow."""
        self._handshake_failures.inc()

    def bulk_items(self, action: str, changed: int, failed: int) -> None:
        """Record the items of a page of a bulk job."""
        self._bulk_items.labels(action, "changed").inc(changed)
        self._bulk_items.labels(action, "failed").inc(failed)

    def add_sampler(self, sample: Callable[[], Samples]) -> None:
        """Call `sample` at every scrape from now on. Call this method once."""
        self._registry.register(_SampleCollector(sample))

    def render(self) -> Iterator[bytes]:
        """Yield the metrics in Prometheus' text format one by one, since all at once would delay calls."""
        for metric in self._registry.collect():
            yield generate_latest(_CollectedMetric(metric))
            for entry in metric_table.DEPRECATED_METRICS:
                if entry.new == metric.name:
                    yield generate_latest(_CollectedMetric(_under_old_name(metric, entry)))

    def _counter(self, name: str) -> Counter:
        described = _DESCRIPTIONS[name]
        return Counter(name, described.text, described.labels, registry=self._registry)

    def _histogram(self, name: str, buckets: Sequence[float]) -> Histogram:
        described = _DESCRIPTIONS[name]
        return Histogram(name, described.text, described.labels, registry=self._registry, buckets=buckets)


class _CollectedMetric(Collector):
    """One metric, already collected."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _under_old_name(metric: Metric, entry: metric_table.DeprecatedMetric) -> Metric:
    """Return a copy of a metric under its old name."""
    renamed = Metric(entry.old, f"Deprecated since {entry.since}: use {entry.new}", metric.type)
    renamed.samples = [
        sample._replace(name=entry.old + sample.name.removeprefix(entry.new)) for sample in metric.samples
    ]
    return renamed


class _PlainHistogram:
    """A histogram without the library's labels and locks, as it is used for every call and flush."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, number of values up to it) pairs."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))


_ITEM_COUNTERS: Final = (
    "foqs_enqueued_items",
    "foqs_delivered_items",
    "foqs_acked_items",
    "foqs_nacked_items",
    "foqs_released_items",
    "foqs_timed_out_items",
    "foqs_dead_lettered_items",
    "foqs_moved_items",
)


class _FlushCollector(Collector):
    """The counters that every flush changes."""

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
            for shard, histograms in sorted(self._flushes.items()):
                family.add_metric([str(shard)], histograms[place].buckets(), histograms[place].total)
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
        for described in SAMPLED_METRICS + CLUSTER_METRICS + TIER_METRICS + JOB_METRICS:
            kind = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
            family: Metric = kind(described.name, described.text, labels=described.labels)
            for labels, value in now.get(described.name, ()):
                family.add_metric(labels, value)  # type: ignore[attr-defined]
            yield family
