"""Forwards dequeues to another host that has better items, or has items when this host has none.

Holds `DequeueForwarder`. Always true: a call is forwarded to one peer at a time,
without a wait there, and only if gossip says that the peer has better items; a
waiting dequeue waits here and keeps its place; items that arrive too late are
released, which costs no attempt; a forwarded call that is not answered fails as
UNKNOWN_OUTCOME if this host has no items either. The topics of a call rotate in
choosing its host, so that the priorities of one do not starve another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from copy import copy
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias

from foqs.cluster.forwarding.forwarded_dequeue import ForwardedDequeue
from foqs.cluster.peers import Peer, Peers
from foqs.core.items.item import TopicName
from foqs.queue.availability import Availability
from foqs.queue.port import PendingCall
from foqs.rpc import codec
from foqs.rpc.methods import Caller, MethodHandler
from foqs_client.thrift_messages import ThriftMethod
from foqs_contract.errors import FoqsError, UnknownOutcome
from foqs_contract.idl import ttypes

REPLY_TIMEOUT_S: Final = 1.5
"""The longest wait for a peer's reply; longer than the peer itself waits for its slow shards."""
RELEASE_TIMEOUT_S: Final = 2.0
"""The longest wait for a release; items that are not released by then are READY when their lease ends."""
RETRY_AFTER_S: Final = 0.25
"""A peer that delivered nothing of a topic is not asked for it again within this time; waiting dequeues are checked after it."""
UNRESPONSIVE_RETRY_AFTER_S: Final = 2.0
"""The same for a peer that did not answer: each attempt costs its caller all of `REPLY_TIMEOUT_S`."""
WAKES_MAX: Final = 100
"""The most waiting dequeues of a topic that are checked in one turn of the loop."""
RETRY_ENTRIES_MAX: Final = 10_000
"""The most (peer, topic) pairs with a retry time; beyond it, all are forgotten and may be asked again."""

_DEQUEUE: Final = ThriftMethod("dequeue", is_write=True)
_RELEASE: Final = ThriftMethod("release", is_write=True)

Route: TypeAlias = tuple[Peer, Sequence[int]]
"""The peer to ask, and the indices of the topics to ask it for."""


class TopicAvailability(Protocol):
    """What a peer has of a topic; see `foqs.cluster.gossip.gossip_view.PeerAvailability`."""

    @property
    def peer(self) -> Peer: ...
    @property
    def best_priority(self) -> int: ...
    @property
    def ready(self) -> int: ...
    @property
    def as_of_s(self) -> float: ...


class AvailabilityView(Protocol):
    """What the peers have; see `foqs.cluster.gossip.gossip_view.GossipView`."""

    on_items_available: Callable[[Collection[TopicName]], None]

    def best_peers(self, topic: TopicName) -> Sequence[TopicAvailability]:
        """Return the peers that have READY items of a topic, the best first."""
        ...

    def update_topic(self, peer: Peer, topic: TopicName, best_priority: int | None, ready: int) -> None:
        """Record what a peer has of a topic now."""
        ...


