"""Tables with a journal hold what tables hold that are written through, for the product's own flush plans."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.fence import Fence, Position
from foqs.core.flush.flush_plan import FlushPlan, plan_flush
from foqs.core.flush.moves import Moves
from foqs.core.flush.operation import Acks, Dues, Events, Inserts, Leases
from foqs.core.items.item import Row, State
from foqs.core.items.life import Event, EventKind, FlushContext, RetryPolicy
from foqs.core.journal.dirty_items import DirtyItems
from foqs.core.journal.flush_journal import plan_journal, write_rows
from foqs.core.journal.journal_bytes import decode_events, encode_events
from foqs.core.journal.journal_replay import JournalReplay
from foqs.core.timing.due_timers import DueTimers, timer_entry
from foqs.store.in_memory.memory_table import ShardTables
from tests.support.journal_shard import NO_MARKERS
from tests.support.plain_flush import make_item

POLICIES = {"n": RetryPolicy(100, 1_000, 5_000, 700)}
CALLERS_EVENTS = [
    EventKind.NACK,
    EventKind.EXTEND,
    EventKind.RELEASE,
    EventKind.CANCEL,
    EventKind.REDRIVE,
    EventKind.UPDATE,
]


class World:
    """Two shards that carry out the same batches: one writes through, the other journals."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.truth = ShardTables()
        self.tables = ShardTables()
        self.dirty_items = DirtyItems()
        self.journal: dict[Position, bytes] = {}
        self.flush = 0
        self.now_ms = 1_000
        self.number = 1

    def play_flush(self) -> None:
        self.flush += 1
        self.now_ms += self.random.randint(0, 400)
        batch = self._batch()
        fence = Fence(1, "o", self.flush, self.now_ms)
        self.truth.write(fence, self._plan(batch, self.truth.rows.get).writes())
        plan = self._plan(batch, self.find)
        random, dirty_items = self.random, self.dirty_items
        oldest = dirty_items.oldest(random.randint(0, 5))
        is_carried = random.random() < 0.1
        journal = plan_journal(
            plan, dirty_items, (1, self.flush), () if is_carried else oldest, oldest if is_carried else ()
        )
        writes = plan.writes()
        write_rows(journal, writes)
        self.tables.write(fence, writes)
        self.journal[journal.position] = encode_events(journal.events)
        self.journal = {place: events for place, events in self.journal.items() if place >= journal.floor}
        journal.apply_to(dirty_items)

    def find(self, number: int) -> Row | None:
        """Return the item."""
        item = self.dirty_items.get(number)
        if item is not None and item.row is not None:
            return item.row
        row = self.tables.rows.get(number)
        return None if row is None else self.dirty_items.overlay(row)

    def _plan(self, batch: Batch, find: Any) -> FlushPlan:
        context = FlushContext(self.now_ms, self.now_ms, self.flush, POLICIES)
        return plan_flush(batch, find, context, DueTimers(5_000))

    def _batch(self) -> Batch:
        random = self.random
        rows = sorted(self.truth.rows.values(), key=lambda row: row.id)
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
            return Leases("n", [(("n", row.topic), [row.order_key])], None, 0, None)
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
            moves.number(0, 1, self._numbers(1))
            return moves
        return None

    def check(self) -> None:
        self.dirty_items.check()
        numbers = {*self.tables.rows, *(number for number, _ in self.dirty_items.items())}
        assert {number: row for number in numbers if (row := self.find(number)) is not None} == self.truth.rows
        assert self.tables.timers == sorted(
            entry for row in self.tables.rows.values() if (entry := timer_entry(row)) is not None
        )
        replay = JournalReplay(NO_MARKERS)
        for position, events in self.journal.items():
            replay.add(position, decode_events(events))
        found = {number: replace(item, row=_without_payload(item.row)) for number, item in replay.finish().items()}
        dirty = {number: replace(item, row=_without_payload(item.row)) for number, item in self.dirty_items.items()}
        assert found == dirty


def _without_payload(row: Row | None) -> Row | None:
    return None if row is None else replace(row, payload=None)


@pytest.mark.parametrize("seed", range(60))
def test_tables_with_a_journal_hold_what_tables_hold_that_are_written_through(seed: int) -> None:
    world = World(seed)
    for _ in range(25):
        world.play_flush()
        world.check()
