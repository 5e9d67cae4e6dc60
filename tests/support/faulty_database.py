"""A database server with faults: the memory database, with faults drawn from one generator.

Holds `FaultRates` (how likely each fault is), `FaultyDatabaseServer` (one server,
which can also be restarted, read-only or slow for a while) and its stores. Always
true: every error has the type and the meaning that it has in the MySQL store;
committed data is kept. Knows nothing of hosts, except for how long the current one
is disconnected.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from foqs.core.flush.fence import Fence, Owner
from foqs.core.flush.writes import Writes
from foqs.store.in_memory.memory_store import MemoryDatabase, MemoryReads, MemoryStore
from foqs.store.in_memory.memory_table import ShardTables
from foqs.store.port import DueRow, StoreLost, WriteRefused
from tests.support.clocks import ServerClock
from tests.support.disk_room import bytes_used, growth
from tests.support.virtual_time import Pause, SimulatedLoop

NAMES: Final = (
    "deadlocks",
    "late commits",
    "late commits given up",
    "writes while read-only",
    "weak servers",
    "nobody there",
    "clock steps",
    "slow clocks",
    "bad rows",
    "lost looks",
    "full disks",
)
"""The keys of a server's `counts`."""


@dataclass(slots=True, frozen=True)
class FaultRates:
    """The probability of each fault, per occasion."""

    lost_line: float = 0.004
    deadlock: float = 0.004
    refused_write: float = 0.01
    full_disk: float = 0.001
    late_commit: float = 0.006
    slow_statement: float = 0.01
    cut_connection: float = 0.0005
    clock_step: float = 0.0
    slow_clock: float = 0.0
    bad_row: float = 0.02
    lost_look: float = 0.08


ANSWER_MS_MAX: Final = 400
"""The longest delay of the reply to a new owner that reads the time."""

