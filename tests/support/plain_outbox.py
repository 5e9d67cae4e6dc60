"""A user's database with an outbox, a queue that remembers keys, and relays, in the plainest form.

A relay is a generator over the memory that the product uses. It pauses wherever another
program may act: between two statements, before and after a COMMIT, and while a request is on
its way. Who stops it there for ever has killed it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from random import Random
from typing import ClassVar, Final

from foqs_client.outbox.relay_limits import RelayLimits
from foqs_client.outbox.relay_memory import ParkedRow, RelayMemory, Round, SendCall
from foqs_client.outbox.relay_state import RelayState, decode_state
from foqs_client.outbox.row_groups import OutboxRow
from foqs_client.outbox.row_outcome import Reply

WINDOW_MS: Final = 600_000
LIMITS: Final = RelayLimits(
    stamp_rows_max=5,
    in_flight_rows_max=8,
    waiting_rows_max=6,
    run_rows_max=3,
    gap_keep_s=60.0,
    held_groups_max=2,
    parked_rows_max=50,
)
PAGE_ROWS: Final = 4


@dataclass(slots=True)
class Written:
    """What a transaction of the user wrote: the truth."""

    event: int
    row_group: str | None
    begun_at: int
    begun_s: float
    committed_at: int | None = None
    committed_s: float = 0.0
    is_lost: bool = False


@dataclass(slots=True)
class Parked:
    row: OutboxRow
    verdict: str | None = None


@dataclass(slots=True)
class Tables:
    """What a COMMIT makes durable."""

    rows: dict[int, OutboxRow] = field(default_factory=dict)
    parked: dict[int, Parked] = field(default_factory=dict)
    epoch: int = 0
    nonce: int = 0
    round: int = 0
    state: bytes = b""


class PlainDatabase:
    """The user's database: transactions that overlap, and copies of what was committed."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.open: dict[int, OutboxRow] = {}
        """Rows of transactions that have not ended."""
        self.next_id = 1
        self.copies: list[tuple[Tables, int]] = []

    def on_commit(self) -> None:
        """Keep a copy of what is committed now."""
        self.copies = [*self.copies[-12:], (deepcopy(self.tables), self.next_id)]

    def read(self, above: int, to: int | None = None) -> list[OutboxRow]:
        """Return the first committed rows above an id."""
        ids = sorted(id for id in self.tables.rows if id > above and (to is None or id <= to))
        return [self.tables.rows[id] for id in ids[:PAGE_ROWS]]

    def commit_round(self, epoch: int, nonce: int, number: int, round: Round) -> bool:
        """Carry out a round. Return False if the fence matches no row."""
        tables = self.tables
        if (tables.epoch, tables.nonce, tables.round) != (epoch, nonce, number - 1):
            return False
        tables.round, tables.state = number, round.state.encode()
        for row in round.parked:
            if tables.rows.pop(row.id, None) is not None or row.id in tables.parked:
                tables.parked[row.id] = Parked(row)
        for id in round.deleted:
            tables.rows.pop(id, None)
            tables.parked.pop(id, None)
        self.on_commit()
        return True


