"""Several hosts of one cluster under virtual time: engines, agents and planners with one registry and one database.

It checks all the time which host delivers the items of a shard, and with which epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final, NoReturn

from foqs.catalog.registry_catalog import RegistryCatalog
from foqs.cluster.gossip.exchange import GossipPace
from foqs.cluster.gossip.gossip_view import GossipView
from foqs.cluster.membership import Membership
from foqs.cluster.peers import Peers, PeerUnreachable
from foqs.cluster.tier_member import TierMember
from foqs.options.config import Config
from foqs.queue.engine import Engine
from foqs.queue.host_state import HostState
from foqs.routing.port import HostView
from foqs.runtime.unwritten_replies import UnwrittenReplies
from foqs.shard.observer import NullObserver
from shardmgr import layout_changes
from shardmgr.agent import AgentPace
from shardmgr.model import ShardSpec
from shardmgr.planner import PlannerPace
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry
from tests.support.virtual_time import run_virtual

SESSION_MS = 6_000
GOSSIP_PACE: Final = GossipPace()
PLANNER_PACE: Final = PlannerPace(handover_timeout_ms=3_000)
PAGE_BYTES_MAX: Final = 1 << 20
_PEER_TOPICS_MAX: Final = 10_000


class OwnershipTimings(NullObserver):
    """The seconds that each acquisition and each handover took."""

    def __init__(self) -> None:
        self.acquired: list[float] = []
        self.handed_over: list[float] = []

    def shard_acquired(self, shard: int, seconds: float) -> None:
        self.acquired.append(seconds)

    def shard_handed_over(self, shard: int, seconds: float) -> None:
        self.handed_over.append(seconds)


class ClusterHost:
    """One host."""

    def __init__(self, world: ClusterWorld, name: str, number: int, tier: str = "default") -> None:
        self.name = name
        self.nonce = f"{name}-{number}"
        self._world = world
        config = Config.model_validate(
            {
                "server": {"name": name, "advertise": f"{name}.example:7411", "tier": tier},
                "cluster": {"zookeeper": "nowhere:1", "session_timeout_ms": SESSION_MS},
                "databases": {"main": {"url": "mysql://u@h/d"}},
            }
        )
        self.registry: LocalRegistry = world.ensemble.registry(SESSION_MS)
        rng = Random(number)
        self.facts = OwnershipTimings()
        settings = replace(engine_settings(alone=False), tier=tier)
        self.state = HostState(settings.namespace, tier, world.clock.stopwatch_s)
        self.membership = Membership(
            config,
            self.registry,
            self.nonce,
            world.clock,
            rng,
            lambda: 0.0,
            AgentPace(),
            PLANNER_PACE,
            self.state.shards.served,
        )
        self.peers = self.make_peers(self.membership.hosts)
        self.tier = TierMember(
            world.gossip_pace,
            self.state,
            self.membership,
            self.peers,
            self.make_view(),
            world.page_bytes_max,
            Random(f"{number}/telling"),
        )
        self.replies = UnwrittenReplies(world.loop)
        self.engine = Engine(
            settings,
            self.state,
            self.tier,
            lambda shard, *_: world.database.store(shard, lambda point: world.faults(point)),
            self.membership.agent,
            RegistryCatalog(self.registry, 1_000_000),
            world.clock,
            rng,
            self.facts,
            self.replies,
        )
        self.caller = Caller(world, self.engine)

    def make_peers(self, hosts: Callable[[], Sequence[HostView]]) -> Peers:
        return _UnreachablePeers(hosts, self.nonce, "default", "", _no_pool)

    def make_view(self) -> GossipView:
        return GossipView(_PEER_TOPICS_MAX, self._world.gossip_pace.interval_s)

    async def start(self) -> None:
        await self.tier.open()
        await self.engine.open()
        self.engine.start()
        self.tier.join(self.engine, 7411)

    async def stop(self) -> None:
        """Stop like a host that gets a signal."""
        self.engine.queue.stop_long_polls()
        await self.membership.leave(self._world.deadline_in(10))
        self.engine.on_release_requested()
        await self.engine.run()
        await self.membership.close()

    def stop_planner(self) -> None:
        """Let it hand no shard over."""
        self._membership_tasks[1].cancel()

    def start_planner(self) -> None:
        """Let it plan again."""
        self._membership_tasks[1] = asyncio.ensure_future(self.membership.planner.run())

    @property
    def _membership_tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of its agent and of its planner."""
        return self.membership._tasks

    async def die(self) -> None:
        """End without a notice: the session ends after its timeout."""
        self._world.ensemble.disconnect(self.registry)
        for task in self._membership_tasks:
            task.cancel()
        await self.engine.abort()

    def disconnect(self) -> None:
        """It does not reach the registry any more."""
        self._world.ensemble.disconnect(self.registry)

    def reconnect(self) -> None:
        self._world.ensemble.reconnect(self.registry)

    def is_serving(self) -> set[int]:
        return {number for number, shard in self.engine.shards.items() if shard.is_serving}


