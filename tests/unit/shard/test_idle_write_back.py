"""A shard with a journal to which no call comes: its rows are written back, and its journal is trimmed."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.flush.writes import Writes
from foqs.core.items.explanation import dead_reason
from foqs.core.items.item import State
from foqs.core.items.life import Event, EventKind
from foqs.core.journal.journal_status import JournalStatus
from foqs.queue.engine import Engine
from foqs.shard.idle_write_back import HANDOVER_S
from foqs.shard.observer import NullObserver
from foqs.store.journaled import refused_rows
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.port import WriteRefused
from foqs_contract.errors import Unavailable
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.inner_parts import store_of, writer_of

WRITE_BACK_AFTER_S = 5
NEVER_MS = 10**9


async def started(world: World, **settings: Any) -> Engine:
    """An engine whose shard journals, and writes no flush of its own but those that its journal needs."""
    world.facts = NullObserver()
    world.journal = JournalSettings(1_000 * WRITE_BACK_AFTER_S, 100, world.clock.monotonic_ms, **settings)
    return await world.counted_engine(engine_settings(1, sweep_interval_ms=NEVER_MS))


def status_of(engine: Engine) -> JournalStatus:
    status: JournalStatus | None = store_of(engine.shards[1]).journal
    assert status is not None
    return status


def test_idle_shard_writes_items_back_when_they_are_due_and_then_rests() -> None:
    async def story(world: World) -> None:
        engine = await started(world)
        caller, writer = Caller(world, engine), writer_of(engine.shards[1])
        await caller.put(count=150)
        flush = writer.flush_number
        await world.pass_s(WRITE_BACK_AFTER_S - 0.5)
        assert (writer.flush_number, world.rows(), status_of(engine).dirty_items) == (flush, [], 150)
        await world.pass_s(1)
        assert world.rows() == [("t", State.READY)] * 150
        assert (status_of(engine).dirty_items, status_of(engine).rows) == (0, 1)
        flush = writer.flush_number
        await world.pass_s(600)
        assert writer.flush_number == flush

    run_in_world(story)


def test_idle_shard_deletes_the_rows_of_ended_items() -> None:
    async def story(world: World) -> None:
        engine = await started(world)
        caller = Caller(world, engine)
        await caller.put(count=30)
        await world.pass_s(2 * WRITE_BACK_AFTER_S)
        await caller.do(EventKind.ACK, (await caller.get(count=30)).items)
        assert len(world.rows()) == 30
        await world.pass_s(2 * WRITE_BACK_AFTER_S)
        assert (world.rows(), status_of(engine).dirty_items) == ([], 0)

    run_in_world(story)


def test_shard_without_room_on_its_disk_tries_again_once_a_second() -> None:
    async def story(world: World) -> None:
        engine = await started(world)
        await Caller(world, engine).put(count=10)
        refusals = 0

        def refuse(writes: Writes) -> WriteRefused | None:
            nonlocal refusals
            refusals += bool(writes.inserts)
            return WriteRefused("the disk is full", is_full=True) if writes.inserts else None

        world.database.refuse = refuse
        await world.pass_s(WRITE_BACK_AFTER_S + 10)
        assert 5 <= refusals <= 11
        assert writer_of(engine.shards[1]).flush_number < 60
        world.database.refuse = lambda writes: None
        await world.pass_s(2)
        assert len(world.rows()) == 10

    run_in_world(story)


@pytest.mark.parametrize("has_room", [True, False])
def test_shard_that_is_handed_over_serves_while_it_writes_rows_back_but_not_for_long(has_room: bool) -> None:
    async def story(world: World) -> None:
        engine = await started(world, handover_items_max=10)
        caller = Caller(world, engine)
        await caller.put(count=150)
        if not has_room:
            world.database.refuse = lambda writes: WriteRefused("full", is_full=True) if writes.inserts else None
        engine.on_release_requested(1)
        assert len((await caller.get()).items) == 1
        await world.pass_s(HANDOVER_S / 2)
        assert (1 in engine.shards, len(world.rows()) >= 140) == (not has_room, has_room)
        await world.pass_s(HANDOVER_S)
        assert 1 not in engine.shards

    run_in_world(story)


def test_item_whose_row_the_columns_do_not_hold_becomes_dead_with_this_reason() -> None:
    async def story(world: World) -> None:
        engine = await started(world)
        caller = Caller(world, engine)
        world.database.refuse = lambda writes: WriteRefused("too long", is_bad_value=True) if writes.inserts else None
        (number,) = [int(name.partition("-")[2]) for name in await caller.put()]
        await world.pass_s(5 * WRITE_BACK_AFTER_S)
        store = store_of(engine.shards[1])
        assert isinstance(store, JournaledStore)
        row = store.memory.young_row(number)
        assert row is not None
        assert "does not hold its row" in (dead_reason(row) or "")
        assert (await caller.get()).items == []
        world.database.refuse = lambda writes: None
        assert await caller.apply([(1, Event(EventKind.REDRIVE, number, caller.namespace))]) == [None]
        assert len((await caller.get()).items) == 1
        await world.pass_s(2 * WRITE_BACK_AFTER_S)
        assert world.rows() == [("t", State.LEASED)]

    run_in_world(story)


def test_row_of_a_dead_item_that_was_given_up_is_tried_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_rows, "DUE_TIMES_OF_DEAD", 4)  # before the retention of dead items ends here

    async def story(world: World) -> None:
        engine = await started(world)
        caller = Caller(world, engine)
        world.database.refuse = lambda writes: WriteRefused("too long", is_bad_value=True) if writes.inserts else None
        await caller.put()
        await world.pass_s(5 * WRITE_BACK_AFTER_S)
        assert status_of(engine).refused == 1
        world.database.refuse = lambda writes: None
        await world.pass_s(5 * WRITE_BACK_AFTER_S)
        assert (world.rows(), status_of(engine).refused) == ([("t", State.DEAD)], 0)

    run_in_world(story)


def test_item_that_was_given_up_after_its_lease_had_ended_is_acked_with_its_last_token() -> None:
    async def story(world: World) -> None:
        engine = await started(world)
        caller = Caller(world, engine)
        (name,) = await caller.put()
        items = (await caller.get()).items
        world.database.refuse = lambda writes: WriteRefused("too long", is_bad_value=True) if writes.inserts else None
        await world.pass_s(61)
        store = store_of(engine.shards[1])
        assert isinstance(store, JournaledStore)
        row = store.memory.young_row(int(name.partition("-")[2]))
        assert row is not None
        assert "does not hold its row" in (dead_reason(row) or "")
        assert await caller.do(EventKind.ACK, items) == [None]
        assert status_of(engine).dirty_items == 0

    run_in_world(story)


def test_row_whose_deletion_is_refused_for_good_costs_an_idle_shard_a_flush_each_time_it_is_due() -> None:
    async def story(world: World) -> None:
        engine = await started(world)
        caller, writer = Caller(world, engine), writer_of(engine.shards[1])
        await caller.put(count=1)
        await world.pass_s(2 * WRITE_BACK_AFTER_S)
        world.database.refuse = lambda writes: "a row that cannot be deleted" if writes.deletes else None
        await caller.do(EventKind.ACK, (await caller.get()).items)
        await world.pass_s(2 * WRITE_BACK_AFTER_S)
        flush = writer.flush_number
        await world.pass_s(100 * WRITE_BACK_AFTER_S)
        assert 90 <= writer.flush_number - flush <= 110
        assert (status_of(engine).dirty_items, status_of(engine).rows) == (1, 1)

    run_in_world(story)


def test_full_disk_that_only_write_backs_meet_is_shown_as_if_flushes_met_it(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        engine = await started(world)
        shard = engine.shards[1]
        await Caller(world, engine).put(count=10)
        assert engine.is_ready
        world.database.refuse = lambda writes: (
            WriteRefused("the disk is full", is_full=True) if writes.inserts else None
        )
        await world.pass_s(2 * WRITE_BACK_AFTER_S)
        assert (engine.is_ready, shard.write_refusal) == (False, "the disk is full")
        refused = shard.snapshot().refused_writes
        assert refused > 0
        await world.pass_s(30)
        assert not engine.is_ready
        assert shard.snapshot().refused_writes > refused, "an alert would end although the disk is still full"
        assert [record.message for record in caplog.records if "no room" in record.message] == [
            "shard 1: the database has no room for rows that the journal owes, so new items will be refused: "
            "the disk is full"
        ]
        world.database.refuse = lambda writes: None
        await world.pass_s(2 * WRITE_BACK_AFTER_S)
        assert (engine.is_ready, shard.write_refusal) == (True, None)
        assert len(world.rows()) == 10

    run_in_world(story)


def test_idle_shard_whose_flushes_are_all_refused_asks_for_fewer_of_them() -> None:
    async def story(world: World) -> None:
        engine = await started(world)
        await Caller(world, engine).put(count=10)
        refusals = 0

        def refuse(writes: Writes) -> WriteRefused:
            nonlocal refusals
            refusals += 1
            return WriteRefused("the tables are read-only")

        world.database.refuse = refuse
        await world.pass_s(WRITE_BACK_AFTER_S + 100)
        assert 10 <= refusals <= 100
        world.database.refuse = lambda writes: None
        await world.pass_s(2 * WRITE_BACK_AFTER_S)
        assert len(world.rows()) == 10

    run_in_world(story)


def test_missing_payload_is_no_lost_connection_and_its_item_can_be_shown() -> None:
    async def story(world: World) -> None:
        (name,) = await Caller(world, await started(world)).put(count=1)
        (tables,) = world.database.tables.values()
        position = max(tables.journal)
        tables.journal[position] = tables.journal[position]._replace(payloads=(b"",))
        engine = await started(world)
        shard, number = engine.shards[1], int(name.partition("-")[2])
        with pytest.raises(Unavailable, match="lacks the payload of item"):
            await shard.queries.by_number("default", [number])
        await world.pass_s(WRITE_BACK_AFTER_S)
        (row,) = await shard.queries.by_number("default", [number])
        assert (row.payload, row.state) == (None, State.DEAD)
        assert "payload" in (dead_reason(row) or "")
        assert shard.snapshot().read_failures == 0

    run_in_world(story)


def test_item_whose_payload_the_journal_lacks_becomes_dead_and_its_shard_goes_on() -> None:
    async def story(world: World) -> None:
        await Caller(world, await started(world)).put(count=1)
        (tables,) = world.database.tables.values()
        position = max(tables.journal)
        tables.journal[position] = tables.journal[position]._replace(payloads=(b"",))
        engine = await started(world)
        caller, epoch = Caller(world, engine), tables.owner.epoch
        await caller.put("other", count=3)
        await world.pass_s(2 * WRITE_BACK_AFTER_S)
        status = status_of(engine)
        assert (status.dirty_items, status.refused, status.given_up) == (1, 1, ())
        assert (await caller.get()).items == []
        assert len((await caller.get("other", count=3)).items) == 3
        assert tables.owner.epoch == epoch, "the shard was acquired again"
        flush = writer_of(engine.shards[1]).flush_number
        await world.pass_s(20 * WRITE_BACK_AFTER_S)
        assert writer_of(engine.shards[1]).flush_number - flush <= 40, "the item costs an idle shard flushes"

    run_in_world(story)
