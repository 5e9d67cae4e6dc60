"""The gossip exchange: each host of a tier asks every other one for changes about once a second.

Holds `Exchange`. Always true: a host has one outstanding request per peer, and
each request has a deadline; changes come in pages with pauses between them, so that
a hundred thousand topics do not block other work; a peer that does not answer is
asked again, and its last report stays until the plan no longer lists it. Knows
nothing of how the reports are used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from foqs.cluster.gossip.gossip_view import GossipView
from foqs.cluster.gossip.local_topics import LocalTopics
from foqs.cluster.peers import Peer, Peers
from foqs.core.items.item import TopicName
from foqs.rpc.call import Call, unchanged
from foqs_contract.errors import FoqsError
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

log = logging.getLogger(__name__)

PAGE_PAUSE_S: Final = 0.01
"""The pause between two pages of a peer, and between two rounds of refreshing many topics of this host."""
_JITTER: Final = 0.1
_REPLY_TIMEOUT_PERIODS: Final = 3
"""The timeout of a request, in gossip intervals."""
_GOSSIP: Final = ThriftMethod("gossip")


@dataclass(slots=True, frozen=True)
class GossipPace:
    """The interval and the limits of a host's gossip. The defaults are those of production."""

    interval_s: float = 1.0
    """How often a host asks each other host for the topics that changed and for its reports on namespaces. A list of the
    tier's topics is behind the other hosts by about this time. With a longer one, shared limits are held less exactly."""
    page_topics_max: int = 250
    """The maximum number of topics in one reply; more follow in further replies, with pauses. One is built and read in a few milliseconds, for
    which a host answers nothing else."""
    topic_tombstones_max: int = 100_000
    """The maximum number of empty topics that a host remembers, so that others learn that they are empty: some tens of MiB. A host that missed a
    forgotten one receives all topics again."""


class LimitReports(Protocol):
    """The reports on the use of limits; `foqs.cluster.tier_limits.TierLimits` makes them."""

    def namespace_reports(self) -> Sequence[Any]:
        """Return a `NamespaceReport` for each namespace in use at this host, and record that they were reported."""
        ...

    def on_namespace_reports(self, peer: Peer, received: Sequence[Any]) -> None:
        """Apply the `NamespaceReport`s of a peer."""
        ...

    def on_peers_gone(self, peers: Collection[Peer]) -> None:
        """Forget peers that left."""
        ...


class RateReports(Protocol):
    """The reports on the rates of topics; `foqs.cluster.tier_topic_rates.TierTopicRates` makes them."""

    def report(self) -> Sequence[Any]:
        """Return a `TopicRate` for each of the busiest topics of this host."""
        ...

    def on_report(self, peer: Peer, received: Sequence[Any]) -> None:
        """Apply the `TopicRate`s of a peer."""
        ...


