"""Serves dequeues by this host, or by another one that has better items, or has items when this host has none.

Holds `DequeueForwarder`. Always true: a call is forwarded to one peer at a time,
without a wait there; a waiting dequeue waits here and keeps its place; items that
arrive too late are released, which costs no attempt; a forwarded call that is not
answered fails as UNKNOWN_OUTCOME if this host has no items either. `peer_dequeues`
chooses the peer and calls it; `forwarded_dequeue` is one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Final, Protocol

from foqs.cluster.forwarding.forwarded_dequeue import ForwardedDequeue
from foqs.cluster.forwarding.peer_dequeues import RETRY_AFTER_S, AvailabilityView, PeerDequeues
from foqs.cluster.forwarding.tier_outage import PeerReports, TierOutages, UnservedShards
from foqs.cluster.peers import Peer, Peers
from foqs.core.items.item import TopicName
from foqs.queue.availability import Availability
from foqs.queue.port import PendingCall
from foqs.rpc import request_structs
from foqs.rpc.call import Call, Handler, ServerMethod
from foqs_contract.errors import FoqsError
from foqs_contract.idl import ttypes

WAKES_MAX: Final = 100
"""The most waiting dequeues of a topic that are checked in one turn of the loop."""


class GossipReports(AvailabilityView, PeerReports, Protocol):
    """The reports of the peers about their items; `foqs.cluster.gossip.gossip_view.GossipView` is one."""


class DequeueForwarder:
    """Serves each dequeue here, or forwards it to the host with the best items.

    Args:
        unserved_shards: says which shards of the tier no host serves.
    """

    def __init__(
        self,
        peers: Peers,
        availability: Availability,
        peer_view: GossipReports,
        unserved_shards: UnservedShards,
    ) -> None:
        self.peer_dequeues = PeerDequeues(peers, availability, peer_view)
        self.tier_outage = TierOutages(self.peer_dequeues, availability, peer_view, unserved_shards).outage
        self._peers = peers
        self._availability = availability
        self._peer_view = peer_view
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[PendingCall, ForwardedDequeue] = {}
        """The calls that may wait in this host's queue, by their pending call there."""
        self._recheck_timers: dict[TopicName, asyncio.TimerHandle] = {}

    def layer(self, method: ServerMethod) -> Handler:
        """See `Layer`."""
        local, peer_dequeues = method.handle, self.peer_dequeues

        def serve(call: Call) -> PendingCall | None:
            request: ttypes.DequeueRequest = call.request
            topics = _requested_topics(request)
            if not topics:
                return local(call)
            forwarded = ForwardedDequeue(call, local, self, peer_dequeues, topics)
            route = None if request.forwarded or request.local_only else peer_dequeues.choose_route(topics)
            if route is None:
                forwarded.serve_locally()
            else:
                forwarded.forward(route)
            return forwarded

        return serve

    # ------------------------------------------------------------------ waiting

    def add_waiting(self, pending: PendingCall, call: ForwardedDequeue) -> None:
        """Register a call that waits in this host's queue."""
        self._waiting[pending] = call
        for topic in call.topics:
            if self._peer_view.best_peers(topic):
                self._schedule_recheck(topic)

    def remove_waiting(self, pending: PendingCall | None) -> None:
        if pending is not None:
            self._waiting.pop(pending, None)

    def forward_waiting(self, topics: Collection[TopicName]) -> None:
        """Forward waiting dequeues of these topics, as many as the items at peers may serve."""
        for topic in topics:
            available = self._peer_view.best_peers(topic)
            if not available or not self._availability.has_waiters(topic):
                continue
            remaining = sum([max(1, entry.ready) for entry in available])
            for pending in islice(self._availability.waiters_of(topic), WAKES_MAX):
                call = self._waiting.get(pending)
                if call is None:
                    continue
                if not call.is_forwarding:
                    route = self.peer_dequeues.choose_route(call.topics)
                    if route is None:
                        continue
                    call.forward(route)
                remaining -= call.wanted_count(topic)
                if remaining <= 0:
                    break
            self._schedule_recheck(topic)

    def on_items_available(self, peer: Peer, topics: Collection[TopicName]) -> None:
        """Forward waiting dequeues of topics of which a peer reports more or better items than before."""
        self.peer_dequeues.end_pauses(peer, topics)
        if self._waiting:
            self.forward_waiting(topics)

    def on_leases_ended(self, peer: Peer, ids: Sequence[bytes]) -> None:
        """Forward waiting dequeues of topics with a limit, whose groups may go on at a peer because a call here has ended leases."""
        topics = self.peer_dequeues.expect_next_items(peer, ids)
        if topics and self._waiting:
            self.forward_waiting(topics)

    def _schedule_recheck(self, topic: TopicName) -> None:
        if topic not in self._recheck_timers:
            self._recheck_timers[topic] = self._loop.call_later(RETRY_AFTER_S, self._recheck, topic)

    def _recheck(self, topic: TopicName) -> None:
        del self._recheck_timers[topic]
        self.forward_waiting((topic,))


def _requested_topics(request: ttypes.DequeueRequest) -> list[TopicName] | None:
    """Return the requested topics; None if the request is malformed, which the local handler then reports."""
    try:
        namespace = request_structs.parse_name(request.namespace_name, "namespace_name")
        return [(namespace, request_structs.parse_name(wanted.topic, "topic")) for wanted in request.topics or ()]
    except FoqsError:
        return None
