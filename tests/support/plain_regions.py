"""Regions in the plainest form: the servers of one database, its entry, hosts that write and promoters that replace the primary.

The rules of docs/design/regions.md without SQL and time. A server is a log of transactions, and as a replica a relay log
of what it has received and not applied. Everything that takes time is a generator or a list that tests advance in any
order. Tests replace single methods by planted mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from shardmgr.primary import LossPolicy, Primary, PrimaryState, ReplicationPosition, ServerReport
from shardmgr.promotion import Promotion, PromotionStep, ReplaceEntry, SendCommand, ServerCommand

REGIONS: Final = ("r1", "r2", "r3")
"""One server in each region, by the name of the region."""


@dataclass(slots=True, frozen=True)
class Transaction:
    """A transaction of a log: `origin` and `number` identify it.

    Attributes:
        flush: the number of a flush, over all histories; 0 for others.
        epoch: the epoch of the owner whose flush or takeover it is; 0 for others.
        term: the term that it writes; 0 for others.
    """

    origin: str
    number: int
    flush: int = 0
    epoch: int = 0
    term: int = 0


def position_of(log: list[Transaction]) -> ReplicationPosition:
    return ReplicationPosition({each.origin: each.number for each in log})


@dataclass(slots=True, frozen=True)
class Ack:
    """An acknowledgement on its way: the replica has the first `count` transactions of the primary's log."""

    replica: str
    primary: str
    boot: int
    count: int


