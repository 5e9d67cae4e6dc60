"""The servers of `plain_regions` with the tables of shards, under virtual time, and what moves between them.

Holds `ReplicatedServer` and `Replication`. Always true: the tables of a server are what the beginning of its log that
readers see makes of empty tables, also after a start that has cut the log; a COMMIT returns when an acker has its
transaction, if the server waits for acks, and never if the server dies first; a replica applies nothing to rows that a
connection has locked. Knows nothing of hosts and entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, fields
from random import Random
from typing import Final, TypeAlias

from foqs.store.in_memory.memory_table import ShardTables
from shardmgr.primary import ReplicationPosition
from shardmgr.promotion import SendCommand, ServerCommand
from tests.support.plain_regions import Ack, PlainServer, Transaction, World

Effect: TypeAlias = Callable[[ShardTables], None]

_HOP_MS: Final = (0.5, 5.0)
"""How long a transaction, or an acknowledgement, is on its way."""
_LOCK_RETRY_S: Final = 0.05
_AT_ONCE_MAX: Final = 50
"""The most transactions that a replica receives, or applies, in one step."""


class CommitFailed(Exception):
    """The server refused a COMMIT, or died before an acker had its transaction."""


@dataclass(slots=True, frozen=True)
class DataTransaction(Transaction):
    """A transaction of a shard, and what it does to its tables. `flush` numbers all of them, takeovers too.

    Attributes:
        inserted: how many items it inserts; None: it is no flush.
    """

    shard: int = 0
    effect: Effect | None = field(default=None, compare=False)
    inserted: int | None = None


class ReplicatedServer(PlainServer):
    """One server of a database, with the tables of its shards.

    Args:
        changed: called when another server may have something to receive, or this one.

    Attributes:
        cut_off: what its last start has cut off its log, until a promoter opens it or its log is replaced.
        end_hosts: ends the connections of hosts: called when it dies, and when it is told to follow.
        on_opened: called when a promoter lets it accept commits.
    """

    def __init__(self, name: str, shards: Iterable[int], changed: Callable[[], None]) -> None:
        self.tables = {shard: ShardTables() for shard in shards}
        self.cut_off: list[Transaction] = []
        self.end_hosts: Callable[[], None] = lambda: None
        self.on_opened: Callable[[], None] = lambda: None
        self._changed = changed
        self._acked = 0
        self._visible: list[Transaction] = []
        """The transactions whose effects are in the tables."""
        self._visible_term = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """The COMMITs that wait for an ack: how many transactions the log had with each."""
        self._known: list[Transaction] = []
        """The transactions that `_last` counts."""
        self._last: dict[str, int] = {}
        super().__init__(name)

    # ------------------------------------------------------------------- commits

    @property
    def waiting_commits(self) -> int:
        """How many COMMITs wait for an ack."""
        return len(self._waiting)

    @property
    def acked(self) -> int:
        return self._acked

    @acked.setter
    def acked(self, count: int) -> None:
        self._acked = count
        self._show()

    async def commit(
        self, shard: int, epoch: int, flush: int, effect: Effect, inserted: int | None = None
    ) -> DataTransaction:
        """Write a transaction to the log, and return it when COMMIT returns. Raises CommitFailed: readers may see it later."""
        if self.is_read_only or not self.alive:
            raise CommitFailed(f"{self.name} is read-only")
        number = self.log[-1].number + 1 if self.log else 1
        transaction = DataTransaction(self.name, number, flush, epoch, 0, shard, effect, inserted)
        self.log.append(transaction)
        count = len(self.log)
        self._changed()
        if self.is_durable(count):
            self._show()
        else:
            returned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((count, returned))
            await returned
        return transaction

    def begin_with(self, log: list[Transaction]) -> None:
        """Make its log a copy of another one, as a rebuild does."""
        self.log = list(log)
        self.relay, self.cut_off = [], []
        self.freed = len(self.log)
        self._show()

    def is_locked(self, transaction: Transaction) -> bool:
        """Return whether a connection of a host holds a row that a transaction changes, so that it cannot be applied yet."""
        return isinstance(transaction, DataTransaction) and self.tables[transaction.shard].locked_by is not None

    def tables_with_all(self) -> Mapping[int, ShardTables]:
        """Return what its whole log makes of empty tables, with what was cut off."""
        tables = {shard: ShardTables() for shard in self.tables}
        for transaction in self.log + self.cut_off:
            _take_effect(transaction, tables)
        return tables

    def _show(self) -> None:
        """Make the tables what readers see, and let COMMITs return."""
        count = max(self._acked, self.freed) if self.waits_for_acks else len(self.log)
        seen = self._visible
        if seen and (len(seen) > len(self.log) or self.log[len(seen) - 1] is not seen[-1]):
            self._clear()
        for transaction in self.log[len(self._visible) : count]:
            self._visible.append(transaction)
            self._visible_term = max(self._visible_term, transaction.term)
            _take_effect(transaction, self.tables)
        done = [each for each in self._waiting if self.is_durable(each[0])]
        self._waiting = [each for each in self._waiting if each not in done]
        for _, returned in done:
            if not returned.done():
                returned.set_result(None)

    def _clear(self) -> None:
        """Empty the tables: the log was cut, or replaced."""
        self._visible = []
        self._visible_term = 0
        for tables in self.tables.values():
            fresh = ShardTables()
            for each in fields(ShardTables):
                if each.name not in ("locked_by", "unlocked"):
                    setattr(tables, each.name, getattr(fresh, each.name))

    # ----------------------------------------------------------- of `PlainServer`

    @property
    def term(self) -> int:
        return self._visible_term

    def reset(self) -> None:
        self.waits_for_acks = False
        super().reset()

    def kill9(self) -> None:
        super().kill9()
        waiting, self._waiting = self._waiting, []
        for _, returned in waiting:
            if not returned.done():
                returned.set_exception(CommitFailed(f"{self.name} died"))
        self.end_hosts()

    def start(self, *, cuts: bool = False) -> None:
        log = self.log
        super().start(cuts=cuts)
        self.cut_off = log[len(self.log) :] if cuts else self.cut_off
        self._show()
        self._changed()

    def append(self, *, flush: int = 0, epoch: int = 0, term: int = 0) -> int:
        count = super().append(flush=flush, epoch=epoch, term=term)
        self._show()
        return count

    def end_promoters(self, newest: int) -> None:
        super().end_promoters(newest)
        self._show()

    def apply_next(self) -> None:
        super().apply_next()
        self._show()

    def carry_out(self, step: SendCommand) -> None:
        if step.command is ServerCommand.FOLLOW:
            self.end_hosts()
        super().carry_out(step)
        self._show()
        self._changed()
        if step.command is ServerCommand.OPEN:
            self.cut_off = []
            self.on_opened()

    def is_contained_in(self, log: list[Transaction]) -> bool:
        """By the last transaction: logs that have the same one are the same up to it."""
        has = self.relay or self.log
        count = len(self.log) + len(self.relay)
        return not has or (count <= len(log) and log[count - 1] is has[-1])

    def applied_position(self) -> ReplicationPosition:
        known = self._known
        if known and (len(known) > len(self.log) or self.log[len(known) - 1] is not known[-1]):
            self._known, self._last = [], {}
        for transaction in self.log[len(self._known) :]:
            self._known.append(transaction)
            self._last[transaction.origin] = transaction.number
        return ReplicationPosition(dict(self._last))

    def received_position(self) -> ReplicationPosition:
        applied = self.applied_position().last
        return ReplicationPosition({**applied, **{each.origin: each.number for each in self.relay}})


def _take_effect(transaction: Transaction, tables: Mapping[int, ShardTables]) -> None:
    """Do to the tables of a server what a transaction does."""
    if isinstance(transaction, DataTransaction) and transaction.effect is not None:
        transaction.effect(tables[transaction.shard])


class Replication:
    """Moves transactions and acks between the servers of one database, and lets replicas apply them.

    Attributes:
        applies_from_s: by server, until when its SQL thread does nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: Random, world: World) -> None:
        self.applies_from_s: dict[str, float] = {}
        self._loop = loop
        self._rng = rng
        self._world = world
        self._context = copy_context()
        self._is_due = False

    def wake(self) -> None:
        """Look at all servers soon."""
        if not self._is_due:
            self._is_due = True
            self._later(self._hop_s(), self._run)

    def _run(self) -> None:
        self._is_due = False
        moved = [self._receive(name) + self._apply(name) for name in self._world.servers]
        if any(moved):
            self.wake()

    def _receive(self, name: str) -> int:
        """Let a replica receive; return how much has changed. It acknowledges the last of it."""
        world = self._world
        replica = world.servers[name]
        if not (replica.alive and replica.is_receiving) or not world.is_connected(replica):
            return 0
        before, acks = len(replica.log) + len(replica.relay), len(world.acks)
        for _ in range(_AT_ONCE_MAX):
            held = len(replica.relay)
            world.receive(name)
            if len(replica.relay) == held:
                break
        sent = world.acks[acks:]
        if sent:
            del world.acks[acks:-1]
            if all(each != sent[-1] for each in world.acks[:-1]):
                self._later(self._hop_s(), self._deliver, sent[-1])
            else:
                world.acks.pop()
        return len(replica.log) + len(replica.relay) - before

    def _apply(self, name: str) -> int:
        replica = self._world.servers[name]
        if not (replica.alive and replica.relay and replica.is_applying):
            return 0
        wait_s = self.applies_from_s.get(name, 0.0) - self._loop.time()
        if wait_s > 0:
            self._later(wait_s, self.wake)
            return 0
        assert isinstance(replica, ReplicatedServer)
        for count in range(_AT_ONCE_MAX):
            if not replica.relay:
                return count
            if replica.is_locked(replica.relay[0]):
                self._later(_LOCK_RETRY_S, self.wake)
                return count
            replica.apply_next()
        return _AT_ONCE_MAX

    def _deliver(self, ack: Ack) -> None:
        """Deliver an ack. One that was sent before its server died may still arrive."""
        if ack in self._world.acks:
            self._world.deliver(ack)

    def _hop_s(self) -> float:
        return self._rng.uniform(*_HOP_MS) / 1000

    def _later(self, delay_s: float, call: Callable[..., None], *arguments: object) -> None:
        """Call later, outside of all processes: a host that asks for something may die before."""
        self._loop.call_later(delay_s, call, *arguments, context=self._context.copy())
