"""The narrow interface between a shard and the database that holds it.

One `Store` is one shard's connection for writing; beside it, `Reads` are
connections of their own. The owner of either calls one method at a time and
never cancels one: a call ends with its result or with one of the errors below,
each of which says what is known about the write. After `StoreLost`, or a call
that was cancelled after all, every method but `owner`, `open` and `close`
raises `StoreLost` until `owner` or `open` succeeded. Three implementations
(memory, SQLite, MySQL) pass one contract suite, tests/contract.

Fault points, for tests: a store calls `faults(point)` at each of `FAULT_POINTS`; the
hook may raise `StoreLost` to play a connection that breaks there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from foqs.core.flush.fence import Fence, Owner
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import OrderKey, Row, State, TopicName

FAULT_POINTS: Final = ("begin", "fenced", "read", "written", "committed")
"""begin: before the transaction; fenced: after the fence; read: after the rows
were read; written: all results read, COMMIT not sent yet; committed: the
database committed, the reply to COMMIT not read yet."""

FaultHook: TypeAlias = Callable[[str], None]


def no_faults(point: str) -> None:
    """The hook of everyday life."""


class StoreError(Exception):
    """What a store reports. The text is for a person: what is wrong, what to do."""


class StoreLost(StoreError):
    """The connection broke or the database went away; a flush under way may or may not have committed.

    Call `owner` before anything else; until it answers nothing is known.
    """


class WriteRefused(StoreError):
    """The database refused a statement and the transaction was rolled back: nothing was written.

    `is_retryable`: the same flush may succeed when simply run again (a deadlock, a lock
    wait). `is_full`: there is no room, whatever stands in it. Otherwise something in
    it is not acceptable.
    """

    def __init__(self, message: str, *, is_retryable: bool = False, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_retryable = is_retryable
        self.is_full = is_full


class IdempotencyKeyExists(WriteRefused):
    """A new key's row is there already: nothing was written. Run the same flush again with its keys read."""


class FencedOut(StoreError):
    """The fence matched no row: another owner took over, or this flush's number is not the next. Nothing was written."""


class Superseded(StoreError):
    """A takeover's epoch is not higher than the one in the owner row, `seen_epoch`."""

    def __init__(self, seen_epoch: int) -> None:
        super().__init__(f"the shard already has epoch {seen_epoch}; take over with a higher one")
        self.seen_epoch = seen_epoch


class StoreUnusable(StoreError):
    """The store must not be used as it is: schema newer than the program, weak durability settings, missing rights."""


ANY_LENGTH: Final = (1 << 31) - 1
"""No payload is longer."""

KEY_EXPIRY_ROWS_MAX: Final = 500
"""Rows of keys that one flush clears away at most: a few milliseconds of the database's time."""


@dataclass(slots=True)
class LeaseUpdate:
    """Rows that take equal values in the columns that a lease changes; LEASED, or what its end or a delay's makes of them."""

    due_ms: int | None
    token: int
    attempt: int
    ids: list[int]
    state: State = State.LEASED


@dataclass(slots=True)
class Writes:
    """What one flush changes, as absolute values. An id stands in one of the first four at most.

    `updates` carry whole rows; a store writes their mutable columns (priority,
    deliver_after_ms, expires_at_ms, metadata, state, due_ms, token, attempt). A
    delete, a lease or an update of a row that is not there changes nothing; an
    insert of an id that is there refuses the whole flush. The names of
    `topics_added` enter the topics table, where they may be already; those of
    `topics_removed` leave it, and a name that stands in both is in it afterwards.
    A row of `keys` that is there already refuses the whole flush with `IdempotencyKeyExists`;
    those of `idempotency_keys_replaced` take the place of what is there. Then some rows that
    are over by `keys_expired_by_ms` leave, the oldest first, at most `KEYS_OVER_PAGE`.
    `key_slots_added` enter the slots table, where they may be already. The cuts of
    `purge_markers_removed` leave their table, unless they have risen; those of `cuts` enter it,
    each in place of its topic's former one.
    """

    deletes: list[int] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)
    inserts: list[Row] = field(default_factory=list)
    leases: list[LeaseUpdate] = field(default_factory=list)
    topics_added: list[TopicName] = field(default_factory=list)
    topics_removed: list[TopicName] = field(default_factory=list)
    idempotency_keys_added: list[IdempotencyKey] = field(default_factory=list)
    idempotency_keys_replaced: list[IdempotencyKey] = field(default_factory=list)
    keys_expired_by_ms: int | None = None
    key_slots_added: Sequence[int] = ()
    purge_markers_added: list[PurgeMarker] = field(default_factory=list)
    purge_markers_removed: list[PurgeMarker] = field(default_factory=list)