@dataclass(slots=True)
class PlainQueue:
    """A shard: items in order, and keys with the ends of their windows."""

    now_ms: int = 1_000_000
    window_ms: int = WINDOW_MS
    is_down: bool = False
    items: list[int] = field(default_factory=list)
    keys: dict[int, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    refusals: set[int] = field(default_factory=set)
    """All that were refused at some time, or whose key had ended."""
    checks_ends: bool = True
    keys_are_ids: bool = False

    def keys_until_ms(self) -> int:
        """Return the latest end that a call may name now, less a minute."""
        return self.now_ms + self.window_ms - 60_000

    def enqueue(self, call: SendCall) -> dict[int, Reply]:
        """Carry out a request, whenever it arrives."""
        events = {row.id: event_of(row) for row in call.rows}
        bad = {id for id, event in events.items() if event in self.refused}
        if self.is_down or (self.checks_ends and call.keys_until_ms > self.now_ms + self.window_ms):
            return dict.fromkeys(events, Reply.LATER)
        self.refusals.update(events[id] for id in bad)
        if call.is_atomic and bad:
            return {id: Reply.REFUSED if id in bad else Reply.LATER for id in events}
        known = [id for id, event in events.items() if self._is_known(id, event)]
        if call.is_atomic and known and len(known) < len(events):
            return dict.fromkeys(events, Reply.PARTLY_KNOWN)
        return {id: Reply.REFUSED if id in bad else self._insert(id, event, call) for id, event in events.items()}

    def _is_known(self, id: int, event: int) -> bool:
        return self.keys.get(id if self.keys_are_ids else event, 0) > self.now_ms

    def _insert(self, id: int, event: int, call: SendCall) -> Reply:
        key = id if self.keys_are_ids else event
        if self._is_known(id, event):
            return Reply.WRITTEN
        if self.checks_ends and self.now_ms >= call.keys_until_ms:
            self.refusals.add(event)
            return Reply.ENDED
        self.keys[key] = self.now_ms + self.window_ms
        self.items.append(event)
        return Reply.WRITTEN


def event_of(row: OutboxRow) -> int:
    assert isinstance(row.item, int)
    return row.item


class PlainRelay:
    """A relay that dies when nobody runs it any more.

    Attributes:
        late: requests that were sent and have not arrived.
    """

    limits: ClassVar[RelayLimits] = LIMITS
    memory_type: ClassVar[type[RelayMemory]] = RelayMemory

    def __init__(
        self,
        nonce: int,
        database: PlainDatabase,
        queue: PlainQueue,
        late: list[SendCall],
        rng: Random,
        clock: list[float],
    ) -> None:
        self.nonce = nonce
        self.database = database
        self.queue = queue
        self.late = late
        self.rng = rng
        self.clock = clock
        self.is_idle = False
        """The last round changed nothing, and no row is in doubt, forgotten or held."""

    def run(self) -> Iterator[None]:
        database, seen = self.database, replace(self.database.tables)
        epoch, number = seen.epoch + 1, 0
        yield from self.before_take_over()
        tables = database.tables
        if not self.may_take_over(seen, tables):
            return
        tables.epoch, tables.nonce, tables.round = epoch, self.nonce, 0
        database.on_commit()
        memory = self.take_over(decode_state(seen.state), tables)
        keys_until_ms = self.queue.keys_until_ms()
        yield
        while True:
            yield from self.read(memory)
            if self.rng.random() < 0.5:
                keys_until_ms = self.queue.keys_until_ms()
            round = memory.plan_round(None if self.queue.is_down else keys_until_ms)
            yield from self.before_commit(round)
            number += 1
            if not self.commit(epoch, number, round):
                return
            yield
            memory.on_round_committed()
            again = memory.doubtful_calls()
            for call in [*again, *self.calls_after_commit(round)]:
                replies = yield from self.send(call)
                memory.on_replies(replies)
            self.is_idle = round.is_empty and not again and not (memory.wants_sweep or memory.swept_to is not None)

    def before_take_over(self) -> Iterator[None]:
        yield

    def may_take_over(self, seen: Tables, tables: Tables) -> bool:
        return (tables.epoch, tables.round) == (seen.epoch, seen.round)

    def take_over(self, state: RelayState, tables: Tables) -> RelayMemory:
        ids = {id for stamp in state.stamps for id in stamp.ids}
        stamped = [tables.rows[id] for id in ids if id in tables.rows]
        stamped += [tables.parked[id].row for id in ids if id in tables.parked]
        return self.memory_type(state, stamped, parked_rows(tables), self.clock[0], self.limits)

    def read(self, memory: RelayMemory) -> Iterator[None]:
        """Read a page, a sweep's page, then gaps."""
        if memory.wants_sweep and self.rng.random() < 0.5:
            memory.begin_sweep()
        if memory.wants_rows:
            page = self.database.read(memory.read_to)
            memory.add_page(page, self.clock[0])
            yield
        if memory.swept_to is not None and memory.wants_rows:
            swept = self.database.read(memory.swept_to, memory.read_to)
            memory.add_swept(swept)
            yield
        self.read_gaps(memory)
        yield
        if self.rng.random() < 0.5:
            memory.on_parked_read(parked_rows(self.database.tables))

    def read_gaps(self, memory: RelayMemory) -> None:
        found = self.rows_in(memory.gap_ranges)
        memory.add_gap_rows(found[:PAGE_ROWS], self.clock[0], is_complete=len(found) <= PAGE_ROWS)

    def rows_in(self, ranges: Sequence[tuple[int, int]]) -> list[OutboxRow]:
        rows = self.database.tables.rows
        return [rows[id] for id in sorted(rows) if any(first <= id <= last for first, last in ranges)]

    def before_commit(self, round: Round) -> Iterator[None]:
        yield

    def commit(self, epoch: int, number: int, round: Round) -> bool:
        return self.database.commit_round(epoch, self.nonce, number, round)

    def calls_after_commit(self, round: Round) -> Sequence[SendCall]:
        return round.calls

    def send(self, call: SendCall) -> Generator[None, None, dict[int, Reply]]:
        """Send a request. It arrives, is lost, or arrives after others; its reply comes or is lost."""
        fate = self.rng.choice(("answered",) * 5 + ("reply lost", "late", "lost"))
        replies = dict.fromkeys([row.id for row in call.rows], Reply.UNKNOWN)
        if fate == "late":
            self.late.append(call)
        yield
        if fate in ("answered", "reply lost"):
            written = self.queue.enqueue(call)
            replies = written if fate == "answered" else replies
        yield
        return replies


def parked_rows(tables: Tables) -> list[ParkedRow]:
    return [ParkedRow(each.row, each.verdict) for each in tables.parked.values()]
