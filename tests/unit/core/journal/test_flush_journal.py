"""Tables with a journal hold what tables hold that are written through, for the product's own flush plans.

Owners journal into the memory store; connections break, and owners end, at any point of a flush.
Each rule has a planted mistake, and each mistake is found.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from foqs.core.flush.fence import Position
from foqs.core.flush.journal_rows import JournalRange
from foqs.core.items.item import Row
from foqs.core.journal.dirty_items import DirtyItems
from foqs.core.journal.journal_plan import JournalPlan, JournalPlanner
from foqs.core.journal.journal_positions import JournalPositions
from foqs.core.journal.journal_replay import JournalReplay
from foqs.store.in_memory import memory_table
from foqs.store.in_memory.memory_store import MemoryDatabase
from foqs.store.port import Store, StoreUnusable
from tests.support.aio import run
from tests.support.journal_owner import RandomFaults, play_history


def play(seed: int, flushes: int = 30) -> int:
    database = MemoryDatabase(lambda: 1_000)

    async def open_store(faults: RandomFaults) -> Store:
        store = database.store(0, faults)
        await store.open()
        return store

    return run(play_history(Random(seed), open_store, flushes), 60)


def test_tables_with_a_journal_hold_what_tables_hold_that_are_written_through() -> None:
    owners = [play(seed) for seed in range(20)]
    assert min(owners) >= 1
    assert sum(owners[:5]) > 10, "owners end in these histories"


def floor_is_the_flush(former: Callable[..., JournalPlan]) -> Callable[..., JournalPlan]:
    def finish(self: JournalPlanner) -> JournalPlan:
        plan = former(self)
        plan.floor = plan.position
        return plan

    return finish


def trim_beyond_the_floor(_: Any) -> Callable[..., JournalRange | None]:
    def range_to_trim(self: JournalPositions, floor: Position) -> JournalRange | None:
        return JournalRange((0, 0), self._rows[-1][0]) if len(self) > 1 else None

    return range_to_trim


def write_back_is_not_recorded(_: Any) -> Callable[..., None]:
    def end_events(self: JournalPlanner, number: int) -> None:
        self._forget(number)

    return end_events


def end_of_a_young_item_is_not_journaled(former: Callable[..., None]) -> Callable[..., None]:
    def end(self: JournalPlanner, old: Row) -> None:
        item = self._find(old.id)
        former(self, old)
        if item is not None and item.base is None:
            self.plan.events.ended.remove(old.id)

    return end


def payloads_have_no_offsets(former: Callable[..., None]) -> Callable[..., None]:
    def add(self: JournalPlanner, row: Row) -> None:
        former(self, row)
        self._payloads_end = 0

    return add


def rows_lose_payloads_that_young_items_need(_: Any) -> Callable[..., tuple[()]]:
    return lambda self, first: ()


def replay_forgets_rows_of_ended_items(former: Callable[..., None]) -> Callable[..., None]:
    def end(self: JournalReplay, position: Position, number: int, base: Any, *changes: Any) -> None:
        former(self, position, number, None, *changes)

    return end


@pytest.mark.parametrize(
    ("part", "method", "mistake", "found"),
    [
        (JournalPlanner, "finish", floor_is_the_flush, StoreUnusable),
        (JournalPositions, "range_to_trim", trim_beyond_the_floor, StoreUnusable),
        (JournalPlanner, "_end_events", write_back_is_not_recorded, (AssertionError, StoreUnusable)),
        (JournalPlanner, "end", end_of_a_young_item_is_not_journaled, (AssertionError, StoreUnusable)),
        (JournalPlanner, "add", payloads_have_no_offsets, AssertionError),
        (DirtyItems, "with_first", rows_lose_payloads_that_young_items_need, KeyError),
        (JournalReplay, "_end", replay_forgets_rows_of_ended_items, AssertionError),
    ],
)
def test_planted_mistake_is_found(
    monkeypatch: pytest.MonkeyPatch, part: type, method: str, mistake: Any, found: Any
) -> None:
    monkeypatch.setattr(part, method, mistake(getattr(part, method)))
    monkeypatch.setattr(memory_table, "check_journal_writes", lambda *_: None)  # the owner must notice by itself
    sentence = "lacks the first events" if found is StoreUnusable else None
    with pytest.raises(found, match=sentence):
        for seed in range(20):
            play(seed)
