"""An owner of a shard that journals its flushes into a real store, and the truth: tables that are written through.

It is what the shard will be with a journal, without calls and tasks: it plans a batch, journals it,
writes back, remembers dirty items, and recovers by replay. The truth holds what the same batches make
of tables without a journal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.fence import CommitOutcome, Fence, commit_outcome
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.journal_rows import PayloadPlace
from foqs.core.flush.moves import Moves
from foqs.core.flush.operation import Acks, Dues, Events, Inserts, Leases
from foqs.core.flush.planning import plan_flush
from foqs.core.flush.writes import Writes
from foqs.core.items.item import Row, State, make_number
from foqs.core.items.life import Event, EventKind, FlushContext, RetryPolicy
from foqs.core.journal.compaction import Compaction, compaction
from foqs.core.journal.dirty_items import DirtyItem, DirtyItems
from foqs.core.journal.flush_journal import plan_journal, write_journal, write_rows
from foqs.core.journal.journal_plan import JournalPlan
from foqs.core.journal.journal_positions import JournalPositions
from foqs.core.timing.due_timers import DueTimers, timer_entry
from foqs.store.in_memory.memory_table import ShardTables
from foqs.store.journaled.journal_recovery import replay_journal
from foqs.store.port import ANY_LENGTH, FAULT_POINTS, Store, StoreLost
from tests.support.plain_flush import make_item
from tests.support.stores import Ownership, contents

POLICIES = {"n": RetryPolicy(100, 1_000, 5_000, 700)}
CALLERS_EVENTS = [
    EventKind.NACK,
    EventKind.EXTEND,
    EventKind.RELEASE,
    EventKind.CANCEL,
    EventKind.REDRIVE,
    EventKind.UPDATE,
]


class OwnerEnds(Exception):
    """The process of the owner ends at this point."""


class RandomFaults:
    """Breaks the connection, or ends the owner, at random points of flushes while it is armed."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.is_armed = False

    def __call__(self, point: str) -> None:
        assert point in FAULT_POINTS
        if self.is_armed and self._random.random() < 0.05:
            raise StoreLost(f"broken at {point}") if self._random.random() < 0.5 else OwnerEnds(point)


