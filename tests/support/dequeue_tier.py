"""Whole hosts of one tier under virtual time: engines in a cluster, their servers, and a network.

Holds a `ClusterWorld` whose hosts serve each other and clients, and the gossip of
each host, which is empty until a test lets the hosts exchange it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any, Final

from foqs.cluster.forwarding.peer_dequeues import PeerDequeues
from foqs.cluster.gossip.gossip_view import GossipView, PeerAvailability
from foqs.cluster.peers import Peer, Peers
from foqs.core.items.item import PRIORITY_MAX, TopicName
from foqs.routing.port import HostView
from foqs.rpc.admin_handlers import admin_handlers
from foqs.rpc.call import Handler, ServerMethod
from foqs.rpc.host_service import host_service
from foqs.rpc.server import RpcServer
from foqs_client import Client
from foqs_client.connection_pool import ConnectionPool
from tests.support.builders import rpc_limits
from tests.support.cluster_world import ClusterHost, ClusterWorld
from tests.support.faulty_network import FaultyNetwork
from tests.support.virtual_time import run_virtual

PORT: Final = 7411


class FakeGossip(GossipView):
    """The availability at the other hosts, as one host knows it."""

    def __init__(self, world: DequeueTierWorld, host: DequeueTierHost) -> None:
        super().__init__(0)
        self._world = world
        self._host = host
        self._availabilities: dict[TopicName, dict[Peer, PeerAvailability]] = {}
        self.unavailable: dict[str, int] = {}
        """By host, the shards that it reports as unavailable."""
        self.silent: set[str] = set()
        """Hosts that have not answered for long."""

    def unavailable_shards(self, peer: Peer) -> int:
        return self.unavailable.get(peer.view.name, 0)

    def may_deliver(self, peer: Peer, topics: Collection[TopicName]) -> bool:
        return any(peer in self._availabilities.get(topic, {}) for topic in topics)

    def is_silent(self, peer: Peer, now_s: float) -> bool:
        return peer.view.name in self.silent

    def best_peers(self, topic: TopicName) -> Sequence[PeerAvailability]:
        availabilities = self._availabilities.get(topic)
        return (
            sorted(availabilities.values(), key=lambda availability: availability.best_priority)
            if availabilities
            else ()
        )

    def update_topic(
        self,
        peer: Peer,
        topic: TopicName,
        best_priority: int | None,
        ready: int,
        turn_since_s: float | None = None,
    ) -> None:
        availabilities = self._availabilities.setdefault(topic, {})
        availabilities.pop(peer, None)
        if best_priority is not None or ready:
            best = PRIORITY_MAX if best_priority is None else best_priority
            availabilities[peer] = PeerAvailability(peer, best, ready, 0, self._world.loop.time(), turn_since_s)

    def ask(self, *topics: str) -> None:
        """Update these topics from all other hosts."""
        for peer in self._host.peers.by_nonce.values():
            news = []
            other = next(host for host in self._world.tier if host.nonce == peer.nonce)
            for topic in [("default", name) for name in topics]:
                stock = other.engine.queue.availability
                before = self._availabilities.get(topic, {}).get(peer)
                best = stock.best_priority(topic)
                self.update_topic(peer, topic, best, 0 if best is None else stock.ready_count(topic))
                if best is not None and (before is None or best < before.best_priority):
                    news.append(topic)
            self._host.dequeues.on_items_available(peer, news)


class DequeueTierHost(ClusterHost):
    """One host.

    Attributes:
        gossip: what it knows of the others.
    """

    server: RpcServer
    gossip: FakeGossip
    local: Handler
    """Serves its dequeues by itself; a test may replace it."""
    _world: DequeueTierWorld

    def __init__(self, world: DequeueTierWorld, name: str, number: int) -> None:
        self.address = f"{name}.example"
        super().__init__(world, name, number)
        self.dequeues = self.tier.dequeue_forwarder
        self.order_probe = self.tier.order_sink

    def make_peers(self, hosts: Callable[[], Sequence[HostView]]) -> Peers:
        connect = self._world.network.connector(self.address)
        return Peers(hosts, self.nonce, "default", "", lambda at: ConnectionPool([at], 1, connect))

    def make_view(self) -> GossipView:
        self.gossip = FakeGossip(self._world, self)
        return self.gossip

    async def start(self) -> None:
        await super().start()
        world = self._world
        more = {**admin_handlers(self.engine.admin, "default", world.clock.wall_ms), **self.tier.handlers}
        tier_layer = self.tier.layer(self.engine.admin.refresh)

        def layer(method: ServerMethod) -> Handler:
            if method.row.name != "dequeue":
                return tier_layer(method)
            self.local = method.handle
            return tier_layer(replace(method, handle=lambda call: self.local(call)))

        topics = self.tier.gossip.tier_topics
        calls = host_service(self.engine.queue, self.tier.cluster, Random(1), more, layer, topics)
        self.server = RpcServer(world.loop, calls, rpc_limits(reply_grace_ms=200), replies=self.replies)
        await world.network.listen(self.address, PORT, self.server.connection)

    @property
    def peer_dequeues(self) -> PeerDequeues:
        """The dequeues that it sends to the others."""
        return self.dequeues.peer_dequeues

    @property
    def waiters(self) -> int:
        """Calls that wait here."""
        return len(self.engine.queue.waiters)


class GossipingHost(DequeueTierHost):
    """A host with the gossip of a real one, which it asks for when the test says so."""

    def make_view(self) -> GossipView:
        return GossipView(1_000)

    async def ask_peers(self) -> None:
        """Get the reports of all other hosts."""
        for peer in self.peers.by_nonce.values():
            while await self.tier.gossip.exchange._poll_once(peer, is_continuation=False):
                pass


class DequeueTierWorld(ClusterWorld):
    """A tier of some shards, without hosts yet."""

    def __init__(self, shards: int, host_class: type[DequeueTierHost] = DequeueTierHost) -> None:
        super().__init__(shards)
        self._host_class = host_class
        self.network = FaultyNetwork(asyncio.get_running_loop(), Random(1), latency_ms=(0.1, 1.0))
        self.tier: list[DequeueTierHost] = []

    async def join(self, *names: str) -> Sequence[DequeueTierHost]:
        """Hosts that share the shards, and know each other."""
        for number, name in enumerate(names, len(self.tier) + 1):
            host = self._host_class(self, name, number)
            self.tier.append(host)
            self.hosts.append(host)
            await host.start()
        await self.wait_until_settled(*self.tier)
        await self.until(lambda: all(len(host.peers.by_nonce) == len(self.tier) - 1 for host in self.tier))
        await self.until(lambda: not any(host.membership.unserved_shards() for host in self.tier))
        return self.tier

    @asynccontextmanager
    async def client(self, *hosts: DequeueTierHost, **more: Any) -> AsyncIterator[Client]:
        """Return a client of one host alone, or of several with their routing table."""
        given = {"automatic_keys": False, "connect": self.network.connector("client"), **more}
        async with Client("foqs://" + ",".join(host.address for host in hosts), **given) as client:
            yield client


def run_dequeue_tier(
    story: Callable[[DequeueTierWorld, Sequence[Any]], Coroutine[Any, Any, None]],
    hosts: int = 3,
    host_class: type[DequeueTierHost] = DequeueTierHost,
) -> None:
    """Runs a story in a fresh tier of two shards a host under virtual time."""

    async def main() -> None:
        world = DequeueTierWorld(2 * hosts, host_class)
        await world.set_up()
        await story(world, await world.join(*("one", "two", "three", "four")[:hosts]))
        for host in world.tier:
            await host.order_probe.close()
            await host.peers.close()
        assert world.overlaps == []

    run_virtual(main, until_s=3_600.0)
