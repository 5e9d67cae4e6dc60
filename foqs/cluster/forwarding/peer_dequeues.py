"""Dequeues from the peer that has the best items, and the availability of topics at this host and its peers.

Holds `PeerDequeues`. Always true: a peer is asked only if gossip says that it has
better items than this host, or in a fair topic a group that has waited longer, and in a relaxed topic
only if this host has none; a peer that delivered nothing of a topic is not asked for it again for a while,
or until it reports more. The topics of a call rotate in choosing its peer, so that the priorities of one do
not starve another. Knows nothing of the calls that wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from foqs.cluster.peers import Peer, Peers
from foqs.core.items.item import TopicName
from foqs.queue.availability import Availability
from foqs_contract.errors import FoqsError, Unavailable, UnknownOutcome
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

REPLY_TIMEOUT_S: Final = 1.5
"""The longest wait for a peer's reply; longer than the peer itself waits for its slow shards."""
RELEASE_TIMEOUT_S: Final = 2.0
"""The longest wait for a release; items that are not released by then are READY when their lease ends."""
FINISH_S_MAX: Final = 1.0
"""How long a host that stops waits for items to give back. Other leases end by themselves."""
RETRY_AFTER_S: Final = 0.25
"""A peer that delivered nothing of a topic is not asked for it again within this time, unless it reports more; waiting dequeues are checked after it."""
UNRESPONSIVE_RETRY_AFTER_S: Final = 2.0
"""The same for a peer that did not answer: each attempt costs its caller all of `REPLY_TIMEOUT_S`."""
REFUSAL_S: Final = 2.0
"""How long a peer's refusal counts. Later its gossip is newer."""
RETRY_ENTRIES_MAX: Final = 10_000
"""The most (peer, topic) pairs with a pause, or a refusal; beyond it, all are forgotten and may be asked again."""

LEASES_MAX: Final = 10_000
"""The most items that peers have leased here whose end is noticed; beyond it, gossip reports what follows the oldest ones."""

_DEQUEUE: Final = ThriftMethod("dequeue")
_RELEASE: Final = ThriftMethod("release")

Route: TypeAlias = tuple[Peer, Sequence[int]]
"""The peer to ask, and the indices of the topics to ask it for."""


class _Pause(NamedTuple):
    """Until when a peer is not asked for a topic, on the loop's clock.

    `ends_with_report`: a report of more items ends it, because the peer answered and had none.
    """

    until_s: float
    ends_with_report: bool


class _Refusal(NamedTuple):
    """The error of a peer that could not deliver, and its time on the loop's clock."""

    error: Unavailable
    at_s: float


class TopicAvailability(Protocol):
    """The availability of a topic at a peer; see `foqs.cluster.gossip.gossip_view.PeerAvailability`."""

    @property
    def peer(self) -> Peer: ...
    @property
    def best_priority(self) -> int: ...
    @property
    def ready(self) -> int: ...
    @property
    def as_of_s(self) -> float: ...
    @property
    def turn_since_s(self) -> float | None: ...


class AvailabilityView(Protocol):
    """The availability of topics at the peers; see `foqs.cluster.gossip.gossip_view.GossipView`."""

    @property
    def turn_lead_s(self) -> float:
        """How much longer than here a group of a fair topic must have waited at a peer, so that the peer is asked."""
        ...

    def best_peers(self, topic: TopicName) -> Sequence[TopicAvailability]:
        """Return the peers that may deliver items of a topic, the best first."""
        ...

    def update_topic(
        self,
        peer: Peer,
        topic: TopicName,
        best_priority: int | None,
        ready: int,
        turn_since_s: float | None = None,
    ) -> None:
        """Record the availability of a topic at a peer now; `best_priority` is None if it has no READY item, or is unknown."""
        ...


