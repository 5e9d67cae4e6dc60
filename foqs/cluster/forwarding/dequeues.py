"""Dequeues that another host fills: where it has better items than this one, or this one has none.

Holds `Dequeues`. Always true: a call is passed on to one peer at a time, without
any wait there, and only where a peer told of better items than are here; who
waits, waits here and keeps his place; what comes too late is released, which
costs no attempt; what was passed on and not answered ends as UNKNOWN_OUTCOME
where this host has nothing either. Topics of one call take turns in choosing its
host, so that none is starved by another's priorities.
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
from foqs.core.errors import FoqsError, UnknownOutcome
from foqs.core.items.item import TopicName
from foqs.queue.availability import Availability
from foqs.queue.port import PendingCall
from foqs.rpc import codec
from foqs.rpc.methods import Caller, MethodHandler
from foqs_client.idl import ttypes
from foqs_client.thrift_messages import ThriftMethod

REPLY_TIMEOUT_S: Final = 1.5
"""A peer that has not answered by then is not waited for; above the time in which it leaves out its late shards."""
RELEASE_TIMEOUT_S: Final = 2.0
"""What could not be released by then comes back when its lease ends."""
RETRY_AFTER_S: Final = 0.25
"""A peer that has something of a topic, and gave nothing, is not asked for it sooner; and who waits looks again."""
UNRESPONSIVE_RETRY_AFTER_S: Final = 2.0
"""The same of a peer that did not answer: each time costs its caller all of `ANSWER_S`."""
WAKES_MAX: Final = 100
"""So many who wait are looked at in one turn of the loop."""
RETRY_ENTRIES_MAX: Final = 10_000
"""Peers' topics that were asked for in vain and are remembered; beyond it, all are asked for again."""

_DEQUEUE: Final = ThriftMethod("dequeue", is_write=True)
_RELEASE: Final = ThriftMethod("release", is_write=True)

Route: TypeAlias = tuple[Peer, Sequence[int]]
"""Which peer to ask, and the places of the topics to ask it for."""


class TopicAvailability(Protocol):
    """Of a topic at another host, as it told last; see `foqs.cluster.gossip.gossip_view.PeerAvailability`."""

    @property
    def peer(self) -> Peer: ...
    @property
    def best_priority(self) -> int: ...
    @property
    def ready(self) -> int: ...
    @property
    def as_of_s(self) -> float: ...


class AvailabilityView(Protocol):
    """What other hosts have; see `foqs.cluster.gossip.gossip_view.GossipView`."""

    on_items_available: Callable[[Collection[TopicName]], None]

    def best_peers(self, topic: TopicName) -> Sequence[TopicAvailability]:
        """Of hosts that have READY items of it, the best first."""
        ...

    def update_topic(self, peer: Peer, topic: TopicName, best_priority: int | None, ready: int) -> None:
        """What a peer has now."""
        ...


