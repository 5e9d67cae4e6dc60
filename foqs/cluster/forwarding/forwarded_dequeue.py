"""One dequeue of a host with peers: served here, by a peer, or by both at once.

Holds `ForwardedDequeue`. Always true: it has one reply; it keeps its place in this
host's queue while it is forwarded. Items that arrive after the reply, or after
the caller has left, are released. Knows nothing of which host has which items, nor
of the other calls that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import partial
from typing import Any, Protocol, TypeVar

from foqs.cluster.forwarding.peer_dequeues import PeerDequeues, Route
from foqs.core.items.item import TopicName
from foqs.queue.outage import NothingDeliverable, Outage
from foqs.queue.port import LeasedItems, PendingCall
from foqs.rpc.call import Call, Handler, WrappedCall
from foqs_contract.errors import FoqsError, UnknownOutcome
from foqs_contract.idl import ttypes

_T = TypeVar("_T")


class LocalDequeues(Protocol):
    """This host's part in a forwarded dequeue; `DequeueForwarder` is one."""

    def add_waiting(self, pending: PendingCall, call: ForwardedDequeue) -> None:
        """Register a call that waits in this host's queue."""
        ...

    def remove_waiting(self, pending: PendingCall | None) -> None:
        """Remove a call that does not wait any more."""
        ...

    def forward_waiting(self, topics: Collection[TopicName]) -> None:
        """Forward waiting dequeues of these topics, as many as the items at peers may serve."""
        ...

    def tier_outage(self, topics: Collection[TopicName], own: Outage | None) -> Outage | None:
        """See `TierOutages.outage`."""
        ...


