"""Several hosts in three regions, each with a server of every database, under virtual time.

Holds `SimulatedRegions`: the servers are those of `tests/support/plain_regions.py` with tables; promoters, planner, agents
and publishers are the product's. Always true: as in `SimulatedFleet`. At each change of an entry and at each COMMIT that
returns, what was acknowledged must be at the primary (invariant 1), and terms only rise (invariant 12).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from random import Random
from typing import Final

from foqs.cluster.membership import Membership
from foqs.core.flush.fence import Fence
from foqs.options.config import Config
from foqs.shard.shard import OwnedShard
from foqs.store.in_memory.memory_table import ShardTables
from foqs.store.port import Store
from foqs.testing.virtual_loop import VirtualClock
from shardmgr.agent import AgentPace
from shardmgr.loss_report import FOLDER as LOSSES_FOLDER
from shardmgr.loss_report import parse_loss_report
from shardmgr.planner import ELECTION_FOLDER as PLANNER_FOLDER
from shardmgr.planner import LEADER_ENTRY, PlannerPace
from shardmgr.primary import DatabaseServer, LossPolicy, Primary, PrimaryState
from shardmgr.primary_changes import PromotionRefused, abort, replace_lost, start_drain
from shardmgr.primary_document import FOLDER as PRIMARIES
from shardmgr.primary_document import change_primary, parse_primary, render_primary, replace_primary
from shardmgr.primary_moves import ELECTION_FOLDER as PROMOTERS_FOLDER
from shardmgr.registry.port import RegistryError
from shardmgr.rejoin import rejoin
from shardmgr.server_port import ServerFailed
from tests.simulation.cluster import PORT, Incarnation
from tests.simulation.fleet import ADDRESSES, SimulatedFleet
from tests.simulation.regional_database import DATABASES, RegionalDatabase, wrong_ranges
from tests.support.clocks import ServerClock
from tests.support.delayed_registry import DelayedRegistry
from tests.support.faulty_database import FaultyDatabaseServer
from tests.support.plain_regions import REGIONS, World
from tests.support.region_access import SimulatedDatabaseServers, SimulatedReplicaRows
from tests.support.replicated_servers import DataTransaction, ReplicatedServer, Replication
from tests.support.replicated_shards import Access, ReplicatedStore, ShardAtServer
from tests.support.virtual_time import SimulatedLoop

REGION_OF: Final = dict(zip(ADDRESSES, REGIONS, strict=True))
"""The region of each host, by its address."""
LOST_PRIMARY_MS: Final = 1_000
SESSION_OPTION_MS: Final = 3_000
_LOOK_S: Final = 0.5
_TERM_OVER_S: Final = 5.0
"""A host that is not cut off serves no longer in a term that is over. Another planner may have to be elected in this time."""
_TAKEN: Final = 0.06
"""How often an administrator's change comes just before that of a promoter."""
_STEPS: Final[Mapping[PrimaryState, tuple[PrimaryState, ...]]] = {
    PrimaryState.SERVING: (PrimaryState.SERVING, PrimaryState.REVOKING),
    PrimaryState.DRAINING: (PrimaryState.DRAINING, PrimaryState.FENCED, PrimaryState.REVOKING),
    PrimaryState.REVOKING: (PrimaryState.REVOKING, PrimaryState.FENCED, PrimaryState.SERVING),
    PrimaryState.FENCED: (PrimaryState.FENCED, PrimaryState.PROMOTING),
    PrimaryState.PROMOTING: (PrimaryState.PROMOTING, PrimaryState.SERVING, PrimaryState.REVOKING),
}
"""What a promoter may make of an entry, by its state."""
NAMES: Final = (
    "regions lost",
    "regions cut off",
    "servers lost",
    "primaries cut",
    "addresses wrong",
    "replications touched",
    "promoters slow",
    "primaries replaced",
    "primaries moved",
    "promotions aborted",
    "entries taken",
    "servers rejoined",
    "logs cut",
    "servers refused",
)
"""The keys of `counts` that other fleets do not have."""
RARE: Final = ("commits without an answer", "losses accepted", "flushes lost")
"""Further keys, which a few seeds need not show. A loss is accepted in a third of the seeds at most."""