class DequeueForwarder:
    """Serves `dequeue` from here or from the host that has the best.

    Args:
        local: by this host alone.
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
        """Calls that this host has under way, and that may wait, by what stands for them in its queue."""
        self._recheck_timers: dict[TopicName, asyncio.TimerHandle] = {}
        self._retry_at_s: dict[tuple[str, TopicName], float] = {}
        """By nonce and topic, until when it is not asked for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.forwarded_count = 0
        """Calls that were sent to another host."""
        self.received_count = 0
        """Items that came of it."""
        self.released_count = 0
        """Of these, what came too late."""
        peer_view.on_items_available = self._on_items_available

    def handle(self, request: Any, deadline: float, caller: Caller) -> PendingCall | None:
        """See `Serve`."""
        peers = self.peers
        topics = _requested_topics(request) if peers.by_nonce else None
        if not topics:
            return self.local(request, deadline, caller)
        call = ForwardedDequeue(self, request, topics, deadline, caller)
        way = None if request.forwarded or request.local_only else self.choose_route(topics)
        if way is None:
            call.serve_locally()
        else:
            call.forward(way)
        return call

    # ---------------------------------------------------------------- choosing

    def choose_route(self, topics: Sequence[TopicName]) -> Route | None:
        """Who has better items than this host; None: nobody is known to."""
        count = len(topics)
        first = 0
        if count > 1:
            first = self._rotation = (self._rotation + 1) % count
        for step in range(count):
            topic = topics[(first + step) % count]
            told = self._best_peer(topic)
            if told is None:
                if count > 1 and self._local_best_priority(topic) is not None:
                    return None
                continue
            here = self._local_best_priority(topic)
            if here is not None and here <= told.best_priority:
                return None
            return told.peer, [
                place for place, each in enumerate(topics) if each is topic or self._has_better(told, each)
            ]
        return None

    def _best_peer(self, topic: TopicName) -> TopicAvailability | None:
        """Of the peers that may be asked for a topic."""
        heads = self._peer_view.best_peers(topic)
        if not heads or self._availability.is_paused(topic):
            return None
        now, vain = self._loop.time(), self._retry_at_s
        for told in heads:
            peer = told.peer
            if peer.suspect_until_s <= now and (not vain or vain.get((peer.nonce, topic), 0.0) <= now):
                return told
        return None

    def _has_better(self, candidate: TopicAvailability, topic: TopicName) -> bool:
        """The same peer has better items of another topic too."""
        here = self._local_best_priority(topic)
        return any(
            other.peer is candidate.peer and (here is None or other.best_priority < here)
            for other in self._peer_view.best_peers(topic)
        )

    def _local_best_priority(self, topic: TopicName) -> int | None:
        return None if self._availability.is_suspended else self._availability.best_priority(topic)

    # ------------------------------------------------------------ what is told

    def topic_heads(self, topics: Sequence[TopicName], *, with_peers: bool) -> list[Any]:
        """What is left of topics here, and at others as far as it is known."""
        heads = []
        here, now = self.peers.own_address, self._loop.time()
        best = self._availability.best_priorities(topics)
        for topic in topics:
            if topic in best and here is not None:
                ready = self._availability.ready_count(topic)
                heads.append(ttypes.TopicAvailability(topic[1], ttypes.HostAddress(*here), best[topic], ready, 0))
            if with_peers:
                for told in self._peer_view.best_peers(topic):
                    at = ttypes.HostAddress(*told.peer.address)
                    age_ms = max(0, int((now - told.as_of_s) * 1_000))
                    heads.append(ttypes.TopicAvailability(topic[1], at, told.best_priority, told.ready, age_ms))
        return heads

    # ---------------------------------------------------------------- elsewhere

    async def dequeue_at(self, route: Route, request: Any, topics: Sequence[TopicName], deadline: float) -> list[Any]:
        """Deliveries of a peer; none where it has none, or does not take the call. Raises UnknownOutcome."""
        peer, places = route
        part = copy(request)
        part.forwarded, part.wait_ms, part.topics = True, None, [request.topics[place] for place in places]
        asked = [topics[place] for place in places]
        self.forwarded_count += 1
        try:
            reply = await self.peers.call(peer, _DEQUEUE, part, min(deadline, self._loop.time() + REPLY_TIMEOUT_S))
        except FoqsError as error:
            silent = isinstance(error, UnknownOutcome)
            self._set_retry_at(peer, asked, UNRESPONSIVE_RETRY_AFTER_S if silent else RETRY_AFTER_S)
            if silent:
                raise
            return []
        if reply.availability is not None:
            left = {head.topic: head for head in reply.availability}
            for topic in asked:
                head = left.get(topic[1])
                best, ready = (None, 0) if head is None else (head.best_priority, head.ready or 0)
                self._peer_view.update_topic(peer, topic, best, ready)
        if not reply.items:
            self._set_retry_at(peer, asked, RETRY_AFTER_S)
        self.received_count += len(reply.items or ())
        return reply.items or []

    def release(self, peer: Peer, namespace: Any, deliveries: Sequence[Any]) -> None:
        """Nobody takes these: they are ready again soon."""
        self.released_count += len(deliveries)
        leases = [ttypes.Lease(delivery.id, delivery.token) for delivery in deliveries]
        self.run_detached(self._send_release(peer, ttypes.ReleaseRequest(namespace, leases)))

    async def _send_release(self, peer: Peer, request: Any) -> None:
        with suppress(FoqsError):
            await self.peers.call(peer, _RELEASE, request, self._loop.time() + RELEASE_TIMEOUT_S)

    def run_detached(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Until it is done, whoever leaves."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set_retry_at(self, peer: Peer, topics: Sequence[TopicName], delay_s: float) -> None:
        if len(self._retry_at_s) >= RETRY_ENTRIES_MAX:
            self._retry_at_s.clear()
        until = self._loop.time() + delay_s
        for topic in topics:
            self._retry_at_s[peer.nonce, topic] = until

    # ------------------------------------------------------------------ waiting

    def add_waiting(self, pending: PendingCall, call: ForwardedDequeue) -> None:
        """A call is under way here, and may wait."""
        self._waiting[pending] = call
        for topic in call.topics:
            if self._peer_view.best_peers(topic):
                self._schedule_recheck(topic)

    def remove_waiting(self, pending: PendingCall | None) -> None:
        if pending is not None:
            self._waiting.pop(pending, None)

    def forward_waiting(self, topics: Collection[TopicName]) -> None:
        """There may be more of these elsewhere: those who wait for them ask for it, as many as it may serve."""
        for topic in topics:
            heads = self._peer_view.best_peers(topic)
            if not heads or not self._availability.has_waiters(topic):
                continue
            left = sum([max(1, told.ready) for told in heads])
            for pending in islice(self._availability.waiters_of(topic), WAKES_MAX):
                call = self._waiting.get(pending)
                if call is None:
                    continue
                if not call.is_forwarding:
                    way = self.choose_route(call.topics)
                    if way is None:
                        continue
                    call.forward(way)
                left -= call.wanted_count(topic)
                if left <= 0:
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
    """What is asked for; None where that is not well-formed, of which this host itself tells the caller."""
    try:
        namespace = codec.parse_name(request.namespace_name, "namespace_name")
        return [(namespace, codec.parse_name(each.topic, "topic")) for each in request.topics or ()]
    except FoqsError:
        return None