class PlainServer:
    """One server. It starts as its configuration says: read-only, receiving nothing, waiting for no acks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log: list[Transaction] = []
        self.boot = 0
        self.alive = True
        self.freed = 0
        """The first transactions of the log that nothing can cut off: a reader may have seen them."""
        self.promoter = 0
        """The connection of the promoter that came last; earlier ones were ended."""
        self.kept_log = True
        self.reset()

    def reset(self) -> None:
        self.relay: list[Transaction] = []
        self.acked = 0
        """The first transactions of the log that a replica has acknowledged."""
        self.is_read_only = True
        self.waits_for_acks = False
        self.source = ""
        self.is_receiving = False
        self.is_applying = False
        self.acknowledges = False
        self.starts = 0
        self.knows_received = True
        self.unacknowledged = 0

    @property
    def term(self) -> int:
        """The term that readers see: a commit that waits for its ack is not seen."""
        seen = self.log[: max(self.acked, self.freed)] if self.waits_for_acks else self.log
        return max((each.term for each in seen), default=0)

    @property
    def epoch(self) -> int:
        return max((each.epoch for each in self.log), default=0)

    @property
    def flushes(self) -> set[int]:
        return {each.flush for each in self.log if each.flush}

    @property
    def standing(self) -> str:
        return f"{self.boot}.{self.starts}"

    def applied_position(self) -> ReplicationPosition:
        return position_of(self.log)

    def received_position(self) -> ReplicationPosition:
        return position_of(self.log + self.relay)

    def append(self, *, flush: int = 0, epoch: int = 0, term: int = 0) -> int:
        """Write a transaction to the log. Return how many the log has then."""
        number = self.log[-1].number + 1 if self.log else 1
        self.log.append(Transaction(self.name, number, flush, epoch, term))
        return len(self.log)

    def is_durable(self, count: int) -> bool:
        """Return whether COMMIT has returned for the first `count` transactions."""
        return self.acked >= count or not self.waits_for_acks

    # --------------------------------------------------------------- what happens to it

    def end_promoters(self, newest: int) -> None:
        """End the connections of earlier promoters. A term that waits for its ack is freed by that: readers see it."""
        self.promoter = newest
        terms = [count for count, each in enumerate(self.log, 1) if each.term and each.origin == self.name]
        self.freed = max([self.freed, *terms])

    def kill9(self) -> None:
        self.alive = False

    def start(self, *, cuts: bool = False) -> None:
        """Start it after `kill9`. `cuts`: as a replica that cuts its log: unacknowledged transactions go, and perhaps one more."""
        acked = self.acked if self.waits_for_acks else len(self.log)
        source = self.source
        self.boot += 1
        self.reset()
        self.source = source
        self.knows_received = False
        if cuts:
            self.kept_log = False
            self.log = self.log[: max(self.freed, acked - 1)]
        self.freed = len(self.log)
        self.alive = True

    def start_applying(self) -> None:
        """Start the SQL thread. If the reception is stopped too, what was received is thrown away."""
        if self.source and not self.is_applying:
            self.starts += 1
            self.is_applying = True
            if not self.is_receiving:
                self.throw_relay_away()

    def throw_relay_away(self) -> None:
        self.relay = []
        self.knows_received = True

    def start_receiving(self, source: str) -> None:
        """What was received and not applied is thrown away, unless the reception from this source runs, or is applied."""
        if source != self.source or not (self.is_receiving or self.is_applying):
            self.throw_relay_away()
        self.source, self.is_receiving, self.is_applying = source, True, True
        self.knows_received = True
        self.starts += 1

    def receive(self, source: PlainServer) -> Ack | None:
        """Receive the next transaction. A replica that has what its source lacks is refused.

        A replica that connects again acknowledges by its position what it has.
        """
        if not self.is_contained_in(source.log):
            self.is_receiving = False
            return None
        count = len(self.log) + len(self.relay)
        if count < len(source.log):
            self.relay.append(source.log[count])
            count += 1
        fresh = self.acknowledges and source.acked < count
        return Ack(self.name, source.name, source.boot, count) if fresh else None

    def is_contained_in(self, log: list[Transaction]) -> bool:
        """Return whether what it has received is a beginning of a log."""
        has = self.log + self.relay
        return has == log[: len(has)]

    def apply_next(self) -> None:
        if self.is_applying and self.relay:
            self.log.append(self.relay.pop(0))

    def carry_out(self, step: SendCommand) -> None:
        command = step.command
        if command is ServerCommand.REVOKE:
            self.is_receiving, self.acknowledges = False, False
        elif command is ServerCommand.MAKE_READ_ONLY:
            # It waits for commits that wait for acks. The command is bounded, and then has no effect.
            self.is_read_only = self.is_read_only or self.is_durable(len(self.log))
        elif command is ServerCommand.FOLLOW:
            self.acknowledges, self.waits_for_acks = True, False
            self.start_receiving(step.source)
        elif command is ServerCommand.BECOME_PRIMARY:
            self.throw_relay_away()
            self.kept_log, self.freed = True, len(self.log)
            self.source, self.is_receiving, self.is_applying = "", False, False
            self.acknowledges, self.starts, self.acked = False, self.starts + 1, 0
            self.waits_for_acks = step.waits_for_acks
        elif command is ServerCommand.WRITE_TERM:
            if max((each.term for each in self.log), default=0) < step.term:
                self.append(term=step.term)
        else:
            self.waits_for_acks, self.is_read_only = step.waits_for_acks, False


Link: TypeAlias = frozenset[str]


@dataclass(slots=True)
class World:
    """The servers, the document with its version, what is on its way, and what callers were told."""

    entry: Primary
    version: int = 0
    servers: dict[str, PlainServer] = field(default_factory=lambda: {name: PlainServer(name) for name in REGIONS})
    cut: set[Link] = field(default_factory=set)
    acks: list[Ack] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    """Flushes of which a caller was told that they are committed."""
    denied: set[int] = field(default_factory=set)
    """Flushes of which it is known that they were not committed, and that were written again."""
    loss_accepted: bool = False
    passed_over: str = ""
    """A server that an administrator has named when a loss was accepted, and whose transactions a promoter did not keep."""
    last_flush: int = 0
    last_epoch: int = 0
    last_connection: int = 0
    heartbeats: int = 0
    locked: set[str] = field(default_factory=set)
    """The servers whose replication accounts are locked everywhere."""

    def reaches(self, region: str, server: str) -> bool:
        return self.servers[server].alive and frozenset((region, server)) not in self.cut

    def replace_entry(self, entry: Primary, version: int) -> bool:
        if version != self.version:
            return False
        self.entry, self.version = entry, version + 1
        self.loss_accepted = self.loss_accepted or entry.loss_accepted
        return True

    def receive(self, name: str) -> None:
        replica = self.servers[name]
        if replica.alive and self.is_connected(replica):
            ack = replica.receive(self.servers[replica.source])
            if ack is not None:
                self.acks.append(ack)

    def is_connected(self, replica: PlainServer) -> bool:
        """Return whether a replica receives from its source."""
        return replica.is_receiving and self.reaches(replica.name, replica.source) and replica.name not in self.locked

    def heard(self, replica: PlainServer) -> str:
        """Return another text each time: a replica hears from its source all the time, if it is connected."""
        if not self.is_connected(replica):
            return ""
        self.heartbeats += 1
        return f"{self.heartbeats}"

    def acknowledgers(self, primary: PlainServer) -> int:
        return sum(
            each.acknowledges and each.source == primary.name and self.is_connected(each)
            for each in self.servers.values()
            if each.alive
        )

    def deliver(self, ack: Ack) -> None:
        self.acks.remove(ack)
        primary = self.servers[ack.primary]
        if primary.boot == ack.boot and self.reaches(ack.replica, ack.primary):
            primary.acked = max(primary.acked, ack.count)


class PlainHost:
    """A host of one region that owns the shard of the database, or believes it does.

    Always true of a host without mistakes: it uses the server of its entry only if the server has this name and term,
    and after a connect it believes nothing that it reads before one commit of its own was acknowledged.
    """

    def __init__(self, world: World, region: str) -> None:
        self.world = world
        self.region = region
        self.entry = world.entry
        self.in_session = True
        self.server: PlainServer | None = None
        self.drop()
        self.unknown = 0
        """A flush whose outcome is to be read."""

    def drop(self) -> None:
        """End the connection. A flush in progress ends with an unknown outcome."""
        self.server, self.boot, self.epoch, self.takeover, self.serves = None, 0, 0, 0, False
        self.flush, self.count = 0, 0

    def follow_entry(self) -> None:
        """Read the document. Another term, or one that does not serve, ends the ownership."""
        if not self.in_session:
            return
        former, self.entry = self.entry, self.world.entry
        if (former.term, former.server) != (
            self.entry.term,
            self.entry.server,
        ) or self.entry.state is not PrimaryState.SERVING:
            self.drop()
            self.unknown = 0

    def begin_session(self) -> None:
        """Begin a session, or go on with the present one. A new one begins with a read of the document."""
        if not self.in_session:
            self.in_session = True
            self.follow_entry()

    def end_session(self) -> None:
        self.in_session = False
        self.drop()
        self.unknown = 0

    @property
    def holds_shard(self) -> bool:
        return self.in_session and (self.server is not None or self.entry.state is PrimaryState.SERVING)

    def accepts(self, server: PlainServer) -> bool:
        """The check at each connect: the right server, of the right term, with the right settings."""
        right = (server.name, server.term) == (self.entry.server, self.entry.term)
        return right and (server.waits_for_acks or self.entry.policy is LossPolicy.ASYNC)

    def connect(self, address: str) -> None:
        """Connect to a server and take the shard over. `address`: where the name of the primary leads."""
        server = self.world.servers[address]
        usable = (
            self.entry.state is PrimaryState.SERVING and self.in_session and self.world.reaches(self.region, address)
        )
        if usable and self.accepts(server) and not server.is_read_only:
            self.drop()
            self.world.last_epoch += 1
            self.server, self.boot, self.epoch = server, server.boot, self.world.last_epoch
            self.takeover = server.append(epoch=self.epoch)

    def lose_connection(self) -> None:
        self.unknown = self.flush or self.unknown
        self.drop()

    def begin_flush(self) -> None:
        server = self.server
        if server is not None and self.serves and not self.flush and self.is_connected() and not server.is_read_only:
            if server.epoch != self.epoch:
                self.drop()
                return
            self.world.last_flush += 1
            self.flush = self.world.last_flush
            self.count = server.append(flush=self.flush, epoch=self.epoch)

    def is_connected(self) -> bool:
        server = self.server
        return server is not None and server.boot == self.boot and self.world.reaches(self.region, server.name)

    def may_believe(self, server: PlainServer) -> bool:
        """The barrier: what was read counts when the takeover's own commit is acknowledged."""
        return server.is_durable(self.takeover)

    def poll(self) -> None:
        """Read what the server has answered."""
        server = self.server
        if server is None:
            return
        if not self.is_connected():
            self.lose_connection()
        elif not self.serves:
            if self.may_believe(server):
                self.serves = True
                if self.unknown:
                    (self.world.acknowledged if self.unknown in server.flushes else self.world.denied).add(self.unknown)
                    self.unknown = 0
        elif self.flush and server.is_durable(self.count):
            self.world.acknowledged.add(self.flush)
            self.flush = 0


