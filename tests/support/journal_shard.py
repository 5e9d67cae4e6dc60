"""Tables and memory of one shard with a journal, over random flushes: for the tests of its pure core."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from foqs.core.flush.fence import Position
from foqs.core.items.item import Row, State
from foqs.core.journal.dirty_items import DirtyItems
from foqs.core.journal.journal_bytes import decode_events, encode_events
from foqs.core.journal.journal_events import apply_change
from foqs.core.journal.journal_plan import JournalPlan, JournalPlanner
from foqs.core.journal.journal_replay import JournalReplay
from foqs.core.journal.touched_numbers import ReadsUnderWay
from foqs.core.timing.due_timers import TimerEntry, timer_entry
from tests.support.journal_rows import new_row


class JournalShard:
    """Tables and memory of one shard, and the truth: a table that is written through."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.rows: dict[int, Row] = {}
        self.timers: set[TimerEntry] = set()
        self.journal: dict[Position, bytes] = {}
        self.dirty_items = DirtyItems()
        self.truth: dict[int, Row] = {}
        self.reads = ReadsUnderWay(1_000)
        self.flush = 0
        self.number = 0

    def play_flush(self) -> None:
        random = self.random
        self.flush += 1
        planner = JournalPlanner(self.dirty_items, (1, self.flush))
        young = [number for number, item in self.dirty_items.items() if item.row is not None]
        if young and random.random() < 0.1:
            self.dirty_items.set_unreadable(random.choice(young))
        for row in random.sample(sorted(self.truth.values(), key=lambda row: row.id), len(self.truth) // 3):
            self._change(row, planner)
        for _ in range(random.randint(0, 3)):
            self.number += 1
            state = random.choice((State.READY, State.DEFERRED, State.LEASED))
            row = new_row(self.number, topic=random.choice("tu"), state=state, due_ms=self._due_ms(), metadata=b"m")
            self.truth[row.id] = row
            planner.add(row)
        numbers = self.dirty_items.oldest(random.randint(0, 4))
        if random.random() < 0.2:
            planner.carry_forward(numbers)
        else:
            planner.write_back([*numbers, *random.choices(range(1, self.number + 2), k=1)])
        self._commit(planner.finish())

    def _change(self, row: Row, planner: JournalPlanner) -> None:
        random = self.random
        if random.random() < 0.3:
            del self.truth[row.id]
            planner.end(row)
            return
        state = random.choice((State.READY, State.DEFERRED, State.LEASED, State.DEAD))
        new = replace(row, state=state, due_ms=self._due_ms(), token=self.flush, attempt=row.attempt + 1)
        if random.random() < 0.2:
            new = replace(new, priority=self.flush, metadata=b"other")
        self.truth[row.id] = new
        planner.change(row, new)

    def _due_ms(self) -> int | None:
        return self.random.choice((None, self.random.randint(1, 50)))

    def _commit(self, plan: JournalPlan) -> None:
        self.journal[plan.position] = encode_events(plan.events)
        for number in plan.deletes:
            del self.rows[number]
        for row in plan.inserts:
            assert row.id not in self.rows
            self.rows[row.id] = row
        for update in plan.leases:
            for number in update.ids:
                first_ms = update.first_delivered_at_ms
                values = {"due_ms": update.due_ms, "token": update.token, "attempt": update.attempt}
                self.rows[number] = replace(self.rows[number], state=update.state, **values)  # type: ignore[arg-type]
                assert first_ms is None
        for change in plan.rewrites:
            self.rows[change.number] = apply_change(self.rows[change.number], change)
        self.timers -= set(plan.timers_removed)
        self.timers |= set(plan.timers_added)
        self.journal = {place: events for place, events in self.journal.items() if place >= plan.floor}
        plan.apply_to(self.dirty_items)
        self.reads.on_committed(plan.touched)

    def items(self, dirty_items: DirtyItems) -> dict[int, Row]:
        """Return the items: the rows with the dirty items over them."""
        found = {number: item for number, row in self.rows.items() if (item := dirty_items.overlay(row)) is not None}
        return found | {number: item.row for number, item in dirty_items.items() if item.row is not None}

    def replayed(self) -> DirtyItems:
        replay = JournalReplay()
        for position, events in self.journal.items():
            replay.add(position, decode_events(events))
        return replay.finish()

    def check(self) -> None:
        dirty_items = self.dirty_items
        dirty_items.check()
        assert self.items(dirty_items) == self.truth
        found = self.replayed()
        found.check()
        assert dict(found.items()) == dict(dirty_items.items())
        assert self.timers == {entry for row in self.rows.values() if (entry := timer_entry(row)) is not None}
        true = {entry for row in self.truth.values() if (entry := timer_entry(row)) is not None}
        current = {entry for entry in self.timers if entry[1] not in dirty_items}
        assert sorted(current.union(dirty_items.dues_after((0, 0), 1_000, len(dirty_items)))) == sorted(true)
        assert dirty_items.next_due_ms() == min((due for due, n in true if n in dirty_items), default=None)
        oldest = dirty_items.oldest(1_000)
        assert {*oldest, *dirty_items.unreadable} == {number for number, _ in dirty_items.items()}
        assert len(oldest) + len(dirty_items.unreadable) == len(dirty_items)