class DequeueForwarder:
    """Serves `dequeue` locally or by the host that has the best items.

    Args:
        local: serves a dequeue by this host alone.
    """

    def __init__(
        self, local: MethodHandler, peers: Peers, availability: Availability, peer_view: AvailabilityView
    ) -> None:
        self.local = local
        self.peers = peers
        self._availability = availability
        self._peer_view = peer_view
        self._loop = asyncio.get_running_loop()
        self._rotation = 0
        self._waiting: dict[PendingCall, ForwardedDequeue] = {}
        """The calls that may wait in this host's queue, by their pending call there."""
        self._recheck_timers: dict[TopicName, asyncio.TimerHandle] = {}
        self._retry_at_s: dict[tuple[str, TopicName], float] = {}
        """By peer nonce and topic, the time before which the peer is not asked again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.forwarded_count = 0
        """Calls sent to another host."""
        self.received_count = 0
        """Items received from other hosts."""
        self.released_count = 0
        """Received items that came too late."""
        peer_view.on_items_available = self._on_items_available

    def handle(self, request: Any, deadline: float, caller: Caller) -> PendingCall | None:
        """Serve `dequeue`; see `MethodHandler`."""
        peers = self.peers
        topics = _requested_topics(request) if peers.by_nonce else None
        if not topics:
            return self.local(request, deadline, caller)
        call = ForwardedDequeue(self, request, topics, deadline, caller)
        route = None if request.forwarded or request.local_only else self.choose_route(topics)
        if route is None:
            call.serve_locally()
        else:
            call.forward(route)
        return call

    # ---------------------------------------------------------------- choosing

    def choose_route(self, topics: Sequence[TopicName]) -> Route | None:
        """Return a peer that has better items than this host, and for which topics; None if there is none."""
        count = len(topics)
        first = 0
        if count > 1:
            first = self._rotation = (self._rotation + 1) % count
        for step in range(count):
            topic = topics[(first + step) % count]
            candidate = self._best_peer(topic)
            if candidate is None:
                if count > 1 and self._local_best_priority(topic) is not None:
                    return None
                continue
            local_best = self._local_best_priority(topic)
            if local_best is not None and local_best <= candidate.best_priority:
                return None
            return candidate.peer, [
                place for place, other in enumerate(topics) if other is topic or self._has_better(candidate, other)
            ]
        return None

    def _best_peer(self, topic: TopicName) -> TopicAvailability | None:
        """Return the best of the peers that may be asked for a topic now."""
        candidates = self._peer_view.best_peers(topic)
        if not candidates or self._availability.is_paused(topic):
            return None
        now, retry_at_s = self._loop.time(), self._retry_at_s
        for candidate in candidates:
            peer = candidate.peer
            if peer.suspect_until_s <= now and (not retry_at_s or retry_at_s.get((peer.nonce, topic), 0.0) <= now):
                return candidate
        return None

    def _has_better(self, candidate: TopicAvailability, topic: TopicName) -> bool:
        """Return whether the candidate's peer also has better items of another topic."""
        local_best = self._local_best_priority(topic)
        return any(
            other.peer is candidate.peer and (local_best is None or other.best_priority < local_best)
            for other in self._peer_view.best_peers(topic)
        )

    def _local_best_priority(self, topic: TopicName) -> int | None:
        return None if self._availability.is_suspended else self._availability.best_priority(topic)

    # --------------------------------------------------- remaining availability

    def topic_heads(self, topics: Sequence[TopicName], *, with_peers: bool) -> list[Any]:
        """Return TopicHeads: what remains of the topics here and, as last reported, at peers."""
        heads = []
        own_address, now = self.peers.own_address, self._loop.time()
        best = self._availability.best_priorities(topics)
        for topic in topics:
            if topic in best and own_address is not None:
                ready = self._availability.ready_count(topic)
                heads.append(
                    ttypes.TopicAvailability(topic[1], ttypes.HostAddress(*own_address), best[topic], ready, 0)
                )
            if with_peers:
                for available in self._peer_view.best_peers(topic):
                    address = ttypes.HostAddress(*available.peer.address)
                    age_ms = max(0, int((now - available.as_of_s) * 1_000))
                    heads.append(
                        ttypes.TopicAvailability(topic[1], address, available.best_priority, available.ready, age_ms)
                    )
        return heads

    # ------------------------------------------------------------- calls to peers

    async def dequeue_at(self, route: Route, request: Any, topics: Sequence[TopicName], deadline: float) -> list[Any]:
        """Dequeue from a peer; return its deliveries, or none if it has none or refuses. Raises UnknownOutcome."""
        peer, places = route
        part = copy(request)
        part.forwarded, part.wait_ms, part.topics = True, None, [request.topics[place] for place in places]
        part_topics = [topics[place] for place in places]
        self.forwarded_count += 1
        try:
            reply = await self.peers.call(peer, _DEQUEUE, part, min(deadline, self._loop.time() + REPLY_TIMEOUT_S))
        except FoqsError as error:
            is_unanswered = isinstance(error, UnknownOutcome)
            self._set_retry_at(peer, part_topics, UNRESPONSIVE_RETRY_AFTER_S if is_unanswered else RETRY_AFTER_S)
            if is_unanswered:
                raise
            return []
        if reply.availability is not None:
            heads = {head.topic: head for head in reply.availability}
            for topic in part_topics:
                head = heads.get(topic[1])
                best, ready = (None, 0) if head is None else (head.best_priority, head.ready or 0)
                self._peer_view.update_topic(peer, topic, best, ready)
        if not reply.items:
            self._set_retry_at(peer, part_topics, RETRY_AFTER_S)
        self.received_count += len(reply.items or ())
        return reply.items or []

    def release(self, peer: Peer, namespace: Any, deliveries: Sequence[Any]) -> None:
        """Release deliveries that no consumer gets, so that they are READY again soon."""
        self.released_count += len(deliveries)
        leases = [ttypes.Lease(delivery.id, delivery.token) for delivery in deliveries]
        self.run_detached(self._send_release(peer, ttypes.ReleaseRequest(namespace, leases)))

    async def _send_release(self, peer: Peer, request: Any) -> None:
        with suppress(FoqsError):
            await self.peers.call(peer, _RELEASE, request, self._loop.time() + RELEASE_TIMEOUT_S)

    def run_detached(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, even if its call is abandoned."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set_retry_at(self, peer: Peer, topics: Sequence[TopicName], delay_s: float) -> None:
        if len(self._retry_at_s) >= RETRY_ENTRIES_MAX:
            self._retry_at_s.clear()
        retry_at_s = self._loop.time() + delay_s
        for topic in topics:
            self._retry_at_s[peer.nonce, topic] = retry_at_s

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
                    route = self.choose_route(call.topics)
                    if route is None:
                        continue
                    call.forward(route)
                remaining -= call.wanted_count(topic)
                if remaining <= 0:
                    break
            self._schedule_recheck(topic)

    def _on_items_available(self, topics: Collection[TopicName]) -> None:
        if self._waiting:
            self.forward_waiting(topics)

    def _schedule_recheck(self, topic: TopicName) -> None:
        if topic not in self._recheck_timers:
            self._recheck_timers[topic] = self._loop.call_later(RETRY_AFTER_S, self._recheck, topic)

    def _recheck(self, topic: TopicName) -> None:
        del self._recheck_timers[topic]
        self.forward_waiting((topic,))


def _requested_topics(request: Any) -> list[TopicName] | None:
    """Return the requested topics; None if the request is malformed, which the local handler then reports."""
    try:
        namespace = codec.parse_name(request.namespace_name, "namespace_name")
        return [(namespace, codec.parse_name(wanted.topic, "topic")) for wanted in request.topics or ()]
    except FoqsError:
        return None
