"""The narrow interface between a shard and the database that holds it.

A `Store` is a shard's connection for writing. `Reads` are separate connections
for reading. The caller of either runs one method at a time and never cancels
it. A call ends with its result or with one of the errors below; each error
says what is known about the write. After `StoreLost` or a cancelled call, every
method but `read_owner`, `open` and `close` raises `StoreLost` until `read_owner`
or `open` succeeds. Three implementations (memory, SQLite, MySQL) pass one
contract suite, tests/contract.

Fault points, for tests: a store calls `faults(point)` at each of `FAULT_POINTS`.
The hook may raise `StoreLost` to simulate a connection that breaks there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from foqs.core.flush.fence import Fence, Owner, Position, cluster_of
from foqs.core.flush.journal_rows import PayloadPlace, PositionedEvents
from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import OrderKey, Row, State, TopicName
from foqs.core.items.row_filter import RowFilter
from foqs.core.journal.journal_status import JournalStatus
from foqs_contract.printable_text import printable

FAULT_POINTS: Final = ("begin", "fenced", "read", "written", "committed")
"""begin: before the transaction. fenced: after the fence. read: after the rows
were read. written: all results were read and COMMIT was not sent. committed: the
database has committed and the reply to COMMIT was not read."""

FaultHook: TypeAlias = Callable[[str], None]


def no_faults(point: str) -> None:
    """Do nothing: the hook outside tests."""


class StoreError(Exception):
    """The base of all store errors. The text says what is wrong and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))  # it may name a file, and the name of a file may be any bytes


class StoreLost(StoreError):
    """The connection broke or the database went away. A flush under way may or may not have committed.

    Call `read_owner` first; until it returns, nothing is known.
    """


class PayloadMissing(StoreError):
    """The journal lacks the payload of an item that a read was asked for. The connection works.

    If the next flush finds it missing, too, the item is given up, and then read without payload. A flush may
    also have written it elsewhere meanwhile, or the shard has another owner.
    """


class WriteRefused(StoreError):
    """The database refused a statement and the transaction was rolled back: nothing was written.

    `is_retryable`: the same flush may succeed when it is run again (a deadlock, a lock
    wait). `is_full`: the database has no room. `is_bad_value`: its columns do not
    hold some value of the flush, now or later. With none, the reason is another one.
    """

    def __init__(
        self, message: str, *, is_retryable: bool = False, is_full: bool = False, is_bad_value: bool = False
    ) -> None:
        super().__init__(message)
        self.is_retryable = is_retryable
        self.is_full = is_full
        self.is_bad_value = is_bad_value


class IdempotencyKeyExists(WriteRefused):
    """The row of a new idempotency key exists. Nothing was written. Run the flush again and read its keys."""


class FencedOut(StoreError):
    """The fence matched no row: another owner took over, or the flush number is not the next. Nothing was written."""


class Superseded(StoreError):
    """The epoch of a takeover is not higher than `seen_epoch`, the one in the owner row."""

    def __init__(self, seen_epoch: int) -> None:
        super().__init__(f"the shard already has epoch {seen_epoch}; take over with a higher one")
        self.seen_epoch = seen_epoch


class StoreUnusable(StoreError):
    """The store must not be used, for example because its schema is newer than the program, or rights are missing."""


class OtherCluster(StoreUnusable):
    """The owner row names another cluster. Its hosts would lose the shard. Nothing was changed, and no connection ended."""

    def __init__(self, cluster: str, own: str | None) -> None:
        caller = "a host without a cluster" if own is None else f"a host of the cluster {own}"
        super().__init__(
            f"these tables belong to the cluster {cluster}, and {caller} may not take them from it; name other tables, or "
            "see 'Tables of another cluster' in docs/cluster.md"
        )
        self.cluster = cluster


ANY_LENGTH: Final = (1 << 31) - 1
"""A payload limit that no payload exceeds."""


def check_same_cluster(owner: Owner, nonce: str) -> None:
    """Check that a takeover by `nonce` takes the shard from no other cluster. An owner row may name none.

    Raises:
        OtherCluster: it names another one.
    """
    found, own = cluster_of(owner.nonce), cluster_of(nonce)
    if found is not None and found != own:
        raise OtherCluster(found, own)


def check_not_behind(committed: Fence, owner: Owner) -> None:
    """Check that a database has the flush `committed`, by its owner row.

    Raises:
        StoreLost: the row names another owner or an earlier flush.
    """
    if (owner.epoch, owner.nonce) != (committed.epoch, committed.nonce) or owner.flush < committed.flush:
        raise StoreLost(
            f"the database does not show this owner's last commit, epoch {committed.epoch}, flush {committed.flush}: "
            f"its owner row shows epoch {owner.epoch}, flush {owner.flush}"
        )


Decide: TypeAlias = Callable[[Mapping[int, Row], Mapping[KeyName, IdempotencyKey]], Writes]
"""Maps the rows and the key rows that were found to the writes. Pure; it may run in another thread."""


