"""What the hosts of a tier tell each other: each asks every other one about once a second.

Holds `Exchange`. Always true: a host is asked one thing at a time, and every
asking ends by a deadline; what changed comes in pages with pauses between them,
so that a hundred thousand topics hold up nobody; a host that does not answer is
asked again, and what it said last stays until it is gone from the plan. Knows
nothing of what is done with what is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any, Final

from foqs.cluster.gossip.gossip_view import GossipView
from foqs.cluster.gossip.local_topics import LocalTopics
from foqs.cluster.peers import Peer, Peers
from foqs.core.errors import FoqsError
from foqs.options.cluster_options import ClusterOptions
from foqs.rpc.methods import Caller, unchanged
from foqs_client.idl import ttypes
from foqs_client.thrift_messages import ThriftMethod

log = logging.getLogger(__name__)

PAGE_PAUSE_S: Final = 0.01
"""Between two pages of one host, and between two rounds of looking at many topics of this one."""
_JITTER: Final = 0.1
_REPLY_TIMEOUT_PERIODS: Final = 3
"""So many of them an answer is waited for."""
_GOSSIP: Final = ThriftMethod("gossip", is_write=False)


class Exchange:
    """Args:
    load: what waits here to be written, in items.
    can_accept_items: some shard here takes new items.
    """

    def __init__(
        self,
        options: ClusterOptions,
        peers: Peers,
        local_topics: LocalTopics,
        view: GossipView,
        load: Callable[[], float],
        can_accept_items: Callable[[], bool],
        rng: Random,
    ) -> None:
        self.demands: Callable[[], Sequence[Any]] = tuple
        """What this host tells of its namespaces: NamespaceDemands."""
        self.on_demands: Callable[[Peer, Sequence[Any]], None] = _ignore
        """Told what a peer told of its own."""
        self.on_gone: Callable[[Collection[Peer]], None] = _ignore
        """Told peers that are there no more."""
        self.reply_count = 0
        """Answers of peers that came."""
        self.failure_count = 0
        """Answers that did not come, or were refusals."""
        self._options = options
        self._peers = peers
        self._local_topics = local_topics
        self._view = view
        self._load = load
        self._can_accept_items = can_accept_items
        self._rng = rng
        self._poll_tasks: dict[Peer, asyncio.Task[None]] = {}
        self._first_seen_at_s: dict[Peer, float] = {}
        """When each peer was seen first, on the loop's clock."""

    @property
    def oldest_view_age_s(self) -> float:
        """How long ago that was so which is known of the peer that has been silent for the longest; 0 without peers."""
        now = asyncio.get_running_loop().time()
        heard = [self._view.complete_as_of_s(peer) for peer in self._first_seen_at_s]
        return max(
            (
                now - (since if at is None else at)
                for at, since in zip(heard, self._first_seen_at_s.values(), strict=True)
            ),
            default=0.0,
        )

    # -------------------------------------------------------------------- telling

    def handle(self, request: Any, deadline: float, caller: Caller) -> None:
        """Serves `exchange`; see `Serve`."""
        options = self._options
        coming = self._local_topics.refresh(options.gossip_page_topics_max, include_new=not request.continuation)
        changes = self._local_topics.changes_since(request.version, request.full_since, options.gossip_page_topics_max)
        reply = ttypes.GossipReply(
            version=changes.version,
            topics=self._local_topics.summaries(changes.topics),
            full=changes.is_full,
            full_since=changes.full_since,
            more=changes.has_more or coming,
            demands=list(self.demands()),
            load=self._load(),
            accepts_items=self._can_accept_items(),
        )
        caller.reply(unchanged, reply)

    # --------------------------------------------------------------------- asking

    async def run(self) -> None:
        """Asks all peers, again and again, until it is cancelled."""
        try:
            more = False
            while True:
                self._sync_peers()
                more = self._local_topics.refresh(self._options.gossip_page_topics_max, include_new=not more)
                await asyncio.sleep(PAGE_PAUSE_S if more else self._period_s())
        finally:
            for task in self._poll_tasks.values():
                task.cancel()
            await asyncio.gather(*self._poll_tasks.values(), return_exceptions=True)

    def _sync_peers(self) -> None:
        """Peers come and go."""
        peers = list(self._peers.by_nonce.values())
        gone = [peer for peer in self._poll_tasks if peer not in peers]
        for peer in gone:
            self._poll_tasks.pop(peer).cancel()
            del self._first_seen_at_s[peer]
        if gone:
            self._view.remove_peers(gone)
            self.on_gone(gone)
        for peer in peers:
            if peer not in self._poll_tasks:
                self._first_seen_at_s[peer] = asyncio.get_running_loop().time()
                self._poll_tasks[peer] = asyncio.ensure_future(self._poll_peer(peer))

    async def _poll_peer(self, peer: Peer) -> None:
        silent = more = False
        while True:
            try:
                more = await self._poll_once(peer, is_continuation=more)
                if silent:
                    log.info("host %s answers again", peer.view.name)
                silent = False
            except FoqsError as error:
                more = False
                self.failure_count += 1
                if not silent:
                    log.warning("what host %s has is not known, or of before: %s", peer.view.name, error)
                silent = True
            except Exception:  # what one host said must not keep the others from being heard
                more = False
                self.failure_count += 1
                log.exception("what host %s said cannot be taken in", peer.view.name)
            await asyncio.sleep(PAGE_PAUSE_S if more else self._period_s())

    async def _poll_once(self, peer: Peer, *, is_continuation: bool) -> bool:
        """Returns whether there is more to ask for at once; `is_continuation`: there was. Raises FoqsError."""
        asked_at = asyncio.get_running_loop().time()
        summaries = self._view
        request = ttypes.GossipRequest(
            summaries.version(peer), None, summaries.full_since(peer), is_continuation or None
        )
        deadline = asked_at + _REPLY_TIMEOUT_PERIODS * self._options.gossip_interval_ms / 1_000
        reply = await self._peers.call(peer, _GOSSIP, request, deadline)
        self.reply_count += 1
        peer.load = reply.load or 0.0
        peer.can_accept_items = reply.accepts_items is not False
        summaries.apply_reply(peer, reply, asked_at, is_continuation=is_continuation)
        self.on_demands(peer, reply.demands or ())
        return bool(reply.more)

    def _period_s(self) -> float:
        return self._options.gossip_interval_ms / 1_000 * self._rng.uniform(1 - _JITTER, 1 + _JITTER)


def _ignore(*told: Any) -> None:
    """Nobody listens."""
