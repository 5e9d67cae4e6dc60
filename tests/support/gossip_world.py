"""Hosts of one tier under virtual time that exchange gossip without a network.

Always true: a call takes a moment each way. A call to a host that is dead, or that
the test has partitioned, gets no reply. The rest is as in `cluster_world`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn

from foqs.cluster.gossip.exchange import GossipPace
from foqs.cluster.peers import Peer, Peers, PeerUnreachable
from foqs.core.items.item import State
from foqs.queue.port import TopicStats
from foqs.routing.port import HostView
from foqs_contract.errors import Unavailable
from tests.support.cluster_world import ClusterHost, ClusterWorld
from tests.support.recorded_call import RecordedCall
from tests.support.virtual_time import run_virtual

SETTINGS = GossipPace(page_topics_max=50, topic_tombstones_max=100)
ONE_WAY_S = 0.002
ALL = list(State)


class DirectPeers(Peers):
    """Peers that are called in the same event loop."""

    def __init__(self, world: GossipWorld, host: GossipHost, hosts: Callable[[], Sequence[HostView]]) -> None:
        super().__init__(hosts, host.nonce, "default", "", _no_pool)
        self._world = world
        self._me = host
        self.calls = 0

    async def call(self, peer: Peer, method: Any, request: Any, deadline: float, release: object = None) -> Any:
        self.calls += 1
        await asyncio.sleep(ONE_WAY_S)
        world = self._world
        found = next((each for each in world.tier if each.nonce == peer.nonce), None)
        if found is None or not found.alive:
            raise PeerUnreachable("nobody listens there")
        if {found.name, self._me.name} & world.parted:
            await asyncio.sleep(max(0.0, deadline - world.loop.time()))
            raise Unavailable("no answer came")
        if method.name != "gossip":
            raise PeerUnreachable("only gossip is exchanged here")
        call = RecordedCall("gossip", request, deadline=deadline)
        found.gossip.exchange.handle(call)
        [reply] = call.replies
        world.reported_topics += len(reply.topics)
        await asyncio.sleep(ONE_WAY_S)
        return reply


class GossipHost(ClusterHost):
    """One host with its gossip view."""

    peers: DirectPeers
    _world: GossipWorld

    def __init__(self, world: GossipWorld, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.alive = True
        self.gossip = self.tier.gossip
        self._exchanging: asyncio.Task[None]

    def make_peers(self, hosts: Callable[[], Sequence[HostView]]) -> DirectPeers:
        return DirectPeers(self._world, self, hosts)

    async def start(self) -> None:
        await super().start()
        self._exchanging = asyncio.create_task(self.gossip.exchange.run())

    async def stop(self) -> None:
        await super().stop()
        self._end()

    async def die(self) -> None:
        self._end()
        await super().die()

    def _end(self) -> None:
        self.alive = False
        self._exchanging.cancel()

    async def listed(
        self, prefix: str = "", states: list[State] | None = ALL, limit: int = 3, namespace: str = "default"
    ) -> dict[str, TopicStats]:
        """Return the topics of all pages by name."""
        found: list[TopicStats] = []
        cursor: str | None = None
        while True:
            page, cursor = await self.gossip.tier_topics.list_topics(namespace, prefix, states, cursor, limit)
            assert len(page) <= limit
            found += page
            if cursor is None:
                break
            assert cursor == page[-1].topic
        assert [each.topic for each in found] == sorted({each.topic for each in found})
        return {each.topic: each for each in found}


class GossipWorld(ClusterWorld):
    """Args:
    settings: of every host's exchange.
    """

    def __init__(self, shards: int, settings: GossipPace) -> None:
        super().__init__(shards, gossip_pace=settings)
        self.tier: list[GossipHost] = []
        self.parted: set[str] = set()
        """The names of partitioned hosts."""
        self.reported_topics = 0
        """The number of topics in the replies of all exchanges."""

    async def host(self, name: str) -> GossipHost:
        self._started += 1
        host = GossipHost(self, name, self._started)
        self.hosts.append(host)
        self.tier.append(host)
        await host.start()
        return host

    async def three(self) -> list[GossipHost]:
        """Start three hosts that serve all shards and know each other."""
        hosts = [await self.host(name) for name in ("one", "two", "three")]
        await self.wait_until_settled(*hosts)
        await self.pass_s(3)
        return hosts


def _no_pool(address: object) -> NoReturn:
    raise AssertionError("nothing is sent over a network")


def run_gossip_world(
    story: Callable[[GossipWorld], Coroutine[Any, Any, None]], shards: int = 6, settings: GossipPace = SETTINGS
) -> None:
    """Runs a story in a fresh tier."""

    async def main() -> None:
        world = GossipWorld(shards, settings)
        await world.set_up()
        await story(world)
        assert world.overlaps == []

    run_virtual(main, until_s=3_600.0)
