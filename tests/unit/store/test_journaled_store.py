"""Flushes of a store with a journal over a database that refuses what they write beside their own changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from foqs.core.flush.writes import LeaseUpdate, Writes
from foqs.core.items.item import State
from foqs.core.journal.journal_status import JournalStatus
from foqs.store.in_memory.memory_store import MemoryDatabase, MemoryStore
from foqs.store.in_memory.memory_table import ShardTables
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.journaled.refused_rows import DUE_TIMES_OF_DEAD
from foqs.store.port import FencedOut, PayloadMissing, StoreLost, WriteRefused, no_faults
from tests.support.aio import run
from tests.support.disk_room import bytes_used, growth
from tests.support.stores import Ownership, contents, make_row, opened, reading


class FullDisk:
    """A database and its disk, which is full at times, and the time. It counts what it refused."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.room: int | None = None
        """What the tables may take; None: there is room."""
        self.refusals = 0
        self.database = MemoryDatabase(lambda: self.now_ms)
        self.database.refuse = self._refuse
        self.settings = JournalSettings(100, 100, lambda: self.now_ms, reserve_bytes=3_000)

    @property
    def tables(self) -> ShardTables:
        return self.database.tables[0]

    def fill(self) -> None:
        """From now on the tables may not grow."""
        self.room = bytes_used(self.tables)

    def _refuse(self, writes: Writes) -> WriteRefused | None:
        bytes_more = growth(self.tables, writes)
        if self.room is None or bytes_more <= 0 or bytes_used(self.tables) + bytes_more <= self.room:
            return None
        self.refusals += 1
        return WriteRefused("the disk is full", is_full=True)

    async def owner(self, epoch: int, *, is_on: bool = True) -> Ownership:
        return await opened(JournaledStore(self.database.store(0), replace(self.settings, is_on=is_on)), epoch)


@pytest.fixture
def disk() -> FullDisk:
    return FullDisk()


class LateStore(MemoryStore):
    """A store of which a transaction cannot use the room that it frees itself."""

    @property
    def frees_room_late(self) -> bool:
        return True


