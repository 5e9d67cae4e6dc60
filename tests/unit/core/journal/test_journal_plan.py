"""What a flush journals, what the owner remembers, and what a replay rebuilds, over random histories."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from foqs.core.items.item import State
from foqs.core.journal import sorted_keys
from foqs.core.journal.dirty_items import (
    CHANGED_ITEM_BYTES,
    ENDED_ITEM_BYTES,
    YOUNG_ITEM_BYTES,
    DirtyItem,
    DirtyItems,
)
from foqs.core.journal.journal_bytes import JournalDamaged
from foqs.core.journal.journal_events import FlushEvents, base_of, change_of
from foqs.core.journal.journal_replay import JournalReplay
from tests.support.journal_rows import new_row
from tests.support.journal_shard import JournalShard


@pytest.mark.parametrize("segment_keys", [2, sorted_keys.SEGMENT_KEYS])
def test_rows_and_journal_are_what_the_owner_remembers(monkeypatch: pytest.MonkeyPatch, segment_keys: int) -> None:
    monkeypatch.setattr(sorted_keys, "SEGMENT_KEYS", segment_keys)
    for seed in range(30):
        shard = JournalShard(Random(seed))
        for _ in range(25):
            shard.play_flush()
            shard.check()


def test_items_are_written_back_oldest_first() -> None:
    dirty_items = DirtyItems()
    for flush, numbers in ((1, (5, 6)), (2, (1,)), (3, (9,))):
        dirty_items.apply({number: DirtyItem((1, flush), None, row=new_row(number)) for number in numbers}, ())
    assert dirty_items.oldest(3) == [5, 6, 1]
    assert dirty_items.oldest(10, up_to=(1, 2)) == [5, 6, 1]
    assert dirty_items.floor((), (1, 4)) == (1, 1)
    assert dirty_items.floor({5, 6}, (1, 4)) == (1, 2)
    assert dirty_items.floor({5, 6, 1, 9}, (1, 4)) == (1, 4)


def test_size_of_dirty_items_counts_payloads_metadata_trace_contexts_and_groups() -> None:
    dirty_items = DirtyItems()
    young = new_row(1, payload=b"p" * 9, metadata=b"m" * 50, trace_context=b"t" * 30, item_group=b"g" * 7)
    ready = change_of(new_row(3, state=State.LEASED), new_row(3, metadata=b"m" * 70))
    items = {1: DirtyItem((1, 1), None, row=young), 2: DirtyItem((1, 1), base_of(new_row(2)))}
    dirty_items.apply(items | {3: DirtyItem((1, 1), base_of(new_row(3)), change=ready)}, ())
    young_bytes, changed_bytes = YOUNG_ITEM_BYTES + 9 + 50 + 30 + 7, CHANGED_ITEM_BYTES + 70
    assert dirty_items.memory_bytes == young_bytes + ENDED_ITEM_BYTES + changed_bytes
    dirty_items.apply({1: DirtyItem((1, 1), None, row=replace(young, payload=None))}, [2])
    assert dirty_items.memory_bytes == young_bytes - 9 + changed_bytes
    dirty_items.apply({}, [1, 3])
    assert dirty_items.memory_bytes == 0


def test_ended_items_are_known_in_the_order_in_which_they_ended_until_they_are_clean() -> None:
    dirty_items = DirtyItems()
    for flush, number in ((1, 5), (2, 1), (3, 9)):
        dirty_items.apply({number: DirtyItem((1, flush), base_of(new_row(number)))}, ())
    assert (dirty_items.ended(2), dirty_items.ended(10)) == ([5, 1], [5, 1, 9])
    dirty_items.apply({}, [5])
    assert dirty_items.ended(10) == [1, 9]


def test_keys_are_those_of_the_items_as_they_are() -> None:
    dirty_items, topic = DirtyItems(), ("n", "t")
    deferred = new_row(1, state=State.DEFERRED, due_ms=1_000)
    for due_ms in range(1_000, 1_200):
        dirty_items.apply({1: DirtyItem((1, 1), None, row=replace(deferred, due_ms=due_ms))}, ())
        assert dirty_items.dues_after((0, 0), 2_000, 10) == [(due_ms, 1)]
    assert (dirty_items.next_due_ms(), dirty_items.next_due_ms(1_199)) == (1_199, None)
    dirty_items.apply({1: DirtyItem((1, 1), None, row=new_row(1))}, ())
    assert dirty_items.order_keys(topic, State.READY, None, 10) == [new_row(1).order_key]
    assert dirty_items.order_keys(topic, State.DEFERRED, None, 10) == []
    dirty_items.apply({}, [1])
    assert dirty_items.order_keys(topic, State.READY, None, 10) == []
    dirty_items.check()


def test_keys_of_purged_items_are_passed_over() -> None:
    dirty_items = DirtyItems()
    dirty_items.apply({n: DirtyItem((1, 1), None, row=new_row(n)) for n in range(1, 3_001)}, ())
    expected = [new_row(number).order_key for number in (2_500, 2_501)]
    assert dirty_items.order_keys(("n", "t"), State.READY, None, 2, 2_499) == expected


def test_dues_of_one_moment_are_read_page_by_page() -> None:
    dirty_items = DirtyItems()
    rows = [new_row(number, state=State.DEFERRED, due_ms=50) for number in range(1, 3_001)]
    dirty_items.apply({row.id: DirtyItem((1, 1), None, row=row) for row in rows}, ())
    assert dirty_items.dues_after((49, 9_999), 50, 2) == [(50, 1), (50, 2)]
    assert dirty_items.dues_after((50, 2), 50, 2) == [(50, 3), (50, 4)]
    assert dirty_items.dues_after((0, 0), 49, 2) == []
    assert dirty_items.numbers_after(2_990, 2_995, 3) == [2_991, 2_992, 2_993]


def test_journal_that_lacks_the_start_of_an_item_is_damaged() -> None:
    replay = JournalReplay()
    replay.add((1, 5), FlushEvents(changed=[change_of(new_row(1), new_row(1, token=3))]))
    with pytest.raises(JournalDamaged, match="such as 1"):
        replay.finish()


def test_change_whose_row_became_current_later_needs_no_start() -> None:
    replay = JournalReplay()
    replay.add((1, 5), FlushEvents(changed=[change_of(new_row(1), new_row(1, token=3))]))
    replay.add((1, 6), FlushEvents(current=[1]))
    assert len(replay.finish()) == 0


def test_item_that_is_ready_again_keeps_its_place_for_the_next_owner() -> None:
    leased = new_row(1, state=State.LEASED, due_ms=9)
    change = change_of(leased, replace(leased, state=State.READY, due_ms=None))
    assert change.rewrite is not None
    assert (change.rewrite.priority, change.rewrite.deliver_after_ms) == (leased.priority, leased.deliver_after_ms)
    assert change_of(new_row(1), leased).rewrite is None
