"""Limits of namespaces that hold for all hosts of the tier together: this host's shares of them.

Holds `TierLimits`, between the exchange and the quota. Always true: a namespace
has a share here as long as it is asked for, held or spoken of anywhere; peers
are those of the plan as it was read last, so a peer that does not answer counts
as it told last until the plan has it no more. How a limit is divided is in
`foqs.core.limits.rate_allocation`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Any, Final, Protocol

from foqs.cluster.peers import Peer
from foqs.core.limits.rate_allocation import EMPTY_REPORT, HostReport, RateAllocation
from foqs.options.options import NamespaceOptions
from foqs.queue.quota import Quota
from foqs_client.idl import ttypes

UNRESPONSIVE_PERIODS: Final = 2.0
"""A peer that was not heard for so many periods of the exchange is taken to go on as it did."""


class DemandExchange(Protocol):
    """What `Exchange` is to limits."""

    demands: Callable[[], Sequence[Any]]
    on_demands: Callable[[Peer, Sequence[Any]], None]
    on_gone: Callable[[Collection[Peer]], None]


class TierLimits:
    """Args:
    quota: of this host; asks here for its shares from now on.
    limited: the settings of namespaces whose enqueues are limited, as they are now.
    peers: the other hosts of the tier.
    stopwatch_s: a stop watch.
    period_s: between two times that a host asks another. The rate is held within a twentieth with one of a second at most.
    """

    def __init__(
        self,
        quota: Quota,
        limited: Callable[[], Mapping[str, NamespaceOptions]],
        peers: Callable[[], Collection[Peer]],
        stopwatch_s: Callable[[], float],
        period_s: float,
    ) -> None:
        self._quota = quota
        self._limited = limited
        self._peers = peers
        self._stopwatch_s = stopwatch_s
        self._allocations: dict[str, RateAllocation[Peer]] = {}
        self._last_report_s: dict[Peer, float] = {}
        self._reported_peers: set[Peer] = set()
        """Since the last round."""
        self._period_s = period_s
        self._started_s = stopwatch_s()
        quota.allocation_of = self.allocation_of

    def attach(self, exchange: DemandExchange) -> None:
        """From now on what peers tell counts."""
        exchange.demands = self.demands
        exchange.on_demands = self.on_demands
        exchange.on_gone = self.on_peers_gone

    def allocation_of(self, namespace: str) -> RateAllocation[Peer]:
        """This host's share of the namespace's limits."""
        share = self._allocations.get(namespace)
        if share is None:
            now_s = self._stopwatch_s()
            settled = now_s - self._started_s > UNRESPONSIVE_PERIODS * self._period_s
            known = settled or all(peer in self._last_report_s for peer in self._peers())
            share = self._allocations[namespace] = RateAllocation(
                self._host_count, self._period_s, now_s, is_complete=known
            )
        return share

    # ------------------------------------------------------------- the exchange

    def demands(self) -> list[Any]:
        """What this host tells a peer now: a `NamespaceDemand` of each namespace that has anything to tell."""
        now_s = self._stopwatch_s()
        told: list[Any] = []
        for namespace, settings in self._limited().items():
            items, size = self._backlog(namespace, settings)
            share = self._allocations.get(namespace)
            demand = enqueued = 0
            if share is not None:
                demand, enqueued = share.next_report(now_s)
                share.update_fraction(self._host_count, settings.enqueues_per_minute, now_s)
            if items or (share is not None and not share.is_idle(now_s)):
                told.append(ttypes.NamespaceDemand(namespace, demand, items, size, enqueued))
        return told

    def on_demands(self, peer: Peer, demands: Sequence[Any]) -> None:
        """A peer told this."""
        now_s = self._stopwatch_s()
        limited = self._limited()
        first = peer not in self._last_report_s
        words: dict[str, HostReport] = {}
        for told in demands:
            if told.namespace_name in limited:
                words[told.namespace_name] = _parse_demand(told)
                self.allocation_of(told.namespace_name)
        self._last_report_s[peer] = now_s
        self._reported_peers.add(peer)
        for namespace, share in self._allocations.items():
            settings = limited.get(namespace)
            per_minute = 0 if settings is None else settings.enqueues_per_minute
            share.on_report(peer, words.get(namespace, EMPTY_REPORT), self._host_count, per_minute, is_first=first)
            share.update_fraction(self._host_count, per_minute, now_s)
        self._end_round(now_s)

    def on_peers_gone(self, peers: Collection[Peer]) -> None:
        """These are there no more: what they were asked for, and held, is free."""
        for peer in peers:
            self._last_report_s.pop(peer, None)
            self._reported_peers.discard(peer)
            for share in self._allocations.values():
                share.on_host_left(peer)
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
            return self._quota.backlog(namespace)
        return 0, 0

    def _end_round(self, now_s: float) -> None:
        """When every peer was heard that is not silent."""
        silent = self._unresponsive_peers(now_s)
        if not self._reported_peers.issuperset(peer for peer in self._peers() if peer not in silent):
            return
        self._reported_peers.clear()
        limited = self._limited()
        for namespace, share in list(self._allocations.items()):
            settings = limited.get(namespace)
            if settings is None or (share.is_unused_elsewhere and share.is_idle(now_s)):
                del self._allocations[namespace]
                continue
            held = self._backlog(namespace, settings)
            share.end_round(self._host_count, silent, settings.enqueues_per_minute, held, now_s)


def _parse_demand(demand: Any) -> HostReport:
    """What a peer tells, with nothing in it that cannot be."""
    return HostReport(
        max(0, demand.enqueues_per_minute or 0),
        demand.enqueued_items or 0,
        max(0, demand.items or 0),
        max(0, demand.payload_bytes or 0),
    )