class PeerDequeues:
    """Chooses the peer of a dequeue, calls it, and releases items that come too late.

    Args:
        peer_view: the availability at the peers, by gossip.
    """

    def __init__(self, peers: Peers, availability: Availability, peer_view: AvailabilityView) -> None:
        self.peers = peers
        self._availability = availability
        self._peer_view = peer_view
        self._loop = asyncio.get_running_loop()
        self._rotation = 0
        self._pauses: dict[tuple[str, TopicName], _Pause] = {}
        """By peer nonce and topic."""
        self._refusals: dict[tuple[str, TopicName], _Refusal] = {}
        """By peer nonce and topic, the last time that the peer could not deliver."""
        self._leases: dict[bytes, TopicName] = {}
        """The topics of items with a limit on the leases of their groups, which peers have leased for calls here, by id; the oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.forwarded_count = 0
        """The number of calls sent to another host."""
        self.received_count = 0
        """The number of items received from other hosts."""
        self.released_count = 0
        """The number of items received too late for the call, which were released."""

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
            if not self._comes_first(candidate, topic):
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
        now, pauses = self._loop.time(), self._pauses
        for candidate in candidates:
            peer = candidate.peer
            if peer.suspect_until_s <= now:
                pause = pauses.get((peer.nonce, topic)) if pauses else None
                if pause is None or pause.until_s <= now:
                    return candidate
        return None

    def _has_better(self, candidate: TopicAvailability, topic: TopicName) -> bool:
        """Return whether the candidate's peer also has better items of another topic."""
        return any(
            other.peer is candidate.peer and self._comes_first(other, topic)
            for other in self._peer_view.best_peers(topic)
        )

    def _comes_first(self, candidate: TopicAvailability, topic: TopicName) -> bool:
        """Return whether a peer has better items than this host, or in a fair topic a group that has waited clearly longer.

        In a relaxed topic this counts only while this host has none.
        """
        local_best = self._local_best_priority(topic)
        if local_best is None:
            return True
        if self._availability.is_relaxed(topic):
            return False
        if candidate.best_priority < local_best:
            return True
        if candidate.best_priority > local_best or candidate.turn_since_s is None:
            return False
        local_age_ms = self._availability.turn_age_ms(topic)
        if local_age_ms is None:
            return False
        age_s = self._loop.time() - candidate.turn_since_s
        return age_s - local_age_ms / 1_000 > self._peer_view.turn_lead_s

    def _local_best_priority(self, topic: TopicName) -> int | None:
        return None if self._availability.is_suspended else self._availability.best_priority(topic)

    # --------------------------------------------------- remaining availability

    def topic_availability(self, topics: Sequence[TopicName], *, with_peers: bool) -> list[ttypes.TopicAvailability]:
        """Return the availability of the topics that is left here and, `with_peers`, at the peers as last reported."""
        found = []
        own_address, now = self.peers.own_address, self._loop.time()
        best = self._availability.best_priorities(topics)
        for topic in topics:
            if topic in best and own_address is not None:
                ready = self._availability.ready_count(topic)
                turn_age_ms = self._availability.turn_age_ms(topic)
                found.append(
                    ttypes.TopicAvailability(
                        topic[1], ttypes.HostAddress(*own_address), best[topic], ready, 0, turn_age_ms
                    )
                )
            if with_peers:
                for available in self._peer_view.best_peers(topic):
                    address = ttypes.HostAddress(*available.peer.address)
                    age_ms = max(0, int((now - available.as_of_s) * 1_000))
                    found.append(
                        ttypes.TopicAvailability(topic[1], address, available.best_priority, available.ready, age_ms)
                    )
        return found

    def end_pauses(self, peer: Peer, topics: Collection[TopicName]) -> None:
        """Let a peer be asked again that had nothing of these topics, because it reports more. The pause after a failed call stays."""
        for topic in topics if self._pauses else ():
            pause = self._pauses.get((peer.nonce, topic))
            if pause is not None and pause.ends_with_report:
                del self._pauses[peer.nonce, topic]

    def expect_next_items(self, peer: Peer, ids: Sequence[bytes]) -> Collection[TopicName]:
        """Expect the next items of groups from a peer that has ended leases for a call here. Return their topics.

        Args:
            ids: the items of these leases, as requests name them. Those of topics without a limit are ignored: nothing waits for them.
        """
        if not self._leases:
            return ()
        ended = Counter([topic for id in ids if (topic := self._leases.pop(id, None)) is not None])
        for topic, count in ended.items():
            if not any(available.peer is peer for available in self._peer_view.best_peers(topic)):
                self._peer_view.update_topic(peer, topic, None, count)
        self.end_pauses(peer, ended)
        return ended

    def _record_leases(self, deliveries: Sequence[ttypes.Delivery], namespace: str) -> None:
        for delivery in deliveries:
            topic, id = (namespace, delivery.topic or ""), (delivery.id or "").encode()
            if delivery.group is not None and self._availability.has_group_limit(topic):
                self._leases.pop(id, None)
                self._leases[id] = topic
        while len(self._leases) > LEASES_MAX:
            del self._leases[next(iter(self._leases))]

    # ------------------------------------------------------------- calls to peers

    async def dequeue(
        self, route: Route, request: ttypes.DequeueRequest, topics: Sequence[TopicName], deadline: float
    ) -> ttypes.DequeueReply:
        """Dequeue from a peer; return its reply, one without items if it refuses. Raises UnknownOutcome."""
        peer, places = route
        part = copy(request)
        wanted = request.topics or ()
        part.forwarded, part.wait_ms, part.topics = True, None, [wanted[place] for place in places]
        part_topics = [topics[place] for place in places]
        self.forwarded_count += 1
        reply_by_s = min(deadline, self._loop.time() + REPLY_TIMEOUT_S)
        release = partial(self.release, peer, request.namespace_name)
        try:
            reply: ttypes.DequeueReply = await self.peers.call(peer, _DEQUEUE, part, reply_by_s, release)
        except FoqsError as error:
            is_unanswered = isinstance(error, UnknownOutcome)
            retry_after_s = max(RETRY_AFTER_S, (error.retry_after_ms or 0) / 1_000)
            self._pause(peer, part_topics, UNRESPONSIVE_RETRY_AFTER_S if is_unanswered else retry_after_s)
            if is_unanswered:
                raise
            if isinstance(error, Unavailable):
                self._record_refusal(peer, part_topics, error)
            return ttypes.DequeueReply()
        self._forget_refusals(peer, part_topics)
        if reply.availability is not None:
            left = {found.topic: found for found in reply.availability}
            for topic in part_topics:
                found = left.get(topic[1])
                best, ready = (None, 0) if found is None else (found.best_priority, found.ready or 0)
                turn_since_s = None
                if found is not None and found.turn_age_ms is not None:
                    turn_since_s = self._loop.time() - found.turn_age_ms / 1_000
                self._peer_view.update_topic(peer, topic, best, ready, turn_since_s)
        if not reply.items:
            self._pause(peer, part_topics, RETRY_AFTER_S, ends_with_report=True)
        if reply.items:
            self.received_count += len(reply.items)
            self._record_leases(reply.items, part_topics[0][0])
        return reply

    def release(self, peer: Peer, namespace: bytes | None, deliveries: Sequence[ttypes.Delivery]) -> None:
        """Release deliveries that no consumer gets, so that they are READY again soon."""
        self.released_count += len(deliveries)
        leases = [ttypes.Lease(delivery.id, delivery.token) for delivery in deliveries]
        self.run_detached(self._send_release(peer, ttypes.ReleaseRequest(namespace, leases)))

    async def _send_release(self, peer: Peer, request: ttypes.ReleaseRequest) -> None:
        with suppress(FoqsError):
            await self.peers.call(peer, _RELEASE, request, self._loop.time() + RELEASE_TIMEOUT_S)

    async def finish(self) -> None:
        """Wait a moment for the calls in flight, and release what still arrives: this host stops."""
        until_s = self._loop.time() + FINISH_S_MAX
        await self.peers.wait_abandoned(until_s)
        while self._tasks and (left_s := until_s - self._loop.time()) > 0:
            await asyncio.wait(list(self._tasks), timeout=left_s)

    def run_detached(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, even if its call is abandoned."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def refusal(self, peer: Peer, topics: Collection[TopicName]) -> Unavailable | None:
        """Return the last error with which the peer could not deliver items of these topics; None after `REFUSAL_S`."""
        if not self._refusals:
            return None
        now_s = self._loop.time()
        found = [self._refusals.get((peer.nonce, topic)) for topic in topics]
        return next((each.error for each in found if each is not None and now_s - each.at_s <= REFUSAL_S), None)

    def _record_refusal(self, peer: Peer, topics: Sequence[TopicName], error: Unavailable) -> None:
        if len(self._refusals) >= RETRY_ENTRIES_MAX:
            self._refusals.clear()
        self._refusals |= dict.fromkeys([(peer.nonce, topic) for topic in topics], _Refusal(error, self._loop.time()))

    def _forget_refusals(self, peer: Peer, topics: Sequence[TopicName]) -> None:
        if self._refusals:
            for topic in topics:
                self._refusals.pop((peer.nonce, topic), None)

    def _pause(
        self, peer: Peer, topics: Sequence[TopicName], delay_s: float, *, ends_with_report: bool = False
    ) -> None:
        if len(self._pauses) >= RETRY_ENTRIES_MAX:
            self._pauses.clear()
        pause = _Pause(self._loop.time() + delay_s, ends_with_report)
        for topic in topics:
            self._pauses[peer.nonce, topic] = pause