NONE: Final = FaultRates(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class FaultyDatabaseServer(MemoryDatabase):
    """One database server, with one shard.

    Args:
        clock: the server's clock.
        held_s: returns for how long the current host is disconnected from it.
        connected: called with every new connection of the current host.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        rng: Random,
        clock: ServerClock,
        held_s: Callable[[], float],
        connected: Callable[[FaultyDatabaseServer, int], None],
    ) -> None:
        super().__init__(clock.now_ms, self._travel)
        self.clock = clock
        self.waited_ms = 0.0
        """The total time that new owners waited for its time. Their shard clocks may be behind by that."""
        self.steps_carried_ms: dict[int, int] = {}
        """The connections with a COMMIT in flight, and the part of the clock's steps that the COMMIT saves."""
        self.steps_saved_ms = 0
        """The part of the clock's steps that the offset in the owner row includes."""
        self.refuse = self._refusal
        self.troubles = FaultRates()
        self.counts: Counter[str] = Counter()
        self.commit_s = 0.0
        """The time of every COMMIT, without faults."""
        self.late_s: dict[int, float] = {}
        """The connections whose next COMMIT is late, and its delay."""
        self.rng = rng
        self.loop = loop
        self._held_s = held_s
        self._connected = connected
        self._disk_full_until_s = 0.0
        self._disk_bytes = 0
        """The room that the shard had when its disk became full."""
        self._bad_row = 0
        """The number of a row that cannot be changed for a while."""
        self._bad_until_s = 0.0
        self._away_until_s = 0.0
        self._read_only_until_s = 0.0
        self._slow_until_s = 0.0
        self._weak_until_s = 0.0
        self._risky: set[int] = set()
        """The connections that were made while the server might lose acknowledged writes."""
        self.is_commit_risky = False
        """Whether the last COMMIT that took effect came over one of these."""
        self.unsafe_settings = self._weakness

    # ------------------------------------------------------------------ faults

    def restart(self, away_s: float = 0.0, weak_s: float = 0.0) -> None:
        """Close every connection and roll open transactions back; refuse connections for `away_s` seconds.

        For another `weak_s` seconds its settings are wrong: it may lose acknowledged writes.
        """
        for connection in sorted(self._alive):
            self.kill(connection)
        self._away_until_s = self.loop.time() + away_s
        self._weak_until_s = self._away_until_s + weak_s

    def turn_read_only(self, seconds: float) -> None:
        """Refuse writes for a while; reads continue."""
        self._read_only_until_s = self.loop.time() + seconds

    def slow_down(self, seconds: float) -> None:
        """Make every statement slow for a while."""
        self._slow_until_s = self.loop.time() + seconds

    def heal(self) -> None:
        """End all faults. Statements in flight still end as they would."""
        self.troubles = NONE
        self._bad_until_s = self._disk_full_until_s = self._away_until_s = self._read_only_until_s = 0.0
        self._slow_until_s = self._weak_until_s = 0.0

    def is_committing(self) -> bool:
        """Whether a COMMIT has arrived that has not taken effect yet."""
        return bool(self._committing)

    # ---------------------------------------------------- called by its stores

    def store(self, shard: int, faults: object = None) -> FaultyStore:
        super().store(shard)
        return FaultyStore(self, shard)

    def connect(self) -> int:
        if self.loop.time() < self._away_until_s:
            self.counts["nobody there"] += 1
            raise StoreLost("the server refused the connection")
        connection = super().connect()
        if self._is_weak():
            self._risky.add(connection)
        self._connected(self, connection)
        return connection

    async def sync(self, connection: int) -> None:
        late_s = self.late_s.pop(connection, 0.0)
        if late_s:
            await Pause(self.loop, late_s)

    async def commit(self, connection: int, take_effect: Callable[[], None]) -> None:
        await super().commit(connection, take_effect)
        self.steps_saved_ms = self.steps_carried_ms.pop(connection)
        self.is_commit_risky = connection in self._risky

    def _is_weak(self) -> bool:
        return self.loop.time() < self._weak_until_s

    def _weakness(self) -> str | None:
        """Return the setting that loses acknowledged writes, as a connection that may write sees it."""
        if not self._is_weak():
            return None
        self.counts["weak servers"] += 1
        return "the server may lose acknowledged writes: innodb_flush_log_at_trx_commit is 2: set it to 1"

    def is_read_only(self) -> bool:
        """Return whether it refuses writes, and count the attempt if so."""
        refused = self.loop.time() < self._read_only_until_s
        self.counts["writes while read-only"] += refused
        return refused

    def at_fault_point(self, point: str) -> None:
        """Fail at random at a fault point of a flush."""
        if self.rng.random() < self.troubles.lost_line:
            raise StoreLost(f"the line is cut: {point}")
        if point == "read":
            if self.is_read_only():
                raise StoreLost("the server is read-only")
            if self.rng.random() < self.troubles.deadlock:
                self.counts["deadlocks"] += 1
                raise WriteRefused("Deadlock found when trying to get lock", is_retryable=True)

    def _refusal(self, writes: Writes) -> str | WriteRefused | None:
        now_s = self.loop.time()
        (tables,) = self.tables.values()
        if self.rng.random() < self.troubles.full_disk and now_s >= self._disk_full_until_s:
            full_s = self.rng.uniform(0.02, 0.6)
            if tables.journal_reserve_bytes or not tables.journal:  # a shard has its reserve since its first flush
                self._disk_full_until_s, self._disk_bytes = now_s + full_s, bytes_used(tables)
        bytes_more = growth(tables, writes) if now_s < self._disk_full_until_s else 0
        if bytes_more > 0 and bytes_used(tables) + bytes_more > self._disk_bytes:
            self.counts["full disks"] += 1
            return WriteRefused("the disk is full", is_full=True)
        if self._has_bad_row(writes, now_s):
            return "refused by the database: a bad row"
        return "refused by the database" if self.rng.random() < self.troubles.refused_write else None

    def _has_bad_row(self, writes: Writes, now_s: float) -> bool:
        """Whether the flush changes a row that cannot be changed for a while."""
        ids = [row.id for row in writes.updates] + [number for lease in writes.leases for number in lease.ids]
        if ids and now_s >= self._bad_until_s and self.rng.random() < self.troubles.bad_row:
            self._bad_row = self.rng.choice(ids)
            self._bad_until_s = now_s + self.rng.uniform(0.02, 0.5)
        is_bad = now_s < self._bad_until_s and self._bad_row in ids
        self.counts["bad rows"] += is_bad
        return is_bad

    async def _travel(self) -> None:
        """Let the time of a statement pass: none, a little, or much too long. The connection may break instead."""
        rng, troubles = self.rng, self.troubles
        if rng.random() < troubles.clock_step:
            self.clock.step()
            self.counts["clock steps"] += 1
        if rng.random() < troubles.cut_connection and self._alive:
            self.kill(rng.choice(sorted(self._alive)))
        held_s = self._held_s()
        if held_s > 0:
            await Pause(self.loop, held_s)
        is_slow = self.loop.time() < self._slow_until_s
        if not is_slow and rng.random() < 0.5:
            return
        pause_ms = rng.uniform(0.05, 1.5)
        if is_slow:
            pause_ms += rng.uniform(5, 60)
        elif rng.random() < troubles.slow_statement:
            pause_ms += rng.uniform(20, 400)
        await Pause(self.loop, pause_ms / 1000)


class FaultyReads(MemoryReads):
    """A connection for reading, whose looks at leases fail at times."""

    def __init__(self, server: FaultyDatabaseServer, tables: ShardTables) -> None:
        super().__init__(server, tables)
        self._server = server
        self._failures_left = 0

    async def leases_in(self, committed: Fence, ranges: Sequence[tuple[int, int]], last_ms: int) -> list[DueRow]:
        """Read leases. Sometimes the line is cut, and then again at the next attempt."""
        server = self._server
        if not self._failures_left and server.rng.random() < server.troubles.lost_look:
            server.counts["lost looks"] += 1
            self._failures_left = 2
        if self._failures_left:
            self._failures_left -= 1
            raise self._store_lost("the line is cut: a look")
        return await super().leases_in(committed, ranges, last_ms)


class FaultyStore(MemoryStore):
    """The connection of one shard to a server."""

    def __init__(self, server: FaultyDatabaseServer, shard: int) -> None:
        super().__init__(server, shard, server.at_fault_point)
        self._server = server
        self._steps_known_ms: int | None = None
        """The part of the clock's steps that its replies included; None since a takeover."""

    def reads(self) -> MemoryReads:
        return FaultyReads(self._server, self._tables)

    async def now_ms(self) -> int:
        """Read the clock. Sometimes the reply to a new owner is late."""
        server = self._server
        requested_s = server.loop.time()
        await self._round_trip()
        is_new = self._steps_known_ms is None
        if is_new:
            server.clock.on_owner_change(server.steps_saved_ms)
        known_ms, now_ms = server.clock.stepped_ms, server.clock.now_ms()
        if is_new and server.rng.random() < server.troubles.slow_clock:
            server.counts["slow clocks"] += 1
            await Pause(server.loop, server.rng.uniform(0, ANSWER_MS_MAX) / 1000)
        if is_new:
            server.waited_ms += (server.loop.time() - requested_s) * 1000
        self._steps_known_ms = known_ms
        return now_ms

    async def take_over(self, epoch: int, nonce: str) -> Owner:
        self._check_writable()
        self._steps_known_ms = None
        return await super().take_over(epoch, nonce)

    async def read_owner(self) -> Owner:
        """Read the owner row. The statement writes, and needs a writable server, only if the row is ours."""
        if (self._tables.owner.epoch, self._tables.owner.nonce) == self._ownership:
            self._check_writable()
        return await super().read_owner()

    def _check_writable(self) -> None:
        if self._server.is_read_only():
            self._is_lost = True
            raise StoreLost("the server is read-only")

    async def commit(self, fence: Fence, writes: Writes) -> None:
        """Send COMMIT. Sometimes it is very late, even if its connection is lost, and its caller often gives up."""
        server, rng = self._server, self._server.rng
        # A takeover that empties a journal has not read the clock: the owner row keeps its offset.
        known_ms = server.steps_saved_ms if self._steps_known_ms is None else self._steps_known_ms
        server.steps_carried_ms[self._connection] = known_ms
        if server.commit_s:
            await Pause(server.loop, server.commit_s)
        if rng.random() >= server.troubles.late_commit:
            return await super().commit(fence, writes)
        late_s = rng.uniform(0.02, 0.4) if rng.random() < 0.7 else rng.uniform(0.8, 7.0)
        server.late_s[self._connection] = late_s
        server.counts["late commits"] += 1
        try:
            async with asyncio.timeout(late_s * rng.uniform(0, 1.5)):
                await super().commit(fence, writes)
        except TimeoutError:
            server.counts["late commits given up"] += 1
            raise StoreLost("no reply to COMMIT in time") from None