class SimulatedRegions(SimulatedFleet):
    """The cluster without its clients. Its clocks agree."""

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.databases: dict[str, RegionalDatabase] = {}
        self.down: set[str] = set()
        """The regions that are lost now."""
        self._misled: dict[tuple[str, str], str] = {}
        """By host and database, the server to which every address leads."""
        self._administrators_turn = False
        """An administrator comes before a promoter now."""
        super().__init__(loop, seed, wild=False)
        self.counts.update(dict.fromkeys((*NAMES, *RARE), 0))
        self._steering = Random(f"{seed}/steering")

    async def set_up(self) -> None:
        await super().set_up()
        self._watching_terms = asyncio.ensure_future(self._watch_terms())
        for database in self.databases.values():
            await replace_primary(self._administrator, database.name, database.entry, None)

    # ------------------------------------------------------------------- servers

    def _make_servers(self, seed: int) -> dict[int, FaultyDatabaseServer]:
        for number, (name, shards) in enumerate(DATABASES.items()):
            self._make_database(seed, name, number, shards)
        return {}

    def _make_database(self, seed: int, name: str, number: int, shards: Sequence[int]) -> None:
        def wake() -> None:
            self.databases[name].replication.wake()

        is_async = number == 1 and seed % 3 == 2
        policy = LossPolicy.ASYNC if is_async else LossPolicy.SEMI_SYNC
        ids = {region: 10 * number + place for place, region in enumerate(REGIONS, 11)}
        servers = {region: DatabaseServer(region, ids[region]) for region in REGIONS}
        first = REGIONS[number]
        ackers = {region: "" for region in REGIONS if region != first}
        entry = Primary(1, first, policy, ackers, servers=servers)
        world = World(entry, servers={region: ReplicatedServer(region, shards, wake) for region in REGIONS})
        replication = Replication(self.loop, Random(f"{seed}/replication of {name}"), world)
        database = self.databases[name] = RegionalDatabase(name, world, ids, replication, entry)
        for region in REGIONS:
            for shard in shards:
                database.parts[region, shard] = self._part(seed, database, region, shard)
            database.server(region).end_hosts = partial(database.end_connections, region)
            database.server(region).on_opened = partial(self._check_has_all, database)
        primary = database.primary
        primary.append(term=1)
        for server in map(database.server, REGIONS):
            server.begin_with(primary.log)
            if server is not primary:
                server.acknowledges = True
                server.start_receiving(first)
        primary.is_read_only, primary.waits_for_acks = False, not is_async

    def _part(self, seed: int, database: RegionalDatabase, region: str, shard: int) -> ShardAtServer:
        rng = Random(f"{seed}/server-{shard}-{region}")

        def is_reached() -> bool:
            current = self._current()
            return current is None or database.world.reaches(REGION_OF[current.address], region)

        part = ShardAtServer(
            self.loop,
            rng,
            ServerClock(self.loop, rng),
            self._held_s,
            self._connected,
            database.server(region),
            shard,
            database.server_ids[region],
            is_reached,
            database.next_flush,
            partial(self._returned, database, region),
        )
        part.on_committed = partial(self._committed_at, database, region)
        return part

    def _add_key_slots(self, shard: int, slots: Iterable[int]) -> None:
        database, added = self._database_of(shard), tuple(slots)

        def effect(tables: ShardTables) -> None:
            tables.key_slots.update(added)

        log = database.primary.log
        log.append(DataTransaction(database.entry.server, log[-1].number + 1, 0, 0, 0, shard, effect))
        for server in map(database.server, REGIONS):
            server.begin_with(log)

    def all_servers(self) -> Sequence[FaultyDatabaseServer]:
        return [part for database in self.databases.values() for part in database.parts.values()]

    def server_of(self, shard: int) -> FaultyDatabaseServer:
        database = self._database_of(shard)
        return database.parts[database.entry.server, shard]

    def database(self, shard: int) -> str:
        return next(name for name, shards in DATABASES.items() if shard in shards)

    def _database_of(self, shard: int) -> RegionalDatabase:
        return self.databases[self.database(shard)]

    # --------------------------------------------------------------------- hosts

    def absent(self) -> list[str]:
        return [address for address in super().absent() if REGION_OF[address] not in self.down]

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
        servers = {
            name: self._servers_for(database, REGION_OF[me.address]) for name, database in self.databases.items()
        }
        replicas = {
            name: {region: SimulatedReplicaRows(servers[name], database.server(region)) for region in REGIONS}
            for name, database in self.databases.items()
        }
        config = _config(me.address)
        return Membership(config, registry, nonce, clock, rng, lambda: 0.0, *paces, shards, servers, replicas)

    def _servers_for(self, database: RegionalDatabase, region: str) -> SimulatedDatabaseServers:
        rng = Random(self._steering.random())

        def is_slow() -> bool:
            return self.loop.time() < database.slow_until_s

        return SimulatedDatabaseServers(self.loop, rng, database.world, region, database.server_ids, is_slow)

    def _open_store(self, me: Incarnation, shard: int, database: str, primary: Primary | None) -> Store:
        assert primary is not None
        parts = self.databases[database].parts

        def find(server: str) -> ShardAtServer:
            return parts[self._misled.get((me.address, database), server), shard]

        return self._journaled(ReplicatedStore(Access(find, self._refused), shard, primary))

    def _refused(self) -> None:
        self.counts["servers refused"] += 1

    def mere_owner_of(self, database: RegionalDatabase) -> Incarnation | None:
        """Return a host that owns a shard of a database, and is elected neither to plan nor to promote; None if there is none."""
        owners = [self.owner(shard) for shard in DATABASES[database.name]]
        runs = {owner.rpartition(":")[2] for owner in owners if owner is not None}
        elections = {f"{PLANNER_FOLDER}/{LEADER_ENTRY}", f"{PROMOTERS_FOLDER}/{database.name}"}
        for host in self.running():
            if self._nonce(host) in runs and not self._ensemble.announced_by(self.registries[host]) & elections:
                return host
        return None

    # ------------------------------------------------------------------ troubles

    def lose_region(self, region: str, seconds: float) -> None:
        """Let a region die: its host, its servers and the link to the coordinator. It comes back with what was on disk."""
        self.counts["regions lost"] += 1
        self.down.add(region)
        for host in self.running():
            if REGION_OF[host.address] == region:
                self.kill(host)
        for database in self.databases.values():
            self._kill_server(database, region)
        self.loop.call_later(seconds, self._bring_back, region)

    def _bring_back(self, region: str) -> None:
        self.down.discard(region)
        for database in self.databases.values():
            self.start_server(database, region)

    def cut_region_off(self, region: str, seconds: float) -> None:
        """Cut a region off from the others and from the coordinator. Everything in it goes on."""
        self.counts["regions cut off"] += 1
        for host in self.running():
            if REGION_OF[host.address] == region:
                self.cut_off(host, seconds)
                self.partition_from_clients(host, seconds)
        for database in self.databases.values():
            database.world.cut |= database.links(region)
        self.loop.call_later(seconds, self._join, region)

    def _join(self, region: str) -> None:
        for database in self.databases.values():
            database.world.cut -= database.links(region)
            database.replication.wake()

    def cut_link(self, database: RegionalDatabase, one: str, other: str, seconds: float) -> None:
        """Let nothing pass between two regions that belongs to one database."""
        link = frozenset((one, other))
        database.world.cut.add(link)
        self.loop.call_later(seconds, self._mend_link, database, link)

    @staticmethod
    def _mend_link(database: RegionalDatabase, link: frozenset[str]) -> None:
        database.world.cut.discard(link)
        database.replication.wake()

    def lose_server(self, database: RegionalDatabase, region: str, seconds: float, *, cuts: bool = False) -> None:
        """Kill the server of one database. It starts again with its whole log, unless it cuts it by mistake."""
        self.counts["servers lost"] += 1
        self._kill_server(database, region)
        self.loop.call_later(seconds, partial(self.start_server, database, region, cuts=cuts))

    def _kill_server(self, database: RegionalDatabase, region: str) -> None:
        if database.server(region).alive:
            self.counts["commits without an answer"] += database.server(region).waiting_commits
            database.server(region).kill9()

    def start_server(self, database: RegionalDatabase, region: str, *, cuts: bool = False) -> None:
        """Start a server that is dead. `cuts`: as if it were to rejoin, which cuts acknowledged transactions off a primary."""
        if not database.server(region).alive and region not in self.down:
            self.counts["primaries cut"] += cuts
            database.server(region).start(cuts=cuts)

    def mislead(self, host: Incarnation, database: RegionalDatabase, region: str, seconds: float) -> None:
        """Let each address of a database lead a host to one of its servers for a while."""
        self.counts["addresses wrong"] += 1
        place = host.address, database.name
        self._misled[place] = region
        self.loop.call_later(seconds, lambda: self._misled.pop(place, None))

    def touch_replication(self, database: RegionalDatabase, region: str, kind: str, seconds: float = 0.0) -> None:
        """Do by hand what no promoter asks for: `slow` delays an SQL thread, `restart` throws away what it has not applied."""
        server = database.server(region)
        if not server.alive or not server.source:
            return
        self.counts["replications touched"] += 1
        if kind == "slow":
            database.replication.applies_from_s[region] = self.loop.time() + seconds
        else:
            server.is_receiving = server.is_applying = False
            server.start_receiving(server.source)
        database.replication.wake()

    def slow_down(self, database: RegionalDatabase, seconds: float) -> None:
        """Let the servers of a database answer promoters slowly for a while, as over long distances."""
        self.counts["promoters slow"] += 1
        database.slow_until_s = self.loop.time() + seconds

    def heal(self) -> None:
        super().heal()
        self.down.clear()
        self._misled.clear()
        for database in self.databases.values():
            database.world.cut.clear()
            database.slow_until_s = 0.0
            database.replication.applies_from_s.clear()
            for region in REGIONS:
                self.start_server(database, region)
            database.replication.wake()

    # ------------------------------------------------------------- administration

    async def change(self, database: RegionalDatabase, change: Callable[[Primary], Primary]) -> bool:
        """Change an entry as an administrator does. Return whether the change was accepted."""
        try:
            await change_primary(self._administrator, database.name, change)
        except (PromotionRefused, RegistryError):
            return False
        return True

    async def let_rejoin(self, database: RegionalDatabase) -> None:
        """Admit a server that is back: its log is cut if it has more than the primary; if that is too little, it is copied."""
        entry, primary = database.entry, database.primary
        for region in REGIONS:
            server = database.server(region)
            if not database.may_be_copied or database.entry is not entry:
                return
            has_diverged = not server.is_contained_in(primary.log)
            if region == entry.server or not server.alive or (region in entry.ackers and not has_diverged):
                continue
            if has_diverged or not server.is_read_only:
                self.counts["logs cut"] += 1
                server.kill9()
                server.start(cuts=True)
                if not server.is_contained_in(primary.log):
                    server.begin_with(primary.log)
            servers = self._servers_for(database, entry.server)
            with contextlib.suppress(PromotionRefused, ServerFailed, RegistryError):
                await rejoin(self._administrator, database.name, servers, region)
                self.counts["servers rejoined"] += 1
            return

    def restless(self) -> str:
        """Return which database does not serve, or has an acker that is not proven. Empty: each is at rest."""
        for name, database in self.databases.items():
            entry = database.entry
            if not entry.is_serving:
                return f"database {name} is {entry.state.value} in term {entry.term}"
            unproven = [each for each in REGIONS if each != entry.server and not entry.ackers.get(each)]
            if unproven or database.primary.is_read_only:
                return f"database {name} serves in term {entry.term}, and {unproven} are not proven"
        return ""

    def copy_differences(self) -> list[str]:
        """Return in what the copies of a database differ that have the same log. Call it at rest."""
        return [
            f"invariant 1: {difference}" for each in self.databases.values() for difference in each.copy_differences()
        ]

    # -------------------------------------------------------------------- watching

    def _replacing(self, name: str) -> None:
        """Let an administrator change an entry just before a promoter does, now and then."""
        super()._replacing(name)
        folder, _, database_name = name.partition("/")
        if folder != PRIMARIES or not self._is_promoter() or self._steering.random() >= _TAKEN:
            return
        entry = self.databases[database_name].entry
        changes: Sequence[Callable[[], Primary]] = (
            (lambda: start_drain(entry, min(entry.ackers)), lambda: replace_lost(entry, entry.server))
            if entry.is_serving and entry.ackers
            else (lambda: abort(entry),)
        )
        with contextlib.suppress(PromotionRefused):
            changed = self._steering.choice(changes)()
            found = self._ensemble.read(name)
            assert found is not None
            self._administrators_turn = True
            self._ensemble.replace(name, render_primary(changed), found.version)
            self.counts["entries taken"] += 1
        self._administrators_turn = False

    def _replaced(self, name: str, data: bytes) -> None:
        super()._replaced(name, data)
        folder, _, database = name.partition("/")
        if folder == PRIMARIES:
            self._entry_replaced(self.databases[database], parse_primary(data))

    async def _watch_terms(self) -> None:
        """12: a host with a session, which can follow the plan, serves no shard for long in a term that is over."""
        seen: list[str] = []
        while True:
            await asyncio.sleep(_LOOK_S)
            before, seen = seen, [each for host in self.running() for each in self._served_in_former_term(host)]
            for each in seen:
                if each in before:
                    self.disorder[f"invariant 12: {each}"] = None

    def _served_in_former_term(self, host: Incarnation) -> Iterator[str]:
        engine = host.engine
        if engine is None or not host.process.runs or self._is_without_session(host):
            return
        for number, shard in engine.shards.items():
            database = self._database_of(number)
            term, is_late = database.entry.term, self.loop.time() - database.term_since_s > _TERM_OVER_S
            if is_late and shard.is_serving and (shard.term or 0) < term:
                yield (
                    f"{host.process.name} serves shard {number} in term {shard.term}, although term {term} has begun more than "
                    f"{_TERM_OVER_S} s ago"
                )

    def _is_promoter(self) -> bool:
        """Return whether a promoter writes now, and no administrator."""
        return self._current() is not None and not self._administrators_turn and self._lost > 0

    def _entry_replaced(self, database: RegionalDatabase, entry: Primary) -> None:
        last, database.entry, database.world.entry = database.entry, entry, entry
        if entry.term < last.term or (entry.term == last.term and entry.server != last.server):
            self.disorder[
                f"invariant 12: the entry of {database.name} went from term {last.term} of {last.server} "
                f"to {entry.term} of {entry.server}"
            ] = None
        if self._current() is not None and not self._administrators_turn and entry.state not in _STEPS[last.state]:
            self.disorder[
                f"invariant 12: a promoter of {database.name} replaced an entry that it had not read, "
                f"{last.state.value} by {entry.state.value}"
            ] = None
        if entry.state is PrimaryState.DRAINING:
            database.way = "primaries moved"
        elif entry.state is PrimaryState.REVOKING:
            database.way = "primaries replaced"
        begins = entry.term > last.term
        if begins:
            database.term_since_s = self.loop.time()
        if begins and last.loss_accepted:
            self._accept_loss(database, last)
        serves = entry.is_serving and not last.is_serving
        if begins or (serves and not database.primary.is_read_only):
            self._check_has_all(database)
        if serves:
            self.counts[database.way if last.state is PrimaryState.PROMOTING else "promotions aborted"] += 1

    def _accept_loss(self, database: RegionalDatabase, last: Primary) -> None:
        """Excuse the items of which the next primary lacks something, and check that the report of the loss is right."""
        former = database.server(last.server)
        lost = database.lost_since(former)
        self.counts["losses accepted"] += 1
        self.counts["flushes lost"] += len(lost)
        database.world.acknowledged -= {each.flush for each in lost}
        self.excused |= database.differing_items(former)
        found = self._ensemble.read(f"{LOSSES_FOLDER}/{database.name}")
        report = None if found is None else parse_loss_report(found.data)
        if report is None or report.term != database.entry.term:
            self.disorder[f"invariant 1: a loss of {database.name} was accepted, and nothing is reported"] = None
        else:
            self.disorder.update(dict.fromkeys(f"invariant 1: {each}" for each in wrong_ranges(report, lost)))

    def _check_has_all(self, database: RegionalDatabase) -> None:
        """1: a server that becomes the primary has all that was acknowledged."""
        lost = database.world.acknowledged - database.primary.flushes
        if lost:
            entry = database.entry
            self.disorder[
                f"invariant 1: {entry.server} is the primary of {database.name} in term {entry.term} ({entry.state.value}) "
                f"without {len(lost)} flushes that were acknowledged"
            ] = None

    def _returned(self, database: RegionalDatabase, region: str, transaction: DataTransaction) -> None:
        """1: what an earlier primary acknowledges is at the present one."""
        entry = database.entry
        if entry.policy is LossPolicy.ASYNC and entry.server != region:
            return  # the session of its sender is over, so no caller gets an answer
        database.world.acknowledged.add(transaction.flush)
        if entry.server != region and transaction.flush not in database.primary.flushes:
            self.disorder[
                f"invariant 1: {region} acknowledged for database {database.name}, and {entry.server}, which is its primary in "
                f"term {entry.term}, has nothing of it"
            ] = None

    def _committed_at(self, database: RegionalDatabase, region: str, shard: int, fence: Fence) -> None:
        if database.entry.server == region:
            self._committed(shard, fence)


@cache
def _config(name: str) -> Config:
    return Config.model_validate(
        {
            "server": {"name": name, "advertise": f"{name}:{PORT}", "region": REGION_OF[name]},
            "cluster": {
                "zookeeper": "nowhere:1",
                "lost_primary_ms": LOST_PRIMARY_MS,
                "session_timeout_ms": SESSION_OPTION_MS,
            },
            "databases": {each: {"url": "mysql://u@h/d"} for each in DATABASES},
        }
    )
