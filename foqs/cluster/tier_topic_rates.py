"""The rates of topics over all hosts of the tier: figures for the console and for autoscalers. They limit nothing.

Holds `TierTopicRates`, which the gossip exchange keeps up to date. Always true:
each host reports its busiest topics; a topic that is not among them at a host counts as
idle there; the last report of a host decays until the next one, so a host that does
not answer fades out. Knows nothing of counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import exp
from typing import Any, Final

from foqs.cluster.peers import Peer
from foqs.core.items.item import TopicName
from foqs.core.memory.topic_rates import NO_RATES, TAU_S, Rates, TopicRates, busiest_of
from foqs_contract.idl import ttypes

REPORTED_TOPICS_MAX: Final = 100
"""The number of busiest topics that a host reports: some kilobytes for each peer and second."""
REPORTED_RATE_MAX: Final = 1e12
"""The greatest rate that a peer may report, in items per second. A greater one counts as 0."""


class TierTopicRates:
    """The rates of the tier's topics, as this host knows them.

    Args:
        own: this host's rates.
        peers: returns the other hosts of the tier.
        stopwatch_s: returns monotonic seconds.
        period_s: the interval of the exchange.
    """

    def __init__(
        self,
        own: TopicRates,
        peers: Callable[[], Collection[Peer]],
        stopwatch_s: Callable[[], float],
        period_s: float,
    ) -> None:
        self._own = own
        self._peers = peers
        self._stopwatch_s = stopwatch_s
        self._period_s = period_s
        self._reports: dict[Peer, tuple[float, dict[TopicName, Rates]]] = {}
        """By peer: when it reported, and its rates then."""
        self._own_report: tuple[float, Sequence[Any]] | None = None

    def report(self) -> Sequence[Any]:
        """Return this host's report: a `TopicRate` for each of its busiest topics. All peers of one period get the same."""
        now_s = self._stopwatch_s()
        if self._own_report is None or now_s - self._own_report[0] >= self._period_s / 2:
            busiest = self._own.busiest(REPORTED_TOPICS_MAX, now_s)
            self._own_report = now_s, [ttypes.TopicRate(*topic, rates.ready, rates.acked) for topic, rates in busiest]
        return self._own_report[1]

    def on_report(self, peer: Peer, received: Sequence[Any]) -> None:
        """Replace what a peer reported before, and forget peers that left."""
        peers = self._peers()
        self._reports = {known: report for known, report in self._reports.items() if known in peers}
        self._reports[peer] = (
            self._stopwatch_s(),
            {
                (rate.namespace_name, rate.topic): Rates(_checked(rate.ready_per_s), _checked(rate.acked_per_s))
                for rate in received[:REPORTED_TOPICS_MAX]
            },
        )

    def peers_total(self) -> Rates:
        """Return the rates of all topics that the peers reported: their busiest ones."""
        now_s, peers = self._stopwatch_s(), self._peers()
        ready = acked = 0.0
        for peer, (reported_s, reports) in self._reports.items():
            if peer in peers:
                factor = exp((reported_s - now_s) / TAU_S)
                ready += factor * sum(rates.ready for rates in reports.values())
                acked += factor * sum(rates.acked for rates in reports.values())
        return Rates(ready, acked)

    def rates(self, topic: TopicName) -> Rates:
        """Return the rates of a topic over all hosts."""
        now_s = self._stopwatch_s()
        ready, acked = self._own.rates(topic, now_s)
        peers = self._peers()
        for peer, (reported_s, reports) in self._reports.items():
            if peer in peers:
                factor = exp((reported_s - now_s) / TAU_S)
                rates = reports.get(topic, NO_RATES)
                ready += rates.ready * factor
                acked += rates.acked * factor
        return Rates(ready, acked)

    def busiest(self, topics_max: int) -> list[tuple[TopicName, Rates]]:
        """Return the topics with the highest rates over all hosts, among those that are busy at one of them."""
        now_s, peers = self._stopwatch_s(), self._peers()
        found = {topic: NO_RATES for topic, _ in self._own.busiest(topics_max, now_s)}
        for peer, (reported_s, reports) in self._reports.items():
            if peer in peers:
                factor = exp((reported_s - now_s) / TAU_S)
                for topic, rates in reports.items():
                    ready, acked = found.get(topic, NO_RATES)
                    found[topic] = Rates(ready + rates.ready * factor, acked + rates.acked * factor)
        for topic, (ready, acked) in found.items():
            own = self._own.rates(topic, now_s)
            found[topic] = Rates(ready + own.ready, acked + own.acked)
        return busiest_of(found.items(), topics_max)


def _checked(rate: float | None) -> float:
    """Return a rate that a peer sent; 0 for nonsense."""
    return rate if rate is not None and 0.0 <= rate <= REPORTED_RATE_MAX else 0.0
