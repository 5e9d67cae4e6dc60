"""Several hosts of one cluster under virtual time, with all faults that can happen to them.

Holds `SimulatedFleet`: hosts with one registry, and a database server for each
shard. Always true: as in `SimulatedCluster`, which has the servers, the network
and the processes. The plan, and hosts that serve without a registry session, are
watched all the time (invariant 12: a host stops before its session can end).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, ClassVar, Final

from foqs.catalog.document import render
from foqs.catalog.port import CatalogError
from foqs.catalog.registry_catalog import DOCUMENT_NAME as CATALOG
from foqs.catalog.registry_catalog import RegistryCatalog
from foqs.cluster.gossip.exchange import GossipPace
from foqs.cluster.gossip.gossip import Gossip
from foqs.cluster.gossip.gossip_view import GossipView
from foqs.cluster.membership import Membership
from foqs.cluster.tier_member import TierMember
from foqs.core.flush.fence import Fence
from foqs.core.items.item import parse_id
from foqs.options.config import Config
from foqs.queue.engine import Engine, EngineSettings
from foqs.queue.host_state import HostState
from foqs.runtime.unwritten_replies import UnwrittenReplies
from foqs.shard.shard import OwnedShard
from foqs.store.port import Store
from foqs.testing.memory_network import ProtocolFactory
from foqs.testing.virtual_loop import VirtualClock
from foqs_client.connection_pool import ConnectionPool
from foqs_client.credentials import make_handshake
from shardmgr import layout_changes
from shardmgr.agent import AgentPace
from shardmgr.documents import PLAN, parse_plan
from shardmgr.model import Plan, ShardSpec
from shardmgr.planner import PlannerPace
from shardmgr.positions import FOLDER as POSITIONS
from shardmgr.primary import Primary
from shardmgr.registry.port import ConnectionState, RegistryError
from tests.simulation import forwarding_counts, principals, surplus
from tests.simulation.cluster import PORT, SETTINGS, WILD, Incarnation, SimulatedCluster, nonce_of
from tests.simulation.forwarding_counts import CountedPeers
from tests.simulation.surplus import Row, SurplusLedger
from tests.simulation.watched_coordinator import WatchedCoordinator
from tests.support.builders import changed
from tests.support.clock_bounds import ClockBounds
from tests.support.delayed_registry import DelayedRegistry
from tests.support.faulty_network import Connect
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry
from tests.support.virtual_time import SimulatedLoop

ADDRESSES: Final = ("alpha", "beta", "gamma")
URL: Final = ",".join(f"{address}:{PORT}" for address in ADDRESSES)
SESSION_MS: Final = 1_500
STOP_MARGIN_MS: Final = 150
DRAIN_MS: Final = 300
GOSSIP: Final = GossipPace(interval_s=0.2, page_topics_max=3, topic_tombstones_max=4)
"""Few topics per reply and few tombstones, so that pages and full exchanges happen."""
TROUBLE_S_MAX: Final = 3.0
"""The longest time for which a host is cut off or frozen."""
PAGE_BYTES_MAX: Final = 1 << 20
_LOST: Final = 0.003
_PEER_TOPICS_MAX: Final = 1_000
_QUEUE_ITEMS_MAX: Final = 70
_LOOK_S: Final = 0.01
_POSITIONS: Final = f"{POSITIONS}/"
NAMES: Final = (
    "hosts cut off",
    "sessions expired",
    "hosts frozen",
    "hosts parted from clients",
    "hosts held by databases",
    "assignments",
    "hand-overs",
    *forwarding_counts.NAMES,
    *surplus.NAMES,
)
"""The keys of a fleet's `counts`."""


class _Ensemble(LocalEnsemble):
    """A registry that reports each document that is replaced. Nobody watches the positions of shards."""

    _is_watched = True
    replacing: Callable[[str], None]
    """Called before a document is replaced, and before its version is compared."""
    replaced: Callable[[str, bytes], None]

    def replace(self, name: str, data: bytes, version: int | None) -> int:
        self.replacing(name)
        self._is_watched = not name.startswith(_POSITIONS)
        stored = super().replace(name, data, version)
        self._is_watched = True
        self.replaced(name, data)
        return stored

    def _notify_users(self) -> None:
        if self._is_watched:
            super()._notify_users()


