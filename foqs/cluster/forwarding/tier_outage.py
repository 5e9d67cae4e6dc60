"""The outages of a tier: the shards that may hold items of some topics and cannot deliver them now.

Holds `TierOutages`. Always true: it asks nobody. It knows this host's shards, the gossip
of the peers and their last refusals, and the plan; so it is about a second old. A host that does not answer, and
a shard that no host serves, may hold anything. Knows nothing of calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from foqs.cluster.forwarding.peer_dequeues import PeerDequeues
from foqs.cluster.peers import Peer
from foqs.core.items.item import TopicName
from foqs.queue.availability import Availability
from foqs.queue.outage import Outage
from foqs_contract.errors import Unavailable
from foqs_contract.plurals import counted


class PeerReports(Protocol):
    """The reports of the peers about their shards and topics; see `foqs.cluster.gossip.gossip_view.GossipView`."""

    def unavailable_shards(self, peer: Peer) -> int:
        """Return how many of the shards that the peer serves cannot deliver, as last reported."""
        ...

    def may_deliver(self, peer: Peer, topics: Collection[TopicName]) -> bool:
        """Return whether the peer has items of these topics that are READY, or may become READY; True if it is not known."""
        ...

    def is_silent(self, peer: Peer, now_s: float) -> bool:
        """Return whether a peer has not answered for long."""
        ...


class UnservedShards(Protocol):
    """Returns the shards that no host serves, by the plan; `foqs.cluster.membership.Membership` is one."""

    def unserved_shards(self) -> Sequence[int]:
        """Return the shards of the tier that no host serves, lowest first. Raises Unavailable if the tier's shards are not known."""
        ...


class TierOutages:
    """The outages of a tier, as one of its hosts sees them."""

    def __init__(
        self,
        peer_dequeues: PeerDequeues,
        availability: Availability,
        peer_reports: PeerReports,
        plan: UnservedShards,
    ) -> None:
        self._peer_dequeues = peer_dequeues
        self._availability = availability
        self._peer_reports = peer_reports
        self._plan = plan

    def outage(self, topics: Collection[TopicName], own: Outage | None) -> Outage | None:
        """Return the outage of the whole tier for these topics; None if all shards that may hold items can deliver.

        Args:
            own: the outage of this host.
        """
        if all(map(self._availability.is_paused, topics)):
            return own
        found, now_s = own, asyncio.get_running_loop().time()
        may_deliver = own is not None and not own.is_whole
        for peer in self._peer_dequeues.peers.by_nonce.values():
            outage = self._outage_of(peer, topics, now_s)
            if outage is not None:
                found = outage.merged_with(found)
            if outage is None or not outage.is_whole:
                may_deliver = may_deliver or self._peer_reports.may_deliver(peer, topics)
        unserved = self._unserved_outage()
        if unserved is not None:
            found = unserved.merged_with(found)
        if found is None:
            return None
        may_deliver = may_deliver or self._availability.may_deliver(topics)
        return Outage(found.shards, not may_deliver, found.reason, found.retry_after_ms)

    def _outage_of(self, peer: Peer, topics: Collection[TopicName], now_s: float) -> Outage | None:
        """Return the outage of a peer; whole if it can deliver nothing of these topics."""
        view, reports = peer.view, self._peer_reports
        if view.shard_count and reports.is_silent(peer, now_s):
            return Outage(view.shard_count, True, f"host {view.name} does not answer")
        shards = reports.unavailable_shards(peer)
        refusal = self._peer_dequeues.refusal(peer, topics)
        if refusal is not None:
            reason = f"host {view.name} could not deliver its items"
            return Outage(max(1, shards), True, reason, refusal.retry_after_ms or 0)
        if not shards or not reports.may_deliver(peer, topics):
            return None
        return Outage(
            shards, shards >= view.shard_count, f"{counted(shards, 'shard')} of host {view.name} cannot deliver"
        )

    def _unserved_outage(self) -> Outage | None:
        try:
            unserved = self._plan.unserved_shards()
        except Unavailable as error:
            return Outage(1, True, error.message, error.retry_after_ms or 0)
        return Outage(len(unserved), True, f"shard {unserved[0]} is not served now") if unserved else None