def check_not_behind(committed: Fence, owner: Owner) -> None:
    """What an owner row says of the database that is read from.

    Raises:
        StoreLost: it is another owner's, or does not have the flush `committed`.
    """
    if (owner.epoch, owner.nonce) != (committed.epoch, committed.nonce) or owner.flush < committed.flush:
        raise StoreLost(
            f"read from a database whose owner row shows epoch {owner.epoch}, flush {owner.flush}, "
            f"where epoch {committed.epoch}, flush {committed.flush} was committed"
        )


Decide: TypeAlias = Callable[[Mapping[int, Row], Mapping[KeyName, IdempotencyKey]], Writes]
"""Pure: the rows and the keys' rows that were found go in, what to write comes out. It may run in another thread."""


@dataclass(slots=True, frozen=True)
class DueRow:
    """A row whose `due_ms` has come."""

    due_ms: int
    id: int


@dataclass(slots=True, frozen=True)
class TopicCount:
    """How many rows a topic has in one state, the bytes of their payloads, and how many of the rows a cut covers."""

    namespace: str
    topic: str
    state: State
    rows: int
    payload_bytes: int
    purged_rows: int = 0


class Store(Protocol):
    """One shard's tables, seen through one connection.

    Every method but `close` raises `StoreLost` when the database cannot be
    reached.
    """

    async def open(self) -> None:
        """Connects, checks the durability settings, and creates or migrates the tables.

        Raises:
            StoreUnusable: the tables are newer than this program, or the settings
                are too weak, or rights are missing; the text says which and the remedy.
        """
        ...

    async def now_ms(self) -> int:
        """The database's clock: milliseconds since 1970-01-01 UTC."""
        ...

    async def take_over(self, epoch: int, nonce: str) -> Owner:
        """Makes (epoch, nonce) the owner, at flush 0, and returns the row as it then stands.

        `clock_ms` in it is what the former owner saved last. Taking over again
        with the same epoch and nonce succeeds, so that a lost reply is harmless.
        On a server the former owner's recorded connection is ended in any case,
        so that nothing it still has under way can commit.

        Raises:
            Superseded: the row's epoch is not lower, and it is not ours.
        """
        ...

    async def read_owner(self) -> Owner:
        """Connects anew after `StoreLost` and reads the owner row.

        The old connection is closed or killed first and the row is read with a
        lock, so that no earlier statement of ours can still take effect
        afterwards. When the row shows the ownership that this store took over,
        the new connection is recorded in it. The settings that `open` checks are
        checked again: a server may come back with others.

        Raises:
            StoreLost: also where the server may lose acknowledged writes, or takes none; call again.
            StoreUnusable: the database answers, but what it holds is damaged, or its
                tables are newer than this program.
        """
        ...

    async def flush(
        self,
        fence: Fence,
        row_ids: Sequence[int],
        payload_limits: Mapping[int, int],
        key_names: Sequence[KeyName],
        decide: Decide,
    ) -> None:
        """One transaction: fence, read, decide, write, commit.

        Where nothing is to be read, `decide` may be asked before the fence, so that
        all of it travels at once; a fence that matches nothing undoes it.

        The rows of `row_ids` are read without their payload and those of `payload_limits`
        with it (ids are in one of the two; a missing row is simply not in the
        mapping), and the rows of `key_names`. `payload_limits` says of each id how long its
        payload may be: a row with a longer one is read without it. When this returns, the writes of `decide` are committed and
        durable. COMMIT is sent only after every statement's result was read. What
        `decide` raises is passed on, and nothing was written.

        Raises:
            FencedOut, IdempotencyKeyExists, WriteRefused: nothing was written, and never will be.
            StoreLost: not known; call `owner`.
        """
        ...

    async def topics(self) -> list[TopicName]:
        """The topics table, in no particular order: every topic that has a row, and perhaps some that had one."""
        ...

    async def key_slots(self) -> list[int]:
        """The slots of keys that this shard holds, in order."""
        ...

    async def purge_markers(self) -> list[PurgeMarker]:
        """The cuts that stand, in no particular order."""
        ...

    async def next_key_expiry_ms(self) -> int | None:
        """The least `until_ms` of any key's row; None when there is none."""
        ...

    def reads(self) -> Reads:
        """A connection for reading beside the flushes; connects with its first call."""
        ...

    async def due_rows(self, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        """Rows with low_ms <= due_ms <= high_ms above `after`, ordered by (due_ms, id), at most `limit`.

        `low_ms` None: no lower bound.
        """
        ...

    async def rows(self, ids: Sequence[int]) -> list[Row]:
        """The rows of these ids that exist, without payload, in no particular order."""
        ...

    async def next_due_ms(self, above_ms: int) -> int | None:
        """The least due_ms above `above_ms`; None when there is none."""
        ...

    async def close(self) -> None:
        """Closes the connection. Never raises; may be called twice."""
        ...


class Reads(Protocol):
    """One shard's tables, read beside its flushes.

    `past` is a flush known to be committed when the call begins: the answer shows
    at least that flush, and of every later one all or nothing. What is read may
    be stale when it arrives; whoever uses it must know what changed meanwhile.

    Every method but `close` raises `StoreLost` when the database cannot be
    reached, or is one that does not have `past` (another owner's, or a copy that is
    behind); the next call connects anew.
    """

    async def rows(self, committed: Fence, ids: Sequence[int], payload_bytes_max: int = ANY_LENGTH) -> list[Row]:
        """The rows of these ids that exist, in no particular order; those with a longer payload than that without it."""
        ...

    async def ready_keys(
        self, committed: Fence, topic: TopicName, after: OrderKey | None, limit: int, purged_up_to: int = 0
    ) -> list[OrderKey]:
        """The next READY keys of a topic above `after`, in order, at most `limit`, of ids above `purged_up_to`."""
        ...

    async def list_rows(
        self,
        committed: Fence,
        topic: TopicName,
        state: State,
        after: OrderKey | None,
        limit: int,
        purged_up_to: int = 0,
        *,
        with_payload: bool,
    ) -> list[Row]:
        """As `ready`, for the rows in any state, with or without payload."""
        ...

    async def idempotency_key_of(self, committed: Fence, number: int, until_ms: int) -> bytes | None:
        """The idempotency key whose row names this item and has this `until_ms`; None when there is none.

        Rows of keys are found by their end: it reads those of that one millisecond.
        """
        ...

    async def begin_snapshot(self, committed: Fence) -> None:
        """From now until `close`, `counts` shows the tables as they are at this moment, whatever is written.

        Only `counts` and `close` may follow, until one of them raised `StoreLost`.
        The database keeps what it shows meanwhile: close soon.
        """
        ...

    async def counts(self) -> list[TopicCount]:
        """Rows by topic and state, over the whole shard, in the snapshot."""
        ...

    async def close(self) -> None:
        """Closes the connection. Never raises; may be called twice. No call may follow."""
        ...