class SimulatedFleet(SimulatedCluster):
    """The cluster without its clients."""

    shards: ClassVar[Sequence[int]] = (1, 2, 3, 4)

    def __init__(self, loop: SimulatedLoop, seed: int, *, wild: bool | None = None) -> None:
        super().__init__(loop, seed, wild=wild)
        self.counts: Counter[str] = Counter(dict.fromkeys(NAMES, 0))
        self.surplus = SurplusLedger(self.counts, loop.time, self._row)
        self.registries: dict[Incarnation, DelayedRegistry] = {}
        self._tiers: dict[Incarnation, TierMember] = {}
        self._ensemble = _Ensemble(None, self.clock.monotonic_ms)
        self._ensemble.replacing = self._replacing
        self._ensemble.replaced = self._replaced
        self._administrator: LocalRegistry = self._ensemble.registry(SESSION_MS)
        self._plan = Plan()
        self._session_over = asyncio.Event()
        self._lost = _LOST
        self._drains: list[asyncio.Task[None]] = []
        self._expiring: dict[str, Incarnation] = {}
        """By nonce, the hosts whose sessions end with their next COMMIT."""

    async def set_up(self) -> None:
        """Create the cluster, without running hosts."""
        registry = self._administrator
        await registry.open()
        await layout_changes.create_layout(
            registry, [ShardSpec(number, self.database(number)) for number in self.shards]
        )
        await registry.replace(CATALOG, render(self.document).encode(), None)
        self._watching = asyncio.ensure_future(self._watch())

    def absent(self) -> list[str]:
        """Return the addresses at which no host runs."""
        used = {each.address for each in self.running()}
        return [address for address in ADDRESSES if address not in used]

    def gossip_by_host(self) -> list[tuple[str, Gossip]]:
        """Return the gossip of each running host."""
        return [(host.process.name, self._tiers[host].gossip) for host in self.running()]

    def unsettled(self) -> str:
        """Return why the cluster is not settled: a host is not ready, or a shard has not exactly one owner. Empty if it is."""
        for each in self.running():
            if each.engine is None or not each.engine.is_ready:
                why = None if each.engine is None else each.engine.not_ready_reasons()
                return f"{each.process.name} is not ready: {why}"
        served = sorted(shard.number for shard in self._shards())
        return "" if served == list(self.shards) else f"only these shards are served: {served}"

    # ----------------------------------------------------------------- troubles

    def cut_off(self, host: Incarnation, seconds: float) -> None:
        """Cut a host off from the registry."""
        registry = self.registries.get(host)
        if registry is not None:
            self.counts["hosts cut off"] += 1
            self._ensemble.disconnect(registry)
            self.loop.call_later(seconds, self._reach_again, host)

    def replace(self, host: Incarnation, seconds: float) -> None:
        """Drain a host that is cut off: others take its shards over while its session lives, and it still serves."""
        self.cut_off(host, seconds)
        self._drain(host.address, layout_changes.drain_host)
        self.loop.call_later(seconds, self._drain, host.address, layout_changes.undrain_host)

    def _drain(self, address: str, change: Callable[[LocalRegistry, str], Awaitable[None]]) -> None:
        async def drain() -> None:
            with contextlib.suppress(layout_changes.ChangeRefused):
                await change(self._administrator, address)

        self._drains = [task for task in self._drains if not task.done()]
        self._drains.append(self.loop.create_task(drain(), context=self._context.copy()))

    def expire(self, host: Incarnation) -> None:
        """End the registry session of a host, unless it is cut off and could not know."""
        registry = self.registries.get(host)
        if registry is not None and registry.connection_state is ConnectionState.CONNECTED:
            self.counts["sessions expired"] += 1
            self._ensemble.expire(registry)

    def expire_at_commit(self, host: Incarnation) -> None:
        """End the session of a host when its next COMMIT takes effect, perhaps before the host knows of it."""
        self._expiring[nonce_of(self.incarnations.index(host) + 1)] = host

    def freeze(self, host: Incarnation, seconds: float, *, is_notified_late: bool) -> None:
        """Freeze a host for a while. Its session ends at its timeout.

        Args:
            is_notified_late: the host learns of the end of its session after everything else that it missed.
        """
        self.counts["hosts frozen"] += 1
        host.process.freeze()
        registry = self.registries.get(host)
        if registry is not None:
            if not is_notified_late:
                self._ensemble.disconnect(registry)
            elif seconds > SESSION_MS / 1000:
                self.loop.call_later(SESSION_MS / 1000, self._expire_frozen, host)
        self.loop.call_later(seconds, self._thaw, host)

    def partition_from_clients(self, host: Incarnation, seconds: float) -> None:
        """Separate a host from all clients."""
        self.counts["hosts parted from clients"] += 1
        self.network.partition(host.address)
        self.loop.call_later(seconds, self.network.heal, host.address)

    def hold(self, incarnation: Incarnation, seconds: float) -> None:
        self.counts["hosts held by databases"] += 1
        super().hold(incarnation, seconds)

    def heal(self) -> None:
        super().heal()
        self._lost = 0.0
        self._expiring.clear()
        self.network.heal()
        for host in self.running():
            host.held_until_s = 0.0
            self._thaw(host)

    def _expire_frozen(self, host: Incarnation) -> None:
        if not host.process.runs:
            self.expire(host)

    def _thaw(self, host: Incarnation) -> None:
        if host.process.alive and not host.process.runs:
            host.process.thaw()
        self._reach_again(host)

    def _reach_again(self, host: Incarnation) -> None:
        registry = self.registries.get(host)
        if registry is not None and host.process.runs:
            registry.lost = self._lost
            self._ensemble.reconnect(registry)

    # --------------------------------------------------- for `SimulatedCluster`

    def connector(self, source: str, rng: Random) -> Connect:
        """Return a `connect` to the host that the client asks for."""

        async def connect(
            factory: ProtocolFactory, host: str, port: int
        ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
            return await self.network.connect(factory, host, port, source=source)

        return connect

    def bounds(self) -> ClockBounds:
        """Allow for late changes of the catalog at a host that was cut off."""
        return replace(super().bounds(), spread_ms=TROUBLE_S_MAX * 1000 + SESSION_MS)

    async def _host(self, me: Incarnation, number: int) -> None:
        """Do what foqs.host does in a cluster, without sockets and signals."""
        rng = Random(f"{number}/host")
        clock = self._host_clock(rng)
        nonce = nonce_of(number)
        registry = DelayedRegistry(self._ensemble, SESSION_MS, clock.monotonic_ms, self.loop, rng, self._lost)
        registry.session_over = self._session_over.set
        self.registries[me] = registry
        settings = _settings(WILD if self.wild else SETTINGS)
        state = HostState(settings.namespace, settings.tier, clock.stopwatch_s)
        paces = AgentPace(session_margin_ms=STOP_MARGIN_MS), PlannerPace(handover_timeout_ms=DRAIN_MS)
        shards = state.shards.served
        membership = self._membership(me, registry, nonce, clock, rng, paces, shards)
        connect = self.connector(me.address, Random(f"{number}/peers"))
        greet = make_handshake(principals.token(principals.OPERATOR), None, has_certificate=False)
        peers = CountedPeers(
            self.counts,
            self.surplus,
            me.process.name,
            Random(f"{number}/cut short"),
            membership.hosts,
            nonce,
            "default",
            "",
            lambda address: ConnectionPool([address], 1, connect, greet),
        )
        view = GossipView(_PEER_TOPICS_MAX, GOSSIP.interval_s)
        tier = self._tiers[me] = TierMember(GOSSIP, state, membership, peers, view, PAGE_BYTES_MAX, rng)
        replies = UnwrittenReplies(self.loop)
        engine = me.engine = Engine(
            settings,
            state,
            tier,
            lambda shard, database, primary: self._open_store(me, shard, database, primary),
            WatchedCoordinator(membership.agent, self._served),
            RegistryCatalog(registry, 1_000_000),
            clock,
            rng,
            self._checked(me),
            replies,
        )
        self._session_over.set()  # it has no session yet
        try:
            await tier.open()
            await engine.open()
        except (RegistryError, CatalogError):
            me.gone.set()
            return
        wire, listener = await self._listen(
            me,
            number,
            engine,
            replies,
            rng,
            tier.handlers,
            tier.layer(engine.admin.refresh),
            tier.gossip.tier_topics,
            tier.cluster,
        )
        engine.start()
        me.ready = True
        serving: asyncio.Future[None] = asyncio.ensure_future(engine.run())
        stopping: asyncio.Future[Any] = asyncio.ensure_future(me.stop.wait())
        working: list[asyncio.Future[Any]] = [serving, *tier.start(engine, PORT)]
        done, _ = await asyncio.wait([*working, stopping], return_when=asyncio.FIRST_COMPLETED)
        for ended in working:
            if ended in done:
                ended.result()
        until_s = self.loop.time() + 2 * DRAIN_MS / 1000
        listener.close()
        engine.queue.stop_long_polls()
        await tier.leave(until_s)
        await wire.stop(min(until_s, self.loop.time() + 0.3))
        engine.on_release_requested()
        await asyncio.wait((serving,), timeout=max(until_s - self.loop.time(), 0.3))
        await engine.abort()
        await tier.close()
        me.gone.set()

    def _membership(
        self,
        me: Incarnation,
        registry: DelayedRegistry,
        nonce: str,
        clock: VirtualClock,
        rng: Random,
        paces: tuple[AgentPace, PlannerPace],
        shards: Mapping[int, OwnedShard],
    ) -> Membership:
        """Return the membership of a host."""
        return Membership(_config(me.address), registry, nonce, clock, rng, lambda: 0.0, *paces, shards)

    def _open_store(self, me: Incarnation, shard: int, database: str, primary: Primary | None) -> Store:
        """Return a host's store of a shard in this database, at the primary of its entry."""
        return self._store(shard)

    def _end(self, incarnation: Incarnation, linger_ms: float) -> None:
        super()._end(incarnation, linger_ms)
        registry = self.registries.get(incarnation)
        if registry is not None:
            self._ensemble.disconnect(registry)

    def _committed(self, shard: int, fence: Fence) -> None:
        super()._committed(shard, fence)
        host = self._expiring.pop(fence.nonce, None)
        if host is not None:
            self.loop.call_soon(self.expire, host)

    # ------------------------------------------------------------------ watching

    def _row(self, id: str) -> Row | None:
        shard, number = parse_id(id, "id")
        row = self._table(shard).rows.get(number)
        return None if row is None else (row.token, row.attempt)

    def _replacing(self, name: str) -> None:
        """Do what may happen before a document is replaced. Subclasses do something."""

    def _replaced(self, name: str, data: bytes) -> None:
        """Look at a document that was replaced."""
        if name == PLAN:
            self._planned(parse_plan(data))

    def _planned(self, plan: Plan) -> None:
        """12: an epoch is issued once, and higher than all before."""
        for number, assignment in plan.assignments.items():
            before = self._plan.assignments.get(number)
            if before is not None and (before.epoch, before.nonce) == (assignment.epoch, assignment.nonce):
                continue
            self.counts["assignments"] += 1
            self.counts["hand-overs"] += before is not None and before.leaving
            last = max(self._plan.epochs.get(number, 0), 0 if before is None else before.epoch)
            if assignment.epoch <= last:
                self.disorder[
                    f"invariant 12: shard {number} was given to {assignment.nonce} with epoch {assignment.epoch}, "
                    f"after {last} had been issued"
                ] = None
        epochs = dict(self._plan.epochs)
        for number, epoch in [*plan.epochs.items(), *((n, each.epoch) for n, each in plan.assignments.items())]:
            epochs[number] = max(epoch, epochs.get(number, 0))
        self._plan = Plan(plan.assignments, epochs)

    async def _watch(self) -> None:
        """12: a host without a session serves nothing, unless it is frozen. It has a moment to notice."""
        seen: list[str] = []
        while True:
            if not any(map(self._is_without_session, self.running())):
                seen = []
                self._session_over.clear()
                await self._session_over.wait()
            before, seen = seen, [each for host in self.running() if (each := self._served_without_session(host))]
            self.disorder.update(dict.fromkeys(f"invariant 12: {each}" for each in seen if each in before))
            await asyncio.sleep(_LOOK_S)

    def _is_without_session(self, host: Incarnation) -> bool:
        """Whether a host has an engine, which may serve, and no session."""
        registry = self.registries.get(host)
        return registry is not None and host.engine is not None and not registry.is_session_alive

    def _served_without_session(self, host: Incarnation) -> str | None:
        engine = host.engine
        if engine is None or not host.process.runs or not self._is_without_session(host):
            return None
        served = [number for number, shard in engine.shards.items() if shard.is_serving]
        return f"{host.process.name} serves {served} without a session" if served else None


def _settings(settings: EngineSettings) -> EngineSettings:
    """Return settings for shards that the plan assigns, with short queues."""
    return replace(
        settings,
        standalone_shards=None,
        calls=replace(settings.calls, delivery_bytes_max=PAGE_BYTES_MAX),
        shard=changed(settings.shard, queue_items_max=_QUEUE_ITEMS_MAX),
    )


@cache
def _config(name: str) -> Config:
    return Config.model_validate(
        {
            "server": {"name": name, "advertise": f"{name}:{PORT}"},
            "cluster": {"zookeeper": "nowhere:1"},
            "databases": {name: {"url": "mysql://u@h/d"} for name in ("main", *map("server{}".format, range(1, 9)))},
        }
    )
