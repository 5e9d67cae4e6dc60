"""Random histories of regions: drains, losses, partitions, restarts with and without a cut log, slow replicas, acks on their
way, hosts with an old view, and promoters that stop anywhere and go on later.

`play` returns the first broken promise, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from random import Random
from typing import Final

from shardmgr.primary import DatabaseServer, LossPolicy, Primary, PrimaryState
from shardmgr.primary_changes import (
    PromotionRefused,
    abort,
    accept_loss,
    admit_acker,
    first_entry,
    start_drain,
    start_revoking,
)
from shardmgr.promotion import AwaitChange
from tests.support.plain_regions import REGIONS, PlainHost, PlainPromoter, PlainServer, World, position_of

SERVERS: Final = {name: DatabaseServer(name, number) for number, name in enumerate(REGIONS, 1)}
STEPS: Final = 400
REST_ROUNDS_MAX: Final = 400


class PromiseBroken(Exception):
    """A promise of docs/design/regions.md does not hold."""


class RegionHistory:
    """One history of three regions with a host and a promoter each."""

    host_type: type[PlainHost] = PlainHost
    promoter_type: type[PlainPromoter] = PlainPromoter
    policies: tuple[LossPolicy, ...] = (LossPolicy.SEMI_SYNC, LossPolicy.SEMI_SYNC, LossPolicy.ASYNC)

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.names = Random(seed)
        self.world = self.first_world(self.random.choice(self.policies))
        self.hosts = [self.host_type(self.world, region) for region in REGIONS]
        self.promoters = [self.promoter_type(self.world, region, self.shards_free) for region in REGIONS]
        self.runs: list[Generator[None]] = [promoter.run() for promoter in self.promoters]
        self.elected = self.random.choice(self.runs)
        self.last_term = self.world.entry.term
        steps: tuple[tuple[Callable[[], None], tuple[int, ...]], ...] = (
            (self.run_promoter, (40, 40, 15)),
            (self.run_host, (40,)),
            (self.replicate, (60, 30)),
            (self.kill_or_start, (1, 4)),
            (self.cut_or_heal, (1, 4)),
            (self.administer, (1, 3)),
            (self.touch_replication, (1, 8)),
            (self.end_or_begin_session, (1, 4)),
        )
        self.speeds = [self.random.choice((10, 10, 1)) for _ in REGIONS]
        self.apply_weight = self.random.choice((3, 1, 0.2))
        self.kinds = [kind for kind, _ in steps]
        self.weights = [self.random.choice(weights) for _, weights in steps]

    def first_world(self, policy: LossPolicy) -> World:
        """Return a database whose first primary serves."""
        world = World(Primary(1, "r1", policy, {"r2": "", "r3": ""}, servers=SERVERS))
        first = world.servers["r1"]
        first.append(term=1)
        first.is_read_only, first.waits_for_acks, first.freed = False, policy is LossPolicy.SEMI_SYNC, 1
        for name in ("r2", "r3"):
            world.servers[name].log = list(first.log)
            world.servers[name].acknowledges = True
            world.servers[name].start_receiving("r1")
        return world

    def shards_free(self) -> bool:
        """No host may still acknowledge; while draining, an overdue host does not count."""
        overdue = self.world.entry.state is PrimaryState.DRAINING and self.random.random() < 0.3
        return overdue or not any(host.holds_shard for host in self.hosts)

    # -------------------------------------------------------------------- steps

    def step(self) -> None:
        if self.world.entry.state in (PrimaryState.REVOKING, PrimaryState.FENCED) and self.random.random() < 0.02:
            self.administer()
        self.random.choices(self.kinds, self.weights)[0]()
        self.check()

    def run_promoter(self) -> None:
        """Let the elected promoter work, or one that still believes to be elected."""
        if self.random.random() < 0.03:
            self.elected = self.random.choice(self.runs)
        run = self.elected if self.random.random() < 0.9 else self.random.choice(self.runs)
        for _ in range(self.random.choice((1, 15, 30, 60))):
            next(run)

    def run_host(self) -> None:
        """Let the host work that owns the shard, or another one."""
        owners = [host for host in self.hosts if host.server is not None]
        host = self.random.choice(owners if owners and self.random.random() < 0.9 else self.hosts)
        if self.random.random() < 0.7:
            self.use_queue(host)
            return
        for _ in range(self.random.choice((1, 3, 6))):
            kind = self.random.choice(("follow", "connect", "flush", "flush", "flush", "poll", "poll", "poll", "lose"))
            if kind == "follow":
                host.follow_entry()
            elif kind == "connect" and (host.server is None or self.random.random() < 0.1):
                host.connect(host.entry.server if self.random.random() < 0.8 else self.random.choice(REGIONS))
            elif kind == "flush":
                host.begin_flush()
            elif kind == "poll":
                host.poll()
            elif kind == "lose" and self.random.random() < 0.2:
                host.lose_connection()

    def use_queue(self, host: PlainHost) -> None:
        """Let a host do what it can do next."""
        if host.server is None:
            host.follow_entry()
            host.connect(host.entry.server)
        host.poll()
        host.begin_flush()
        host.poll()

    def replicate(self) -> None:
        """Let one replica receive, apply, or have its acks delivered."""
        [name] = self.random.choices(REGIONS, self.speeds)
        [kind] = self.random.choices(("receive", "apply", "acks"), (3, self.apply_weight, 3))
        for _ in range(self.random.choice((1, 4, 10))):
            if kind == "receive":
                self.world.receive(name)
            elif kind == "apply" and self.world.servers[name].alive:
                self.world.servers[name].apply_next()
            elif kind == "acks" and self.world.acks:
                self.world.deliver(self.random.choice(self.world.acks))

    def kill_or_start(self) -> None:
        dead = [server for server in self.world.servers.values() if not server.alive]
        if not dead:
            self.random.choice(list(self.world.servers.values())).kill9()
        elif self.random.random() < 0.7:
            server = self.random.choice(dead)
            # A log is cut only to rejoin. The primary is started so by mistake, once in a while.
            server.start(cuts=server.name == self.world.entry.server and self.random.random() < 0.2)

    def cut_or_heal(self) -> None:
        if self.world.cut:
            self.world.cut.clear()
        else:
            links = [frozenset(pair) for pair in (("r1", "r2"), ("r1", "r3"), ("r2", "r3"))]
            self.world.cut.update(self.random.sample(links, self.random.choice((1, 2))))

    def administer(self) -> None:
        world, entry = self.world, self.world.entry
        serves = entry.state is PrimaryState.SERVING
        kinds = ("drain", "lost", "rejoin") if serves else ("lost", "accept", "abort", "abort")
        kind = self.random.choice(kinds)
        with suppress(PromotionRefused):
            if kind == "drain" and entry.ackers:
                world.replace_entry(start_drain(entry, self.random.choice(sorted(entry.ackers))), world.version)
            elif kind == "lost":
                world.replace_entry(start_revoking(entry), world.version)
            elif kind == "accept" and (entry.policy is LossPolicy.ASYNC or self.random.random() < 0.1):
                world.replace_entry(self.accept_any_loss(entry), world.version)
            elif kind == "abort" and world.servers[entry.server].alive:
                world.replace_entry(abort(entry), world.version)
            elif kind == "rejoin":
                self.rejoin(self.random.choice(REGIONS))

    def rejoin(self, name: str) -> None:
        """Bring a server back as an acker: its log is cut, and if it has still more than the primary, it is copied."""
        entry, server = self.world.entry, self.world.servers[name]
        primary = self.world.servers[entry.server]
        follows = server.log == primary.log[: len(server.log)]
        if name == entry.server or not primary.alive or not self.has_all(primary):
            return
        if name in entry.ackers and follows:
            return
        server.kill9()
        server.start(cuts=True)
        if server.log != primary.log[: len(server.log)]:
            server.log = list(primary.log)
        self.world.replace_entry(admit_acker(entry, name), self.world.version)

    def has_all(self, primary: PlainServer) -> bool:
        """Return whether other servers may be overwritten by copies of the primary: it is open, or the chosen target."""
        entry = self.world.entry
        if entry.state is PrimaryState.PROMOTING and entry.position is not None:
            return position_of(primary.log).covers(entry.position)
        return entry.state is PrimaryState.SERVING and not primary.is_read_only

    def touch_replication(self) -> None:
        """Somebody stops or starts a thread of a replica, without asking whether a term ends."""
        server = self.world.servers[self.random.choice(REGIONS)]
        if not server.alive or not server.source:
            return
        kind = self.random.choice(("stop applying", "start applying", "start applying", "restart"))
        if kind == "stop applying":
            server.is_applying = False
        elif kind == "start applying":
            server.start_applying()
        else:
            server.is_receiving = server.is_applying = False
            server.start_receiving(server.source)

    def end_or_begin_session(self) -> None:
        host = self.random.choice(self.hosts)
        ended = [host for host in self.hosts if not host.in_session]
        if ended:
            ended[0].begin_session()
        else:
            host.end_session()

    # ------------------------------------------------------------------- checks

    def check(self) -> None:
        world, entry = self.world, self.world.entry
        primary = world.servers[entry.server]
        serves = entry.state is PrimaryState.SERVING and primary.alive and not primary.is_read_only
        begins = entry.state is PrimaryState.PROMOTING and entry.term > self.last_term
        self.last_term = entry.term
        if world.passed_over:
            raise PromiseBroken(f"{world.passed_over} was named when a loss was accepted, and it was passed over")
        if (serves or begins) and not world.loss_accepted:
            lost = world.acknowledged - primary.flushes
            if lost:
                raise PromiseBroken(
                    f"flushes {sorted(lost)} were acknowledged, and {primary.name} becomes the primary without them"
                )
            back = world.denied & primary.flushes
            if back:
                raise PromiseBroken(f"flushes {sorted(back)} were not committed, and are there")

    def check_no_late_ack(self, acknowledged_before: set[int]) -> None:
        entry = self.world.entry
        if (
            entry.state is PrimaryState.SERVING
            and self.world.acknowledged - acknowledged_before - self.world.servers[entry.server].flushes
        ):
            raise PromiseBroken("a server of an earlier term acknowledged after the next one served")

    def check_rest(self) -> None:
        """When everything is healed, one primary serves, and hosts commit there."""
        self.world.cut.clear()
        for server in self.world.servers.values():
            if not server.alive:
                server.start()
        for host in self.hosts:
            host.begin_session()
        run = self.promoters[0].run()
        acknowledged = len(self.world.acknowledged)
        for _ in range(REST_ROUNDS_MAX):
            for _ in range(15):
                next(run)
            self.settle_replication()
            self.settle_hosts()
            self.check()
            if len(self.world.acknowledged) > acknowledged + 3:
                return
            self.help_promoter()
        raise PromiseBroken(f"the database does not come to rest: {self.world.entry}, {self.promoters[0].waits_for}")

    def settle_replication(self) -> None:
        for _ in range(3):
            for name in REGIONS:
                server = self.world.servers[name]
                if server.source and not server.is_applying:
                    server.start_applying()
                self.world.receive(name)
                server.apply_next()
            for ack in list(self.world.acks):
                self.world.deliver(ack)

    def settle_hosts(self) -> None:
        for other in self.hosts[1:]:
            other.follow_entry()
            other.lose_connection()
        self.hosts[0].follow_entry()
        self.use_queue(self.hosts[0])

    def help_promoter(self) -> None:
        """Do what an administrator does if the promoter says what is missing: go on with the primary, which is there again.

        A term that has no acker, and nothing else that is missing, gets one that rejoins.
        """
        world, entry = self.world, self.world.entry
        waits_for = self.promoters[0].waits_for
        lacks_ackers = entry.state is PrimaryState.PROMOTING and not entry.ackers
        lacks_ackers = lacks_ackers and self.has_all(world.servers[entry.server])
        if isinstance(waits_for, AwaitChange) and waits_for.missing and not lacks_ackers:
            kept = world.servers[entry.server].kept_log
            replaceable = not entry.has_served or (not kept and entry.ackers)
            changes = (start_revoking, self.accept_any_loss) if replaceable else (abort,)
            for change in changes:
                with suppress(PromotionRefused):
                    world.replace_entry(change(entry), world.version)
        for name in REGIONS:
            self.rejoin(name)

    def accept_any_loss(self, entry: Primary) -> Primary:
        return accept_loss(entry, self.names.choice(("", *entry.ackers)))


class ExistingDatabase(RegionHistory):
    """A database that has data, and whose entry was just made: hosts without an entry still write to its server.

    Its servers were not replicated all the time.
    """

    policies = (LossPolicy.SEMI_SYNC,)

    def first_world(self, policy: LossPolicy) -> World:
        servers = {name: PlainServer(name) for name in REGIONS}
        first = servers["r1"]
        first.is_read_only = False
        for flush in range(1, 4):
            first.append(flush=flush)
        first.freed = len(first.log)
        servers["r2"].log = first.log[: self.random.randrange(len(first.log))]
        servers["r3"].log = first.log[: self.random.randrange(len(first.log) + 1)]
        return World(
            first_entry("r1", policy, SERVERS), servers=servers, acknowledged=first.flushes, last_flush=len(first.log)
        )

    def run_host(self) -> None:
        """Let a host write that knows no entry, as long as the server accepts it."""
        first, world = self.world.servers["r1"], self.world
        if world.entry.term == 1 and not first.is_read_only and first.alive and not world.entry.has_served:
            world.last_flush += 1
            first.append(flush=world.last_flush)
            first.freed = len(first.log)
            world.acknowledged.add(world.last_flush)
        super().run_host()


def play(seed: int, history_type: type[RegionHistory] = RegionHistory, *, rests: bool = True) -> str | None:
    """Play one history. Return what is wrong, or None. `rests`: heal everything at the end, and wait until hosts commit."""
    history = history_type(seed)
    try:
        for _ in range(STEPS):
            acknowledged = set(history.world.acknowledged)
            history.step()
            history.check_no_late_ack(acknowledged)
        if rests:
            history.check_rest()
    except PromiseBroken as broken:
        return f"seed {seed}: {broken}"
    return None
