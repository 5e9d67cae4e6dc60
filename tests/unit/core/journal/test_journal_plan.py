"""What a flush journals, what the owner remembers, and what a replay rebuilds, over random histories."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from foqs.core.flush.purge_markers import PurgeMarker, PurgeMarkers
from foqs.core.items.item import Row, State
from foqs.core.journal.dirty_items import DirtyItem, DirtyItems
from foqs.core.journal.journal_bytes import JournalDamaged, decode_events, encode_events
from foqs.core.journal.journal_events import FlushEvents, Position, apply_change, base_of, change_of
from foqs.core.journal.journal_plan import JournalPlan, JournalPlanner
from foqs.core.journal.journal_replay import JournalReplay
from foqs.core.timing.due_timers import TimerEntry, timer_entry
from tests.support.journal_rows import new_row

NO_MARKERS = PurgeMarkers()


class Shard:
    """Tables and memory of one shard, and the truth: a table that is written through."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.rows: dict[int, Row] = {}
        self.timers: set[TimerEntry] = set()
        self.journal: dict[Position, bytes] = {}
        self.dirty_items = DirtyItems()
        self.truth: dict[int, Row] = {}
        self.flush = 0
        self.number = 0

    def play_flush(self) -> None:
        random = self.random
        self.flush += 1
        planner = JournalPlanner(self.dirty_items, (1, self.flush))
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

    def items(self, dirty_items: DirtyItems) -> dict[int, Row]:
        """Return the items: the rows with the dirty items over them."""
        found = {number: item for number, row in self.rows.items() if (item := dirty_items.overlay(row)) is not None}
        return found | {number: item.row for number, item in dirty_items.items() if item.row is not None}

    def replayed(self, markers: PurgeMarkers = NO_MARKERS) -> DirtyItems:
        replay = JournalReplay(markers)
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
        assert sorted(current.union(dirty_items.dues_up_to(1_000))) == sorted(true)
        assert dirty_items.next_due_ms() == min((due for due, n in true if n in dirty_items), default=None)
        assert dirty_items.oldest(1_000) == sorted(
            (number for number, _ in dirty_items.items()),
            key=lambda number: dirty_items.oldest(1_000).index(number),
        )


@pytest.mark.parametrize("seed", range(60))
def test_rows_and_journal_are_what_the_owner_remembers(seed: int) -> None:
    shard = Shard(Random(seed))
    for _ in range(25):
        shard.play_flush()
        shard.check()


@pytest.mark.parametrize("seed", range(10))
def test_replay_leaves_out_what_a_purge_marker_covers(seed: int) -> None:
    shard = Shard(Random(seed))
    for _ in range(20):
        shard.play_flush()
    last = shard.number // 2
    found = shard.replayed(PurgeMarkers([PurgeMarker("n", "t", last)]))
    others = [number for number, item in shard.dirty_items.items() if number > last or item.topic != ("n", "t")]
    assert sorted(number for number, _ in found.items()) == sorted(others)


def test_items_are_written_back_oldest_first() -> None:
    dirty_items = DirtyItems()
    for flush, numbers in ((1, (5, 6)), (2, (1,)), (3, (9,))):
        dirty_items.apply({number: DirtyItem((1, flush), None, row=new_row(number)) for number in numbers}, ())
    assert dirty_items.oldest(3) == [5, 6, 1]
    assert dirty_items.oldest(10, up_to=(1, 2)) == [5, 6, 1]
    assert dirty_items.floor((), (1, 4)) == (1, 1)
    assert dirty_items.floor({5, 6}, (1, 4)) == (1, 2)
    assert dirty_items.floor({5, 6, 1, 9}, (1, 4)) == (1, 4)


def test_young_items_and_their_payloads_are_counted() -> None:
    dirty_items = DirtyItems()
    row = new_row(1)
    dirty_items.apply({1: DirtyItem((1, 1), None, row=row), 2: DirtyItem((1, 1), base_of(new_row(2)))}, ())
    assert (dirty_items.young_count.items, dirty_items.young_count.payload_bytes) == (1, row.payload_bytes)
    dirty_items.apply({}, [1])
    assert (dirty_items.young_count.items, dirty_items.young_count.payload_bytes) == (0, 0)


def test_journal_that_lacks_the_start_of_an_item_is_damaged() -> None:
    replay = JournalReplay(NO_MARKERS)
    replay.add((1, 5), FlushEvents(changed=[change_of(new_row(1), new_row(1, token=3))]))
    with pytest.raises(JournalDamaged, match="such as 1"):
        replay.finish()


def test_change_whose_row_became_current_later_needs_no_start() -> None:
    replay = JournalReplay(NO_MARKERS)
    replay.add((1, 5), FlushEvents(changed=[change_of(new_row(1), new_row(1, token=3))]))
    replay.add((1, 6), FlushEvents(current=[1]))
    assert len(replay.finish()) == 0


def test_item_that_is_ready_again_keeps_its_place_for_the_next_owner() -> None:
    leased = new_row(1, state=State.LEASED, due_ms=9)
    change = change_of(leased, replace(leased, state=State.READY, due_ms=None))
    assert change.rewrite is not None
    assert (change.rewrite.priority, change.rewrite.deliver_after_ms) == (leased.priority, leased.deliver_after_ms)
    assert change_of(new_row(1), leased).rewrite is None
