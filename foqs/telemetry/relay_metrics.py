"""The metrics of a relay, under the names that operators see.

Always true: every metric is sampled at the scrape; one without a value is left out, as those of the outbox are while
another relay owns it. The names are in the table of metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from foqs.telemetry.metric_table import RELAY_METRICS


class RelayMetrics:
    """What `HttpServer` shows of a relay.

    Args:
        sample: returns the values of `RELAY_METRICS`, by name.
    """

    def __init__(self, sample: Callable[[], Mapping[str, float]]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_RelayCollector(sample))
        ProcessCollector(registry=self._registry)

    def render(self) -> Iterator[bytes]:
        """Yield the metrics in Prometheus' text format."""
        yield generate_latest(self._registry)


class _RelayCollector(Collector):
    def __init__(self, sample: Callable[[], Mapping[str, float]]) -> None:
        self._sample = sample

    def collect(self) -> Iterator[Metric]:
        now = self._sample()
        for described in RELAY_METRICS:
            if described.name in now:
                kind = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
                yield kind(described.name, described.text, value=now[described.name])
