"""A journal that is switched on and off between two owners, and the bounds of one that is on. Run on all stores."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import pytest

from foqs.core.flush.writes import LeaseUpdate
from foqs.core.items.item import State
from foqs.core.journal.dirty_items import YOUNG_ITEM_BYTES
from foqs.core.journal.journal_budget import JournalBudget
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.port import FAULT_POINTS, Store, StoreLost, Superseded, WriteRefused
from tests.contract.conftest import Bench
from tests.support.stores import Ownership, contents, make_row

pytestmark = pytest.mark.rows_only("it makes its stores with a journal by itself")

ON = JournalSettings(1 << 30, 10, partial(next, itertools.count()))
"""Nothing is written back before its time, and a flush that empties the journal writes six rows."""
OFF = replace(ON, is_on=False)


async def take_over(store: Store, settings: JournalSettings, epoch: int) -> Ownership:
    journaled = JournaledStore(store, settings)
    await journaled.open()
    owner = await journaled.take_over(epoch, f"nonce-{epoch}")
    return Ownership(journaled, epoch, f"nonce-{epoch}", owner.flush + 1)


async def rows_and_journal(bench: Bench) -> tuple[dict[int, State], int]:
    """Return the rows of the tables alone, and the number of journal rows."""
    store = bench.store()
    await store.open()
    owner = await store.read_owner()
    events = await store.journal_events((0, 0), 1 << 30)
    rows = await contents(Ownership(store, owner.epoch, owner.nonce, owner.flush + 1))
    return {number: row.state for number, row in rows.items()}, len(events)


async def fill(bench: Bench) -> dict[int, State]:
    """Journal items of every kind, and return them: young, leased, changed and ended ones."""
    plain = await take_over(bench.store(), OFF, 1)
    await plain.write(inserts=[make_row(number) for number in range(1, 4)])
    owned = await take_over(bench.store(), ON, 2)
    await owned.write(inserts=[make_row(number) for number in range(4, 30)])
    await owned.write(leases=[LeaseUpdate(50, 7, 1, [2, 5])])
    await owned.write(deletes=[3, 6])
    assert await rows_and_journal(bench) == (dict.fromkeys([1, 2, 3], State.READY), 3)
    return {
        number: State.LEASED if number in (2, 5) else State.READY for number in range(1, 30) if number not in (3, 6)
    }


def test_shard_goes_from_a_host_with_a_journal_to_one_without_and_back(bench: Bench) -> None:
    async def story() -> None:
        items = await fill(bench)
        off = await take_over(bench.store(), OFF, 3)
        assert await rows_and_journal(bench) == (items, 0)
        assert off.store.journal is None
        await off.write(inserts=[make_row(40)])
        assert await rows_and_journal(bench) == (items | {40: State.READY}, 0)
        on = await take_over(bench.store(), ON, 4)
        await on.write(deletes=[1], inserts=[make_row(41)])
        rows, journal_rows = await rows_and_journal(bench)
        assert (41 in rows, 1 in rows, journal_rows) == (False, True, 1)
        again = await take_over(bench.store(), ON, 5)
        assert set(await contents(again)) == {*items, 40, 41} - {1}

    bench.run(story())


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_journal_that_was_emptied_in_part_is_emptied_by_a_later_owner(bench: Bench, point: str) -> None:
    """The connection breaks in the first flush that empties it, then in the second of the next owner, and so on."""

    async def story() -> None:
        items = await fill(bench)
        for flushes in itertools.count(1):
            left = [flushes]

            def fault(at: str, left: list[int] = left) -> None:
                left[0] -= at == point
                if not left[0]:
                    raise StoreLost("broken by the test")

            try:
                await take_over(bench.store(faults=fault), OFF, 2 * flushes + 1)
            except StoreLost:
                reader = await take_over(bench.store(), ON, 2 * flushes + 2)
                assert {number: row.state for number, row in (await contents(reader)).items()} == items
            else:
                break
        assert flushes > 1
        assert await rows_and_journal(bench) == (items, 0)

    bench.run(story())


def test_owner_that_empties_the_journal_is_superseded(bench: Bench) -> None:
    async def story() -> None:
        items = await fill(bench)
        late = JournaledStore(bench.store(), OFF)
        await late.open()
        flush = late.inner.flush

        async def flush_later(*arguments: object) -> None:
            await take_over(bench.store(), ON, 4)
            await flush(*arguments)  # type: ignore[arg-type]

        late.inner.flush = flush_later  # type: ignore[method-assign,assignment]
        with pytest.raises((Superseded, StoreLost)):
            await late.take_over(3, "nonce-3")
        reader = await take_over(bench.store(), ON, 5)
        assert {number: row.state for number, row in (await contents(reader)).items()} == items

    bench.run(story())


def test_item_whose_row_the_database_refuses_stays_in_the_journal_alone(bench: Bench) -> None:
    async def story() -> None:
        items = await fill(bench)
        journaled = JournaledStore(bench.store(), OFF)
        await journaled.open()
        flush = journaled.inner.flush

        async def flush_or_refuse(fence, row_ids, limits, names, decide):  # type: ignore[no-untyped-def]
            def refuse(rows, keys):  # type: ignore[no-untyped-def]
                writes = decide(rows, keys)
                if any(row.id == 9 for row in writes.inserts):
                    raise WriteRefused("a row that this database does not take")
                return writes

            await flush(fence, row_ids, limits, names, refuse)

        journaled.inner.flush = flush_or_refuse  # type: ignore[method-assign]
        owner = await journaled.take_over(3, "nonce-3")
        owned = Ownership(journaled, 3, "nonce-3", owner.flush + 1)
        await owned.write(inserts=[make_row(50)])
        rows, _ = await rows_and_journal(bench)
        assert rows == {number: state for number, state in items.items() if number != 9} | {50: State.READY}
        assert {number: row.state for number, row in (await contents(owned)).items()} == items | {50: State.READY}
        await owned.write(deletes=[9])
        assert journaled.journal is not None
        assert journaled.journal.dirty_items == 0

    bench.run(story())


@pytest.mark.parametrize("is_full_by", ["memory", "journal bytes"])
def test_flushes_write_rows_while_a_bound_of_the_journal_is_reached(bench: Bench, is_full_by: str) -> None:
    settings = {
        "memory": replace(ON, budget=JournalBudget(20 * YOUNG_ITEM_BYTES)),
        "journal bytes": replace(ON, live_bytes_max=2_000),
    }[is_full_by]

    async def story() -> None:
        owned = await take_over(bench.store(), settings, 1)
        most, items, live_bytes = 0, set[int](), 0
        for flush in range(60):
            numbers = range(10 * flush + 1, 10 * flush + 11)
            await owned.write(inserts=[make_row(number) for number in numbers], deletes=[*sorted(items)[:3]])
            items = {*sorted(items)[3:], *numbers}
            status = owned.store.journal
            assert status is not None
            most, live_bytes = max(most, status.dirty_items), max(live_bytes, status.live_bytes)
        assert most <= 100
        assert live_bytes < 20_000
        assert set(await contents(owned)) == items
        again = await take_over(bench.store(), settings, 2)
        assert set(await contents(again)) == items

    bench.run(story())


def test_shards_of_a_host_share_the_memory_of_their_journals_and_each_has_its_part() -> None:
    budget = JournalBudget(100)
    budget.set_use("a", 90)
    assert budget.fullness_percent("a") == 90
    budget.set_use("b", 20)
    assert (budget.fullness_percent("a"), budget.fullness_percent("b")) == (110, 40)
    budget.release("a")
    budget.set_use("b", 50)
    assert budget.fullness_percent("b") == 50
    budget.release("b")
    budget.release("b")
    assert budget.fullness_percent("c") == 0


def test_flushes_without_events_trim_the_journal_to_its_newest_row(bench: Bench) -> None:
    async def story() -> None:
        owned = await take_over(bench.store(), ON, 1)
        for number in range(1, 80):
            await owned.write(inserts=[make_row(number)])
            await owned.write(deletes=[number])
        store = owned.store
        for _ in range(10):
            status = store.journal
            assert status is not None
            if not status.next_flush_ms:
                await owned.write()
        assert status is not None
        assert (status.rows, status.dirty_items) == (1, 0)
        assert await rows_and_journal(bench) == ({}, 1)

    bench.run(story())