class Truth:
    """Tables that are written through, the time, and random batches that fit to them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.tables = ShardTables()
        self.now_ms = 1_000
        self.number = make_number(1, 1)

    def write(self, batch: Batch, fence: Fence) -> None:
        """Carry out the batch of a committed flush."""
        plan = plan_flush(batch, self.tables.rows.get, self.context(fence), DueTimers(5_000))
        self.tables.write(fence, plan.writes())

    def context(self, fence: Fence) -> FlushContext:
        return FlushContext(self.now_ms, self.now_ms, fence.token, POLICIES)

    def next_batch(self) -> Batch:
        """Return a batch at a later time: calls and dues of some items, and new items."""
        random = self.random
        self.now_ms += random.randint(0, 400)
        rows = sorted(self.tables.rows.values(), key=lambda row: row.id)
        random.shuffle(rows)
        batch = Batch()
        for row in rows[: random.randint(0, len(rows))]:
            operation = self._operation(row)
            if operation is not None:
                batch.add([Part(operation, 0, 1)])
        items = [
            make_item(
                namespace="n",
                topic=random.choice("tu"),
                priority=random.randint(0, 2),
                payload=random.randbytes(random.randint(0, 40)),
                delay_ms=random.choice((0, 0, 0, 300)),
                ttl_ms=random.choice((None, None, 900)),
                attempts_max=random.choice((0, 2)),
                lease_ms=500,
            )
            for _ in range(random.randint(0, 4))
        ]
        if items:
            batch.add([Part(Inserts("n", items, self._numbers(len(items)), self.now_ms, None), 0, len(items))])
        return batch

    def _numbers(self, count: int) -> int:
        first = self.number
        self.number += count
        return first

    def _operation(self, row: Row) -> Any:
        luck = self.random.random()
        if row.due_ms is not None and row.due_ms <= self.now_ms:
            return Dues([row.id], {}, None)
        if row.state is State.READY and luck < 0.7:
            return Leases("n", [(("n", row.topic), [row.order_key])], None, ANY_LENGTH, None)
        if row.state is State.LEASED and luck < 0.5:
            return Acks("n", [row.id], [row.token], None)
        if luck < 0.8:
            kind = self.random.choice(CALLERS_EVENTS)
            event = Event(kind, row.id, "n", token=row.token, delay_ms=self.random.choice((None, 0, 200)), lease_ms=700)
            event.metadata = self.random.choice((None, b"new"))
            event.priority = 5 if kind is EventKind.UPDATE else None
            return Events("n", [event], None)
        if luck < 0.85:
            moves = Moves("n", [Event(EventKind.MOVE, row.id, "n", topic="v")], 0, None)
            moves.number(0, 1, self._numbers(1), self.now_ms)
            return moves
        return None


class JournalOwner:
    """One ownership of a shard, from its takeover on."""

    def __init__(self, store: Store, epoch: int, truth: Truth) -> None:
        self.store = store
        self.truth = truth
        self._epoch = epoch
        self._nonce = f"nonce-{epoch}"
        self.last_flush = 0
        self.former_flush = 0
        """The last flush of the former owner."""
        self.dirty_items = DirtyItems()
        self.positions = JournalPositions()

    @property
    def ownership(self) -> Ownership:
        """Itself, for reads of the tables after its last flush."""
        return Ownership(self.store, self._epoch, self._nonce, self.last_flush + 1)

    async def take_over(self) -> None:
        """Become the owner, and recover the dirty items of the former one. The store is open."""
        self.former_flush = (await self.store.read_owner()).flush
        await self.store.take_over(self._epoch, self._nonce)
        self.dirty_items, self.positions = await replay_journal(self.store)

    async def write(self, batch: Batch) -> None:
        """Carry out a batch. If the connection breaks, its outcome is read, and the flush is repeated if it was not committed."""
        fence = Fence(self._epoch, self._nonce, self.last_flush + 1, self.truth.now_ms)
        random = self.truth.random
        written_back = self.dirty_items.oldest(random.choice((0, 0, 3, 6)))
        compacted = Compaction(self.dirty_items.oldest(3), []) if random.random() < 0.1 else Compaction([], [])
        if random.random() < 0.2:
            compacted = compaction(self.dirty_items, self.positions, 1_000, gain_percent_min=-100)
        if written_back:
            compacted = Compaction([], compaction(self.dirty_items, self.positions, 0).emptied)
        while True:
            try:
                journal = await self._flush_once(batch, fence, written_back, compacted)
            except StoreLost:
                if await self.is_committed(fence):
                    journal = self._planned
                else:
                    continue
            break
        self.last_flush += 1
        self._apply(journal)
        self.truth.write(batch, fence)

    def confirm(self, batch: Batch) -> None:
        """The flush under way, in which this owner ended, was committed."""
        self.truth.write(batch, Fence(self._epoch, self._nonce, self.last_flush + 1, self.truth.now_ms))

    async def is_committed(self, fence: Fence) -> bool:
        """Return whether a flush with an unknown outcome was committed."""
        while True:
            try:
                outcome = commit_outcome(fence, await self.store.read_owner())
            except StoreLost:
                continue
            assert outcome is not CommitOutcome.FENCED
            return outcome is CommitOutcome.COMMITTED

    async def _flush_once(
        self, batch: Batch, fence: Fence, written_back: list[int], compacted: Compaction
    ) -> JournalPlan:
        carried = compacted.carried
        numbers = [*batch.event_numbers, *batch.lease_numbers]
        await self._read_payloads([*numbers, *written_back, *carried])

        def decide(rows: Mapping[int, Row], keys: Mapping[Any, Any]) -> Writes:
            def find(number: int) -> Row | None:
                item, row = self.dirty_items.get(number), rows.get(number)
                if item is not None and item.row is not None:
                    return item.row
                return None if row is None else self.dirty_items.overlay(row)

            plan: FlushPlan = plan_flush(batch, find, self.truth.context(fence), DueTimers(5_000))
            self._planned = plan_journal(plan.writes().changes, self.dirty_items, fence.position, written_back, carried)
            writes = plan.writes()
            write_rows(self._planned, self.dirty_items, writes)
            write_journal(self._planned, self.positions, writes)
            writes.journal_emptied = compacted.emptied
            self._writes = writes
            return writes

        await self.store.flush(fence, [], dict.fromkeys(numbers, ANY_LENGTH), [], decide)
        return self._planned

    async def _read_payloads(self, numbers: list[int]) -> None:
        """Read the payloads of young items that a replay has left in the journal."""
        missing = {
            number: item
            for number in numbers
            if (item := self.dirty_items.get(number)) is not None and item.row is not None and item.row.payload is None
        }
        places = {
            number: PayloadPlace(item.first, item.payload_offset, item.row.payload_bytes)
            for number, item in missing.items()
            if item.row is not None
        }
        while True:
            try:
                found = await self.store.journal_payloads([*places.values()])
                break
            except StoreLost:
                await self.store.read_owner()
        self._set_payloads({number: found[place] for number, place in places.items()})

    def _apply(self, journal: JournalPlan) -> None:
        row, trimmed = self._writes.journal_row, self._writes.journal_trimmed
        if row is not None:
            self.positions.add_row(journal.position, len(row.events), sum(map(len, row.payloads)))
        if trimmed is not None:
            self.positions.on_trimmed(trimmed)
        self.positions.on_emptied(self._writes.journal_emptied)
        journal.apply_to(self.dirty_items)
        if self.truth.random.random() < 0.3:
            self._forget_payloads()

    def _forget_payloads(self) -> None:
        """Leave the payloads of all young items to the journal, as after a takeover."""
        self._set_payloads({number: None for number, item in self.dirty_items.items() if item.row is not None})

    def _set_payloads(self, payloads: Mapping[int, bytes | None]) -> None:
        changed: dict[int, DirtyItem] = {}
        for number, payload in payloads.items():
            item = self.dirty_items.get(number)
            assert item is not None and item.row is not None
            changed[number] = replace(item, row=replace(item.row, payload=payload))
        self.dirty_items.apply(changed, ())

    async def check(self, rows: Mapping[int, Row]) -> None:
        """Compare the rows of the table, the timers and the journal with the truth and the memory."""
        self.dirty_items.check()
        assert await self.items(rows) == self.truth.tables.rows
        timers = await self.store.due_rows(None, 1 << 40, None, 1 << 20)
        entries = [entry for row in rows.values() if (entry := timer_entry(row)) is not None]
        assert [(timer.due_ms, timer.id) for timer in timers] == sorted(entries)
        dirty_items, _ = await replay_journal(self.store)
        assert _without_payloads(dirty_items) == _without_payloads(self.dirty_items)

    async def items(self, rows: Mapping[int, Row]) -> dict[int, Row]:
        """Return the items: rows of the table, with the dirty items over them."""
        young = [number for number, item in self.dirty_items.items() if item.row is not None]
        await self._read_payloads(young)
        found = {number: item for number, row in rows.items() if (item := self.dirty_items.overlay(row)) is not None}
        return found | {number: item.row for number, item in self.dirty_items.items() if item.row is not None}


def _without_payloads(dirty_items: DirtyItems) -> dict[int, DirtyItem]:
    return {
        number: item if item.row is None else replace(item, row=replace(item.row, payload=None))
        for number, item in dirty_items.items()
    }


async def play_history(random: Random, open_store: Callable[[RandomFaults], Awaitable[Store]], flushes: int) -> int:
    """Play random flushes of owners, one after another, and check the items after each. Returns the number of owners.

    Args:
        open_store: returns a new store of one shard, open, with a journal, whose flushes call these faults.
    """
    truth, faults, epoch = Truth(random), RandomFaults(random), 1

    async def own() -> JournalOwner:
        owner = JournalOwner(await open_store(faults), epoch, truth)
        await owner.take_over()
        return owner

    owner = await own()
    for _ in range(flushes):
        batch, former, before = truth.next_batch(), owner, owner.last_flush
        faults.is_armed = True
        try:
            await owner.write(batch)
        except OwnerEnds:
            faults.is_armed = False
            epoch += 1
            owner = await own()
            if owner.former_flush > before:
                former.confirm(batch)  # the flush that its owner did not see the end of
        faults.is_armed = False
        await owner.check(await contents(owner.ownership))
    return epoch
