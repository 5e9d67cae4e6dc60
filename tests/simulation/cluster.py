"""A host, its database servers and its network under virtual time, with all faults that can happen to them.

Holds the parts that survive a host process (servers, epoch book, network) and the
processes, called incarnations. Always true: everything follows from the seed. A
killed incarnation never runs again, but a COMMIT that it sent may still arrive. A
zombie runs on while its successor takes over. In every second seed clocks are
wild: server clocks run too fast or slow and are stepped by hours, host clocks
drift. In the other seeds all clocks agree, and the bounds are stricter.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType
from typing import ClassVar, Final

from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.core.flush.fence import Fence
from foqs.core.flush.purge_markers import PurgeMarkers
from foqs.core.items.idempotency_keys import divide_key_slots
from foqs.core.items.item import Row, State, format_id
from foqs.core.journal.journal_budget import JournalBudget
from foqs.queue.engine import Engine, EngineSettings
from foqs.queue.host_state import HostState
from foqs.queue.tier import Alone
from foqs.routing.port import ClusterService, HostIdentity, StandaloneCluster
from foqs.rpc.admin_handlers import admin_handlers
from foqs.rpc.call import Handler, Layer
from foqs.rpc.host_service import host_service
from foqs.rpc.methods import unforwarded
from foqs.rpc.queue_handlers import TopicLists
from foqs.rpc.server import RpcServer
from foqs.runtime.unwritten_replies import UnwrittenReplies
from foqs.shard.shard import OwnedShard
from foqs.shard.supervisor import ShardTakenOver
from foqs.store.in_memory.memory_table import ShardTables
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.port import Store, StoreUnusable
from foqs.testing.memory_network import Listener, ProtocolFactory
from foqs.testing.virtual_loop import VirtualClock
from shardmgr.local_coordinator import LocalCoordinator
from tests.simulation import principals
from tests.simulation.watched_coordinator import WatchedCoordinator
from tests.support.builders import CACHE, DEMAND, NAMESPACE, MemoryEpochBook, changed, engine_settings, rpc_limits
from tests.support.checked_shards import CheckedShards
from tests.support.clock_bounds import ClockBounds
from tests.support.clocks import ServerClock
from tests.support.faulty_database import FaultyDatabaseServer
from tests.support.faulty_network import Connect, FaultyNetwork
from tests.support.history import Event
from tests.support.memory_check import differences, is_at_rest, uncovered_leases, watermark_ms
from tests.support.merged_tables import merged_tables
from tests.support.recording_client import first_wait_ms, row_event
from tests.support.virtual_time import Process, SimulatedLoop, current_process

PORT: Final = 7411
ADDRESSES: Final = ("alpha", "beta")
URL: Final = ",".join(f"{address}:{PORT}" for address in ADDRESSES)
SHARDS: Final = (1, 2)
NAMESPACES: Final = {"default": 1, "other": 3}
"""Namespaces with their weights."""
TIER: Final = "default"
"""The tier of all hosts and shards."""
KEY_WINDOW_MS: Final = 5_000
CLOCK_SKEW_MS: Final = 150
"""The skew that a takeover allows for with wild clocks. A third covers steps that cannot be noticed, the rest drift
while a database does not reply, many times that of real clocks."""
SLEW_PERMILLE: Final = 50
SERVER_DRIFT: Final = 0.01
HOST_DRIFT: Final = 0.003
_NAMESPACE: Final = changed(NAMESPACE, dead_retention_ms=3_600_000, backoff_ms_max=800, key_window_ms=KEY_WINDOW_MS)
SETTINGS: Final = replace(
    engine_settings(
        *SHARDS,
        flush_items_max=20,
        flush_items_min=5,
        flush_ms_target=20,
        ready_window_items_max=5,
        ready_index_items_max=16,
        timer_page_items=5,
        purge_page_items=1,
        empty_topic_linger_ms=300,
        delivery_wait_ms_max=80,
        clock_slew_permille=1,
        breaker_window_ms=1_000,
        breaker_latency_ms_max=50,
        breaker_error_percent=50,
        breaker_flushes_min=4,
        breaker_reset_ms=150,
        cache=replace(CACHE, written_items_max=12, prefetched_items_max=8, prefetched_bytes_max=8_000),
        demand=replace(DEMAND, items_max=6),
    ),
    namespace=_NAMESPACE,
)
WILD: Final = replace(
    SETTINGS,
    shard=changed(SETTINGS.shard, clock_skew_ms_max=CLOCK_SKEW_MS),
    shard_constants=replace(SETTINGS.shard_constants, clock_sample_interval_ms=150, clock_slew_permille=SLEW_PERMILLE),
)
BOUNDS: Final = ClockBounds(
    lease_ms_default=30_000,
    attempts_max_default=0,
    backoff_ms_max=800,
    key_window_ms=KEY_WINDOW_MS,
    slew_ms=2.0,
    slew_ratio=0.001,
    bound_ms=2_000,
)
SLOW_COMMIT_S: Final = 0.12
"""Longer than a dequeue that has some items waits for others."""
SLOW_BOUND_MS: Final = 3_000
"""The bound with slow COMMITs: a flush of a few items takes six times the target."""
_SLEW_RATIO: Final = SLEW_PERMILLE / 1000 + 0.015
"""The slew, and the drift."""


WRITE_BACK_AFTER_MS: Final = 300
"""How long an item is dirty before its row is written, if the stores journal."""
JOURNAL_ON: Final = 0.8
"""The part of the owners that journal, if the stores do. The others empty the journal and write rows."""


@dataclass(slots=True, eq=False)
class Incarnation:
    """One process of the host."""

    address: str
    process: Process
    connections: list[tuple[FaultyDatabaseServer, int]] = field(default_factory=list)
    engine: Engine | None = None
    held_until_s: float = 0.0
    ready: bool = False
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class SimulatedCluster:
    """The cluster without its clients. This class runs one standalone host at a time.

    Args:
        seed: everything follows from it.
        wild: whether clocks are wild; None: as the seed says.
    """

    shards: ClassVar[Sequence[int]] = SHARDS

    def __init__(self, loop: SimulatedLoop, seed: int, *, wild: bool | None = None) -> None:
        self.loop = loop
        self.wild = seed % 2 == 1 if wild is None else wild
        self.clock = VirtualClock(loop)
        self.network = FaultyNetwork(loop, Random(f"{seed}/network"))
        self.incarnations: list[Incarnation] = []
        self.kills = self.drains = self.zombies = 0
        self._by_process: dict[Process, Incarnation] = {}
        self._book = MemoryEpochBook()
        self._is_slow_at_last = seed % 5 == 3
        self._handover_items_max = 20_000 if seed % 2 else 3
        self._fate = Random(f"{seed}/fate")
        self._journal_switch = Random(f"{seed}/journal")
        """Chooses which owners journal, if any do, and their bounds."""
        self._context = copy_context()
        self.servers = self._make_servers(seed)
        """The server of each shard."""
        self.document = principals.document(NAMESPACES)
        """The first document of the catalog."""
        if seed % 4 == 2:
            self._dispute_slots()
        self._catalog = MemoryCatalog(self.document)
        self._last_commit = dict.fromkeys(self.shards, (0, 0))
        self._leases: dict[int, dict[int, Row]] = {}
        """The LEASED rows of each shard after its last flush."""
        self._losing: dict[Incarnation, float] = {}
        """The hosts that lose the reply to their next COMMIT of new items, and for how long each is then cut off."""
        self._owners: dict[tuple[int, int], str] = {}
        """By shard and epoch, the nonce of the host that committed with it."""
        self._served_epochs: set[tuple[int, int]] = set()
        """Shards and epochs with which a host has begun to serve."""
        self.journals = False
        """Whether the stores journal."""
        self._merged: dict[int, tuple[tuple[int, int] | None, ShardTables]] = {}
        """The items of each shard with a journal, as of a flush."""
        self.excused: set[str] = set()
        """The items of which an accepted loss has lost something: no history of them is judged."""
        self.disorder: dict[str, None] = {}
        """Violations of invariants 1, 10 and 12 that commits showed, and what is not true of a shard after a flush. No
        commit is on a server that may lose it. In each shard (epoch, flush) only rise, and an epoch has one owner and
        serves once. No due is below the watermark of its writer."""

    # ------------------------------------------------------------ incarnations

    def start(self, address: str) -> Incarnation:
        """Start a host process at a free address."""
        number = len(self.incarnations) + 1
        incarnation = Incarnation(address, self.loop.process(f"host-{number}"))
        self.incarnations.append(incarnation)
        self._by_process[incarnation.process] = incarnation
        incarnation.process.spawn(self._host(incarnation, number), name=f"host-{number}")
        self._context.copy().run(self.loop.create_task, self._exit_fenced_host(incarnation))
        return incarnation

    def running(self) -> list[Incarnation]:
        return [each for each in self.incarnations if each.process.alive]

    def kill(self, incarnation: Incarnation) -> None:
        """Kill a host as `kill -9` does. Its database connections end a little later."""
        self.kills += 1
        self._end(incarnation, linger_ms=400)

    def stop(self, incarnation: Incarnation) -> None:
        """Stop a host as SIGTERM does: it drains, releases its shards and exits."""
        self.drains += 1
        incarnation.stop.set()

    def hold(self, incarnation: Incarnation, seconds: float) -> None:
        """Delay the statements of a host for a while, while its locks are held."""
        incarnation.held_until_s = self.loop.time() + seconds

    def lose_reply(self, incarnation: Incarnation, seconds: float) -> None:
        """Lose the reply to its next COMMIT of new items. Another host takes its shards over before it can ask."""
        self._losing[incarnation] = seconds

    def connector(self, source: str, rng: Random) -> Connect:
        """Return a `connect` to any host that runs, whatever the address."""

        async def connect(
            factory: ProtocolFactory, host: str, port: int
        ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
            running = self.running()
            address = rng.choice(running).address if running else host
            return await self.network.connect(factory, address, port, source=source)

        return connect

    def restart_elsewhere(self) -> Incarnation:
        """Start a host at a free address, while an earlier one may still run."""
        used = {each.address for each in self.running()}
        free = [address for address in ADDRESSES if address not in used]
        self.zombies += bool(used)
        return self.start(self._fate.choice(free))

    def heal(self) -> None:
        """End all faults. Clocks stay wrong."""
        self._losing.clear()
        for server in self.all_servers():
            server.heal()

    def slow_down_at_last(self) -> None:
        """In every fifth seed, make every COMMIT slow from now on."""
        if self._is_slow_at_last:
            for server in self.all_servers():
                server.commit_s = SLOW_COMMIT_S

    def bounds(self) -> ClockBounds:
        """Return how well this cluster's clocks agree with the observer's clock."""
        late_ms = max(server.waited_ms for server in self.all_servers())
        bounds = replace(BOUNDS, bound_ms=SLOW_BOUND_MS) if self._is_slow_at_last else BOUNDS
        if not self.wild:
            return replace(bounds, late_ms=late_ms)
        takeovers = max(table.owner.epoch for table in map(self._table, self.shards))
        late_ms += takeovers * (CLOCK_SKEW_MS + CLOCK_SKEW_MS // 3)
        return replace(bounds, slew_ratio=_SLEW_RATIO, late_ms=late_ms)

    def rows(self, namespace: str | None = None) -> list[Event]:
        """Return the rows of one namespace, or of all, for the history. Every shard must be served."""
        now_ms = {shard.number: shard.now_ms() for shard in self._shards()}
        return [
            row_event(
                id=format_id(shard, row.id),
                payload=row.payload or b"",
                topic=row.topic,
                priority=row.priority,
                state=row.state.name.lower(),
                token=row.token,
                attempt=row.attempt,
                attempts_max=row.attempts_max,
                due_in_ms=None if row.due_ms is None else row.due_ms - now_ms[shard],
                metadata=row.metadata,
                trace_context=row.trace_context,
                first_wait_ms=first_wait_ms(row.enqueued_at_ms, row.first_delivered_at_ms),
                group=None if row.item_group is None else row.item_group.decode(),
            )
            for shard in self.shards
            for _, row in sorted(self._table(shard).rows.items())
            if namespace is None or row.namespace == namespace
        ]

    def payload_bytes(self, namespace: str) -> int:
        """Return the payload bytes of a namespace in the tables."""
        tables = [self._table(shard) for shard in self.shards]
        return sum(row.payload_bytes for table in tables for row in table.rows.values() if row.namespace == namespace)

    def all_servers(self) -> Sequence[FaultyDatabaseServer]:
        """Return all database servers."""
        return list(self.servers.values())

    def server_of(self, shard: int) -> FaultyDatabaseServer:
        """Return the server at which a shard is served."""
        return self.servers[shard]

    def host_of(self, shard: int, epoch: int) -> str | None:
        """Return the nonce of the host that has written the shard with this epoch; None if none has."""
        return self._owners.get((shard, epoch))

    def owner(self, shard: int) -> str | None:
        """Return the nonce of the shard's owner; None if it has not written yet."""
        table = self.server_of(shard).tables.get(shard)
        return None if table is None else self.host_of(shard, table.owner.epoch)

    def is_at_rest(self) -> bool:
        """Whether no operation is in flight in any shard that a live host serves."""
        return all(is_at_rest(shard) for shard in self._shards())

    def is_still(self) -> bool:
        """Whether no COMMIT is in flight and only dead items have a due."""
        rows = [row for shard in self.shards for row in self._table(shard).rows.values()]
        committing = any(server.is_committing() for server in self.all_servers())
        return not committing and all(row.due_ms is None or row.state is State.DEAD for row in rows)

    def differences(self) -> list[str]:
        """Return the differences between the memory of live hosts and the tables. Call it at rest."""
        return [
            f"shard {shard.number}: {difference}"
            for shard in self._shards()
            for difference in differences(shard, self._table(shard.number))
        ]

    def _table(self, shard: int) -> ShardTables:
        """Return the items of a shard, as its tables and its journal have them together."""
        tables = self.server_of(shard).tables[shard]
        position, merged = self._merged.get(shard, (None, tables))
        if tables.journal and position != (tables.owner.epoch, tables.owner.flush):
            merged = merged_tables(tables)
            self._merged[shard] = (tables.owner.epoch, tables.owner.flush), merged
        return replace(merged, owner=tables.owner) if tables.journal else tables

    def _store(self, shard: int) -> Store:
        return self._journaled(self.server_of(shard).store(shard))

    def _journaled(self, store: Store) -> Store:
        """Return the store, with a journal if the stores journal."""
        if not self.journals:
            return store
        switch = self._journal_switch
        settings = JournalSettings(
            WRITE_BACK_AFTER_MS,
            100,
            lambda: int(self.loop.time() * 1000),
            is_on=switch.random() < JOURNAL_ON,
            handover_items_max=self._handover_items_max,
            live_bytes_max=switch.choice((20_000, 1 << 30)),
            budget=JournalBudget(switch.choice((30_000, 1_000_000))),
        )
        return JournaledStore(store, settings)

    def _shards(self) -> list[OwnedShard]:
        engines = [each.engine for each in self.running() if each.engine is not None and not each.gone.is_set()]
        return [shard for engine in engines for shard in engine.shards.values() if shard.is_serving]

    # ----------------------------------------------------------------- inside

    def settings(self) -> EngineSettings:
        """Return the settings of a host."""
        settings = WILD if self.wild else SETTINGS
        return replace(settings, standalone_shards={shard: self.database(shard) for shard in self.shards})

    def database(self, shard: int) -> str:
        """Return the database of a shard. Servers with wild clocks are databases of their own."""
        return f"server{shard}" if self.wild else "main"

    async def _host(self, me: Incarnation, number: int) -> None:
        """Do what foqs.host does, without sockets and signals."""
        rng = Random(f"{number}/host")
        clock = self._host_clock(rng)
        settings = self.settings()
        if number % 2:  # every other host has no room for lease ends, so it walks
            settings = replace(settings, shard=changed(settings.shard, lease_ranges_max=64))
        state = HostState(settings.namespace, settings.tier, clock.stopwatch_s)
        replies = UnwrittenReplies(self.loop)
        engine = me.engine = Engine(
            settings,
            state,
            Alone(nonce_of(number), settings.standalone_shards or (), state),
            lambda shard, *_: self._store(shard),
            WatchedCoordinator(LocalCoordinator(self._book), self._served),
            self._catalog,
            clock,
            rng,
            self._checked(me),
            replies,
        )
        await engine.open()
        wire, listener = await self._listen(me, number, engine, replies, rng)
        engine.start()
        ready = asyncio.ensure_future(engine.became_ready.wait())
        ready.add_done_callback(lambda _: setattr(me, "ready", True))
        serving = asyncio.ensure_future(engine.run())
        stopping = asyncio.ensure_future(me.stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            listener.close()
            engine.queue.stop_long_polls()
            await wire.stop(self.loop.time() + 0.3)
            engine.on_release_requested()
            await asyncio.wait((serving,), timeout=1.0)
            await engine.abort()
        with contextlib.suppress(ShardTakenOver, StoreUnusable, asyncio.CancelledError):
            await serving
        me.gone.set()

    def _checked(self, me: Incarnation) -> CheckedShards:
        """Return an observer that checks a host's shards after each flush."""
        return CheckedShards(lambda: me.engine, self._table, lambda broken: self.disorder.update({broken: None}))

    def _host_clock(self, rng: Random) -> VirtualClock:
        """Return the clocks of a machine."""
        drift = rng.uniform(-HOST_DRIFT, HOST_DRIFT) if self.wild else 0.0
        return VirtualClock(self.loop, boot_ms=rng.randint(0, 10**9), rate=1 + drift)

    async def _listen(
        self,
        me: Incarnation,
        number: int,
        engine: Engine,
        replies: UnwrittenReplies,
        rng: Random,
        more: Mapping[str, Handler] = MappingProxyType({}),
        layer: Layer = unforwarded,
        topics: TopicLists | None = None,
        cluster: ClusterService | None = None,
    ) -> tuple[RpcServer, Listener]:
        """Start a host's server with the usual calls and those of `more`; see `host_service`."""
        alone = StandaloneCluster(HostIdentity(me.address, PORT, number), engine.queue.shard_statuses)
        handlers = {**admin_handlers(engine.admin, "default", self.clock.wall_ms), **more}
        wire = RpcServer(
            self.loop,
            host_service(engine.queue, cluster or alone, rng, handlers, layer, topics),
            rpc_limits(),
            authenticator=principals.gate(engine.namespaces.permissions_of),
            replies=replies,
        )
        return wire, await self.network.listen(me.address, PORT, wire.connection)

    def _current(self) -> Incarnation | None:
        """Return the incarnation whose code runs now."""
        process = current_process()
        return None if process is None else self._by_process[process]

    def _make_servers(self, seed: int) -> dict[int, FaultyDatabaseServer]:
        return {shard: self._server(Random(f"{seed}/server-{shard}")) for shard in self.shards}

    def _server(self, rng: Random) -> FaultyDatabaseServer:
        drift, skew_ms = (rng.uniform(-SERVER_DRIFT, SERVER_DRIFT), CLOCK_SKEW_MS // 3) if self.wild else (0.0, 0)
        clock = ServerClock(self.loop, rng, rate=1 + drift, skew_ms=skew_ms)
        server = FaultyDatabaseServer(self.loop, rng, clock, self._held_s, self._connected)
        if self.wild:
            server.troubles = replace(server.troubles, clock_step=0.0005, slow_clock=0.3)
        server.on_committed = self._committed
        return server

    def _dispute_slots(self) -> None:
        """Add the first shard's key slots to the last shard's table, as after the restore of an old copy."""
        parts = divide_key_slots(self.shards)
        slots = {TIER: {shard: frozenset(part) for shard, part in parts.items()}}
        self.document = replace(self.document, slots=slots)
        first, last = self.shards[0], self.shards[-1]
        self._add_key_slots(last, parts[first])

    def _add_key_slots(self, shard: int, slots: Iterable[int]) -> None:
        """Add key slots to a shard's table, before anybody uses it."""
        self.server_of(shard).store(shard)
        self.server_of(shard).tables[shard].key_slots.update(slots)

    def _connected(self, server: FaultyDatabaseServer, connection: int) -> None:
        """Record a new database connection of the incarnation that runs now."""
        current = self._current()
        if current is not None:
            current.connections.append((server, connection))

    def _held_s(self) -> float:
        current = self._current()
        return 0.0 if current is None else current.held_until_s - self.loop.time()

    async def _exit_fenced_host(self, incarnation: Incarnation) -> None:
        """Close the sockets and connections of a fenced host, which exits on its own."""
        await incarnation.gone.wait()
        self._end(incarnation, linger_ms=5)

    def _end(self, incarnation: Incarnation, linger_ms: float) -> None:
        incarnation.process.kill()
        self.network.crash(incarnation.address)
        for server, connection in incarnation.connections:
            delay_s = self._fate.uniform(0, linger_ms) / 1000
            self._context.copy().run(self.loop.call_later, delay_s, server.kill, connection)

    def _lose_reply(self, shard: int, fence: Fence) -> None:
        """Handle a COMMIT: if it has new items and its host is to lose the reply, cut the host off."""
        has_new_items = any(row.enqueued_at_ms == fence.clock_ms for row in self._table(shard).rows.values())
        host = next((each for each in self._losing if self._nonce(each) == fence.nonce), None)
        if host is not None and has_new_items and host.process.alive:
            self.hold(host, self._losing.pop(host))
            self.server_of(shard).kill(self._table(shard).owner.connection)
            self.loop.call_soon(self._replace, host)

    def _nonce(self, host: Incarnation) -> str:
        return nonce_of(self.incarnations.index(host) + 1)

    def _replace(self, host: Incarnation) -> None:
        """Let another host take over the shards of this one."""
        if self.running() == [host]:
            self.restart_elsewhere()

    def _served(self, shard: int, epoch: int) -> None:
        """12: an epoch serves once, also if it has the same owner again: its database may have lost what it committed."""
        if (shard, epoch) in self._served_epochs:
            self.disorder[f"invariant 12: epoch {epoch} of shard {shard} served twice"] = None
        self._served_epochs.add((shard, epoch))

    def _committed(self, shard: int, fence: Fence) -> None:
        if self._losing:
            self._lose_reply(shard, fence)
        last, this = self._last_commit[shard], (fence.epoch, fence.flush)
        if self.server_of(shard).is_commit_risky:
            self.disorder[
                f"invariant 1: shard {shard} committed (epoch, flush) {this} on a server that may lose it"
            ] = None
        if this <= last:
            self.disorder[f"invariant 12: shard {shard} committed (epoch, flush) {this} after {last}"] = None
        self._last_commit[shard] = max(last, this)
        owner = self._owners.setdefault((shard, fence.epoch), fence.nonce)
        if owner != fence.nonce:
            self.disorder[f"invariant 12: epoch {fence.epoch} of shard {shard} served {owner} and {fence.nonce}"] = None
        table = self._table(shard)
        markers = PurgeMarkers(table.purge_markers)
        leases = {row.id: row for row in table.rows.values() if row.state is State.LEASED}
        last_leases, self._leases[shard] = self._leases.get(shard, {}), leases
        unchanged = [
            row for number, row in leases.items() if last_leases.get(number) == row and not markers.covers(row)
        ]
        entries = [entry for entry in table.timers if not markers or not _is_purged(table, entry[1], markers)]
        dues = sorted(
            {
                *(due_ms for due_ms, _ in entries[:1]),
                *(row.due_ms or 0 for row in leases.values() if not markers.covers(row)),
            }
        )
        for each in self._shards():
            if each.number != shard or each.epoch != fence.epoch:
                continue
            lowest_ms = watermark_ms(each)
            if dues and lowest_ms is not None and dues[0] < lowest_ms:
                self.disorder[f"invariant 10: shard {shard} has a due, {dues[0]}, below its watermark"] = None
            # The memory of the owner does not have this flush yet.
            self.disorder.update((f"shard {shard}: {text}", None) for text in uncovered_leases(each, unchanged))


def _is_purged(table: ShardTables, number: int, markers: PurgeMarkers) -> bool:
    row = table.rows.get(number)
    return row is not None and markers.covers(row)


def nonce_of(number: int) -> str:
    """Return the nonce of the host that was started with this number."""
    return f"nonce-{number}"