class ClusterWorld(World):
    """A cluster of some shards, without hosts yet."""

    def __init__(
        self,
        shards: int = 8,
        tiers: Sequence[str] = ("default",),
        gossip_pace: GossipPace = GOSSIP_PACE,
        page_bytes_max: int = PAGE_BYTES_MAX,
    ) -> None:
        super().__init__()
        self.gossip_pace = gossip_pace
        self.page_bytes_max = page_bytes_max
        self.ensemble = LocalEnsemble(None, self.clock.monotonic_ms)
        self.administrator = self.ensemble.registry(SESSION_MS)
        self.shard_count = shards
        self._tiers = tiers
        self.hosts: list[ClusterHost] = []
        self.overlaps: list[str] = []
        """Moments at which two hosts could deliver items of one shard."""
        self.epochs: dict[tuple[int, int], set[str]] = {}
        """The owners by shard and epoch; there may be only one."""
        self._watching: asyncio.Task[None]
        self._started = 0

    async def set_up(self) -> None:
        await self.administrator.open()
        specs = [
            ShardSpec(number, "main", tier=self._tiers[number % len(self._tiers)]) for number in range(self.shard_count)
        ]
        await layout_changes.create_layout(self.administrator, specs)
        self._watching = asyncio.ensure_future(self._watch())

    async def host(self, name: str) -> ClusterHost:
        """Return a host that has begun to join, in the tier of its name or else in the first."""
        self._started += 1
        host = self.make_host(name, name if name in self._tiers else self._tiers[0])
        self.hosts.append(host)
        await host.start()
        return host

    def make_host(self, name: str, tier: str) -> ClusterHost:
        return ClusterHost(self, name, self._started, tier)

    async def wait_until_settled(self, *hosts: ClusterHost, within_s: float = 60.0) -> None:
        """These hosts serve all shards, as evenly as can be, and are ready."""

        def even() -> bool:
            counts = [len(host.is_serving()) for host in hosts]
            return sum(counts) == self.shard_count and max(counts) - min(counts) <= 1

        await self.until(lambda: even() and all(host.engine.is_ready for host in hosts), within_s)

    async def _watch(self) -> None:
        while True:
            for number in range(self.shard_count):
                # An owner that is cut off in a handover serves on until its session ends, delivers nothing, and is fenced.
                delivering = [
                    host.nonce for host in self.hosts if number in host.is_serving() and not host.state.suspension.is_on
                ]
                if len(delivering) > 1:
                    self.overlaps.append(f"{self.loop.time():.3f}: shard {number}: {delivering}")
                table = self.database.tables.get(number)
                if table is not None and table.owner.epoch:
                    self.epochs.setdefault((number, table.owner.epoch), set()).add(table.owner.nonce)
            await asyncio.sleep(0.005)


class _UnreachablePeers(Peers):
    """Peers without a network."""

    async def call(self, *arguments: Any) -> NoReturn:
        raise PeerUnreachable("there is no network")


def _no_pool(address: object) -> NoReturn:
    raise AssertionError("nothing is sent over a network")


def run_in_cluster(
    story: Callable[[ClusterWorld], Coroutine[Any, Any, None]], shards: int = 8, tiers: Sequence[str] = ("default",)
) -> None:
    """Runs a story in a fresh cluster, and looks at what must never be."""

    async def main() -> None:
        world = ClusterWorld(shards, tiers)
        await world.set_up()
        await story(world)
        assert {key: owners for key, owners in world.epochs.items() if len(owners) > 1} == {}
        assert world.overlaps == []

    run_virtual(main, until_s=3_600.0)
