"""A page that was read beside flushes, merged with the memory, shows the items as they are."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from foqs.core.items.item import Row
from foqs.core.journal.touched_numbers import ReadsUnderWay, numbers_to_read_again, rows_that_count
from tests.support.journal_shard import JournalShard


@pytest.mark.parametrize("seed", range(40))
def test_merged_page_shows_the_items_as_they_are(seed: int) -> None:
    shard = JournalShard(Random(seed))
    for _ in range(12):
        shard.play_flush()
        touched = shard.reads.begin_read()
        page = [replace(row) for row in shard.rows.values()]
        for _ in range(shard.random.randint(0, 5)):
            shard.play_flush()
        dirty_items = shard.dirty_items
        numbers = numbers_to_read_again(touched, dirty_items, dirty_items.items())
        again = [shard.rows[number] for number in numbers if number in shard.rows]
        items: list[Row | None] = [
            *rows_that_count(page, touched, dirty_items),
            *map(dirty_items.overlay, again),
            *(item.row for _, item in dirty_items.items() if item.row is not None),
        ]
        assert sorted(row.id for row in items if row is not None) == sorted(shard.truth)
        assert {row.id: row for row in items if row is not None} == shard.truth
        shard.reads.end_read(touched)


def test_record_without_room_is_void() -> None:
    reads = ReadsUnderWay(2)
    touched = reads.begin_read()
    reads.on_committed([1, 2])
    assert not touched.is_void
    reads.on_committed([3])
    assert touched.is_void


def test_record_that_ended_is_forgotten() -> None:
    reads = ReadsUnderWay(2)
    touched = reads.begin_read()
    reads.end_read(touched)
    reads.on_committed([1])
    assert touched.numbers == set()
