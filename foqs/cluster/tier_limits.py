"""Limits of namespaces that all hosts of the tier share: this host's allocations.

Holds `TierLimits`, which the gossip exchange keeps up to date and the quota uses. Always true:
a namespace has an allocation here as long as any host uses, holds or reports it;
a peer that does not answer counts as it reported last, until the plan no longer
lists it. `foqs.core.limits.rate_allocation` divides the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final

from foqs.cluster.peers import Peer
from foqs.core.limits.rate_allocation import EMPTY_REPORT, HostReport, RateAllocation
from foqs.options.options import NamespaceOptions
from foqs.queue.backlogs import Backlogs
from foqs_contract.idl import ttypes

UNRESPONSIVE_PERIODS: Final = 2.0
"""A peer without a report for this many periods of the exchange is assumed to go on as before."""


class TierLimits:
    """This host's rate allocations, kept up to date by gossip.

    Args:
        backlogs: the backlogs of this host.
        limited: returns the settings of namespaces with limited enqueues.
        peers: returns the other hosts of the tier.
        stopwatch_s: returns monotonic seconds.
        period_s: the interval of the exchange. At most a second keeps rates within 5 % of the limit.
    """

    def __init__(
        self,
        backlogs: Backlogs,
        limited: Callable[[], Mapping[str, NamespaceOptions]],
        peers: Callable[[], Collection[Peer]],
        stopwatch_s: Callable[[], float],
        period_s: float,
    ) -> None:
        self._backlogs = backlogs
        self._limited = limited
        self._peers = peers
        self._stopwatch_s = stopwatch_s
        self._allocations: dict[str, RateAllocation[Peer]] = {}
        self._last_report_s: dict[Peer, float] = {}
        self._reported_peers: set[Peer] = set()
        """The peers that reported since the last round."""
        self._period_s = period_s
        self._started_s = stopwatch_s()

    def of(self, namespace: str) -> RateAllocation[Peer]:
        """Return this host's allocation of the namespace's limits."""
        allocation = self._allocations.get(namespace)
        if allocation is None:
            now_s = self._stopwatch_s()
            is_settled = now_s - self._started_s > UNRESPONSIVE_PERIODS * self._period_s
            is_complete = is_settled or all(peer in self._last_report_s for peer in self._peers())
            allocation = self._allocations[namespace] = RateAllocation(
                self._host_count, self._period_s, now_s, is_complete=is_complete
            )
        return allocation

    def forget(self, namespaces: Iterable[str]) -> None:
        """Do nothing: an allocation ends with the next round after its namespace."""

    # ------------------------------------------------------------- the exchange

    def namespace_reports(self) -> list[Any]:
        """Return a `NamespaceReport` for each namespace in use at this host, and record that they were reported."""
        now_s = self._stopwatch_s()
        reports: list[Any] = []
        for namespace, settings in self._limited().items():
            items, payload_bytes = self._backlog(namespace, settings)
            allocation = self._allocations.get(namespace)
            arrivals_per_minute = enqueued = 0
            if allocation is not None:
                arrivals_per_minute, enqueued = allocation.next_report(now_s)
                allocation.update_fraction(self._host_count, settings.enqueues_per_minute, now_s)
            if items or (allocation is not None and not allocation.is_idle(now_s)):
                reports.append(ttypes.NamespaceReport(namespace, arrivals_per_minute, items, payload_bytes, enqueued))
        return reports

    def on_namespace_reports(self, peer: Peer, received: Sequence[Any]) -> None:
        """Apply the reports of a peer."""
        now_s = self._stopwatch_s()
        limited = self._limited()
        is_first = peer not in self._last_report_s
        reports: dict[str, HostReport] = {}
        for report in received:
            if report.namespace_name in limited:
                reports[report.namespace_name] = _parse_report(report)
                self.of(report.namespace_name)
        self._last_report_s[peer] = now_s
        self._reported_peers.add(peer)
        for namespace, allocation in self._allocations.items():
            settings = limited.get(namespace)
            per_minute = 0 if settings is None else settings.enqueues_per_minute
            latest = reports.get(namespace, EMPTY_REPORT)
            allocation.on_report(peer, latest, self._host_count, per_minute, is_first=is_first)
            allocation.update_fraction(self._host_count, per_minute, now_s)
        self._end_round(now_s)

    def on_peers_gone(self, peers: Collection[Peer]) -> None:
        """Forget peers that left, which frees their allocations."""
        for peer in peers:
            self._last_report_s.pop(peer, None)
            self._reported_peers.discard(peer)
            for allocation in self._allocations.values():
                allocation.on_host_left(peer)
        self._end_round(self._stopwatch_s())

    # --------------------------------------------------------------------- inside

    @property
    def _host_count(self) -> int:
        return len(self._peers()) + 1

    def _unresponsive_peers(self, now_s: float) -> list[Peer]:
        since_s = now_s - UNRESPONSIVE_PERIODS * self._period_s
        return [peer for peer in self._peers() if self._last_report_s.get(peer, -inf) < since_s]

    def _backlog(self, namespace: str, settings: NamespaceOptions) -> tuple[int, int]:
        if settings.backlog_items_max or settings.backlog_bytes_max:
            return self._backlogs.backlog(namespace)
        return 0, 0

    def _end_round(self, now_s: float) -> None:
        """End the round if every responsive peer has reported."""
        unresponsive = self._unresponsive_peers(now_s)
        if not self._reported_peers.issuperset(peer for peer in self._peers() if peer not in unresponsive):
            return
        self._reported_peers.clear()
        limited = self._limited()
        for namespace, allocation in list(self._allocations.items()):
            settings = limited.get(namespace)
            if settings is None or (allocation.is_unused_elsewhere and allocation.is_idle(now_s)):
                del self._allocations[namespace]
                continue
            backlog = self._backlog(namespace, settings)
            allocation.end_round(self._host_count, unresponsive, settings.enqueues_per_minute, backlog, now_s)


def _parse_report(report: ttypes.NamespaceReport) -> HostReport:
    """Parse a peer's report on a namespace; missing and negative numbers become 0."""
    return HostReport(
        max(0, report.arrivals_per_minute or 0),
        report.enqueued_items or 0,
        max(0, report.items or 0),
        max(0, report.payload_bytes or 0),
    )
