"""The totals of the tier: this host's shards and what the peers reported."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foqs.cluster.gossip.gossip_view import GossipView
from foqs.cluster.peer_figures import PeerFigures
from foqs.cluster.tier_topic_rates import TierTopicRates
from foqs.console.host_figures import OLDEST_COST_FACTOR, HostFigures
from foqs.core.items.item import State
from foqs.core.memory.topic_counts import TopicCounts
from foqs.core.memory.topic_rates import TopicRates
from foqs.options.options import NamespaceOptions
from foqs.queue.host_state import HostState
from foqs.queue.tier_figures import DatabaseState, OwnFigures, PeerState, TierFigures
from foqs_contract.idl import ttypes
from tests.support.virtual_time import run_virtual
from tests.unit.cluster.gossip.test_change_log import peer
from tests.unit.cluster.gossip.test_gossip_totals import reply, update


class Shard:
    """A shard with one topic."""

    def __init__(self, world: World, ready: int, dead: int, age_ms: int | None) -> None:
        self._world = world
        self.counts = TopicCounts()
        self.counts.complete_initial([(("n", "t"), State.READY, ready), (("n", "t"), State.DEAD, dead)])
        self.age_ms = age_ms
        self.breaker_state = "closed"

    def oldest_ready_age_ms(self) -> int | None:
        self._world.searches += 1
        self._world.cpu_s += self._world.search_s
        return self.age_ms


DATABASE = DatabaseState("main", "r1", "a", 1, "serving", False, {"b": True}, {}, None)


class World:
    """A host with two shards and, if wanted, peers."""

    def __init__(self, *, with_peers: bool = False) -> None:
        self.now_s = 0.0
        self.cpu_s = 0.0
        self.search_s = 0.0
        self.searches = 0
        self.misses_shards = False
        self.rates = TopicRates()
        self.shards = {0: Shard(self, 5, 1, 4_000), 1: Shard(self, 7, 0, 9_000)}
        self.statuses: dict[int, object] = {0: None, 1: None}
        self.peers = {each.nonce: each for each in (peer("one"), peer("two"))} if with_peers else {}
        self.view = GossipView(10)
        engine = SimpleNamespace(
            shards=self.shards,
            statuses=self.statuses,
            topic_rates=self.rates,
            queue=SimpleNamespace(reads=SimpleNamespace(list_topics=None)),
        )
        self.tier_rates = TierTopicRates(self.rates, lambda: self.peers.values(), lambda: self.now_s, 1.0)
        tier: TierFigures
        if with_peers:
            topics = SimpleNamespace(list_topics=None, misses_shards=lambda: self.misses_shards)
            peers = cast(Any, SimpleNamespace(by_nonce=self.peers))
            tier = PeerFigures(cast(Any, topics), self.view, self.tier_rates, peers, self.databases)
        else:
            state = HostState(NamespaceOptions(), "default", lambda: self.now_s)
            tier = OwnFigures(state, cast(Any, engine.queue.reads))
        self.figures = HostFigures(cast(Any, engine), tier, dict, lambda: self.now_s, lambda: self.cpu_s)

    async def databases(self) -> Sequence[DatabaseState]:
        return [DATABASE]


def test_only_a_host_of_a_cluster_has_databases_with_regions() -> None:
    async def main() -> None:
        assert list(await World().figures.databases()) == []
        assert await World(with_peers=True).figures.databases() == [DATABASE]

    run_virtual(main)


def test_a_host_alone_counts_its_shards() -> None:
    async def main() -> None:
        world = World()
        found = await world.figures.totals()
        assert (found.ready, found.leased, found.deferred, found.dead) == (12, 0, 0, 1)
        assert (found.oldest_ready_age_ms, found.counts_lag, found.rates_are_partial) == (9_000, False, False)
        world.now_s = 5.0
        world.rates.on_items_ready({("n", "t", State.READY): 50}, 5.0)
        world.rates.on_items_acked({("n", "t", State.LEASED): 10}, 5.0)
        assert (await world.figures.totals()).rates == pytest.approx((10.0, 2.0))
        world.statuses[2] = None  # a shard that is not served
        assert (await world.figures.totals()).counts_lag

    run_virtual(main)


def test_reports_of_the_peers_are_added() -> None:
    async def main() -> None:
        world = World(with_peers=True)
        one = next(iter(world.peers.values()))
        world.view.apply_reply(one, reply(1, update("t", 100, 10, 1, 2, age_ms=60_000), full=True), 0.0)
        world.tier_rates.on_report(one, [ttypes.TopicRate("n", "t", 3.0, 2.0)])
        found = await world.figures.totals()
        assert (found.ready, found.leased, found.deferred, found.dead) == (112, 1, 10, 3)
        assert found.oldest_ready_age_ms == 60_000
        assert found.rates == pytest.approx((3.0, 2.0))
        assert (found.counts_lag, found.rates_are_partial) == (False, True)
        world.misses_shards = True
        assert (await world.figures.totals()).counts_lag
        one.can_accept_items, one.unreachable_reason = False, "connection refused"
        assert world.figures.peers() == [PeerState("one", False, "connection refused"), PeerState("two", True, "")]

    run_virtual(main)


def test_the_oldest_item_is_searched_seldom_if_that_takes_long_and_grows_older_meanwhile() -> None:
    async def main() -> None:
        world = World()
        world.search_s = 0.0625
        assert (await world.figures.totals()).oldest_ready_age_ms == 9_000
        for second in range(1, 100):
            world.now_s = float(second)
            found = await world.figures.totals()
            assert found.oldest_ready_age_ms is not None
        assert world.cpu_s <= 100 / OLDEST_COST_FACTOR + 0.1
        assert world.searches == 16
        # A search takes 125 ms, so the last one was at 91 s, 12.5 s after the one before at the earliest.
        assert found.oldest_ready_age_ms == 9_000 + 8_000

    run_virtual(main)


def test_without_a_ready_item_nothing_is_the_oldest() -> None:
    async def main() -> None:
        world = World()
        for shard in world.shards.values():
            shard.counts.add(("n", "t"), State.READY, -shard.counts.totals[State.READY])
            shard.age_ms = None
        assert (await world.figures.totals()).oldest_ready_age_ms is None

    run_virtual(main)