class ForwardedDequeue(WrappedCall):
    """One dequeue: its local part, and its forwarded part.

    Args:
        local: serves the call by this host alone.

    Attributes:
        is_forwarding: whether a peer is being asked.
    """

    __slots__ = (
        "_first_forwarded_at_s",
        "_is_done",
        "_is_local_done",
        "_local",
        "_local_dequeues",
        "_local_outage",
        "_peer_dequeues",
        "_unknown_outcome",
        "is_forwarding",
        "topics",
    )

    def __init__(
        self,
        outer: Call,
        local: Handler,
        local_dequeues: LocalDequeues,
        peer_dequeues: PeerDequeues,
        topics: Sequence[TopicName],
    ) -> None:
        super().__init__(outer)
        self.topics = topics
        self.is_forwarding = False
        self._local = local
        self._local_dequeues = local_dequeues
        self._peer_dequeues = peer_dequeues
        self._first_forwarded_at_s: float | None = None
        """When it was first forwarded, if that was before it was served here."""
        self._is_local_done = False
        self._local_outage: Outage | None = None
        """Why this host may have delivered nothing although there are items."""
        self._is_done = False
        self._unknown_outcome: UnknownOutcome | None = None
        """The error of a forwarded call that was not answered."""

    def wanted_count(self, topic: TopicName) -> int:
        """Return how many items of a topic are requested."""
        return self.request.topics[self.topics.index(topic)].count or 1

    # --------------------------------------------------------------- local part

    def serve_locally(self) -> None:
        """Serve the call by this host, with the rest of its wait time. Raises FoqsError."""
        if self.request.wait_ms and self._first_forwarded_at_s is not None:
            elapsed_ms = int((asyncio.get_running_loop().time() - self._first_forwarded_at_s) * 1_000)
            self.request = copy(self.request)
            self.request.wait_ms = max(0, self.request.wait_ms - elapsed_ms)
        self.pending = self._local(self)
        if self.pending is not None and not self._is_local_done and self.request.wait_ms and not self._is_local_only:
            self._local_dequeues.add_waiting(self.pending, self)

    @property
    def _is_local_only(self) -> bool:
        return bool(self.request.forwarded or self.request.local_only)

    def fail(self, error: Exception) -> None:
        """Fail the call. `NothingDeliverable` does not fail it: peers may still deliver, and their reply is merged with it."""
        if isinstance(error, NothingDeliverable):
            self._on_local_empty(error.outage)
        else:
            self._finish()
            self.outer.fail(error)

    def reply(self, to_struct: Callable[[_T], Any], value: _T, give_back: Callable[[], None] | None = None) -> None:
        """Reply with the items of this host; without items, reply when no peer is being asked."""
        assert isinstance(value, LeasedItems)
        if value.items:
            self._is_local_done = True
            self._reply(to_struct, value, give_back)
        else:
            self._on_local_empty(value.outage)

    def _on_local_empty(self, outage: Outage | None) -> None:
        self._is_local_done = True
        self._local_outage = outage
        if not self.is_forwarding:
            self._reply_empty()

    # ----------------------------------------------------------- forwarded part

    def forward(self, route: Route) -> None:
        """Ask a peer for items, too."""
        if self.pending is None and self._first_forwarded_at_s is None:
            self._first_forwarded_at_s = asyncio.get_running_loop().time()
        self.is_forwarding = True
        self._peer_dequeues.run_detached(self._forward(route))

    async def _forward(self, route: Route) -> None:
        peer_dequeues, namespace = self._peer_dequeues, self.request.namespace_name
        reply = ttypes.DequeueReply()
        try:
            reply = await peer_dequeues.dequeue(route, self.request, self.topics, self.deadline)
        except UnknownOutcome as error:
            self._unknown_outcome = error
        except Exception as error:
            self._abandon_local()
            self._fail(error)
        self.is_forwarding = False
        if deliveries := reply.items:
            peer, places = route
            if self._is_done:
                peer_dequeues.release(peer, namespace, deliveries)
            else:
                self._abandon_local()
                give_back = partial(peer_dequeues.release, peer, namespace, deliveries)
                self._reply(partial(ttypes.DequeueReply, incarnation=reply.incarnation), deliveries, give_back)
            self._local_dequeues.forward_waiting([self.topics[place] for place in places])
        elif not self._is_done:
            self._continue_locally()

    def _continue_locally(self) -> None:
        """Continue on this host, because the peer delivered nothing."""
        if self._is_local_done or (self.pending is None and self._unknown_outcome is not None):
            self._reply_empty()
        elif self.pending is None:
            try:
                self.serve_locally()
            except Exception as error:
                self._fail(error)

    # ------------------------------------------------------------------ the end

    def abandon(self) -> None:
        """End the call without a reply. Items that a peer has leased for it are released when they arrive."""
        self._abandon_local()
        self._finish()

    def _abandon_local(self) -> None:
        if self.pending is not None and not self._is_local_done:
            self.pending.abandon()
            self._is_local_done = True

    def _reply(self, to_struct: Callable[[_T], Any], value: _T, give_back: Callable[[], None] | None) -> None:
        self._finish()

        def with_availability(value: _T) -> Any:
            reply = to_struct(value)
            if self._peer_dequeues.peers.by_nonce:
                reply.availability = self._peer_dequeues.topic_availability(
                    self.topics, with_peers=not self.request.forwarded
                )
            return reply

        self.outer.reply(with_availability, value, give_back)

    def _reply_empty(self) -> None:
        if self._unknown_outcome is not None:
            self._fail(self._unknown_outcome)
            return
        outage = self._local_outage
        if not self._is_local_only:
            outage = self._local_dequeues.tier_outage(self.topics, outage)
        if outage is not None and outage.is_whole:
            self._fail(NothingDeliverable(outage))
        else:
            shards = None if outage is None else outage.shards
            self._reply(lambda items: ttypes.DequeueReply(items, unavailable_shards=shards), [], None)

    def _fail(self, error: Exception | FoqsError) -> None:
        if not self._is_done:
            self._finish()
            self.outer.fail(error)

    def _finish(self) -> None:
        self._is_done = True
        self._local_dequeues.remove_waiting(self.pending)
