"""A cluster under virtual time whose hosts have RPC servers and call each other.

Always true: a call goes only to the host that is named, so the other hosts take part
only if that host calls them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from foqs.access.audit_trail import AuditTrail
from foqs.cluster.peers import Peers
from foqs.routing.port import HostView
from foqs.rpc.admin_handlers import admin_handlers
from foqs.rpc.audit import Audit
from foqs.rpc.audit_handlers import audit_handlers
from foqs.rpc.host_service import host_service
from foqs.rpc.methods import RpcService
from foqs.rpc.server import RpcServer
from foqs_client.connection_pool import ConnectionPool
from foqs_contract.idl import ttypes
from foqs_contract.key_slots import key_slot_of
from foqs_contract.thrift_method import ThriftMethod
from tests.support.builders import keyed_item, rpc_limits
from tests.support.cluster_world import PAGE_BYTES_MAX, ClusterHost, ClusterWorld
from tests.support.engines import ok
from tests.support.faulty_network import FaultyNetwork
from tests.support.virtual_time import run_virtual


class RpcTierHost(ClusterHost):
    """A host whose calls to its peers go over the network."""

    _world: RpcTierWorld

    def make_peers(self, hosts: Callable[[], Sequence[HostView]]) -> Peers:
        return Peers(hosts, self.nonce, "default", "", self._world.pools(self.name))


class RpcTierWorld(ClusterWorld):
    """See `ClusterWorld`.

    Attributes:
        network: between the hosts, and from the test to each.
        forwarded_calls: (host, method, shards) of every call that one host made to another, in order.
    """

    def __init__(self, shards: int = 8, page_bytes_max: int = PAGE_BYTES_MAX) -> None:
        super().__init__(shards, page_bytes_max=page_bytes_max)
        self.network = FaultyNetwork(asyncio.get_running_loop(), Random(3), latency_ms=(0.1, 0.5))
        self.forwarded_calls: list[tuple[str, str, list[int]]] = []
        self._fresh = [str(number) for number in range(2_000)]
        """Keys that were not used yet."""
        self.services: dict[str, RpcService] = {}
        """What each host serves, by its name."""
        self._servers: list[RpcServer] = []
        self._listeners: dict[str, Any] = {}

    async def host(self, name: str) -> ClusterHost:
        host = await super().host(name)
        engine, tier = host.engine, host.tier
        trail = AuditTrail()
        more = {
            **admin_handlers(engine.admin, "default", self.clock.wall_ms),
            **audit_handlers(trail, name),
            **tier.handlers,
        }
        layer, topics = tier.layer(engine.admin.refresh), tier.gossip.tier_topics
        calls = host_service(engine.queue, tier.cluster, Random(1), more, layer, topics)
        calls = replace(calls, timeout_s=partial(self._record, name, calls.timeout_s))
        self.services[name] = calls
        audit = Audit(trail, lambda: int(self.loop.time() * 1_000))
        server = RpcServer(self.loop, calls, rpc_limits(), replies=host.replies, audit=audit)
        self._servers.append(server)
        self._listeners[name] = await self.network.listen(f"{name}.example", 7411, server.connection)
        return host

    def make_host(self, name: str, tier: str) -> ClusterHost:
        return RpcTierHost(self, name, self._started, tier)

    def _record(self, name: str, timeout_s: Callable[[Any], float], request: Any) -> float:
        """Record a forwarded call."""
        if getattr(request, "forwarded", None) and hasattr(request, "shards"):
            self.forwarded_calls.append((name, type(request).__name__, list(request.shards)))
        return timeout_s(request)

    async def three(self) -> list[ClusterHost]:
        """Hosts that share the shards, and know that they do."""
        hosts = [await self.host(name) for name in ("one", "two", "three")]
        await self.wait_until_settled(*hosts)
        await self.pass_s(1)
        return hosts

    async def ask(self, host: ClusterHost, method: str, request: Any, timeout_s: float = 5.0) -> Any:
        """Return that host's reply. Raises FoqsError."""
        tester = Peers(lambda: self.views(host), "tester", "default", "", self.pools("tester"))
        try:
            (peer,) = tester.by_nonce.values()
            return await tester.call(peer, ThriftMethod(method), request, self.deadline_in(timeout_s))
        finally:
            await tester.close()

    def views(self, host: ClusterHost) -> Sequence[Any]:
        return [view for view in host.membership.hosts() if view.nonce == host.nonce]

    async def put(self, hosts: Sequence[ClusterHost], topic: str = "t", count: int = 1, **changes: Any) -> set[str]:
        """Enqueue `count` items of a topic in every shard. Return their ids."""
        ids: set[str] = set()
        for host in hosts:
            for shard in host.engine.shards.values():
                mine = [key for key in self._fresh if key_slot_of(key.encode()) in shard.key_slots][:count]
                self._fresh = [key for key in self._fresh if key not in mine]
                results = await host.caller.enqueue([keyed_item(key, topic, **changes) for key in mine])
                ids.update(map(ok, results))
        return ids

    async def deafen(self, name: str) -> None:
        """End the connections to a host, and make it refuse further ones."""
        self._listeners[name].close()
        for connection in self.network.connections(f"{name}.example"):
            self.network.cut(connection)
        await self.pass_s(0.1)

    async def end(self) -> None:
        for host in self.hosts:
            await host.peers.close()
        for server in self._servers:
            await server.stop(self.loop.time())

    def pools(self, source: str) -> Callable[[tuple[str, int]], ConnectionPool]:
        connect = self.network.connector(source)
        return lambda address: ConnectionPool([address], 1, connect)


def run_rpc_tier(story: Callable[[RpcTierWorld], Coroutine[Any, Any, None]], shards: int = 8, **options: Any) -> None:
    """Runs a story in a fresh cluster, and looks at what must never be."""

    async def main() -> None:
        world = RpcTierWorld(shards, **options)
        await world.set_up()
        await story(world)
        await world.end()
        assert world.overlaps == []

    run_virtual(main, until_s=3_600.0)


def only(topic: str | None = None, **more: Any) -> Any:
    """A filter."""
    return ttypes.ItemFilter(topic, **more)
