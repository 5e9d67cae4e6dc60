"""Reads of a store with a journal: how much of tables and memory they read, and that each result is of one moment."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from foqs.core.flush.writes import LeaseUpdate
from foqs.core.items.item import Row, State
from foqs.core.items.row_filter import RowFilter
from foqs.store.in_memory.memory_store import MemoryDatabase
from foqs.store.journaled import journal_memory, journaled_reads
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.journaled_reads import JournaledReads
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.port import DueRow, IdRange, Reads, StoreLost
from tests.support.aio import run
from tests.support.stores import TOPIC, Ownership, contents, make_row, opened

READS_MAX = 8
"""A page of any size goes to the tables at most this often in these tests."""


class WatchedReads:
    """Reads of rows that are counted, and before which something may happen."""

    def __init__(self, inner: Reads) -> None:
        self._inner = inner
        self.calls = 0
        self.payload_bytes = 0
        self.before_call: Callable[[int], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.before_call is not None:
                await self.before_call(self.calls)
            found = await getattr(self._inner, name)(*arguments, **options)
            if name == "journal_payloads":
                self.payload_bytes += sum(map(len, found.values()))
            return found

        return call


class WatchedItems(dict[int, Any]):
    """The dirty items of a memory, with a count of those that are looked at."""

    looked = 0

    def __getitem__(self, number: int) -> Any:
        self.looked += 1
        return super().__getitem__(number)

    def get(self, number: int, default: Any = None) -> Any:
        self.looked += 1
        return super().get(number, default)

    def __iter__(self) -> Iterator[int]:
        self.looked += len(self)
        return super().__iter__()

    def items(self) -> Any:
        self.looked += len(self)
        return super().items()

    def values(self) -> Any:
        self.looked += len(self)
        return super().values()


async def owner_of_rows(database: MemoryDatabase, last: int = 1_300, **changes: Any) -> Ownership:
    """An owner that writes no row back by itself, of a shard with the rows up to `last`."""
    plain = await opened(database.store(0))
    await plain.write(inserts=[make_row(number, **changes) for number in range(1, last + 1)])
    if changes.get("due_ms") is not None:
        await plain.write(timers_added=[(changes["due_ms"], number) for number in range(1, last + 1)])
    store = JournaledStore(database.store(0), JournalSettings(1 << 30, 10_000, partial(next, itertools.count())))
    return await opened(store, epoch=2, nonce="other")


def watched(owned: Ownership) -> tuple[JournaledReads, WatchedReads]:
    assert isinstance(owned.store, JournaledStore)
    store = owned.store
    inner = WatchedReads(store.inner.reads())
    return JournaledReads(inner, lambda: store.memory), inner  # type: ignore[arg-type]


def database() -> MemoryDatabase:
    return MemoryDatabase(lambda: 1_000)


async def keys(reads: JournaledReads, owned: Ownership, limit: int = 1) -> list[int]:
    found = await reads.ready_order_keys(owned.past, TOPIC, None, limit)
    return [make_row(number).id for number in range(1, 2_000) if make_row(number).order_key in found]


async def rows(reads: JournaledReads, owned: Ownership, limit: int = 1) -> list[int]:
    found = await reads.list_rows(owned.past, TOPIC, State.READY, None, limit, with_payload=True)
    assert all(row.payload == b"payload" for row in found)
    return [row.id for row in found]


async def leases(reads: JournaledReads, owned: Ownership, limit: int = 1) -> list[int]:
    ((*found,),) = await reads.leases_of(owned.past, [(TOPIC, None)], limit)
    return [number for number in range(1, 2_000) if (make_row(number).order_key, 50) in found]


async def dues(reads: JournaledReads, owned: Ownership, limit: int = 1) -> list[int]:
    return [due.id for due in await reads.due_rows(owned.past, 100, None, limit)]


LISTINGS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "keys": (keys, {}),
    "rows": (rows, {}),
    "leases": (leases, {"state": State.LEASED, "due_ms": 50}),
    "dues": (dues, {"due_ms": 50}),
}


@pytest.mark.parametrize("name", LISTINGS)
@pytest.mark.parametrize("ended", [100, 1_299, 1_300])
def test_short_page_behind_many_items_that_the_journal_ended_takes_few_reads(name: str, ended: int) -> None:
    listing, changes = LISTINGS[name]

    async def story() -> None:
        owned = await owner_of_rows(database(), **changes)
        await owned.write(deletes=[*range(1, ended + 1)])
        reads, inner = watched(owned)
        assert await listing(reads, owned) == ([ended + 1] if ended < 1_300 else [])
        assert inner.calls <= READS_MAX

    run(story())


@pytest.mark.parametrize("name", LISTINGS)
def test_pages_of_one_listing_show_all_of_a_flush_between_them_or_nothing(name: str) -> None:
    listing, changes = LISTINGS[name]

    async def story() -> None:
        owned = await owner_of_rows(database(), **changes)
        await owned.write(deletes=[*range(2, 1_300)])
        reads, inner = watched(owned)

        async def flush_between(call: int) -> None:
            if call == 2:  # the first page was read, and had this item
                await owned.write(deletes=[1], inserts=[make_row(1_301, **changes)])

        inner.before_call = flush_between
        found = await listing(reads, owned, 3)
        assert found in ([1, 1_300], [1_300, 1_301])

    run(story())


def test_listing_of_rows_that_flushes_write_during_each_read_ends() -> None:
    async def story() -> None:
        owned = await owner_of_rows(database())
        reads, inner = watched(owned)
        assert isinstance(owned.store, JournaledStore)
        memory = owned.store.memory

        async def touch(call: int) -> None:
            assert call < 100, "the listing does not end"
            await owned.write(leases=[LeaseUpdate(50, 7, 1, [1])])
            item = memory.dirty_items.get(1)
            memory.dirty_items.apply({}, [1])
            memory.reads.on_committed({1: item})

        inner.before_call = touch
        with pytest.raises(StoreLost, match="change all the time"):
            await reads.list_rows(owned.past, TOPIC, State.LEASED, None, 1, with_payload=True)

    run(story())


@pytest.mark.parametrize("limit", [-1, 100])
def test_payload_of_a_young_item_is_not_read_if_it_is_above_the_limit_or_in_memory(limit: int) -> None:
    async def story() -> None:
        place = database()
        owned = await owner_of_rows(place)
        await owned.write(inserts=[make_row(1_301, payload=bytes(1_000))])
        reads, inner = watched(owned)
        (short,) = await reads.rows(owned.past, [1_301], limit)
        (whole,) = await reads.rows(owned.past, [1_301])
        assert (short.payload, whole.payload, inner.payload_bytes) == (None, bytes(1_000), 0)
        again = await opened(JournaledStore(place.store(0), owned.store._settings), 3, "third")  # type: ignore[attr-defined]
        reads, inner = watched(again)
        (short,) = await reads.rows(again.past, [1_301], limit)
        assert (short.payload, inner.payload_bytes) == (None, 0)
        (whole,) = await reads.rows(again.past, [1_301])
        assert (whole.payload, inner.payload_bytes) == (bytes(1_000), 1_000)

    run(story())


def test_counts_are_those_of_the_snapshot_and_are_added_up_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journaled_reads, "_ITEMS_PER_STEP", 100)

    async def story() -> None:
        owned = await owner_of_rows(database())
        await owned.write(deletes=[*range(1, 1_001)], inserts=[make_row(1_301)])
        reads, inner = watched(owned)
        await reads.begin_snapshot(owned.past)
        await owned.write(deletes=[1_301])
        turns, counting = 0, asyncio.ensure_future(reads.counts())
        while not counting.done():
            turns += 1
            await asyncio.sleep(0)
        assert [count.rows for count in counting.result()] == [301]
        assert (turns > 10, inner.calls) == (True, 2)

    run(story())


async def numbers_by_id(reads: JournaledReads, owned: Ownership, limit: int = 1) -> list[int]:
    page = await reads.rows_by_id(owned.past, TOPIC[0], RowFilter(), IdRange(0, 1 << 62, limit, limit))
    return [row.id for row in page.rows]


ALL_LISTINGS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {**LISTINGS, "by id": (numbers_by_id, {})}


@pytest.mark.parametrize("name", ALL_LISTINGS)
def test_short_page_looks_at_few_of_many_dirty_items(name: str) -> None:
    listing, changes = ALL_LISTINGS[name]
    first = 1_001 if name == "keys" else 1

    async def story() -> None:
        owned = await owner_of_rows(database(), last=0)
        await owned.write(inserts=[make_row(number, **changes) for number in range(1, 1_900)])
        if name == "keys":  # the first ones are READY no more
            await owned.write(leases=[LeaseUpdate(50, 7, 1, [*range(1, first)])])
        reads, _ = watched(owned)
        assert isinstance(owned.store, JournaledStore)
        dirty_items = owned.store.memory.dirty_items
        dirty_items._items = items = WatchedItems(dirty_items._items)
        assert await listing(reads, owned, 10) == [*range(first, first + 10)]
        assert items.looked < 100

    run(story())


@pytest.mark.parametrize("name", ALL_LISTINGS)
def test_page_during_which_too_much_is_written_is_read_in_parts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    listing, changes = ALL_LISTINGS[name]
    monkeypatch.setattr(journal_memory, "_TOUCHED_NUMBERS_MAX", 50)

    async def story() -> None:
        owned = await owner_of_rows(database(), **changes)
        reads, inner = watched(owned)
        assert isinstance(owned.store, JournaledStore)
        memory = owned.store.memory

        async def write_much(call: int) -> None:
            if call <= slow_reads:
                memory.reads.on_committed(dict.fromkeys(range(5_000, 5_100)))

        inner.before_call, slow_reads = write_much, 1
        found = await listing(reads, owned, 20)
        assert found == [*range(1, 1 + len(found))]
        assert len(found) == (2 if name == "by id" else 20)  # a page by id may be short
        slow_reads = 1 << 20
        with pytest.raises(StoreLost, match="too many rows during a read"):
            await listing(reads, owned, 20)

    run(story())


def test_rows_of_the_last_pages_have_their_payloads() -> None:
    async def story() -> None:
        owned = await owner_of_rows(database())
        await owned.write(deletes=[*range(1, 700)])
        found: dict[int, Row] = await contents(owned)
        assert found == {number: make_row(number) for number in range(700, 1_301)}
        assert DueRow(1, 1) not in await owned.store.due_rows(None, 100, None, 10)

    run(story())