class Exchange:
    """Serves and sends `gossip` calls.

    Args:
        load: returns how many items wait here to be written.
        limits, rates: the rate limits and the topic rates of the tier, whose reports are exchanged.
        on_items_available: called with a peer and the topics of which it may now deliver more or better items than before.
        can_accept_items: returns whether a shard here accepts new items.
        unavailable_shards: returns how many of the shards that are served here cannot deliver.
    """

    def __init__(
        self,
        pace: GossipPace,
        peers: Peers,
        local_topics: LocalTopics,
        view: GossipView,
        limits: LimitReports,
        rates: RateReports,
        on_items_available: Callable[[Peer, Collection[TopicName]], None],
        load: Callable[[], float],
        can_accept_items: Callable[[], bool],
        unavailable_shards: Callable[[], int],
        rng: Random,
    ) -> None:
        self.reply_count = 0
        """Successful requests to peers."""
        self.failure_count = 0
        """Requests to peers that failed or were not answered."""
        self._pace = pace
        self._peers = peers
        self._local_topics = local_topics
        self._view = view
        self._limits = limits
        self._rates = rates
        self._on_items_available = on_items_available
        self._load = load
        self._can_accept_items = can_accept_items
        self._unavailable_shards = unavailable_shards
        self._rng = rng
        self._poll_tasks: dict[Peer, asyncio.Task[None]] = {}
        self._first_seen_at_s: dict[Peer, float] = {}
        """When each peer was first seen, on the loop's clock."""

    @property
    def oldest_view_age_s(self) -> float:
        """The age of the least recent view of a peer; 0 without peers."""
        now = asyncio.get_running_loop().time()
        complete_as_of_s = [self._view.complete_as_of_s(peer) for peer in self._first_seen_at_s]
        return max(
            (
                now - (first_seen_s if as_of_s is None else as_of_s)
                for as_of_s, first_seen_s in zip(complete_as_of_s, self._first_seen_at_s.values(), strict=True)
            ),
            default=0.0,
        )

    # -------------------------------------------------------------------- serving

    def handle(self, call: Call) -> None:
        """Serve `gossip`; see `Handler`."""
        request: ttypes.GossipRequest = call.request
        pace = self._pace
        has_unrefreshed = self._local_topics.refresh(pace.page_topics_max, include_new=not request.continuation)
        changes = self._local_topics.changes_since(request.version, request.full_since, pace.page_topics_max)
        reply = ttypes.GossipReply(
            version=changes.version,
            topics=self._local_topics.updates(changes.topics),
            full=changes.is_full,
            full_since=changes.full_since,
            more=changes.has_more or has_unrefreshed,
            namespace_reports=list(self._limits.namespace_reports()),
            load=self._load(),
            accepts_items=self._can_accept_items(),
            topic_rates=None if request.continuation else list(self._rates.report()),
            unavailable_shards=self._unavailable_shards() or None,
        )
        call.reply(unchanged, reply)

    # --------------------------------------------------------------------- asking

    async def run(self) -> None:
        """Ask all peers repeatedly until cancelled."""
        try:
            has_more = False
            while True:
                self._sync_peers()
                has_more = self._local_topics.refresh(self._pace.page_topics_max, include_new=not has_more)
                await asyncio.sleep(PAGE_PAUSE_S if has_more else self._period_s())
        finally:
            for task in self._poll_tasks.values():
                task.cancel()
            await asyncio.gather(*self._poll_tasks.values(), return_exceptions=True)

    def _sync_peers(self) -> None:
        """Start and stop the tasks of peers that came and went."""
        peers = list(self._peers.by_nonce.values())
        gone = [peer for peer in self._poll_tasks if peer not in peers]
        for peer in gone:
            self._poll_tasks.pop(peer).cancel()
            del self._first_seen_at_s[peer]
        if gone:
            self._view.remove_peers(gone)
            self._limits.on_peers_gone(gone)
        for peer in peers:
            if peer not in self._poll_tasks:
                self._first_seen_at_s[peer] = asyncio.get_running_loop().time()
                self._poll_tasks[peer] = asyncio.ensure_future(self._poll_peer(peer))

    async def _poll_peer(self, peer: Peer) -> None:
        is_failing = has_more = False
        while True:
            try:
                has_more = await self._poll_once(peer, is_continuation=has_more)
                if is_failing:
                    log.info("host %s answers gossip again", peer.view.name)
                is_failing = False
            except FoqsError as error:
                has_more = False
                self.failure_count += 1
                if not is_failing:
                    log.warning(
                        "host %s does not answer gossip; its topics are unknown or stale: %s", peer.view.name, error
                    )
                is_failing = True
            except Exception:  # a bad reply of one host must not stop the exchange with it
                has_more = False
                self.failure_count += 1
                log.exception("the gossip of host %s could not be processed; asking it again", peer.view.name)
            await asyncio.sleep(PAGE_PAUSE_S if has_more else self._period_s())

    async def _poll_once(self, peer: Peer, *, is_continuation: bool) -> bool:
        """Ask a peer once. Returns whether more pages follow at once. Raises FoqsError.

        Args:
            is_continuation: whether the last reply announced more pages.
        """
        asked_at_s = asyncio.get_running_loop().time()
        view = self._view
        request = ttypes.GossipRequest(view.version(peer), None, view.full_since(peer), is_continuation or None)
        deadline = asked_at_s + _REPLY_TIMEOUT_PERIODS * self._pace.interval_s
        reply = await self._peers.call(peer, _GOSSIP, request, deadline)
        self.reply_count += 1
        peer.load = reply.load or 0.0
        peer.can_accept_items = reply.accepts_items is not False
        improved = view.apply_reply(peer, reply, asked_at_s, is_continuation=is_continuation)
        if improved:
            self._on_items_available(peer, improved)
        self._limits.on_namespace_reports(peer, reply.namespace_reports or ())
        if reply.topic_rates is not None:
            self._rates.on_report(peer, reply.topic_rates)
        return bool(reply.more)

    def _period_s(self) -> float:
        return self._pace.interval_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