@dataclass(slots=True, frozen=True)
class DueRow:
    """An entry of the timer table, or a lease and its end."""

    due_ms: int
    id: int


LeaseEnd: TypeAlias = tuple[OrderKey, int]
"""The order key of a LEASED row, and its due_ms."""


@dataclass(slots=True, frozen=True)
class TopicCount:
    """The rows of a topic in one state, their payload bytes, and how many of the rows a purge marker covers."""

    namespace: str
    topic: str
    state: State
    rows: int
    payload_bytes: int
    purged_rows: int = 0


@dataclass(slots=True, frozen=True)
class IdRange:
    """A page of rows by id: the rows above `after`, up to `last`. It reads at most `rows_max` rows to find `limit`."""

    after: int
    last: int
    limit: int
    rows_max: int


@dataclass(slots=True, frozen=True)
class IdPage:
    """The rows that match, by id, and the last id that was read; None if the range has no more rows."""

    rows: list[Row]
    last_id: int | None


class Store(Protocol):
    """One shard's tables, through one connection.

    Every method but `close` raises `StoreLost` when the database cannot be reached.
    """

    async def open(self) -> None:
        """Connect, check the durability settings, and create or migrate the tables.

        Raises:
            StoreUnusable: the tables are newer than this program, the settings are too
                weak, rights are missing, or the like. The text says which, and the remedy.
        """
        ...

    async def now_ms(self) -> int:
        """Return the database's time: milliseconds since 1970-01-01 UTC."""
        ...

    async def take_over(self, epoch: int, nonce: str) -> Owner:
        """Make (epoch, nonce) the owner, and return the new owner row, at flush 0 or after the flushes of the takeover.

        Its `clock_ms` is the last one that the former owner saved. A second takeover
        with the same epoch and nonce succeeds, so that a lost reply is harmless.
        A database server also ends the recorded connection of the former owner,
        so that a flush still under way there cannot commit.

        Raises:
            Superseded: the row's epoch is not lower, and the row does not name (epoch, nonce).
            OtherCluster: the row names another cluster than the nonce.
        """
        ...

    async def read_owner(self) -> Owner:
        """Connect again after `StoreLost` and read the owner row.

        The old connection is closed or killed first, and the row is read with a
        lock: afterwards no earlier statement of this store can take effect. If the row
        shows the ownership that this store took over, the new connection is recorded
        in it. The settings that `open` checks are checked again, because a server
        may have come back with others.

        Raises:
            StoreLost: also if the server may lose acknowledged writes or accepts none; call again.
            StoreUnusable: the tables are damaged, or newer than this program.
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
        """Run one transaction: fence, read, decide, write, commit.

        The rows of `row_ids` are read without payload, those of `payload_limits` with
        it, and the rows of `key_names`. An id is in one of the two; a row that does not
        exist is missing from the mapping. `payload_limits` gives the longest payload to
        read for each id: a row with a longer one is read without it. If nothing has to
        be read, `decide` may run before the fence, so that all statements travel at
        once; a fence that matches no row undoes them.

        When this returns, the writes are committed and durable. COMMIT is sent only
        after the result of every statement was read. If `decide` raises, nothing is
        written and the error propagates.

        Raises:
            FencedOut, IdempotencyKeyExists, WriteRefused: nothing was written, and never will be.
            StoreLost: the outcome is unknown; call `read_owner`.
        """
        ...

    async def topics(self) -> list[TopicName]:
        """Return the topics table, in any order: each topic that has a row, and perhaps some that had one."""
        ...

    async def key_slots(self) -> list[int]:
        """Return the key slots of this shard, in order."""
        ...

    async def purge_markers(self) -> list[PurgeMarker]:
        """Return the purge markers, in any order."""
        ...

    async def journal_floor(self) -> Position | None:
        """Return the floor of the newest journal row; None if the journal is empty."""
        ...

    async def journal_events(self, first: Position, bytes_max: int) -> list[PositionedEvents]:
        """Return the events of the journal rows at or above `first`, in order, without their payloads.

        At least one row, if there is one, and no more than have `bytes_max` bytes of events. A page may be
        shorter: an empty one is the end.

        Raises:
            StoreUnusable: a part of a row is missing.
        """
        ...

    async def journal_payloads(self, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
        """Return the payloads at these places. One is missing if its row was trimmed, or lacks bytes.

        Brings no more than the payloads and what lies between those of one flush.
        """
        ...

    async def next_key_expiry_ms(self, from_ms: int = 0) -> int | None:
        """Return the least `until_ms` of all key rows, not below `from_ms`; None if there are none."""
        ...

    @property
    def may_journal(self) -> bool:
        """Whether every program that may take the shard over reads its journal, as of the last `open`."""
        ...

    @property
    def journal(self) -> JournalStatus | None:
        """The journal of this ownership in numbers; None: each flush writes rows."""
        ...

    @property
    def frees_room_late(self) -> bool:
        """Whether the room of deleted rows can be used only some time after the commit, and not in the same transaction."""
        ...

    async def shrink_journal_reserve(self, fence: Fence, reserve_bytes: int) -> None:
        """Shorten the reserve of the journal in a transaction of its own, between two flushes.

        `fence` names the ownership; its flush number does not count, because the reserve means nothing to anybody.

        Raises:
            StoreLost: the outcome is unknown; call `read_owner`.
            WriteRefused: nothing was written.
        """
        ...

    @property
    def full_refusals(self) -> tuple[int, str]:
        """How often the database had no room for what flushes write beside their changes, and what it said last.

        Such a flush is repeated without these writes, so its caller gets no error.
        """
        ...

    def begin_hand_over(self) -> None:
        """Journal nothing more, and write as many rows back as flushes can; see `JournalStatus.may_be_handed_over`."""
        ...

    def reads(self) -> Reads:
        """Return a connection for reading beside the flushes. It connects with its first call."""
        ...

    async def due_rows(self, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        """Return timer entries with low_ms <= due_ms <= high_ms above `after`, ordered by (due_ms, id), at most `limit`.

        `low_ms` None: no lower bound. Leases have no entries.
        """
        ...

    async def rows(self, ids: Sequence[int]) -> list[Row]:
        """Return the rows of these ids that exist, without payload, in any order."""
        ...

    async def next_due_ms(self, above_ms: int, below_ms: int) -> int | None:
        """Return the least due_ms of a timer entry above `above_ms` and below `below_ms`; None if there is none.

        While tables are between two versions, it may be the end of a lease.
        """
        ...

    async def close(self) -> None:
        """Close the connection. Never raises; may be called twice."""
        ...


class Reads(Protocol):
    """One shard's tables, read beside its flushes.

    `committed` is a flush known to be committed when the call begins. The result
    shows at least that flush, and all or nothing of each later one. It may be
    stale when it arrives; the caller must know what changed meanwhile.

    Every method but `close` raises `StoreLost` when the database cannot be
    reached or does not have `committed` (it has another owner, or is a copy that
    lags). The next call connects again.
    """

    async def rows(self, committed: Fence, ids: Sequence[int], payload_bytes_max: int = ANY_LENGTH) -> list[Row]:
        """Return the rows of these ids that exist, in any order.

        Payloads above `payload_bytes_max` are left out, and those of items that were given up because a journal lacks them.

        Raises:
            PayloadMissing: the journal lacks a payload, and the next flush will say whether that stays so.
        """
        ...

    async def ready_order_keys(
        self, committed: Fence, topic: TopicName, after: OrderKey | None, limit: int, purged_up_to: int = 0
    ) -> list[OrderKey]:
        """Return the next READY keys of a topic above `after`, in order, at most `limit`, with ids above `purged_up_to`."""
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
        """Return the next rows of a topic in a state above `after`; see `ready_order_keys`. With payload or without."""
        ...

    async def rows_by_id(self, committed: Fence, namespace: str, only: RowFilter, ids: IdRange) -> IdPage:
        """Return a page of a namespace's rows that match, by id, without payload."""
        ...

    async def due_rows(self, committed: Fence, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        """Return timer entries with due_ms <= high_ms above `after`, ordered by (due_ms, id), at most `limit`."""
        ...

    async def leases_in(self, committed: Fence, ranges: Sequence[tuple[int, int]], last_ms: int) -> list[DueRow]:
        """Return the LEASED rows with an id in one of these ranges and due_ms <= last_ms, in any order.

        A range has the first and the last id. The ranges are disjoint.
        """
        ...

    async def leases_of(
        self, committed: Fence, topics: Sequence[tuple[TopicName, OrderKey | None]], limit: int
    ) -> list[list[LeaseEnd]]:
        """Return for each topic its next LEASED rows above a key, in order, at most `limit`."""
        ...

    async def idempotency_keys_of(self, committed: Fence, untils: Mapping[int, int]) -> dict[int, bytes]:
        """Return idempotency keys by the number of their item. `untils` has the `until_ms` of each item's key row.

        Key rows are found by `until_ms`, so the key of a row with another one is missing. Records of moves, completions
        and restores are no keys of items: see `own_key`.
        """
        ...

    async def journal_payloads(self, committed: Fence, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
        """Return the payloads at these places. One is missing if its row was trimmed, or lacks bytes.

        Brings no more than the payloads and what lies between those of one flush.
        """
        ...

    async def begin_snapshot(self, committed: Fence) -> None:
        """Start a snapshot: until `close`, `counts` shows the tables as they are now.

        Only `counts` and `close` may follow, until one of them raises `StoreLost`.
        Close soon: the database keeps old versions of rows meanwhile.
        """
        ...

    async def counts(self) -> list[TopicCount]:
        """Count the rows of the whole shard by topic and state, in the snapshot."""
        ...

    async def close(self) -> None:
        """Close the connection. Never raises; may be called twice. No call may follow."""
        ...
