"""The replay of a journal after a takeover: in pages, in small steps, and never over damage."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from foqs.core.flush.journal_rows import JournalRange, JournalRow
from foqs.core.journal import journal_bytes
from foqs.core.journal.journal_bytes import encode_events
from foqs.core.journal.journal_events import FlushEvents, change_of
from foqs.store.in_memory.memory_store import MemoryDatabase
from foqs.store.journaled import journal_recovery
from foqs.store.journaled.journal_recovery import replay_journal
from foqs.store.port import StoreUnusable
from tests.support.aio import run
from tests.support.journal_rows import new_row
from tests.support.stores import Ownership, opened


async def owner() -> Ownership:
    return await opened(MemoryDatabase(lambda: 1_000).store(0))


def row_of(events: FlushEvents) -> JournalRow:
    return JournalRow(encode_events(events), [b"p" * row.payload_bytes for row in events.added], (1, 1))


def test_journal_is_read_in_pages_and_the_loop_is_free_between_two_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_recovery, "_PAGE_BYTES", 2_000)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def story() -> None:
        owned = await owner()
        for flush in range(50):
            await owned.write(journal_row=row_of(FlushEvents(added=[new_row(flush * 2 + 1), new_row(flush * 2 + 2)])))
        counting = asyncio.ensure_future(count_turns())
        dirty_items, positions = await replay_journal(owned.store)
        counting.cancel()
        assert sorted(number for number, _ in dirty_items.items()) == list(range(1, 101))
        assert len(positions) == 50
        assert positions.live_bytes > 50 * 18
        assert turns >= 50

    run(story())


def test_empty_journal_has_no_dirty_items() -> None:
    async def story() -> None:
        dirty_items, positions = await replay_journal((await owner()).store)
        assert (len(dirty_items), len(positions)) == (0, 0)

    run(story())


def test_rows_below_the_floor_are_known_and_not_replayed() -> None:
    async def story() -> None:
        owned = await owner()
        await owned.write(journal_row=JournalRow(b"over, whatever it says", [], (1, 1)))
        await owned.write(journal_row=row_of(FlushEvents(added=[new_row(1)]))._replace(floor=(1, 2)))
        dirty_items, positions = await replay_journal(owned.store)
        assert [number for number, _ in dirty_items.items()] == [1]
        assert positions.range_to_trim((1, 2)) == JournalRange((1, 1), (1, 2))

    run(story())


def test_damaged_row_is_named_and_nothing_is_recovered() -> None:
    async def story() -> None:
        owned = await owner()
        whole = row_of(FlushEvents(added=[new_row(1)]))
        await owned.write(journal_row=whole)
        await owned.write(journal_row=whole._replace(events=whole.events[:-1] + b"?"))
        with pytest.raises(StoreUnusable, match="the journal row of epoch 1, flush 2 is damaged"):
            await replay_journal(owned.store)

    run(story())


def test_row_of_a_newer_program_is_not_called_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        owned = await owner()
        monkeypatch.setattr(journal_bytes, "VERSION", 3)
        await owned.write(journal_row=row_of(FlushEvents(added=[replace(new_row(1), item_group=b"g")])))
        monkeypatch.undo()
        sentence = (
            "the journal row of epoch 1, flush 1 cannot be read: its events have version 3, and this program knows "
            "versions up to 2: run the newer foqs that wrote it"
        )
        with pytest.raises(StoreUnusable, match=f"^{sentence}$"):
            await replay_journal(owned.store)

    run(story())


def test_journal_that_lacks_the_first_event_of_an_item_is_damaged() -> None:
    async def story() -> None:
        owned = await owner()
        change = change_of(new_row(1), new_row(1, attempt=1))
        await owned.write(journal_row=row_of(FlushEvents(changed=[change])))
        with pytest.raises(StoreUnusable, match="lacks the first events of 1 item,"):
            await replay_journal(owned.store)

    run(story())
