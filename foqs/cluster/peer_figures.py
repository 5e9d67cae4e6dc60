"""The figures of a tier at a host with peers: its own, and the last report of each peer.

Holds `PeerFigures`; see `foqs.queue.tier_figures.TierFigures`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from foqs.cluster.gossip.gossip_view import GossipView
from foqs.cluster.gossip.tier_topics import TierTopics
from foqs.cluster.peers import Peers
from foqs.cluster.tier_topic_rates import TierTopicRates
from foqs.core.items.item import State, TopicName
from foqs.core.memory.topic_rates import Rates
from foqs.queue.port import ListTopics
from foqs.queue.tier_figures import DatabaseState, PeerState


class PeerFigures:
    """The figures of a tier with several hosts.

    Args:
        databases: reads the states of databases; see `TierFigures`.
    """

    def __init__(
        self,
        topics: TierTopics,
        view: GossipView,
        rates: TierTopicRates,
        peers: Peers,
        databases: Callable[[], Awaitable[Sequence[DatabaseState]]],
    ) -> None:
        self.list_topics: ListTopics = topics.list_topics
        self._databases = databases
        self._topics = topics
        self._view = view
        self._rates = rates
        self._peers = peers

    def is_partial(self) -> bool:
        return self._topics.is_partial()

    def misses_peers(self) -> bool:
        return self._topics.misses_shards()

    def peer_items(self) -> Mapping[State, int]:
        return self._view.totals()

    def peer_rates(self) -> Rates:
        return self._rates.peers_total()

    def peers_oldest_ready_at_s(self) -> float | None:
        return self._view.oldest_ready_at_s()

    def rates(self, topic: TopicName) -> Rates:
        return self._rates.rates(topic)

    def busiest(self, topics_max: int) -> list[tuple[TopicName, Rates]]:
        return self._rates.busiest(topics_max)

    def peers(self) -> Sequence[PeerState]:
        peers = self._peers.by_nonce.values()
        return [PeerState(peer.view.name, peer.can_accept_items, peer.unreachable_reason) for peer in peers]

    async def databases(self) -> Sequence[DatabaseState]:
        return await self._databases()