class PlainPromoter:
    """A promoter. `run` stops at each point at which anything else may happen."""

    def __init__(self, world: World, region: str, shards_free: Callable[[], bool]) -> None:
        self.world = world
        self.region = region
        self.shards_free = shards_free
        self.waits_for: PromotionStep | None = None

    def rules(self, entry: Primary, reports: Mapping[str, ServerReport], *, shards_free: bool) -> Promotion:
        return Promotion(entry, reports, shards_free=shards_free)

    def run(self) -> Generator[None]:
        while True:
            yield from self.round()

    def round(self) -> Generator[None]:
        """Connect to all servers, then read the entry, then the servers, and carry one step out."""
        connections: dict[str, tuple[int, int]] = {}
        for name in REGIONS:
            if self.world.reaches(self.region, name):
                connections[name] = self.connect(name)
            yield
        entry, version = self.world.entry, self.world.version
        yield
        reports: dict[str, ServerReport] = {}
        yield from self.observe(entry, connections, reports)
        step = self.rules(entry, reports, shards_free=self.shards_free()).next_step()
        self.waits_for = step
        yield
        if isinstance(step, ReplaceEntry):
            self.keep_named(entry, reports, step.entry)
            self.world.replace_entry(step.entry, version)
        elif isinstance(step, SendCommand) and self.has(connections, step.server):
            self.world.servers[step.server].carry_out(step)
            yield

    def keep_named(self, entry: Primary, reports: Mapping[str, ServerReport], after: Primary) -> None:
        """Note a named server whose transactions the next entry leaves out."""
        is_chosen = entry.state is PrimaryState.REVOKING and after.state is PrimaryState.FENCED
        if not is_chosen or not entry.loss_accepted or not entry.target:
            return
        named, position = reports.get(entry.target), after.position
        if named is None or position is None or not position.covers(named.received or named.applied):
            self.world.passed_over = entry.target

    def connect(self, name: str) -> tuple[int, int]:
        """Connect to a server, and end the connections of all other promoters there."""
        self.world.last_connection += 1
        server = self.world.servers[name]
        server.end_promoters(self.world.last_connection)
        return server.boot, server.promoter

    def has(self, connections: Mapping[str, tuple[int, int]], name: str) -> bool:
        server = self.world.servers[name]
        return self.world.reaches(self.region, name) and connections.get(name) == (server.boot, server.promoter)

    def observe(
        self, entry: Primary, connections: Mapping[str, tuple[int, int]], reports: dict[str, ServerReport]
    ) -> Generator[None]:
        """Read the standings, then the primary, then the replicas and their standings again."""
        standings = {name: self.world.servers[name].standing for name in connections if self.has(connections, name)}
        yield
        for name in (entry.server, *(each for each in REGIONS if each != entry.server)):
            if name in standings and self.has(connections, name):
                server = self.world.servers[name]
                flags = self.report(server)
                yield
                if self.has(connections, name):
                    with_position = self.report(server)
                    standing = server.standing if server.standing == standings[name] else ""
                    reports[name] = replace(
                        flags, standing=standing, received=with_position.received, applied=with_position.applied
                    )

    def complaint(self, server: PlainServer) -> str:
        if server.is_receiving and server.name in self.world.locked:
            return "its reception ended: its account is locked"
        return "its SQL thread stands" if server.source and not server.is_applying else ""

    def report(self, server: PlainServer) -> ServerReport:
        return ServerReport(
            term=server.term,
            is_read_only=server.is_read_only,
            waits_for_acks=server.waits_for_acks,
            kept_log=server.kept_log,
            source=server.source,
            is_receiving=server.is_receiving,
            acknowledges=server.acknowledges,
            standing=server.standing,
            received=server.received_position() if server.knows_received else None,
            applied=server.applied_position(),
            complaint=self.complaint(server),
            heard=self.world.heard(server),
            acknowledgers=self.world.acknowledgers(server),
            unacknowledged=server.unacknowledged,
        )
