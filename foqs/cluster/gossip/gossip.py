"""Builds the gossip of one host.

Holds `Gossip`: the change log of this host's topics, the exchange with its peers, and
the list of the tier's topics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Final

from foqs.cluster.gossip.change_log import ChangeLog
from foqs.cluster.gossip.exchange import Exchange, GossipPace, LimitReports, RateReports
from foqs.cluster.gossip.gossip_view import GossipView
from foqs.cluster.gossip.local_topics import LocalTopics
from foqs.cluster.gossip.tier_topics import TierPlan, TierTopics
from foqs.cluster.peers import Peer, Peers
from foqs.core.items.item import TopicName
from foqs.queue.host_state import HostState

_VERSION_BITS: Final = 62


class Gossip:
    """The gossip of one host: its reports to its peers, and theirs.

    Args:
        view: the last reports of the peers.
        limits, rates, on_items_available, can_accept_items: see `Exchange`.
    """

    def __init__(
        self,
        pace: GossipPace,
        state: HostState,
        peers: Peers,
        view: GossipView,
        limits: LimitReports,
        rates: RateReports,
        on_items_available: Callable[[Peer, Collection[TopicName]], None],
        can_accept_items: Callable[[], bool],
        plan: TierPlan,
        rng: Random,
    ) -> None:
        self.view = view
        change_log = ChangeLog(rng.getrandbits(_VERSION_BITS), pace.topic_tombstones_max)
        self.local_topics = LocalTopics(state.shards.served, change_log)
        self.exchange = Exchange(
            pace,
            peers,
            self.local_topics,
            view,
            limits,
            rates,
            on_items_available,
            state.load,
            can_accept_items,
            state.availability.unavailable_shards,
            rng,
        )
        self.tier_topics = TierTopics(state, peers, self.local_topics, view, plan)