class LateDisk(FullDisk):
    """As InnoDB at its worst: an event needs more room than it takes, and what is deleted is not free until `purge`."""

    NEEDED = 1_000
    """What must be free beside the bytes of an event."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = replace(self.settings, reserve_bytes=250)  # 4,000 bytes where room is free late
        self.taken = 0

    @property
    def used(self) -> int:
        return self.taken + self.tables.journal_reserve_bytes

    def fill(self) -> None:
        self.room = self.used + self.NEEDED // 2

    def purge(self, size: int) -> None:
        self.taken -= size

    def _refuse(self, writes: Writes) -> WriteRefused | None:
        row, reserve_bytes = writes.journal_row, writes.journal_reserve_bytes
        event_bytes = 0 if row is None else len(row.events) + sum(map(len, row.payloads))
        reserve_more = max(0, (reserve_bytes or 0) - self.tables.journal_reserve_bytes)
        bytes_more = event_bytes + reserve_more
        if self.room is not None and bytes_more and self.used + bytes_more + self.NEEDED > self.room:
            self.refusals += 1
            return WriteRefused("the disk is full", is_full=True)
        self.taken += event_bytes
        return None

    async def owner(self, epoch: int, *, is_on: bool = True) -> Ownership:
        self.database.store(0)
        inner = LateStore(self.database, 0, no_faults)
        return await opened(JournaledStore(inner, replace(self.settings, is_on=is_on)), epoch)

    async def write(self, owned: Ownership, **writes: Any) -> bool:
        """Write, and repeat what may be repeated. Returns whether it was written at last."""
        while True:
            try:
                await owned.write(**writes)
            except WriteRefused as refused:
                assert refused.is_full
                if not refused.is_retryable:
                    return False
                self.now_ms += 500
            else:
                self.now_ms += 10
                return True


def status_of(owned: Ownership) -> JournalStatus:
    status: JournalStatus | None = owned.store.journal
    assert status is not None
    return status


def rows_of(disk: FullDisk) -> Callable[[], set[int]]:
    """Return a function that returns the numbers of the rows in the table."""
    return lambda: set(disk.tables.rows)


def test_full_disk_refuses_no_ack_of_a_young_item_and_acks_free_room(disk: FullDisk) -> None:
    async def story() -> None:
        owned, rows = await disk.owner(1), rows_of(disk)
        for number in range(1, 41):
            await owned.write(inserts=[make_row(number, payload=b"p" * 500)])
        disk.fill()
        with pytest.raises(WriteRefused, match="full"):
            await owned.write(inserts=[make_row(99)])
        for number in range(1, 31):
            disk.now_ms += 50
            await owned.write(leases=[LeaseUpdate(10**6, 7, 1, [number])])
            await owned.write(deletes=[number])
        for _ in range(2):
            disk.now_ms += 1_000
            await owned.write()
        assert disk.tables.journal_reserve_bytes == 3_000, "there is room for the reserve again"
        assert rows() == set(range(31, 41)), "rows are written back again"
        await owned.write(inserts=[make_row(99)])
        assert set(await contents(owned)) == {*range(31, 41), 99}
        assert set(await contents(await disk.owner(2))) == {*range(31, 41), 99}

    run(story())


def test_items_that_wait_for_long_do_not_keep_the_room_of_acked_ones_on_a_full_disk(disk: FullDisk) -> None:
    """Each flush has one item that nobody takes. It is carried forward, so the rest of its journal row is trimmed."""

    async def story() -> None:
        owned = await disk.owner(1)
        for number in range(1, 201, 10):
            await owned.write(inserts=[make_row(number + i, payload=b"p" * 400) for i in range(10)])
        disk.fill()
        disk.now_ms += 10_000
        kept = set(range(1, 201, 10))
        for number in range(1, 201):
            if number not in kept:
                await owned.write(deletes=[number])
                disk.now_ms += 20
                assert bytes_used(disk.tables) <= (disk.room or 0)
        disk.now_ms += 1_000
        await owned.write()
        assert disk.tables.journal_reserve_bytes == 3_000
        assert set(await contents(owned)) == kept
        await owned.write(inserts=[make_row(999)])
        assert set(await contents(await disk.owner(2))) == {*kept, 999}

    run(story())


FRONTS = {
    "many rows": [range(number, number + 1) for number in range(1, 101)],
    "one long row": [range(1, 101)],
    "rows half of whose items are taken": [range(number, number + 10) for number in range(1, 1_001, 10)],
}
"""The oldest items, by flushes. They stay, but for half of the items of the last front."""


@pytest.mark.once
@pytest.mark.parametrize(
    ("payload_bytes", "is_unreadable"),
    [pytest.param(500, False, marks=pytest.mark.long), (10, False), (2_000, True)],
)
@pytest.mark.parametrize("front", [*FRONTS])
def test_acks_go_on_on_a_full_disk_whatever_is_oldest_in_the_journal(
    disk: FullDisk, front: str, is_unreadable: bool, payload_bytes: int
) -> None:
    others = range(1_001, 1_501)
    disk.settings = replace(disk.settings, reserve_bytes=16_000)  # the events of 110 of the 500 items

    async def story() -> None:
        owned = await disk.owner(1)
        for numbers in FRONTS[front]:
            await owned.write(inserts=[make_row(number, payload=b"p" * payload_bytes) for number in numbers])
        for number in others[::5]:
            await owned.write(inserts=[make_row(number + i, payload=b"p" * payload_bytes) for i in range(5)])
        if is_unreadable:
            position = min(disk.tables.journal)
            disk.tables.journal[position] = disk.tables.journal[position]._replace(payloads=(b"",))
        disk.fill()
        owned = await disk.owner(2)
        taken = [*others]
        if front == "rows half of whose items are taken":
            taken += [number for numbers in FRONTS[front] for number in numbers if number % 2]
        Random(1).shuffle(taken)
        for number in taken:
            disk.now_ms += 50
            await owned.write(leases=[LeaseUpdate(10**6, 7, 1, [number])])
            await owned.write(deletes=[number])
            assert bytes_used(disk.tables) <= (disk.room or 0)
        disk.room = None
        disk.now_ms += 2_000
        owned = await disk.owner(3)
        if not is_unreadable:
            left = {number for numbers in FRONTS[front] for number in numbers} - {*taken}
            assert set(await contents(owned)) == left

    run(story(), 240)  # a busy machine takes half a minute


def test_last_half_of_the_reserve_is_for_what_ends(disk: FullDisk) -> None:
    """Nothing can be made shorter: all items stay, and their leases begin and end."""

    async def story() -> None:
        owned = await disk.owner(1)
        await owned.write(inserts=[make_row(number) for number in range(1, 1_001)])
        disk.fill()
        leased = 0
        with pytest.raises(WriteRefused, match="full") as refused:
            while True:
                disk.now_ms += 5
                await owned.write(leases=[LeaseUpdate(10**6, 7, 1, [leased + 1])])
                leased += 1
        assert refused.value.is_full
        assert leased > 3
        assert disk.tables.journal_reserve_bytes == 1_500
        for number in range(1, 5):
            await owned.write(deletes=[number])
        assert disk.tables.journal_reserve_bytes == 0
        for lease in (LeaseUpdate(10**6, 7, 1, [leased + 1]), LeaseUpdate(10**7, 7, 1, [leased])):
            with pytest.raises(WriteRefused, match="full"):
                await owned.write(leases=[lease])
        await owned.write(updates=[make_row(leased)])
        await owned.write()
        assert len(await contents(owned)) == 996

    run(story())


def lease(number: int) -> dict[str, Any]:
    return {"leases": [LeaseUpdate(10**6, 7, 1, [number])]}


def test_last_half_of_the_reserve_is_for_what_ends_also_where_room_is_free_late() -> None:
    async def story() -> None:
        disk = LateDisk()
        owned, leased = await disk.owner(1), 0
        await owned.write(inserts=[make_row(number) for number in range(1, 1_001)])
        assert disk.tables.journal_reserve_bytes == 4_000
        disk.fill()
        while await disk.write(owned, **lease(leased + 1)):
            leased += 1
        assert leased > 3
        assert disk.tables.journal_reserve_bytes == 2_000
        assert await disk.write(owned, deletes=[1])
        assert disk.tables.journal_reserve_bytes == 0

    run(story())


def test_leases_go_on_where_room_is_free_late_as_long_as_ends_have_room() -> None:
    """The reserve is given up and not back: each half of it takes more room than the events of many flushes."""

    async def story() -> None:
        disk = LateDisk()
        owned, number, without_reserve = await disk.owner(1), 1, 0
        await owned.write(inserts=[make_row(number) for number in range(1, 1_001)])
        disk.fill()
        while await disk.write(owned, **lease(number)):
            without_reserve += disk.tables.journal_reserve_bytes == 0
            assert await disk.write(owned, deletes=[number]), "what was leased could not end"
            number += 1
        assert without_reserve > 3, "nothing was leased any more when the reserve was given up"
        refusals = disk.refusals
        assert not await disk.write(owned, **lease(number))
        assert disk.refusals > refusals, "nothing is leased, so it is the database that has no room for a lease"

        disk.purge(300)
        assert await disk.write(owned, **lease(number))
        disk.taken += 300
        assert not await disk.write(owned, deletes=[number])
        disk.purge(2_000)
        refusals = disk.refusals
        assert not await disk.write(owned, **lease(number + 1)), "acks lack room, and a lease took what there was"
        assert disk.refusals == refusals
        assert await disk.write(owned, deletes=[number])
        assert await disk.write(owned, **lease(number + 1))
        assert await disk.write(owned, deletes=[number + 1])
        assert disk.tables.journal_reserve_bytes == 0

        disk.room = None
        disk.now_ms += 20_000
        assert await disk.write(owned, inserts=[make_row(5_000)])
        assert disk.tables.journal_reserve_bytes == 4_000
        assert set(await contents(await disk.owner(2))) == {*range(number + 2, 1_001), 5_000}

    run(story())


def test_reserve_is_longer_where_room_is_free_late_and_the_journal_is_long() -> None:
    async def story() -> None:
        disk = LateDisk()
        owned = await disk.owner(1)
        await owned.write(inserts=[make_row(number, payload=b"p" * 100) for number in range(1, 1_001)])
        await owned.write()
        assert disk.tables.journal_reserve_bytes == 4_000 + 4 * 1_000, "4 % of 100 KB and some events, in whole steps"
        await owned.write(deletes=[*range(1, 1_001)])
        await owned.write()
        assert disk.tables.journal_reserve_bytes == 8_000
        owned = await disk.owner(2)
        await owned.write(inserts=[make_row(2_000)])
        assert disk.tables.journal_reserve_bytes == 4_000

    run(story())


def test_new_items_are_accepted_again_if_nothing_but_new_items_comes_after_the_last_half_was_given_up(
    disk: FullDisk,
) -> None:
    async def story() -> None:
        owned, leased = await disk.owner(1), 0
        await owned.write(inserts=[make_row(number) for number in range(1, 501)])
        disk.fill()
        with pytest.raises(WriteRefused, match="full"):
            while True:
                await owned.write(**lease(leased + 1))
                leased += 1
        await owned.write(deletes=[1])
        assert disk.tables.journal_reserve_bytes == 0
        await owned.write(deletes=[*range(2, 501)])
        assert status_of(owned).dirty_items == 0
        disk.fill()
        for _ in range(3):
            disk.now_ms += 2_000
            with pytest.raises(WriteRefused, match="full"):
                await owned.write(inserts=[make_row(999)])
        disk.room = None
        disk.now_ms += 2_000
        await owned.write(inserts=[make_row(999)])
        assert disk.tables.journal_reserve_bytes == 3_000
        assert set(await contents(await disk.owner(2))) == {999}

    run(story())


def test_flushes_without_changes_leave_the_reserve_to_others_on_a_full_disk(disk: FullDisk) -> None:
    async def story() -> None:
        owned = await disk.owner(1)
        await owned.write(inserts=[make_row(number) for number in range(1, 50)])
        await owned.write()
        disk.fill()
        for _ in range(20):
            disk.now_ms += 300
            await owned.write()
        assert disk.tables.journal_reserve_bytes == 3_000

    run(story())


def test_items_that_have_rows_are_changed_and_deleted_in_place_on_a_full_disk(disk: FullDisk) -> None:
    async def story() -> None:
        owned, rows = await disk.owner(1), rows_of(disk)
        await owned.write(inserts=[make_row(number) for number in range(1, 11)])
        for _ in range(3):
            disk.now_ms += 200
            await owned.write()
        assert rows() == set(range(1, 11))
        await owned.write(deletes=[1], leases=[LeaseUpdate(10**6, 7, 1, [2])])
        assert rows() == set(range(1, 11))
        disk.fill()
        with pytest.raises(WriteRefused, match="full"):
            await owned.write(inserts=[make_row(99, payload=b"p" * 9_000)])
        await owned.write(deletes=[3], leases=[LeaseUpdate(10**6, 8, 1, [4])])
        assert rows() == {2, *range(4, 11)}, "the row of the item that ended before is gone, too"
        assert [disk.tables.rows[number].state for number in (2, 4)] == [State.LEASED, State.LEASED]
        assert disk.refusals == 1

    run(story())


def test_owner_that_takes_over_on_a_full_disk_uses_the_reserve(disk: FullDisk) -> None:
    async def story() -> None:
        owned = await disk.owner(1)
        await owned.write(inserts=[make_row(number) for number in range(1, 9)])
        disk.fill()
        owned = await disk.owner(2)
        for number in range(1, 4):
            await owned.write(deletes=[number])
        owned = await disk.owner(3)
        for number in range(4, 7):
            await owned.write(deletes=[number])
        assert set(await contents(owned)) == {7, 8}

    run(story())


def test_row_that_had_no_room_is_not_held_to_be_refused(disk: FullDisk) -> None:
    async def story() -> None:
        owned, rows = await disk.owner(1), rows_of(disk)
        await owned.write(inserts=[make_row(1)])
        disk.fill()
        for _ in range(5):
            disk.now_ms += 2_000
            await owned.write()
        assert (rows(), disk.refusals) == (set(), 5)
        disk.room = None
        for _ in range(2):
            disk.now_ms += 2_000
            await owned.write()
        assert rows() == {1}

    run(story())


def test_host_that_must_empty_a_journal_on_a_full_disk_says_so(disk: FullDisk) -> None:
    async def story() -> None:
        owned = await disk.owner(1)
        await owned.write(inserts=[make_row(number, payload=b"p" * 5_000) for number in range(1, 3)])
        disk.fill()
        with pytest.raises(StoreLost, match="no room"):
            await disk.owner(2, is_on=False)
        disk.room = None
        assert set(await contents(await disk.owner(3, is_on=False))) == {1, 2}
        assert disk.tables.journal_reserve_bytes == 0

    run(story())


@pytest.mark.parametrize("is_bad_value", [True, False])
def test_refused_rows_are_carried_forward_and_tried_alone_and_three_times_if_the_columns_do_not_hold_them(
    disk: FullDisk, is_bad_value: bool
) -> None:
    tries: dict[int, int] = {}

    def refuse(writes: Writes) -> WriteRefused | None:
        bad = [row.id for row in writes.inserts if row.id <= 3]
        if bad and len(writes.inserts) == 1:
            tries[bad[0]] = tries.get(bad[0], 0) + 1
        return WriteRefused("it is too long", is_bad_value=is_bad_value) if bad else None

    async def story() -> None:
        owned, rows = await disk.owner(1), rows_of(disk)
        disk.database.refuse = refuse
        await owned.write(inserts=[make_row(number) for number in range(1, 9)])
        disk.now_ms = 100
        while rows() != {4, 5, 6, 7, 8}:
            await owned.write()
        for _ in range(20):
            disk.now_ms += 50
            await owned.write()
        assert owned.store.journal is not None
        assert owned.store.journal.refused == 3
        assert owned.store.journal.rows <= 10, "a refused row holds the floor"
        assert all(times == 3 if is_bad_value else times > 4 for times in tries.values())
        assert set(await contents(owned)) == set(range(1, 9))
        disk.database.refuse = lambda writes: None
        for _ in range(DUE_TIMES_OF_DEAD * 4):
            disk.now_ms += 50
            await owned.write()
        assert rows() == set(range(1, 9)), "what the columns do not hold is not tried again after they were changed"
        assert owned.store.journal.refused == 0
        assert set(await contents(await disk.owner(2))) == set(range(1, 9))

    run(story())


def test_rows_are_written_at_once_while_many_are_refused_so_that_a_bad_row_is_refused_before_it_is_acknowledged(
    disk: FullDisk,
) -> None:
    disk.settings = replace(disk.settings, refused_items_max=5)

    def refuse(writes: Writes) -> WriteRefused | None:
        return WriteRefused("too long", is_bad_value=True) if any(row.id < 100 for row in writes.inserts) else None

    async def story() -> None:
        owned, rows = await disk.owner(1), rows_of(disk)
        disk.database.refuse = refuse
        for number in range(1, 5):
            await owned.write(inserts=[make_row(number)])
        for _ in range(20):
            disk.now_ms += 100
            await owned.write()
        assert status_of(owned).refused == 4
        await owned.write(inserts=[make_row(5), make_row(101)])
        assert rows() == set()
        disk.now_ms += 100
        while rows() != {101}:
            await owned.write()
        await owned.write()
        assert status_of(owned).refused == 5
        with pytest.raises(WriteRefused, match="too long"):
            await owned.write(inserts=[make_row(6)])
        await owned.write(inserts=[make_row(102)])
        assert rows() == {101, 102}
        await owned.write(deletes=[5])
        await owned.write()
        await owned.write(inserts=[make_row(103)])
        assert rows() == {101, 102}, "few rows are refused, so flushes journal again"
        assert set(await contents(owned)) == {1, 2, 3, 4, 101, 102, 103}

    run(story())


@pytest.mark.parametrize("has_items", [True, False])
@pytest.mark.parametrize("is_retryable", [True, False])
def test_refusal_of_a_flush_that_empties_a_journal_is_repeated_or_ends_the_takeover(
    has_items: bool, is_retryable: bool
) -> None:
    """Without items, only the trim of the journal is left to write."""

    async def story() -> None:
        database = MemoryDatabase(lambda: 0)
        settings = JournalSettings(100, 100, lambda: 0)
        owned = await opened(JournaledStore(database.store(0), settings))
        await owned.write(inserts=[make_row(1)])
        if not has_items:
            await owned.write(deletes=[1])
        refusals = 0

        def refuse(writes: Writes) -> WriteRefused | None:
            nonlocal refusals
            refusals += 1
            return WriteRefused("a deadlock", is_retryable=is_retryable) if refusals <= 3 else None

        database.refuse = refuse
        store = JournaledStore(database.store(0), replace(settings, is_on=False))
        await store.open()
        if is_retryable:
            await store.take_over(2, "other")
            assert store.journal is None
            assert set(database.tables[0].rows) == ({1} if has_items else set())
            assert database.tables[0].journal == {}
        elif not has_items:
            with pytest.raises(StoreLost, match="cannot be emptied"):
                await store.take_over(2, "other")

    run(story())


def test_takeover_that_empties_a_journal_ends_although_refused_rows_become_due_meanwhile(disk: FullDisk) -> None:
    def refuse(writes: Writes) -> WriteRefused | None:
        disk.now_ms += 20
        return WriteRefused("not now") if writes.inserts else None

    async def story() -> None:
        owned = await disk.owner(1)
        await owned.write(inserts=[make_row(number) for number in range(1, 31)])
        disk.database.refuse = refuse
        owned = await disk.owner(2, is_on=False)
        assert set(await contents(owned)) == set(range(1, 31))

    run(story())


def test_item_whose_payload_the_journal_lacks_is_given_up_and_harms_no_other(disk: FullDisk) -> None:
    async def story() -> None:
        former, rows = await disk.owner(1), rows_of(disk)
        await former.write(inserts=[make_row(1)])
        await former.write(inserts=[make_row(2), make_row(3)])
        position = min(disk.tables.journal)
        disk.tables.journal[position] = disk.tables.journal[position]._replace(payloads=(b"",))
        owned = await disk.owner(2)
        sentence = "the journal row of epoch 1, flush 1 lacks the payload of item 1: cancel the item"
        async with reading(owned.store) as reads:
            with pytest.raises(PayloadMissing, match=sentence):
                await reads.rows(owned.past, [1])
            assert status_of(owned).next_flush_ms == 0, "the next flush must look for the payload"
            assert [row.payload for row in await reads.rows(owned.past, [2])] == [b"payload"]
        with pytest.raises(WriteRefused, match=sentence):
            await owned.store.flush(owned.fence, [], {1: 100, 2: 100}, [], lambda rows, keys: Writes())
        await owned.write()
        assert (status_of(owned).refused, status_of(owned).given_up) == (1, (1,))
        async with reading(owned.store) as reads:
            (row,) = await reads.rows(owned.past, [1])
        assert (row.payload, row.payload_bytes) == (None, 7)
        for _ in range(3):
            await owned.write()
            disk.now_ms += 200
        assert rows() == {2, 3}
        await owned.write(deletes=[1])
        await owned.write()
        status = owned.store.journal
        assert status is not None
        assert (status.dirty_items, status.refused) == (0, 0)
        with pytest.raises(FencedOut):  # the former owner finds no payload either: the fence is asked first
            await former.store.flush(former.fence, [], {2: 100}, [], lambda rows, keys: Writes())

    run(story())


UNREADABLE = 70
"""More than one flush of `FullDisk` writes back."""


async def with_unreadable_payloads(disk: FullDisk) -> None:
    """Fill a journal: the oldest items have lost their payloads, and three others have not."""
    former = await disk.owner(1)
    await former.write(inserts=[make_row(number) for number in range(1, UNREADABLE + 1)])
    await former.write(inserts=[make_row(UNREADABLE + i) for i in range(1, 4)])
    position = min(disk.tables.journal)
    disk.tables.journal[position] = disk.tables.journal[position]._replace(payloads=(b"",))


def test_many_unreadable_payloads_do_not_keep_other_items_from_their_rows(disk: FullDisk) -> None:
    async def story() -> None:
        await with_unreadable_payloads(disk)
        owned, rows = await disk.owner(2), rows_of(disk)
        for _ in range(5):
            disk.now_ms += 200
            await owned.write()
        assert rows() == {UNREADABLE + 1, UNREADABLE + 2, UNREADABLE + 3}
        status = owned.store.journal
        assert status is not None
        assert (status.refused, status.lag_ms, len(status.given_up)) == (UNREADABLE, 0, UNREADABLE)
        assert status.next_flush_ms > 0, "what cannot be written needs no flush"
        await owned.write(deletes=list(range(1, UNREADABLE + 1)))
        await owned.write()
        status = owned.store.journal
        assert status is not None
        assert (status.dirty_items, status.refused, status.rows) == (0, 0, 1)

    run(story())


def test_takeover_that_empties_a_journal_ends_although_many_payloads_are_unreadable(disk: FullDisk) -> None:
    async def story() -> None:
        await with_unreadable_payloads(disk)
        owned, rows = await disk.owner(2, is_on=False), rows_of(disk)
        assert rows() == {UNREADABLE + 1, UNREADABLE + 2, UNREADABLE + 3}
        status = owned.store.journal
        assert status is not None
        assert (status.dirty_items, status.refused) == (UNREADABLE, UNREADABLE)

    run(story())


def test_many_rows_that_are_refused_do_not_keep_other_items_from_their_rows_in_a_hand_over(disk: FullDisk) -> None:
    async def story() -> None:
        owned, rows = await disk.owner(1), rows_of(disk)
        await owned.write(inserts=[make_row(number) for number in range(1, UNREADABLE + 1)])
        disk.database.refuse = lambda writes: (
            WriteRefused("no") if any(row.id <= UNREADABLE for row in writes.inserts) else None
        )
        disk.now_ms += 100
        for _ in range(3 * UNREADABLE):
            await owned.write()
        await owned.write(inserts=[make_row(UNREADABLE + 1)])
        owned.store.begin_hand_over()
        for _ in range(3):
            await owned.write()
        assert rows() == {UNREADABLE + 1}

    run(story())


@pytest.mark.parametrize(
    "change",
    [{"priority": 1 << 63}, {"topic": "\ud800"}, pytest.param({"metadata": None}, marks=pytest.mark.takes_source)],
)
def test_value_that_the_events_do_not_hold_is_refused_as_such(disk: FullDisk, change: dict[str, Any]) -> None:
    async def story() -> None:
        owned = await disk.owner(1)
        for others in ([], [make_row(3)]):
            with pytest.raises(WriteRefused) as refused:
                await owned.write(inserts=[make_row(**({"number": 2} | change)), *others])
            assert refused.value.is_bad_value
        await owned.write(inserts=[make_row(3)])
        assert set(await contents(await disk.owner(2))) == {3}

    run(story())


def test_shard_goes_on_without_a_reserve_that_the_database_refuses_and_tries_it_again_later(disk: FullDisk) -> None:
    refuse = disk.database.refuse

    async def story() -> None:
        owned, rows = await disk.owner(1), rows_of(disk)
        disk.database.refuse = lambda writes: "no reserve" if writes.journal_reserve_bytes else None
        await owned.write(inserts=[make_row(1)])
        disk.now_ms = 1_000
        await owned.write()
        assert (rows(), disk.tables.journal_reserve_bytes) == ({1}, 0)
        disk.database.refuse = refuse
        disk.now_ms = 100_000
        await owned.write(inserts=[make_row(2)])
        assert disk.tables.journal_reserve_bytes == 3_000

    run(story())
