"""Limits of namespaces that hold for all hosts of the tier together: this host's shares of them.

Holds `TierLimits`, between the exchange and the quota. Always true: a namespace
has a share here as long as it is asked for, held or spoken of anywhere; peers
are those of the plan as it was read last, so a peer that does not answer counts
as it told last until the plan has it no more. How a limit is divided is in
`foqs.core.shares`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Any, Final, Protocol

from foqs.core.shares import NOTHING, Share, Word
from foqs.service.api import NamespaceSettings
from foqs.service.quota import Quota
from foqs.tier.peers import Peer
from foqs_client.idl import ttypes

SILENT_PERIODS: Final = 2.0
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
    seconds: a stop watch.
    period_s: between two times that a host asks another. The rate is held within a twentieth with one of a second at most.
    """

    def __init__(
        self,
        quota: Quota,
        limited: Callable[[], Mapping[str, NamespaceSettings]],
        peers: Callable[[], Collection[Peer]],
        seconds: Callable[[], float],
        period_s: float,
    ) -> None:
        self._quota = quota
        self._limited = limited
        self._peers = peers
        self._seconds = seconds
        self._shares: dict[str, Share[Peer]] = {}
        self._heard_s: dict[Peer, float] = {}
        self._heard: set[Peer] = set()
        """Since the last round."""
        self._period_s = period_s
        self._begun_s = seconds()
        quota.tier = self.share

    def follow(self, exchange: DemandExchange) -> None:
        """From now on what peers tell counts."""
        exchange.demands = self.demands
        exchange.on_demands = self.heard
        exchange.on_gone = self.gone

    def share(self, namespace: str) -> Share[Peer]:
        """This host's share of the namespace's limits."""
        share = self._shares.get(namespace)
        if share is None:
            now_s = self._seconds()
            settled = now_s - self._begun_s > SILENT_PERIODS * self._period_s
            known = settled or all(peer in self._heard_s for peer in self._peers())
            share = self._shares[namespace] = Share(self._hosts, self._period_s, now_s, known=known)
        return share

    # ------------------------------------------------------------- the exchange

    def demands(self) -> list[Any]:
        """What this host tells a peer now: a `NamespaceDemand` of each namespace that has anything to tell."""
        now_s = self._seconds()
        told: list[Any] = []
        for namespace, settings in self._limited().items():
            items, size = self._held(namespace, settings)
            share = self._shares.get(namespace)
            demand = enqueued = 0
            if share is not None:
                demand, enqueued = share.tell(now_s)
                share.divide(self._hosts, settings.enqueues_per_minute, now_s)
            if items or (share is not None and not share.is_over(now_s)):
                told.append(ttypes.NamespaceDemand(namespace, demand, items, size, enqueued))
        return told

    def heard(self, peer: Peer, demands: Sequence[Any]) -> None:
        """A peer told this."""
        now_s = self._seconds()
        limited = self._limited()
        first = peer not in self._heard_s
        words: dict[str, Word] = {}
        for told in demands:
            if told.namespace_name in limited:
                words[told.namespace_name] = _word(told)
                self.share(told.namespace_name)
        self._heard_s[peer] = now_s
        self._heard.add(peer)
        for namespace, share in self._shares.items():
            settings = limited.get(namespace)
            per_minute = 0 if settings is None else settings.enqueues_per_minute
            share.heard(peer, words.get(namespace, NOTHING), self._hosts, per_minute, first=first)
            share.divide(self._hosts, per_minute, now_s)
        self._end_round(now_s)

    def gone(self, peers: Collection[Peer]) -> None:
        """These are there no more: what they were asked for, and held, is free."""
        for peer in peers:
            self._heard_s.pop(peer, None)
            self._heard.discard(peer)
            for share in self._shares.values():
                share.gone(peer)
        self._end_round(self._seconds())

    # --------------------------------------------------------------------- inside

    @property
    def _hosts(self) -> int:
        return len(self._peers()) + 1

    def _silent(self, now_s: float) -> list[Peer]:
        since_s = now_s - SILENT_PERIODS * self._period_s
        return [peer for peer in self._peers() if self._heard_s.get(peer, -inf) < since_s]

    def _held(self, namespace: str, settings: NamespaceSettings) -> tuple[int, int]:
        if settings.backlog_items_max or settings.backlog_bytes_max:
            return self._quota.held(namespace)
        return 0, 0

    def _end_round(self, now_s: float) -> None:
        """When every peer was heard that is not silent."""
        silent = self._silent(now_s)
        if not self._heard.issuperset(peer for peer in self._peers() if peer not in silent):
            return
        self._heard.clear()
        limited = self._limited()
        for namespace, share in list(self._shares.items()):
            settings = limited.get(namespace)
            if settings is None or (share.is_unknown and share.is_over(now_s)):
                del self._shares[namespace]
                continue
            held = self._held(namespace, settings)
            share.round(self._hosts, silent, settings.enqueues_per_minute, held, now_s)


def _word(told: Any) -> Word:
    """What a peer tells, with nothing in it that cannot be."""
    return Word(
        max(0, told.enqueues_per_minute or 0),
        told.enqueued_items or 0,
        max(0, told.items or 0),
        max(0, told.payload_bytes or 0),
    )
